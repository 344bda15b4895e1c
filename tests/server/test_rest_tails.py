"""Live tails over HTTP: nothing is missed or told twice, wherever a reader goes on."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from callers import Caller, JsonObject, Serve, keyed, make_key, opening, service, until
from calls import PRODUCED, delta, done, final, interrupt, partial
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from producers import database_of
from tailing import ONE, SEVERAL, Reader, Tail, Told, entries, plain, refused, tailing

from voicemem.app import App
from voicemem.server.rest import tails
from voicemem.store.sqlite.backup import back_up, restore

CALL = [
    partial(1, "Tell", 1), final(1, "Tell me a joke.", 2), delta(1, "Why did ", 3), delta(1, "the scarecrow", 4),
    interrupt(1, 5, heard_text="Why "), done(1, 6, text="Why did the scarecrow win?"), final(2, "Stop.", 7),
    delta(2, "All right.", 8), final(3, "Hm.", 9, segment=0), final(3, "", 10, segment=0), done(2, 11),
]  # fmt: skip
VIEWS = ("view=messages", "view=messages&open=true")


@pytest.fixture
async def app(serve: Serve) -> App:
    return await serve()


@pytest.fixture
async def api(app: App) -> Caller:
    """A caller of a service with one empty session."""
    caller = Caller(app)
    await caller.create()
    return caller


async def nobody_tails(app: App) -> None:
    """Wait until the service has noticed that all readers are gone."""
    await until([app.services.summaries.on_commit], lambda: asyncio.sleep(0, app.services.recorder.feed.listeners))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails look around, and say that there is nothing new, many times a second."""
    monkeypatch.setattr("voicemem.sessions.tails.session.POLL_S", 0.05)
    monkeypatch.setattr(tails, "KEEP_ALIVE_S", 0.05)


async def nothing_more(tail: Tail) -> None:
    """Wait until a tail that looks around often has found nothing several times."""
    heard, more = tail.comments, asyncio.create_task(tail.next())
    await until(True, lambda: asyncio.sleep(0, more.done() or tail.comments >= heard + 4))
    assert not more.done(), more.result()
    more.cancel()


# One session


async def test_events_are_told_as_they_are_journaled(api: Caller) -> None:
    """What was there comes first, then each event as it is taken, up to the close, and then the tail ends."""
    await api.send(*CALL[:2])
    async with tailing(api) as tail:
        told = await tail.some(2)
        for one in CALL[2:]:
            await api.send(one)
            told += await tail.some(1)
        await api.end(reason="hangup")
        told += await tail.rest()
    assert 1000 == tail.retry
    journal = await api.journal()
    assert [{"session_id": "s", **row} for row in journal] == [one.data for one in told[:-1]]
    assert ("end", {"session_id": "s", "state": "ended", "reason": "hangup"}) == told[-1][1:]
    assert len(told) == len({one.id for one in told}) + 1


async def test_a_journal_is_resumed_at_every_position(api: Caller) -> None:
    """From each position exactly what comes after it is told, and from the end nothing (204)."""
    await api.send(*CALL)
    await api.end()
    async with tailing(api) as tail:
        whole = await tail.rest()
    for place in range(len(CALL)):
        async with tailing(api, last_id=whole[place].id) as tail:
            assert whole[place + 1 :] == await tail.rest()
        async with tailing(api, f"{ONE}?after={place}") as tail:
            assert whole[place:] == await tail.rest()
    assert 204 == (await api.get(ONE, {"Accept": "text/event-stream", "Last-Event-ID": whole[-1].id})).status


@pytest.mark.parametrize("view", VIEWS)
async def test_a_memory_is_resumed_at_every_position(api: Caller, app: App, view: str) -> None:
    """At each position the reader has the history of that position, and goes on from it to the last one."""
    reader, stops = Reader(), list[tuple[str, Reader]]()
    async with tailing(api, f"{ONE}?{view}") as tail:
        for one in CALL:
            await api.send(one)
            query = "?open=true" if "open" in view else ""
            history = await api.contents(query=query)
            while plain(history) != plain(reader.shown()):
                (told,) = await tail.some(1)
                reader.take(told.data)
                stops.append((told.id, reader.copy()))
        await api.end()
        for told in await tail.rest():
            if told.event == "messages":
                reader.take(told.data)
    history = await api.contents()
    assert plain(history) == plain(reader.shown())
    assert len(stops) > 3
    assert any(one["content"] == "Hm." for _, earlier in stops for one in earlier.shown())
    for place, earlier in stops:
        async with tailing(api, f"{ONE}?{view}", place) as tail:
            for told in await tail.rest():
                if told.event == "messages":
                    earlier.take(told.data)
        assert plain(history) == plain(earlier.shown())


CHUNKS = st.lists(
    st.lists(PRODUCED.filter(lambda one: one["type"] != "session.end"), min_size=1, max_size=4), max_size=5
)


async def test_memories_of_any_events_are_those_of_the_history(serve: Serve) -> None:
    """Whatever producers send: at every position that is told, the reader has the history of that position."""
    app = await serve()
    loop = asyncio.get_running_loop()
    count = iter(range(1000))

    async def run(chunks: list[list[JsonObject]], unfinished: bool) -> None:
        api, name = Caller(app), f"s{next(count)}"
        await api.create(name)
        path = f"/v1/sessions/{name}/events?view=messages" + ("&open=true" if unfinished else "")
        reader = Reader()

        async def read(tail: Tail) -> None:
            while (told := await tail.next()) is not None:
                if told.event == "messages":
                    reader.take(told.data)
                    await compare(app, name, told, reader, unfinished)

        async with tailing(api, path) as tail:
            reading = asyncio.create_task(read(tail))
            for chunk in chunks:
                await api.send(*chunk, session_id=name)
            await api.end(name)
            await reading
        assert plain(await api.contents(name)) == plain(reader.shown(name))

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(CHUNKS, st.booleans())
    def check(chunks: list[list[JsonObject]], unfinished: bool) -> None:
        asyncio.run_coroutine_threadsafe(run(chunks, unfinished), loop).result(60)

    await asyncio.to_thread(check)


async def compare(app: App, name: str, told: Told, reader: Reader, unfinished: bool) -> None:
    """Hold what a reader has to the history of the position that it was told."""
    stream = await app.services.store.stream("default", name)
    assert stream is not None
    memory = await app.services.memories.load(stream.key, told.data["position"])
    await app.services.memories.catch_up(stream.key, memory, told.data["position"])
    expected = json.loads(msgspec.json.encode(memory.messages(unfinished)))
    assert plain(expected) == plain(reader.shown(name))


async def test_a_session_that_may_come_back_is_followed_on(serve: Serve) -> None:
    """An idle close is no end: the tail goes on with the reopening, and ends when the session is closed for good."""
    api = Caller(await serve())
    await api.create(idle_timeout=0.2)
    async with tailing(api) as tail:
        (told,) = await tail.some(1)
        assert "session.closed" == told.data["event"]["type"]
        await api.send(final(1, "Still here."))
        back = await tail.some(2)
        assert ["session.reopened", "asr"] == [one.data["event"]["type"] for one in back]
        await api.end()
        assert ["entry", "end"] == [one.event for one in await tail.rest()]


async def test_an_erased_session_ends_its_tail(api: Caller) -> None:
    """Erased in the middle of a tail: it says so, tells nothing more, and cannot be resumed."""
    await api.send(*CALL)
    async with tailing(api) as tail:
        told = await tail.some(len(CALL))
        await api.delete("/v1/sessions/s")
        assert [("end", {"session_id": "s", "state": "erased", "reason": None})] == [
            one[1:] for one in await tail.rest()
        ]
    assert (404, "unknown_session") == await refused(api, last_id=told[3].id)


async def test_a_drain_ends_tails_with_a_hint_and_the_next_process_goes_on(tmp_path: Path) -> None:
    """On shutdown the tail says why it ends and when to try again; the next process goes on at its place."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    async with service(store=store) as app:
        api = Caller(app)
        await api.create()
        await api.send(*CALL[:3])
        async with tailing(api) as tail, tailing(api, SEVERAL) as several:
            told = [*await tail.some(3), *await several.some(3)]
            async with asyncio.timeout(20):
                await app.stop()
            ends = [await tail.rest(), await several.rest()]
    assert [["goaway"], ["goaway"]] == [[one.event for one in end] for end in ends]
    assert "draining" == ends[0][0].data["reason"]
    assert (1000, told[2].id, told[5].id) == (tail.retry, tail.id, several.id)
    async with service(store=store) as app:
        api = Caller(app)
        await api.send(*CALL[3:])
        await api.end()
        rest = [("s", position) for position in range(4, len(CALL) + 2)]
        async with tailing(api, last_id=tail.id) as tail:
            assert rest == entries(await tail.rest())
        async with tailing(api, SEVERAL, several.id) as several:
            assert rest == entries(await several.some(len(rest)))


async def test_places_of_another_incarnation_are_told_apart(tmp_path: Path) -> None:
    """After a restore from a backup positions mean something else: a place of before is refused with its own code."""
    path, copy = str(tmp_path / "calls.db"), str(tmp_path / "copy.db")
    places = []
    async with service(store=f"sqlite:{path}") as app:
        api = Caller(app)
        await api.create()
        await api.send(*CALL)
        for where in (ONE, SEVERAL):
            async with tailing(api, where) as tail:
                places.append((await tail.some(len(CALL)))[3].id)
    back_up(path, copy, False, lambda *_: None)
    restore(copy, path, True, lambda *_: None)
    async with service(store=f"sqlite:{path}") as app:
        api = Caller(app)
        assert [(409, "other_incarnation")] * 2 == [
            await refused(api, where, place) for where, place in zip((ONE, SEVERAL), places, strict=True)
        ]
        async with tailing(api) as tail:
            assert len(CALL) == len(entries(await tail.some(len(CALL))))


async def test_what_is_no_place_of_this_tail_is_refused(api: Caller, app: App) -> None:
    """Garbage, a place of another session, one beyond the end, and one of the other kind of tail."""
    await api.create("other")
    here = app.services.store.incarnation
    for place in ("7", "ü", f"{here}.1-1", f"{here}.2-0", f"{here}.1_1-0", f"{here}.1-{10**15}"):
        assert (400, "invalid_position") == await refused(api, last_id=place), place
    for place in ("7", f"{here}.1-0", f"{here}.1_1-5"):
        assert (400, "invalid_position") == await refused(api, SEVERAL, place), place


async def test_a_tail_is_asked_for_by_name(api: Caller) -> None:
    """Without the media type there is no tail; what belongs to the other kind of answer is refused."""
    assert (406, "not_acceptable") == (await api.get(SEVERAL)).told
    assert (406, "not_acceptable") == (await api.get(f"{ONE}?view=messages")).told
    assert (406, "not_acceptable") == (await api.get(f"{ONE}?open=true")).told
    assert (400, "invalid_query") == await refused(api, f"{ONE}?limit=3")
    assert (400, "invalid_query") == await refused(api, f"{ONE}?view=all")
    assert (400, "invalid_query") == await refused(api, f"{SEVERAL}?after=3")
    assert (404, "unknown_session") == await refused(api, "/v1/sessions/none/events")


@pytest.mark.usefixtures("often")
async def test_a_quiet_tail_is_kept_alive(api: Caller) -> None:
    """While nothing happens comments keep the connection open; the tail is none the worse for them."""
    async with tailing(api) as tail:
        first = asyncio.create_task(tail.next())
        await until(True, lambda: asyncio.sleep(0, tail.comments >= 2))
        await api.send(final(1, "At last."))
        told = await first
        assert told is not None
        assert 1 == told.data["position"]


async def test_nobody_is_told_when_nobody_tails(api: Caller, app: App) -> None:
    """Commits tell of themselves while there is a tail; a reader that has gone is noticed without anything to tell."""
    assert [app.services.summaries.on_commit] == app.services.recorder.feed.listeners
    async with tailing(api), tailing(api, SEVERAL) as tail:
        await api.send(final(1, "One."))
        await tail.some(1)
        assert 2 == len(app.services.recorder.feed.listeners)
    await nobody_tails(app)


async def test_a_revoked_key_ends_its_tails(serve: Serve) -> None:
    """A key that is revoked in the middle of a tail is told so, and gets nothing more; others go on."""
    app = await serve()
    admin, reader = await keyed(app, "admin"), Caller(app, key := await make_key(app, "read"))
    await admin.create()
    async with tailing(reader) as tail, tailing(admin) as other:
        await admin.send(final(1, "One."))
        await tail.some(1)
        await app.services.store.revoke_key(key.split("_")[1], 1)
        assert [("error", "unauthorized")] == [(one.event, one.data["reason"]) for one in await tail.rest()]
        await admin.send(final(2, "Two."))
        assert 2 == (await other.some(2))[-1].data["position"]


async def test_scopes_and_projects_hold(serve: Serve) -> None:
    """A tail needs the scope read, and sees its own project only."""
    app = await serve()
    admin, stranger = await keyed(app, "admin"), await keyed(app, "admin", project="other")
    await admin.create()
    assert (403, "forbidden") == await refused(await keyed(app, "ingest"), SEVERAL)
    assert (404, "unknown_session") == await refused(stranger)
    async with tailing(stranger, SEVERAL) as tail:
        await admin.send(final(1, "Ours."))
        await stranger.create()
        await stranger.send(final(1, "Theirs."))
        assert "Theirs." == (await tail.some(1))[0].data["event"]["text"]


async def test_a_store_in_trouble_ends_a_tail(api: Caller, app: App) -> None:
    """What the store cannot read any more is told as an error; the reader comes back later with its place."""
    await api.send(*CALL[:2])
    async with tailing(api) as tail:
        await tail.some(2)
        stream = await app.services.store.stream("default", "s")
        assert stream is not None
        await damage(app, stream.key)
        await api.send(CALL[2])
        (told,) = await tail.rest()
        assert ("error", "store_unavailable") == (told.event, told.data["reason"])


async def damage(app: App, key: int) -> None:
    """Change a byte of whatever is written into a journal from now on."""
    trigger = (
        "create trigger damaged after insert on journal begin"
        f" update journal set payload = x'00' where stream = {key} and position = new.position; end"
    )
    await database_of(app).write(lambda connection: connection.execute(trigger))


async def test_a_memory_that_is_resumed_is_not_told_again(api: Caller) -> None:
    """From the newest position only what comes later is told."""
    await api.send(*CALL)
    async with tailing(api, f"{ONE}?view=messages") as tail:
        place = (await tail.some(1))[0].id
    await api.send(final(4, "More."))
    async with tailing(api, f"{ONE}?view=messages", place) as tail:
        (told,) = await tail.some(1)
    assert ["More."] == [upsert["message"]["content"] for upsert in told.data["upserts"]]


# Several sessions


async def test_several_sessions_are_told_whole(serve: Serve) -> None:
    """Those that run when the tail begins and those that start later are told from their first event to their end."""
    api = Caller(await serve())
    for name in ("over", "running"):
        await api.create(name)
        await api.send(final(1, name), session_id=name)
    await api.end("over")
    async with tailing(api, SEVERAL) as tail:
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
    api = Caller(await serve())
    names = [f"{user}-{desk}" for user in ("u1", "u2") for desk in ("front", "back")]

    async def begin(prefix: str) -> None:
        for name in names:
            user, desk = name.split("-")
            await api.create(f"{prefix}{name}", user_id=user, labels={"desk": desk})
            await api.send(final(1, name), session_id=f"{prefix}{name}")

    await begin("")
    expected = {f"{prefix}{name}" for prefix in ("", "later-") for name in names if FILTERS[query](name)}
    async with tailing(api, SEVERAL + query) as tail:
        await begin("later-")
        told = await tail.some(len(expected))
        assert expected == {one.data["session_id"] for one in told}
        assert len(expected) == len(entries(told))


async def test_commits_wake_their_tails(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed is told at once, however seldom tails look around; what comes meanwhile comes right after."""
    monkeypatch.setattr("voicemem.sessions.tails.session.POLL_S", 3600)
    monkeypatch.setattr("voicemem.sessions.tails.session.TAIL_PAGE", 2)
    async with tailing(api) as tail, tailing(api, SEVERAL) as several, tailing(api, f"{ONE}?{VIEWS[0]}") as memory:
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
    api = Caller(await serve())
    for name in ("a", "b"):
        await api.create(name)
        await api.send(final(1, "One."), session_id=name)
    async with tailing(api, f"{SEVERAL}?state=ended") as tail:
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
    api = Caller(await serve())
    await api.create("s")
    await api.create("newer", labels={"desk": "front"})
    await api.send(final(1, "One."))
    async with tailing(api, f"{SEVERAL}?label=desk:front") as tail:
        await api.patch("/v1/sessions/s", {"labels": {"desk": "front"}})
        await api.send(final(2, "Two."))
        assert [("s", 1), ("s", 2), ("s", 3)] == entries(await tail.some(3))


async def test_several_sessions_are_resumed_at_every_place(serve: Serve) -> None:
    """From each place exactly the rest is told, of sessions that run, ended, or began meanwhile."""
    api = Caller(await serve())
    for name in ("a", "b", "c"):
        await api.create(name)
    async with tailing(api, SEVERAL) as tail:
        told: list[Told] = []
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
        async with tailing(api, SEVERAL, one.id) as tail:
            found = await tail.some(len(expected))
        shown = [(x.event, x.data["session_id"], x.data.get("position")) for x in found]
        assert expected == sorted(map(repr, shown)), place


async def test_memories_of_several_sessions_are_those_of_the_history(serve: Serve) -> None:
    """The messages of many calls at once, with a reader that goes away in between."""
    api, reader, place = Caller(await serve()), Reader(), None
    names = ["a", "b", "c"]
    for name in names:
        await api.create(name)

    async def same() -> bool:
        return all([plain(await api.contents(name)) == plain(reader.shown(name)) for name in names])

    for begin in range(0, len(CALL), 2):
        async with tailing(api, f"{SEVERAL}?view=messages", place) as tail:
            for name in names:
                await api.send(*CALL[begin : begin + 2], session_id=name)
            while not await same():
                (told,) = await tail.some(1)
                reader.take(told.data)
            place = tail.id


async def test_more_sessions_than_can_be_followed_wait(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many at the beginning are refused; those that begin later wait until others are over, and are told whole."""
    monkeypatch.setattr("voicemem.sessions.tails.several.MAX_FOLLOWED", 2)
    monkeypatch.setattr("voicemem.sessions.tails.hub.MAX_FOLLOWED", 2)
    api = Caller(await serve())
    for name in ("a", "b", "c"):
        await api.create(name)
    assert (409, "too_many_sessions") == await refused(api, SEVERAL)
    await api.end("a")
    async with tailing(api, SEVERAL) as tail:
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
    """What nobody rings for is found a little later: here a session without a single event, and its close."""
    api = Caller(app)
    async with tailing(api, SEVERAL) as tail:
        await opening(app, "quiet", session={"idle_timeout": 0.1})
        assert [("quiet", 1)] == entries(await tail.some(1))
        assert "idle" == (await api.session("quiet"))["reason"]
