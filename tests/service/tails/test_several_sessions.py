"""Tails of several sessions."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.callers.producer import open_over_websocket
from tests.support.callers.rest import RestClient
from tests.support.callers.tail_reader import ONE, SEVERAL, Tail, TailEvent, entries, open_tail, refused_tail
from tests.support.events import delta, done, final, interrupt, partial
from tests.support.samples.history_reader import HistoryReader, exact_json
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

CALL = [
    partial(1, "Tell", 1), final(1, "Tell me a joke.", 2), delta(1, "Why did ", 3), delta(1, "the scarecrow", 4),
    interrupt(1, 5, heard_text="Why "), done(1, 6, text="Why did the scarecrow win?"), final(2, "Stop.", 7),
    delta(2, "All right.", 8), final(3, "Hm.", 9, segment=0), final(3, "", 10, segment=0), done(2, 11),
]  # fmt: skip
VIEWS = ("view=messages", "view=messages&open=true")


async def nothing_more(tail: Tail) -> None:
    """Wait until a tail that looks around often has found nothing several times."""
    heard, more = tail.comments, asyncio.create_task(tail.next())
    await eventually(True, lambda: asyncio.sleep(0, more.done() or tail.comments >= heard + 4))
    assert not more.done(), more.result()
    more.cancel()


async def test_several_sessions_are_told_whole(serve: Serve) -> None:
    """Those that run when the tail begins and those that start later are told from their first event to their end."""
    api = RestClient(await serve())
    for name in ("over", "running"):
        await api.create(name)
        await api.send(final(1, name), session_id=name)
    await api.end("over")
    async with open_tail(api, SEVERAL) as tail:
        told = await tail.some(1)
        await api.create("later")
        await api.send(final(1, "later"), final(2, "more"), session_id="later")
        told += await tail.some(2)
        await api.end("running")
        told += await tail.some(2)
        await api.send(final(3, "still"), session_id="later")
        told += await tail.some(1)
    expected = [("running", 1), ("later", 1), ("later", 2), ("running", 2), ("later", 3)]
    assert expected == entries(told)
    assert {"session_id": "running", "state": "ended", "reason": "api"} == told[4].data


FILTERS: dict[str, Callable[[str], bool]] = {
    "": lambda name: True,
    "?state=running": lambda name: True,
    "?user_id=u1": lambda name: name.startswith("u1"),
    "?label=desk:front": lambda name: name.endswith("front"),
    "?label=desk%3Dfront&user_id=u2": lambda name: name == "u2-front",
    "?user_id=nobody": lambda name: False,
}


@pytest.mark.parametrize("query", FILTERS)
async def test_filters_are_those_of_the_list(serve: Serve, query: str) -> None:
    """User, label and state choose the sessions, whether they run already or start later."""
    api = RestClient(await serve())
    names = [f"{user}-{desk}" for user in ("u1", "u2") for desk in ("front", "back")]

    async def begin(prefix: str) -> None:
        for name in names:
            user, desk = name.split("-")
            await api.create(f"{prefix}{name}", user_id=user, labels={"desk": desk})
            await api.send(final(1, name), session_id=f"{prefix}{name}")

    await begin("")
    expected = {f"{prefix}{name}" for prefix in ("", "later-") for name in names if FILTERS[query](name)}
    async with open_tail(api, SEVERAL + query) as tail:
        await begin("later-")
        told = await tail.some(len(expected))
        assert expected == {one.data["session_id"] for one in told}
        assert len(expected) == len(entries(told))


async def test_commits_wake_their_tails(api: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed is told at once, however seldom tails look around; what comes meanwhile comes right after."""
    monkeypatch.setattr("voicemem.sessions.tails.tail.POLL_S", 3600)
    monkeypatch.setattr("voicemem.sessions.tails.tail.TAIL_PAGE", 2)
    async with (
        open_tail(api) as tail,
        open_tail(api, SEVERAL) as several,
        open_tail(api, f"{ONE}?{VIEWS[0]}") as memory,
    ):
        await api.send(*CALL)
        assert [("s", at) for at in range(1, len(CALL) + 1)] == entries(await tail.some(len(CALL)))
        assert len(CALL) == len(entries(await several.some(len(CALL))))
        assert "Tell me a joke." == (await memory.some(1))[0].data["upserts"][0]["message"]["content"]
        await api.create("later")
        await api.send(final(1, "later"), session_id="later")
        assert [("later", 1)] == entries(await several.some(1))


@pytest.mark.usefixtures("often")
async def test_sessions_are_told_once_they_have_ended(serve: Serve) -> None:
    """With state=ended a session is told at its end, whole."""
    api = RestClient(await serve())
    for name in ("a", "b"):
        await api.create(name)
        await api.send(final(1, "One."), session_id=name)
    async with open_tail(api, f"{SEVERAL}?state=ended") as tail:
        await api.end("b")
        assert [("b", 1), ("b", 2)] == entries(await tail.some(3))
        await api.create("c")
        await api.end("c")
        assert [("c", 1)] == entries(await tail.some(2))
        await api.end("a")
        assert [("a", 1), ("a", 2)] == entries(await tail.some(3))
        await nothing_more(tail)


async def test_a_session_that_comes_to_match_is_told(serve: Serve) -> None:
    """A label that is set while a session runs brings it into the tail, with all that was before."""
    api = RestClient(await serve())
    await api.create("s")
    await api.create("newer", labels={"desk": "front"})
    await api.send(final(1, "One."))
    async with open_tail(api, f"{SEVERAL}?label=desk:front") as tail:
        await api.patch("/v1/sessions/s", {"labels": {"desk": "front"}})
        await api.send(final(2, "Two."))
        assert [("s", 1), ("s", 2), ("s", 3)] == entries(await tail.some(3))


async def test_several_sessions_are_resumed_at_every_place(serve: Serve) -> None:
    """From each place exactly the rest is told, of sessions that run, ended, or began meanwhile."""
    api = RestClient(await serve())
    for name in ("a", "b", "c"):
        await api.create(name)
    async with open_tail(api, SEVERAL) as tail:
        told: list[TailEvent] = []
        for turn, name in enumerate(("a", "b", "a", "c", "b"), 1):
            await api.send(final(turn, name), delta(turn, "Yes."), session_id=name)
            told += await tail.some(2)
        await api.end("b")
        told += await tail.some(2)
        await api.create("d")
        await api.send(final(1, "d"), session_id="d")
        told += await tail.some(1)
    await api.send(final(9, "late"), session_id="a")
    await api.create("brief")
    await api.end("brief")
    await api.delete("/v1/sessions/c")
    everything = [*((one.event, one.data["session_id"], one.data.get("position")) for one in told)]
    away = [("entry", "a", 5), ("entry", "brief", 1), ("end", "brief", None), ("end", "c", None)]
    for place, one in enumerate(told):
        expected = sorted(repr(x) for x in [*everything[place + 1 :], *away] if x[:2] != ("entry", "c"))
        async with open_tail(api, SEVERAL, one.id) as tail:
            found = await tail.some(len(expected))
        shown = [(x.event, x.data["session_id"], x.data.get("position")) for x in found]
        assert expected == sorted(map(repr, shown)), place


async def test_memories_of_several_sessions_are_those_of_the_history(serve: Serve) -> None:
    """The messages of many calls at once, with a reader that goes away in between."""
    api, reader, place = RestClient(await serve()), HistoryReader(), None
    names = ["a", "b", "c"]
    for name in names:
        await api.create(name)

    async def same() -> bool:
        return all([exact_json(await api.contents(name)) == exact_json(reader.shown(name)) for name in names])

    for begin in range(0, len(CALL), 2):
        async with open_tail(api, f"{SEVERAL}?view=messages", place) as tail:
            for name in names:
                await api.send(*CALL[begin : begin + 2], session_id=name)
            while not await same():
                (told,) = await tail.some(1)
                reader.take(told.data)
            place = tail.id


async def test_more_sessions_than_can_be_followed_wait(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many at the beginning are refused; those that begin later wait until others are over, and are told whole."""
    monkeypatch.setattr("voicemem.sessions.tails.several.MAX_FOLLOWED", 2)
    monkeypatch.setattr("voicemem.sessions.tails.several.MAX_FOLLOWED", 2)
    api = RestClient(await serve())
    for name in ("a", "b", "c"):
        await api.create(name)
    assert (409, "too_many_sessions") == await refused_tail(api, SEVERAL)
    await api.end("a")
    async with open_tail(api, SEVERAL) as tail:
        await api.create("d")
        await api.send(final(1, "d"), session_id="d")
        await api.send(final(1, "c"), session_id="c")
        told = await tail.some(1)
        await api.end("d")
        await api.end("b")
        told += await tail.some(5)
    assert {("c", 1), ("b", 1), ("d", 1), ("d", 2)} == set(entries(told))
    assert 4 == len(entries(told))


async def test_a_session_that_was_opened_over_the_websocket_is_found(app: App) -> None:
    """What no one rings for is found a little later: here a session without a single event, and its close."""
    api = RestClient(app)
    async with open_tail(api, SEVERAL) as tail:
        await open_over_websocket(app, "quiet", session={"idle_timeout": 0.1})
        assert [("quiet", 1)] == entries(await tail.some(1))
        assert "idle" == (await api.session("quiet"))["reason"]
