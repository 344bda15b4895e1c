"""Sessions whose memory cannot be made are set aside, and hold up no one else."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from typing import Any

import msgspec
import pytest

from tests.support.events import delta, event, final
from tests.support.stores.contract import append_batch
from tests.support.stores.damage import damage_entry, replace_run
from voicemem.config.session import SessionPatch
from voicemem.errors import SessionQuarantined
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import Metric
from voicemem.protocol.types import JsonObject
from voicemem.runtime import MemoryBudget
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.maintenance import catch_up_lagging, fold_committed, maintain, save_all
from voicemem.sessions.read_models.quarantine import FOLD_VERSION
from voicemem.sessions.read_models.read_model import LARGE_BYTES, LARGE_ROWS, SLOW_S, ReadModel
from voicemem.store.append_rules import Offer
from voicemem.store.quarantine import QuarantineEntry
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.store.streams import Stream
from voicemem.transcript import fold
from voicemem.transcript.fold import DecodedRow

NOW = 1_778_390_400_000
SOON_S = 0.05
METRIC: JsonObject = event("metric", 1, NOW, name="slow", latency_ms=1)
numbers = itertools.count()


@pytest.fixture
def read_models(store: InMemoryStore) -> ReadModelCache:
    """Nothing is cached yet, and little CPU time is allowed."""
    return ReadModelCache(store, cpu_budget_s=SOON_S, clock=lambda: NOW)


@pytest.fixture
def slow_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every metric takes longer to fold than work may: nothing real does that, as far as we know."""

    def slow(state: Any, event: Any, ts: int) -> None:
        state.dirty_turns.add(1)
        use_up_budget()

    monkeypatch.setitem(fold.FOLD_RULES, Metric, slow)


@pytest.fixture
def failing_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """No metric can be folded."""

    def fail(state: Any, event: Any, ts: int) -> None:
        state.newest_turn = -99
        raise KeyError("what was said")

    monkeypatch.setitem(fold.FOLD_RULES, Metric, fail)


def use_up_budget() -> None:
    """Work on the CPU for longer than a piece of work may, and for longer than it is waited for."""
    until = time.thread_time() + 3 * SOON_S
    while time.thread_time() < until:
        pass


async def call(store: InMemoryStore, *events: JsonObject) -> Stream:
    """A session with these events."""
    opened = await store.journal.open_producer("p", f"s{next(numbers)}", "main", SessionPatch({}, {}), None, NOW)
    return await more(store, opened.stream, *events)


async def more(store: InMemoryStore, stream: Stream, *events: JsonObject) -> Stream:
    offers = [Offer(None, NOW, msgspec.json.encode(event)) for event in events]
    return (await append_batch(store.journal, stream.key, "main", None, offers, NOW)).stream if offers else stream


def spoken(count: int) -> list[JsonObject]:
    return [final(number, f"Utterance {number}.", NOW + number) for number in range(1, count + 1)]


async def entries(store: InMemoryStore, stream: Stream) -> list[DecodedRow]:
    rows = await store.journal.read_rows(stream.key, 0, 100_000)
    return [DecodedRow(row.position, row.received_ms, decode_journaled(row.payload), row.producer) for row in rows]


async def test_a_damaged_journal_sets_its_session_aside(
    store: InMemoryStore, read_models: ReadModelCache, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reads say so, the store knows since when and why, and the log names it once; others are read."""
    stream, other = await call(store, *spoken(1)), await call(store, *spoken(2))
    await damage_entry(store.database, stream.key)
    for _ in range(2):
        with pytest.raises(SessionQuarantined):
            await read_models.get(stream)
    with pytest.raises(SessionQuarantined):
        await read_models.compute_as_of(stream.key, 1, ReadModel.messages)
    assert QuarantineEntry("damaged", NOW, FOLD_VERSION) == await read_models.quarantined.find(stream.key)
    assert 2 == len((await read_models.get(other)).messages())
    assert (1, (("p", stream.id),)) == read_models.quarantined.report
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert stream.id in line.getMessage()
    assert "damaged" in line.getMessage()


async def test_what_is_quarantined_is_not_tried_again(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Not even by a later process, and though it could be read now, until it is asked for."""
    stream = await call(store, *spoken(2))
    whole = await damage_entry(store.database, stream.key)
    with pytest.raises(SessionQuarantined):
        await read_models.get(stream)
    with pytest.raises(SessionQuarantined):
        await read_models.refold(stream)
    await replace_run(store.database, stream.key, whole)
    later = ReadModelCache(store)
    for cache in (read_models, later):
        with pytest.raises(SessionQuarantined):
            await cache.get(stream)
    await read_models.refold(stream)
    assert await read_models.quarantined.find(stream.key) is None
    for cache in (read_models, later):
        assert stream.position == (await cache.get(stream)).position


async def test_another_version_tries_again(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """What an older fold could not do says nothing about this one."""
    stream = await call(store, *spoken(2))
    await store.quarantine.add(stream.key, QuarantineEntry("failed", NOW, "0.0.1/1"))
    assert 2 == len((await read_models.get(stream)).messages())


@pytest.mark.usefixtures("failing_metrics")
async def test_a_fold_that_fails_sets_its_session_aside(
    store: InMemoryStore, read_models: ReadModelCache, caplog: pytest.LogCaptureFixture
) -> None:
    """What was said stays out of the log, which names the kind of the error."""
    stream = await call(store, *spoken(1), METRIC)
    with pytest.raises(SessionQuarantined):
        await read_models.get_state(stream)
    assert QuarantineEntry("failed", NOW, FOLD_VERSION) == await read_models.quarantined.find(stream.key)
    assert "KeyError" in caplog.text
    assert "what was said" not in caplog.text


@pytest.mark.usefixtures("slow_metrics")
async def test_a_fold_that_takes_too_long_is_interrupted(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """All that wait for it get the error, no one sees what it had begun, and others are served meanwhile."""
    stream, other = await call(store, *spoken(LARGE_ROWS), METRIC), await call(store, *spoken(3))
    readers = [asyncio.create_task(read_models.get(stream)) for _ in range(3)]
    await asyncio.sleep(0)  # they begin
    assert 3 == len((await read_models.get(other)).messages())
    found = await asyncio.gather(*readers, return_exceptions=True)
    assert [SessionQuarantined] * 3 == [type(one) for one in found]
    assert stream.key not in read_models.cached
    assert QuarantineEntry("too_slow", NOW, FOLD_VERSION) == await read_models.quarantined.find(stream.key)


async def test_messages_that_take_too_long_are_interrupted(
    store: InMemoryStore, read_models: ReadModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state alone can still be had until someone asks for messages; then the session is set aside."""
    stream = await call(store, *spoken(LARGE_ROWS + 1))
    assert LARGE_ROWS + 1 == (await read_models.get_state(stream)).newest_turn

    def slow(*_: Any) -> list[Any]:
        use_up_budget()
        return []

    monkeypatch.setattr("voicemem.transcript.history.turn_messages", slow)
    with pytest.raises(SessionQuarantined):
        await read_models.get(stream)
    assert QuarantineEntry("too_slow", NOW, FOLD_VERSION) == await read_models.quarantined.find(stream.key)


async def test_a_memory_that_takes_more_than_all_may_is_set_aside(store: InMemoryStore) -> None:
    """However few bytes of the journal say so: empty objects take thirty times theirs."""
    read_models = ReadModelCache(store, MemoryBudget(4 * 1024 * 1024), clock=lambda: NOW)
    called = [final(n, "Hi.", NOW) | {"metadata": {"all": [{}] * 30_000}} for n in range(4)]
    stream, other = await call(store, *called), await call(store, *spoken(3))
    with pytest.raises(SessionQuarantined):
        await read_models.get(stream)
    assert 3 == len((await read_models.get(other)).messages())
    assert QuarantineEntry("too_large", NOW, FOLD_VERSION) == await read_models.quarantined.find(stream.key)


async def test_work_on_a_long_journal_may_take_longer(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """Work in the background that would be too much for a short call does not quarantine a long one."""
    short = await call(store, *spoken(1))
    long = await call(store, *(final(number, "word " * 20_000, NOW + number) for number in range(1, 41)))

    def slow(read_model: ReadModel) -> int:
        use_up_budget()
        return read_model.state.newest_turn

    assert 40 == await read_models.compute_as_of(long.key, long.position, slow, background=True)
    assert 40 == len((await read_models.get(long)).messages())
    with pytest.raises(SessionQuarantined):
        await read_models.perform(short.key, await read_models.get(short), use_up_budget, off_loop=True)


# Commits


@pytest.mark.usefixtures("failing_metrics")
async def test_a_commit_survives_a_fold_that_fails(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """The recorder hears nothing of it, the memory is forgotten, and the background sets the session aside."""
    stream = await call(store, *spoken(1))
    await read_models.get(stream)
    await more(store, stream, METRIC)
    committed = (await entries(store, stream))[-1]
    read_models.add_committed(stream.key, committed.position, NOW, [committed.event], "main")
    await fold_committed(read_models)
    assert stream.key not in read_models.cached
    assert await read_models.quarantined.find(stream.key) is None
    await catch_up_lagging(read_models)
    assert QuarantineEntry("failed", NOW, FOLD_VERSION) == await read_models.quarantined.find(stream.key)


async def test_a_failure_that_does_not_come_back_changes_nothing(
    store: InMemoryStore, read_models: ReadModelCache
) -> None:
    """When the journal can be folded after all, the session is not set aside."""
    stream = await call(store, *spoken(2))
    read_models.failed[stream.key] = stream.position
    await catch_up_lagging(read_models)
    assert await read_models.quarantined.find(stream.key) is None
    assert 2 == len((await read_models.get(stream)).messages())


async def test_many_bytes_are_folded_off_the_loop(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A large batch waits for the background or a read, and so does what follows one that took long."""
    stream = await call(store, *spoken(1))
    read_model = await read_models.get(stream)
    for size, is_slow in ((LARGE_BYTES + 1, False), (10, True)):
        stream = await more(store, stream, delta(9, "More. ", NOW + 99))
        committed, before = (await entries(store, stream))[-1], read_model.position
        read_model.slow_fold = is_slow
        read_models.add_committed(stream.key, committed.position, NOW, [committed.event], "main", size)
        assert (before, {stream.key}) == (read_model.position, {*read_models.lagging})
        await catch_up_lagging(read_models)
        assert (stream.position, {}) == (read_model.position, read_models.lagging)
        assert not read_model.slow_fold


async def test_what_follows_a_slow_fold_is_folded_in_the_background(
    store: InMemoryStore, read_models: ReadModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold of a session that took long on the event loop is continued off it."""

    def slow(state: Any, event: Any, ts: int) -> None:
        until = time.thread_time() + 2 * SLOW_S
        while time.thread_time() < until:
            pass

    monkeypatch.setitem(fold.FOLD_RULES, Metric, slow)
    stream = await call(store, *spoken(1))
    read_model = await read_models.get(stream)
    found = []
    for _ in range(2):
        stream = await more(store, stream, METRIC)
        committed = (await entries(store, stream))[-1]
        read_models.add_committed(stream.key, committed.position, NOW, [committed.event], "main")
        await fold_committed(read_models)
        found.append((read_model.position == stream.position, read_model.slow_fold))
    assert [(True, True), (False, True)] == found


async def test_large_work_is_done_on_threads(
    store: InMemoryStore, read_models: ReadModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long journals are folded on a thread and short ones on the loop, where a hand-over would cost more."""
    used: list[int] = []
    real = ReadModel.fold_rows

    def noted(read_model: ReadModel, rows: Any) -> None:
        used.append(threading.get_ident())
        real(read_model, rows)

    monkeypatch.setattr(ReadModel, "fold_rows", noted)
    short, long = await call(store, *spoken(LARGE_ROWS)), await call(store, *spoken(LARGE_ROWS + 1))
    await read_models.get(short)
    await read_models.get(long)
    assert [True, False] == [thread == threading.get_ident() for thread in used]


async def test_a_reader_that_goes_away_leaves_nothing_half_done(store: InMemoryStore) -> None:
    """A read that is cancelled at any moment is followed by one that has everything."""
    read_models = ReadModelCache(store, clock=lambda: NOW)  # with time for the work, however slow the machine is
    stream = await call(store, *spoken(3 * LARGE_ROWS))
    for steps in range(12):
        reader = asyncio.create_task(read_models.get(stream))
        for _ in range(steps):
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert 3 * LARGE_ROWS == len((await read_models.get(stream)).messages())
        read_models.discard_all()
    assert await read_models.quarantined.find(stream.key) is None


# Snapshots


async def test_upkeep_passes_over_what_is_quarantined(store: InMemoryStore, read_models: ReadModelCache) -> None:
    """A round of maintenance and a drain do their work for the others."""
    stream, other = await call(store, *spoken(2)), await call(store, *spoken(150))
    await read_models.get(other)
    await damage_entry(store.database, stream.key)
    read_models.lagging[stream.key] = stream.position
    read_models.failed[stream.key] = stream.position
    await catch_up_lagging(read_models)
    await maintain(read_models)
    assert (1, (("p", stream.id),)) == read_models.quarantined.report
    await save_all(read_models, 5)
    assert await store.journal.load_snapshot(other.key, int(FOLD_VERSION.split("/")[1]), 2**53) is not None


# What a bound leaves out


async def test_what_is_ignored_is_counted_once(store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is first folded, live or from the journal; not after packing or from a snapshot."""
    monkeypatch.setattr("voicemem.transcript.fold.BOUND", 2)
    counts: list[tuple[str, int]] = []
    read_models = ReadModelCache(store, count_ignored=lambda bound, count: counts.append((bound, count)))
    stream = await call(store, METRIC, METRIC, METRIC, METRIC)
    read_model = await read_models.get(stream)
    assert [("traces", 2)] == counts
    stream = await more(store, stream, METRIC)
    committed = (await entries(store, stream))[-1]
    read_models.add_committed(stream.key, committed.position, NOW, [committed.event], "main")
    await fold_committed(read_models)
    assert [("traces", 2), ("traces", 1)] == counts
    read_model.pack()
    await read_models.get(stream)
    await read_models.save_snapshot_if_due(stream.key, read_model, every=1)
    read_models.discard_all()
    stream = await more(store, stream, METRIC)
    await read_models.get(stream)
    assert [("traces", 2), ("traces", 1), ("traces", 1)] == counts
