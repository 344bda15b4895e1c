"""Live tails over HTTP: nothing is missed or told twice, wherever a reader goes on."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.callers.tail_reader import ONE, SEVERAL, Tail, TailEvent, entries, open_tail, refused_tail
from tests.support.events import delta, done, final, interrupt, partial
from tests.support.profiles import examples
from tests.support.samples.history_reader import HistoryReader, exact_json
from tests.support.services import Serve, running_service
from tests.support.stores.failing import database_of
from tests.support.strategies import PRODUCER_EVENTS
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.store.sqlite.backup import back_up, restore_backup

CALL = [
    partial(1, "Tell", 1), final(1, "Tell me a joke.", 2), delta(1, "Why did ", 3), delta(1, "the scarecrow", 4),
    interrupt(1, 5, heard_text="Why "), done(1, 6, text="Why did the scarecrow win?"), final(2, "Stop.", 7),
    delta(2, "All right.", 8), final(3, "Hm.", 9, segment=0), final(3, "", 10, segment=0), done(2, 11),
]  # fmt: skip
VIEWS = ("view=messages", "view=messages&open=true")


async def nobody_tails(app: App) -> None:
    """Wait until the service has noticed that all readers are gone."""
    await eventually([], lambda: asyncio.sleep(0, app.services.recorder.feed.listeners))


async def test_events_are_told_as_they_are_journaled(api: RestClient) -> None:
    """What was there comes first, then each event as it is taken, up to the close, and then the tail ends."""
    await api.send(*CALL[:2])
    async with open_tail(api) as tail:
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


async def test_a_journal_is_resumed_at_every_position(api: RestClient) -> None:
    """From each position exactly what comes after it is told, and from the end nothing (204)."""
    await api.send(*CALL)
    await api.end()
    async with open_tail(api) as tail:
        whole = await tail.rest()
    for place in range(len(CALL)):
        async with open_tail(api, last_id=whole[place].id) as tail:
            assert whole[place + 1 :] == await tail.rest()
        async with open_tail(api, f"{ONE}?after={place}") as tail:
            assert whole[place:] == await tail.rest()
    assert 204 == (await api.get(ONE, {"Accept": "text/event-stream", "Last-Event-ID": whole[-1].id})).status


@pytest.mark.parametrize("view", VIEWS)
async def test_a_memory_is_resumed_at_every_position(api: RestClient, app: App, view: str) -> None:
    """At each position the reader has the history of that position, and goes on from it to the last one."""
    reader, stops = HistoryReader(), list[tuple[str, HistoryReader]]()
    async with open_tail(api, f"{ONE}?{view}") as tail:
        for one in CALL:
            await api.send(one)
            query = "?open=true" if "open" in view else ""
            history = await api.contents(query=query)
            while exact_json(history) != exact_json(reader.shown()):
                (told,) = await tail.some(1)
                reader.take(told.data)
                stops.append((told.id, reader.copy()))
        await api.end()
        for told in await tail.rest():
            if told.event == "messages":
                reader.take(told.data)
    history = await api.contents()
    assert exact_json(history) == exact_json(reader.shown())
    assert len(stops) > 3
    assert any(one["content"] == "Hm." for _, earlier in stops for one in earlier.shown())
    for place, earlier in stops:
        async with open_tail(api, f"{ONE}?{view}", place) as tail:
            for told in await tail.rest():
                if told.event == "messages":
                    earlier.take(told.data)
        assert exact_json(history) == exact_json(earlier.shown())


CHUNKS = st.lists(
    st.lists(PRODUCER_EVENTS.filter(lambda one: one["type"] != "session.end"), min_size=1, max_size=4), max_size=5
)


async def test_memories_of_any_events_are_those_of_the_history(serve: Serve) -> None:
    """Whatever producers send: at every position that is told, the reader has the history of that position."""
    app = await serve()
    loop = asyncio.get_running_loop()
    count = iter(range(1000))

    async def run(chunks: list[list[JsonObject]], unfinished: bool) -> None:
        api, name = RestClient(app), f"s{next(count)}"
        await api.create(name)
        path = f"/v1/sessions/{name}/events?view=messages" + ("&open=true" if unfinished else "")
        reader = HistoryReader()

        async def read(tail: Tail) -> None:
            while (told := await tail.next()) is not None:
                if told.event == "messages":
                    reader.take(told.data)
                    await compare(app, name, told, reader, unfinished)

        async with open_tail(api, path) as tail:
            reading = asyncio.create_task(read(tail))
            for chunk in chunks:
                await api.send(*chunk, session_id=name)
            await api.end(name)
            await reading
        assert exact_json(await api.contents(name)) == exact_json(reader.shown(name))

    @examples(1 / 8)
    @given(CHUNKS, st.booleans())
    def check(chunks: list[list[JsonObject]], unfinished: bool) -> None:
        asyncio.run_coroutine_threadsafe(run(chunks, unfinished), loop).result(60)

    await asyncio.to_thread(check)


async def compare(app: App, name: str, told: TailEvent, reader: HistoryReader, unfinished: bool) -> None:
    """Hold what a reader has to the history of the position that it was told."""
    stream = await app.services.store.journal.find_session("default", name)
    assert stream is not None
    read_model = await app.services.read_models.load_as_of(stream.key, told.data["position"])
    expected = json.loads(msgspec.json.encode(read_model.messages(unfinished)))
    assert exact_json(expected) == exact_json(reader.shown(name))


async def test_a_session_that_may_come_back_is_followed_on(serve: Serve) -> None:
    """An idle close is no end: the tail goes on with the reopening, and ends when the session is closed for good."""
    api = RestClient(await serve())
    await api.create(idle_timeout=0.2)
    async with open_tail(api) as tail:
        (told,) = await tail.some(1)
        assert "session.closed" == told.data["event"]["type"]
        await api.send(final(1, "Still here."))
        back = await tail.some(2)
        assert ["session.reopened", "asr"] == [one.data["event"]["type"] for one in back]
        await api.end()
        assert ["entry", "end"] == [one.event for one in await tail.rest()]


async def test_an_erased_session_ends_its_tail(api: RestClient) -> None:
    """Erased in the middle of a tail: it says so, tells nothing more, and cannot be resumed."""
    await api.send(*CALL)
    async with open_tail(api) as tail:
        told = await tail.some(len(CALL))
        await api.delete("/v1/sessions/s")
        assert [("end", {"session_id": "s", "state": "erased", "reason": None})] == [
            one[1:] for one in await tail.rest()
        ]
    assert (404, "unknown_session") == await refused_tail(api, last_id=told[3].id)


async def test_a_drain_ends_tails_with_a_hint_and_the_next_process_goes_on(tmp_path: Path) -> None:
    """On shutdown the tail says why it ends and when to try again; the next process goes on at its place."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    async with running_service(store=store) as app:
        api = RestClient(app)
        await api.create()
        await api.send(*CALL[:3])
        async with open_tail(api) as tail, open_tail(api, SEVERAL) as several:
            told = [*await tail.some(3), *await several.some(3)]
            async with asyncio.timeout(20):
                await app.stop()
            ends = [await tail.rest(), await several.rest()]
    assert [["goaway"], ["goaway"]] == [[one.event for one in end] for end in ends]
    assert "draining" == ends[0][0].data["reason"]
    assert (1000, told[2].id, told[5].id) == (tail.retry, tail.id, several.id)
    async with running_service(store=store) as app:
        api = RestClient(app)
        await api.send(*CALL[3:])
        await api.end()
        rest = [("s", position) for position in range(4, len(CALL) + 2)]
        async with open_tail(api, last_id=tail.id) as tail:
            assert rest == entries(await tail.rest())
        async with open_tail(api, SEVERAL, several.id) as several:
            assert rest == entries(await several.some(len(rest)))


async def test_places_of_another_incarnation_are_told_apart(tmp_path: Path) -> None:
    """After a restore from a backup positions mean something else: a place of before is refused with its own code."""
    path, copy = str(tmp_path / "calls.db"), str(tmp_path / "copy.db")
    places = []
    async with running_service(store=f"sqlite:{path}") as app:
        api = RestClient(app)
        await api.create()
        await api.send(*CALL)
        for where in (ONE, SEVERAL):
            async with open_tail(api, where) as tail:
                places.append((await tail.some(len(CALL)))[3].id)
    back_up(path, copy, False, lambda *_: None)
    restore_backup(copy, path, True, lambda *_: None)
    async with running_service(store=f"sqlite:{path}") as app:
        api = RestClient(app)
        assert [(409, "other_incarnation")] * 2 == [
            await refused_tail(api, where, place) for where, place in zip((ONE, SEVERAL), places, strict=True)
        ]
        async with open_tail(api) as tail:
            assert len(CALL) == len(entries(await tail.some(len(CALL))))


async def test_what_is_no_place_of_this_tail_is_refused(api: RestClient, app: App) -> None:
    """Garbage, a place of another session, one beyond the end, and one of the other kind of tail."""
    await api.create("other")
    here = app.services.store.directory.incarnation
    for place in ("7", "ü", f"{here}.1-1", f"{here}.2-0", f"{here}.1_1-0", f"{here}.1-{10**15}"):
        assert (400, "invalid_position") == await refused_tail(api, last_id=place), place
    for place in ("7", f"{here}.1-0", f"{here}.1_1-5"):
        assert (400, "invalid_position") == await refused_tail(api, SEVERAL, place), place


async def test_a_tail_is_asked_for_by_name(api: RestClient) -> None:
    """Without the media type there is no tail; what belongs to the other kind of answer is refused."""
    assert (406, "not_acceptable") == (await api.get(SEVERAL)).problem
    assert (406, "not_acceptable") == (await api.get(f"{ONE}?view=messages")).problem
    assert (406, "not_acceptable") == (await api.get(f"{ONE}?open=true")).problem
    assert (400, "invalid_query") == await refused_tail(api, f"{ONE}?limit=3")
    assert (400, "invalid_query") == await refused_tail(api, f"{ONE}?view=all")
    assert (400, "invalid_query") == await refused_tail(api, f"{SEVERAL}?after=3")
    assert (404, "unknown_session") == await refused_tail(api, "/v1/sessions/none/events")


@pytest.mark.usefixtures("often")
async def test_a_quiet_tail_is_kept_alive(api: RestClient) -> None:
    """While nothing happens comments keep the connection open; the tail is none the worse for them."""
    async with open_tail(api) as tail:
        first = asyncio.create_task(tail.next())
        await eventually(True, lambda: asyncio.sleep(0, tail.comments >= 2))
        await api.send(final(1, "At last."))
        told = await first
        assert told is not None
        assert 1 == told.data["position"]


async def test_nobody_is_told_when_nobody_tails(api: RestClient, app: App) -> None:
    """Commits tell of themselves while there is a tail; a reader that has gone is noticed without anything to tell."""
    listeners = app.services.recorder.feed.listeners
    assert [] == listeners
    async with open_tail(api), open_tail(api, SEVERAL) as tail:
        await api.send(final(1, "One."))
        await tail.some(1)
        assert 1 == len(listeners)
    await nobody_tails(app)


async def test_a_revoked_key_ends_its_tails(serve: Serve) -> None:
    """A key that is revoked in the middle of a tail is told so, and gets nothing more; others go on."""
    app = await serve()
    admin, reader = await client_with_key(app, "admin"), RestClient(app, key := await make_key(app, "read"))
    await admin.create()
    async with open_tail(reader) as tail, open_tail(admin) as other:
        await admin.send(final(1, "One."))
        await tail.some(1)
        await app.services.store.directory.revoke_key(key.split("_")[1], 1)
        assert [("error", "unauthorized")] == [(one.event, one.data["reason"]) for one in await tail.rest()]
        await admin.send(final(2, "Two."))
        assert 2 == (await other.some(2))[-1].data["position"]


async def test_scopes_and_projects_hold(serve: Serve) -> None:
    """A tail needs the scope read, and sees its own project only."""
    app = await serve()
    admin, stranger = await client_with_key(app, "admin"), await client_with_key(app, "admin", project="other")
    await admin.create()
    assert (403, "forbidden") == await refused_tail(await client_with_key(app, "ingest"), SEVERAL)
    assert (404, "unknown_session") == await refused_tail(stranger)
    async with open_tail(stranger, SEVERAL) as tail:
        await admin.send(final(1, "Ours."))
        await stranger.create()
        await stranger.send(final(1, "Theirs."))
        assert "Theirs." == (await tail.some(1))[0].data["event"]["text"]


async def test_a_store_in_trouble_ends_a_tail(api: RestClient, app: App) -> None:
    """What the store cannot read any more is told as an error; the reader comes back later with its place."""
    await api.send(*CALL[:2])
    async with open_tail(api) as tail:
        await tail.some(2)
        stream = await app.services.store.journal.find_session("default", "s")
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

    def job(connection: Any) -> None:
        connection.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)  # which a store has turned off
        connection.execute(trigger)

    await database_of(app).write(job)


async def test_a_memory_that_is_resumed_is_not_told_again(api: RestClient) -> None:
    """From the newest position only what comes later is told."""
    await api.send(*CALL)
    async with open_tail(api, f"{ONE}?view=messages") as tail:
        place = (await tail.some(1))[0].id
    await api.send(final(4, "More."))
    async with open_tail(api, f"{ONE}?view=messages", place) as tail:
        (told,) = await tail.some(1)
    assert ["More."] == [upsert["message"]["content"] for upsert in told.data["upserts"]]
