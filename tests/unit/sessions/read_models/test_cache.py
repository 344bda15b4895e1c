"""Fold states at hand: whatever is cached, saved or forgotten, a read is the fold of its journal."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Sequence
from functools import partial
from itertools import zip_longest
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import LARGE_TEXT, delta, done, final
from tests.support.frames import decode_frame
from tests.support.profiles import examples, seeds
from tests.support.stores.contract import append_batch as append_offers
from tests.support.stores.contract import close
from tests.support.strategies import PRODUCER_EVENTS
from voicemem.config.session import SessionPatch
from voicemem.errors import StoreUnavailable
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import JournaledEvent, MemoryDocument
from voicemem.protocol.types import JsonObject
from voicemem.runtime import MemoryBudget, Runtime
from voicemem.sessions.read_models.cache import FLOOD, FOLD_PAGE, MAX_LAG, SNAPSHOT_EVERY, ReadModelCache
from voicemem.sessions.read_models.maintenance import (
    IDLE_ROUNDS,
    PRESSURE_ROUNDS,
    catch_up_lagging,
    fold_committed,
    maintain,
    relieve_forever,
    save_all,
)
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.append_rules import AppendResult, Offer
from voicemem.store.records import DisconnectedProducer, Snapshot
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.store.streams import ClosedSession, SessionEnding, Stream
from voicemem.telemetry import Telemetry
from voicemem.transcript import history
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import open_messages
from voicemem.transcript.messages import Message
from voicemem.transcript.state import SNAPSHOT_VERSION, State

NOW = 1_778_390_400_000
numbers = itertools.count()
on_one_store = examples(0.3)
TALK = st.lists(PRODUCER_EVENTS.filter(lambda event: event["type"] != "session.end"), max_size=12)
"""What a producer can send while a call runs."""


@pytest.fixture
def read_models(store: InMemoryStore) -> ReadModelCache:
    """Nothing is cached yet."""
    return ReadModelCache(store)


async def begin(store: InMemoryStore) -> Stream:
    """A new session."""
    name = f"s{next(numbers)}"
    return (await store.journal.open_producer("p", name, "main", SessionPatch({}, {}), None, NOW)).stream


async def append(store: InMemoryStore, stream: Stream, *events: JsonObject) -> AppendResult:
    """Journal events; what is appended is not noted anywhere."""
    offers = [Offer(None, NOW, msgspec.json.encode(event)) for event in events]
    appended = await append_offers(store.journal, stream.key, "main", None, offers, NOW)
    assert not [outcome.code for outcome in appended.outcomes if outcome.code]
    stream.position = appended.stream.position
    return appended


def note(read_models: ReadModelCache, stream: Stream, entries: list[DecodedRow]) -> None:
    """Note entries one after the other, and fold them."""
    add(read_models, stream, entries)
    read_models.find(stream.key)


def add(read_models: ReadModelCache, stream: Stream, entries: list[DecodedRow]) -> None:
    """Note entries one after the other, which are to be folded later."""
    for entry in entries:
        read_models.add_committed(stream.key, entry.position, entry.received_ms, [entry.event], entry.producer)


async def journal(store: InMemoryStore, stream: Stream) -> list[DecodedRow]:
    """All entries, read again."""
    rows = await store.journal.read_rows(stream.key, 0, 100_000)
    return [DecodedRow(row.position, row.received_ms, decode_journaled(row.payload), row.producer) for row in rows]


async def from_scratch(store: InMemoryStore, stream: Stream, position: int = 2**53) -> list[Message]:
    """The memory as the fold of the journal up to a position."""
    given = [entry for entry in await journal(store, stream) if entry.position <= position]
    return history.messages(fold_all(State(), given))


def decoded(event: JsonObject) -> JournaledEvent:
    return decode_journaled(msgspec.json.encode(event))


def talk(count: int) -> list[JsonObject]:
    """A call of so many events."""
    return [final(n, f"Utterance {n}.", n) if n % 2 else delta(n, f"Reply {n}.", n) for n in range(count)]


@on_one_store
@given(events=TALK)
async def test_every_read_is_the_fold_of_the_journal(store: InMemoryStore, events: list[JsonObject]) -> None:
    """After each append a cached memory, a fresh one, and a fold from scratch say the same."""
    stream, cached = await begin(store), ReadModelCache(store)
    for event in events:
        await append(store, stream, event)
        expected = await from_scratch(store, stream)
        assert expected == (await cached.get(stream)).messages()
        assert expected == (await ReadModelCache(store).get(stream)).messages()


@on_one_store
@given(events=TALK)
async def test_what_is_noted_is_what_would_be_read(store: InMemoryStore, events: list[JsonObject]) -> None:
    """Entries folded as they are committed give the same as entries that are read later."""
    stream, read_models = await begin(store), ReadModelCache(store)
    await read_models.get(stream)
    for event in events:
        await append(store, stream, event)
        note(read_models, stream, (await journal(store, stream))[-1:])
        assert stream.position == read_models.cached[stream.key].state.position
    assert await from_scratch(store, stream) == read_models.cached[stream.key].messages()


@on_one_store
@given(events=TALK, steps=st.lists(st.sampled_from(["add", "skip", "read", "journal", "round", "pack"]), max_size=12))
async def test_committed_events_are_folded_once(
    store: InMemoryStore, events: list[JsonObject], steps: list[str]
) -> None:
    """Whatever is folded when they come, read from the journal, packed or never noted: a read has each of them once."""
    stream, read_models = await begin(store), ReadModelCache(store)
    read_model = await read_models.get(stream)
    for event, step in zip_longest(events, steps[: len(events)], fillvalue="add"):
        await append(store, stream, cast(JsonObject, event))
        if step != "skip":
            add(read_models, stream, (await journal(store, stream))[-1:])
        if step == "journal":  # as a read that began before it was committed
            await read_models.catch_up(stream.key, read_model, stream.position)
        elif step == "round":
            await fold_committed(read_models)
        elif step == "pack":
            read_model.pack()
        elif step == "read":
            assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


async def test_committed_events_wait_for_a_read_or_a_round(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """They are folded together; a read as of a position before them leaves them waiting."""
    stream = await begin(store)
    read_model = await read_models.get(stream)
    await append(store, stream, *talk(4))
    add(read_models, stream, await journal(store, stream))
    assert 0 == read_model.position
    assert await from_scratch(store, stream, 2) == await read_models.compute_as_of(stream.key, 2, ReadModel.messages)
    assert 2 == read_model.position
    await fold_committed(read_models)
    assert (4, []) == (read_model.position, read_model.waiting)
    assert not read_models.to_fold


async def test_a_session_that_is_read_is_ready_again_after_each_event(
    store: InMemoryStore, read_models: ReadModelCache
) -> None:
    """Few events are folded by the read itself, without waiting, and however many come between reads are no flood."""
    stream = await begin(store)
    await append(store, stream, *talk(4))
    await read_models.get(stream)
    for _ in range(FLOOD // 4 + 1):
        before = stream.position
        await append(store, stream, *talk(4))
        add(read_models, stream, (await journal(store, stream))[before:])
        assert read_models.find_ready(stream) is not None
    assert await from_scratch(store, stream) == read_models.cached[stream.key].messages()


async def test_what_waits_to_be_folded_is_bounded_over_all_sessions(store: InMemoryStore) -> None:
    """The session that has waited longest is folded first; one that is in use keeps no other waiting."""
    read_models = ReadModelCache(store, MemoryBudget(200_000))  # 1,000 bytes of events may wait
    streams = [await begin(store) for _ in range(4)]
    for stream in streams:
        await read_models.get(stream)
    async with read_models.cached[streams[0].key].lock:
        for stream in streams:
            event = decoded(final(1, "Hello.", 1))
            read_models.add_committed(stream.key, 1, NOW, [event], "main", size=450)
    assert [0, 1, 0, 0] == [read_models.cached[stream.key].position for stream in streams]
    read_models.discard(streams[2].key)
    await fold_committed(read_models)
    assert (0, {}) == (read_models.waiting_bytes, read_models.to_fold)


async def test_a_flood_of_events_is_folded_when_it_is_over_or_read(
    store: InMemoryStore, read_models: ReadModelCache
) -> None:
    """What is more than fits into a round waits in the journal, and the background leaves it there while more comes."""
    stream = await begin(store)
    read_model = await read_models.get(stream)
    found = list[int]()
    for count in (2 * FLOOD + 3, FLOOD + 1, FLOOD + 1, 1):
        before, read_models.rounds = stream.position, read_models.rounds + 1
        await append(store, stream, *talk(count))
        add(read_models, stream, (await journal(store, stream))[before:])
        await fold_committed(read_models)
        if len(found) == 2:
            assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()
        await catch_up_lagging(read_models)
        found.append(stream.position - read_model.position)
    assert [FLOOD + 2, 2 * FLOOD + 3, 0, 0] == found
    assert not read_models.lagging
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


async def test_events_that_are_read_one_by_one_are_no_flood(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """However many there are in a round, a read finds the newest in memory, not in the journal."""
    stream = await begin(store)
    read_model = await read_models.get(stream)
    for _ in range(FLOOD + 50):
        before = stream.position
        await append(store, stream, *talk(1))
        add(read_models, stream, (await journal(store, stream))[before:])
        assert 1 == len(read_model.waiting)
        await read_models.get(stream)
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


@on_one_store
@given(events=TALK, unfinished=st.booleans())
async def test_a_snapshot_changes_nothing(store: InMemoryStore, events: list[JsonObject], unfinished: bool) -> None:
    """A memory that is saved and restored at any position goes on as if it had never been away."""
    stream = await begin(store)
    for event in events:
        await append(store, stream, event)
        read_models = ReadModelCache(store)
        await read_models.save_snapshot_if_due(stream.key, await read_models.get(stream), every=1)
    state = fold_all(State(), await journal(store, stream))
    expected = open_messages(state) if unfinished else history.messages(state)
    assert expected == (await ReadModelCache(store).get(stream)).messages(unfinished)


async def test_what_came_from_elsewhere_is_read(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Events that another node has committed are in the next read."""
    stream = await begin(store)
    assert [] == (await read_models.get(stream)).messages()
    await append(store, stream, *talk(5))
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


async def test_a_long_journal_is_read_in_pages(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Nothing is lost or doubled between the pages."""
    stream = await begin(store)
    await append(store, stream, *talk(3 * FOLD_PAGE + 1))
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


async def test_many_readers_at_once_read_the_same(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Reads that meet while a journal is folded wait for each other, and fold nothing twice."""
    stream = await begin(store)
    await append(store, stream, *talk(FOLD_PAGE + 1))
    found = await asyncio.gather(*(read_models.get(stream) for _ in range(10)))
    expected = await from_scratch(store, stream)
    assert [expected] * 10 == [read_model.messages() for read_model in found]
    assert 1 == len({id(read_model) for read_model in found})


@pytest.mark.parametrize("seed", seeds(3))
async def test_reads_and_appends_at_once(store: InMemoryStore, read_models: ReadModelCache, seed: int) -> None:
    """Whatever meets what, each read has at least what was stored before it, and the last has all."""
    stream, luck = await begin(store), random.Random(seed)

    async def write() -> None:
        for event in talk(200):
            appended = await append(store, stream, event)
            row = (await store.journal.read_rows(stream.key, appended.stream.position - 1, 1))[0]
            await asyncio.sleep(luck.choice([0, 0, 0.001]))
            note(
                read_models,
                stream,
                [DecodedRow(row.position, row.received_ms, decode_journaled(row.payload), row.producer)],
            )

    async def read() -> None:
        while stream.position < 200:
            stored = stream.position
            assert (await read_models.get(stream)).state.position >= stored
            await asyncio.sleep(0)

    await asyncio.gather(write(), read(), read())
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


@pytest.mark.parametrize("missing", [{1}, {2}, {4}, {2, 3}])
async def test_a_hole_is_never_folded_over(
    store: InMemoryStore, read_models: ReadModelCache, missing: set[int]
) -> None:
    """Noting entries behind a missing one folds none of them; the next read has all."""
    stream = await begin(store)
    await read_models.get(stream)
    await append(store, stream, *talk(5))
    noted = [entry for entry in await journal(store, stream) if entry.position not in missing]
    note(read_models, stream, noted)
    assert min(missing) - 1 == read_models.cached[stream.key].state.position
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


async def test_what_is_noted_twice_counts_once(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Entries that a read has folded already change nothing when they are noted."""
    stream = await begin(store)
    await append(store, stream, delta(1, "One ", 1), delta(1, "two.", 2))
    read_model = await read_models.get(stream)
    note(read_models, stream, await journal(store, stream))
    assert ["One two."] == [message.content for message in read_model.messages(unfinished=True)]


async def test_at_most_so_many_are_kept(store: InMemoryStore) -> None:
    """The memories that were used last stay, and evicted ones are read again in full."""
    read_models = ReadModelCache(store, capacity=3)
    streams = [await begin(store) for _ in range(6)]
    for stream in [*streams, *streams]:
        await append(store, stream, *talk(3))
        assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()
        assert len(read_models.cached) <= 3
    assert [stream.key for stream in streams[3:]] == list(read_models.cached)


async def test_an_evicted_memory_is_saved_when_it_is_worth_it(store: InMemoryStore) -> None:
    """Of a long call a snapshot is kept, of a short one none."""
    read_models = ReadModelCache(store, capacity=1)
    long, short, other = [await begin(store) for _ in range(3)]
    for stream, count in ((long, 150), (short, 5), (other, 0)):
        await append(store, stream, *talk(count))
        await read_models.get(stream)
    saved = [await store.journal.load_snapshot(stream.key, SNAPSHOT_VERSION, 2**53) for stream in (long, short)]
    assert [150, None] == [one and one.position for one in saved]
    assert await from_scratch(store, long) == (await read_models.get(long)).messages()


async def test_a_growing_call_is_saved_now_and_then(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """No call is ever replayed from its start at length."""
    stream = await begin(store)
    for _ in range(3):
        await append(store, stream, *talk(SNAPSHOT_EVERY // 2 + 1))
        await read_models.get(stream)
    saved = await store.journal.load_snapshot(stream.key, SNAPSHOT_VERSION, 2**53)
    assert saved is not None
    assert SNAPSHOT_EVERY + 2 == saved.position


async def test_a_drain_saves_everything_that_is_worth_it(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """The next process replays little."""
    streams = [await begin(store) for _ in range(3)]
    for stream in streams:
        await append(store, stream, *talk(120))
        await read_models.get(stream)
    await save_all(read_models, 5)
    saved = [await store.journal.load_snapshot(stream.key, SNAPSHOT_VERSION, 2**53) for stream in streams]
    assert [120] * 3 == [one and one.position for one in saved]


async def test_a_drain_folds_what_a_flood_has_left(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """What waits in the journal when the process stops is in the snapshot, so the next one does not fold it again."""
    stream = await begin(store)
    await read_models.get(stream)
    await append(store, stream, *talk(MAX_LAG + 2), *talk(FLOOD))
    add(read_models, stream, (await journal(store, stream))[1:])
    await save_all(read_models, 5)
    saved = await store.journal.load_snapshot(stream.key, SNAPSHOT_VERSION, 2**53)
    assert saved is not None
    assert stream.position == saved.position


async def test_a_flood_that_is_over_is_saved(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A process that is killed after it loses none of its fold."""
    stream = await begin(store)
    await read_models.get(stream)
    await append(store, stream, *talk(SNAPSHOT_EVERY + 1))
    add(read_models, stream, (await journal(store, stream))[1:])
    await catch_up_lagging(read_models)
    await catch_up_lagging(read_models)
    saved = await store.journal.load_snapshot(stream.key, SNAPSHOT_VERSION, 2**53)
    assert saved is not None
    assert SNAPSHOT_EVERY + 1 == saved.position


async def test_snapshots_of_another_fold_are_not_used(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """What another version has saved is passed over, not misread."""
    stream = await begin(store)
    await append(store, stream, *talk(3))
    await store.journal.save_snapshot(stream.key, Snapshot(3, SNAPSHOT_VERSION + 1, b"of another version"))
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


@on_one_store
@given(events=TALK, saved=st.integers(0, 12), cached=st.booleans())
async def test_a_memory_as_it_was(store: InMemoryStore, events: list[JsonObject], saved: int, cached: bool) -> None:
    """As of every position the messages are the fold up to it, wherever cache and snapshot stand."""
    stream, read_models = await begin(store), ReadModelCache(store)
    for count, event in enumerate(events, 1):
        await append(store, stream, event)
        if count == saved:
            await read_models.save_snapshot_if_due(stream.key, await read_models.get(stream), every=1)
    if cached:
        await read_models.get(stream)
    for position in range(len(events), -1, -1):
        assert await from_scratch(store, stream, position) == await read_models.compute_as_of(
            stream.key, position, ReadModel.messages
        )


async def test_looking_back_leaves_the_memory_as_it_is(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A webhook's body of an earlier close does not take the running call back."""
    stream = await begin(store)
    await append(store, stream, *talk(10))
    before = (await read_models.get(stream)).messages()
    assert await from_scratch(store, stream, 4) == await read_models.compute_as_of(stream.key, 4, ReadModel.messages)
    assert before == (await read_models.get(stream)).messages()


async def test_the_memory_at_a_close_is_determined(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Whatever follows a provisional close, its delivery says what was known then."""
    stream = await begin(store)
    await append(store, stream, final(1, "Hello?", 1), delta(1, "Let me", 2))
    await store.journal.leave([DisconnectedProducer(stream.key, "main", 1)], NOW - 60_000)
    closed = await close(store, stream.key, None)
    at_close = await read_models.compute_as_of(stream.key, closed.position, ReadModel.messages)
    await append(store, stream, done(1, 7, text="Let me see."))
    await read_models.get(stream)
    assert [("Hello?", None), ("", "Let me")] == [(one.content, one.metadata.get("original")) for one in at_close]
    assert at_close == await read_models.compute_as_of(stream.key, closed.position, ReadModel.messages)


async def test_a_close_is_folded_from_memory(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A memory that has all events of a call has its close too without another look at the journal."""
    stream = await begin(store)
    await append(store, stream, final(1, "Hello?", 1), delta(1, "Let me", 2))
    await read_models.get(stream)
    closed = await store.journal.close_session(stream.key, SessionEnding(NOW + 5, "left"), "n", NOW + 9)
    assert closed is not None
    read_models.note_closed(closed)
    read_model = read_models.find(stream.key)
    assert read_model is not None
    assert (closed.stream.position, NOW + 5) == (read_model.position, read_model.state.closed_ts)
    assert await from_scratch(store, stream) == read_model.messages()


async def test_an_event_of_the_service_is_folded_from_memory(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """It is what reading the journal would give; nothing changes where its position is taken."""
    stream = await begin(store)
    await append(store, stream, *talk(2))
    await read_models.get(stream)
    event = MemoryDocument(operation="replace", content={"a": [1, 0.5, None, "ü"]})
    after = await read_models.append(stream.key, event, stream.position, NOW + 5)
    assert after is not None
    folded = read_models.find(stream.key)
    assert folded is not None
    assert folded.position == after.position == stream.position + 1
    assert fold_all(State(), await journal(store, stream)).document == folded.state.document
    assert await read_models.append(stream.key, event, stream.position, NOW) is None
    assert len(await journal(store, stream)) == after.position == folded.position


async def test_as_of_races_with_a_call_that_goes_on(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A look back that meets new events still shows exactly its position."""
    stream = await begin(store)
    await append(store, stream, *talk(FOLD_PAGE * 2))
    expected = await from_scratch(store, stream, FOLD_PAGE + 3)
    looks = [read_models.compute_as_of(stream.key, FOLD_PAGE + 3, ReadModel.messages) for _ in range(3)]
    await asyncio.gather(
        read_models.get(stream), *(check_equal(expected, look) for look in looks), read_models.get(stream)
    )


async def check_equal(expected: list[Message], found: Awaitable[Sequence[Message]]) -> None:
    assert expected == await found


async def test_the_background_shares_what_it_works_with(store: InMemoryStore) -> None:
    """Several looks at a call that is not cached fold it once; one that is evicted meanwhile is found again."""
    read_models = ReadModelCache(store, MemoryBudget(10_000))
    stream = await begin(store)
    await append(store, stream, *talk(FOLD_PAGE + 3))
    look = partial(read_models.compute_as_of, stream.key, FOLD_PAGE + 3, lambda one: one, background=True)
    first, *others = await asyncio.gather(look(), look(), look())
    assert [first, first] == others
    held = await read_models.get(stream)
    await maintain(read_models)
    assert {} == read_models.cached
    assert held is await look()
    assert await from_scratch(store, stream) == held.messages()
    await append(store, stream, final(1, "Hello?", 1))
    later = await read_models.compute_as_of(stream.key, stream.position, lambda one: one, background=True)
    assert held is later
    assert held is not await look()
    read_models.discard(stream.key)
    assert later is not await read_models.compute_as_of(stream.key, 1, lambda one: one, True, or_later=True)


async def test_after_an_unknown_commit_nothing_cached_is_trusted(
    store: InMemoryStore, read_models: ReadModelCache
) -> None:
    """When a commit fails every memory is forgotten, and what is read then is what was stored."""
    stream, other = await begin(store), await begin(store)
    await append(store, stream, *talk(3))
    for one in (stream, other):
        await read_models.get(one)
    recorder = Recorder(
        store.journal, read_models, Runtime(lambda: NOW), lambda session_patch: None, Telemetry.untraced()
    )
    await store.database.write(lambda c: c.raw.pragma("max_page_count", c.raw.pragma("page_count")))
    lease = ProducerLease(stream, "main", None, may_call_out=False)
    with pytest.raises(StoreUnavailable):
        await recorder.record(lease, decode_frame(msgspec.json.encode(delta(9, LARGE_TEXT))))
    assert [] == list(read_models.cached)
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


async def test_what_is_forgotten_is_read_anew(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Forgetting one session, known or not, costs only time."""
    stream = await begin(store)
    await append(store, stream, *talk(4))
    before = (await read_models.get(stream)).messages()
    read_models.discard(stream.key)
    read_models.discard(stream.key)
    assert before == (await read_models.get(stream)).messages()


async def test_an_erased_session_ends_a_read(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A read that meets an erase comes to an end, with nothing."""
    stream = await begin(store)
    await append(store, stream, *talk(4))
    await store.retention.erase(stream.key, NOW)
    assert [] == (await read_models.get(stream)).messages()
    assert [] == await read_models.compute_as_of(stream.key, 4, ReadModel.messages)


# Packing


@on_one_store
@given(events=TALK, later=TALK)
async def test_a_packed_memory_is_the_same(
    store: InMemoryStore, events: list[JsonObject], later: list[JsonObject]
) -> None:
    """Whatever comes after its packing, what is read is the fold of the journal."""
    stream, read_models = await begin(store), ReadModelCache(store)
    await append(store, stream, *events)
    read_model = await read_models.get(stream)
    read_model.pack()
    assert stream.position == read_model.position
    assert await from_scratch(store, stream) == read_model.messages()
    read_model.pack()
    await append(store, stream, *later)
    note(read_models, stream, (await journal(store, stream))[len(events) :])
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


@pytest.mark.parametrize(("share", "rounds"), [(0.1, IDLE_ROUNDS), (0.7, PRESSURE_ROUNDS)])
async def test_what_is_not_used_is_packed(
    store: InMemoryStore, read_models: ReadModelCache, share: float, rounds: int
) -> None:
    """After rounds without use a memory is packed, sooner when space is short; what hears or is read stays."""
    idle, heard, read = [await begin(store) for _ in range(3)]
    for stream in (idle, heard, read):
        await append(store, stream, *talk(4))
        await read_models.get(stream)
    read_models.budget.limit = int(read_models.budget.memories / share)
    for left in reversed(range(rounds)):
        await maintain(read_models)
        await append(store, heard, *talk(1))
        note(read_models, heard, (await journal(store, heard))[-1:])
        await read_models.get(read)
        found = [read_models.cached[one.key].unpacked is None for one in (idle, heard, read)]
        assert [left == 0, False, False] == found


async def test_a_packed_memory_lags_behind_for_a_while(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A few events do not unpack it; with many of them the next round folds what it has missed, and it hears again."""
    stream = await begin(store)
    await append(store, stream, *talk(4))
    read_model = await read_models.get(stream)
    read_model.pack()
    for count in range(1, MAX_LAG + 2):
        await append(store, stream, *talk(1))
        note(read_models, stream, (await journal(store, stream))[-1:])
        assert (4, None) == (read_model.position, read_model.unpacked)
        await catch_up_lagging(read_models)
        assert (4 if count <= MAX_LAG else stream.position) == read_model.position
    await append(store, stream, *talk(1))
    note(read_models, stream, (await journal(store, stream))[-1:])
    assert stream.position == read_model.position
    assert await from_scratch(store, stream) == read_model.messages()


async def test_a_memory_that_missed_something_catches_up(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Also one that no one reads again, so that the end of a long call does not fold all of it at once."""
    stream = await begin(store)
    read_model = await read_models.get(stream)
    await append(store, stream, *talk(MAX_LAG + 2))
    note(read_models, stream, (await journal(store, stream))[1:])
    assert 0 == read_model.position
    await catch_up_lagging(read_models)
    assert MAX_LAG + 2 == read_model.position


async def test_what_is_dropped_does_not_wait_to_catch_up(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """More calls may be evicted in a second than catch up, and each would stay on the list."""
    stream = await begin(store)
    await read_models.get(stream)
    await append(store, stream, *talk(MAX_LAG + 2))
    note(read_models, stream, (await journal(store, stream))[1:])
    assert [stream.key] == [*read_models.lagging]
    read_models.discard(stream.key)
    assert not read_models.lagging


@on_one_store
@given(events=TALK, later=TALK)
async def test_contents_are_the_messages_as_json(
    store: InMemoryStore, events: list[JsonObject], later: list[JsonObject]
) -> None:
    """What was encoded before is only encoded again where it has changed."""
    stream, read_models = await begin(store), ReadModelCache(store)
    for more in (events, later):
        await append(store, stream, *more)
        read_model = await read_models.get(stream)
        messages = read_model.messages()
        assert msgspec.json.encode(messages) == read_model.encode_messages()
        spoken = [{"role": message.role, "content": message.content} for message in messages]
        assert msgspec.json.encode(spoken) == read_model.encode_messages("standard")


async def test_large_memories_are_let_go(store: InMemoryStore) -> None:
    """Those that were read longest ago go until the rest is within the budget; all are read again in full."""
    budget = MemoryBudget(60_000)
    read_models = ReadModelCache(store, budget)
    streams = [await begin(store) for _ in range(12)]
    for stream in streams:
        await append(store, stream, *talk(10))
        await read_models.get(stream)
        assert budget.memories <= budget.limit
    await maintain(read_models)
    assert 0 < budget.memories <= budget.limit
    assert sum(read_model.weight for read_model in read_models.cached.values()) == budget.memories
    assert len(streams) - len(read_models.cached) == budget.evicted_memories > 0
    assert streams[-1].key in read_models.cached
    for stream in streams:
        assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()


async def test_memories_of_ended_sessions_go_first(store: InMemoryStore) -> None:
    """A running call stays though it was read longer ago than calls that have ended, until it is the oldest left."""
    read_models = ReadModelCache(store, capacity=3)
    running, told, seen, last = [await begin(store) for _ in range(4)]
    for stream in (running, told):
        await read_models.get(stream)
    read_models.note_closed(ClosedSession(told, SessionEnding(NOW, "left"), NOW))
    for stream in (seen, last):
        stream.state = "ended"
        await read_models.get(stream)
    assert [running.key, seen.key, last.key] == list(read_models.cached)
    await read_models.get(await begin(store))
    assert [running.key, last.key] == list(read_models.cached)[:2]
    last.state = "running"
    await read_models.get(last)
    await read_models.get(await begin(store))
    assert running.key not in read_models.cached


async def test_a_memory_above_the_whole_budget_is_served_and_not_kept(store: InMemoryStore) -> None:
    """It is read like any other, and the next round lets it go."""
    budget = MemoryBudget(10_000)
    read_models = ReadModelCache(store, budget)
    stream = await begin(store)
    await append(store, stream, *talk(400))
    assert await from_scratch(store, stream) == (await read_models.get(stream)).messages()
    assert await from_scratch(store, stream) == await read_models.read(stream, ReadModel.messages)
    await maintain(read_models)
    assert ({}, 0) == (read_models.cached, budget.memories)
    assert await from_scratch(store, stream) == await read_models.read(stream, ReadModel.messages)


async def test_what_is_dropped_counts_no_more(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """However memories go, and packed or not, the budget knows what is left."""
    streams = [await begin(store) for _ in range(4)]
    for stream in streams:
        await append(store, stream, *talk(10))
        await read_models.get(stream)
    read_models.cached[streams[0].key].pack()
    await maintain(read_models)
    assert 0 < read_models.budget.memories_packed < read_models.budget.memories_in_use
    read_models.discard(streams[0].key)
    assert 0 == read_models.budget.memories_packed
    read_models.drop(streams[1].key, read_models.cached[streams[1].key])
    read_models.discard_all()
    assert 0 == read_models.budget.memories


async def test_fast_events_are_noticed_between_rounds(store: InMemoryStore) -> None:
    """What is folded on the event loop is weighed once it may be much, without waiting for the next round."""
    budget = MemoryBudget(100_000)
    read_models = ReadModelCache(store, budget)
    streams = [await begin(store) for _ in range(20)]
    for stream in streams:
        await read_models.get(stream)
    upkeep = asyncio.create_task(relieve_forever(read_models))
    for stream in streams:
        for event in talk(50):
            read_models.add_committed(stream.key, stream.position + 1, NOW, [decoded(event)], "main", 100)
            stream.position += 1
        await fold_committed(read_models)
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while not budget.evicted_memories:  # noqa: ASYNC110 (nothing is told of it)
            await asyncio.sleep(0)
    upkeep.cancel()
