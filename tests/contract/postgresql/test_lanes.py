"""Commits of a recorder on lanes: what holds up, or breaks, one of them concerns no other."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

import msgspec  # noqa: E402

from tests.support import postgresql  # noqa: E402
from tests.support.events import final_transcript, session_end  # noqa: E402
from tests.support.frames import decode_frame  # noqa: E402
from tests.support.lifecycle import anything  # noqa: E402
from tests.support.stores.contract import NOW, seqs_by_producer  # noqa: E402
from tests.support.stores.engines import OpenHandle  # noqa: E402
from tests.support.stores.postgresql import opened  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402
from voicemem.errors import StoreUnavailable  # noqa: E402
from voicemem.protocol.events import SessionOpen  # noqa: E402
from voicemem.protocol.types import JsonObject  # noqa: E402
from voicemem.runtime import Runtime  # noqa: E402
from voicemem.sessions.read_models.cache import ReadModelCache  # noqa: E402
from voicemem.sessions.recording.batches import EventBatch, ProducerLease  # noqa: E402
from voicemem.sessions.recording.recorder import Recorder  # noqa: E402
from voicemem.store.postgresql.connection import connect  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402
from voicemem.telemetry import Telemetry  # noqa: E402

pytestmark = pytest.mark.postgresql
LOCK_HEAD = "select 1 from stream_locks where stream = :key for no key update"
LOCK_LANE = "select 1 from lanes where token = :token and lane = :lane for update"
BREAK_LANE = """
    create function break_lane() returns trigger language plpgsql as $$ begin
        if new.stream % 2 = {lane} then raise exception 'broken' using errcode = '53100'; end if;
        return new;
    end $$;
    create trigger break_lane before insert on journal for each row execute function break_lane()
"""
MEND_LANE = "drop trigger break_lane on journal; drop function break_lane"


class Service:
    """A recorder and its store."""

    def __init__(self, store: PostgresqlStore) -> None:
        self.store = store
        self.read_models = ReadModelCache(store)
        self.recorder = Recorder(store.journal, self.read_models, Runtime(lambda: NOW), anything, Telemetry.untraced())

    async def open(self, session_id: str, producer: str = "main") -> ProducerLease:
        frame = SessionOpen(session_id=session_id, producer=producer)
        opened, *_ = await self.recorder.open_producer("p", session_id, frame, False)
        return ProducerLease(opened.stream, producer, opened.epoch, False)

    async def open_one_in_each_lane(self) -> list[ProducerLease]:
        """Sessions by the number of their lane; each has an event, so that the next one is a plain append."""
        found: dict[int, ProducerLease] = {}
        for number in itertools.count():
            lease = await self.open(f"s{number}")
            found.setdefault(self.store.journal.shard_of(lease.key), lease)
            if len(found) == self.store.journal.commit_shards:
                break
        for lease in found.values():
            assert 1 == (await self.record(lease, final_transcript(1))).acked
        return [found[lane] for lane in range(self.store.journal.commit_shards)]

    async def record(self, lease: ProducerLease, *events: JsonObject) -> EventBatch:
        return await self.recorder.record(lease, decode_frame(msgspec.json.encode(events)))

    def begin(self, lease: ProducerLease, *events: JsonObject) -> asyncio.Task[EventBatch]:
        return asyncio.create_task(self.record(lease, *events))

    def has_own_database(self, lease: ProducerLease) -> bool:
        return lease.key in self.recorder.commits.shards[self.store.journal.shard_of(lease.key)].apart


@pytest.fixture
async def service(open_handle: OpenHandle) -> Service:
    return Service(await opened(open_handle))


@pytest.fixture
async def other(open_handle: OpenHandle) -> PostgresqlStore:
    """A second handle on the same database."""
    return await opened(open_handle)


@asynccontextmanager
async def held(other: PostgresqlStore, lock: str, **values: object) -> AsyncIterator[None]:
    """A row that a transaction of another connection has locked until the block ends."""
    writer = other.database.writers.get()
    session = writer.open()
    session.execute("begin")
    session.execute("set local idle_in_transaction_session_timeout = 0")
    assert session.row(lock, **values)
    try:
        yield
    finally:
        session.execute("commit")
        other.database.writers.put(writer)


@contextmanager
def broken(store: PostgresqlStore, lane: int) -> Iterator[None]:
    """Until the block ends, no statement that journals an event of this lane comes through."""
    name = store.database.append_connections[lane].writer.open().raw.info.dbname
    postgresql.server().execute(BREAK_LANE.format(lane=lane), name)
    try:
        yield
    finally:
        postgresql.server().execute(MEND_LANE, name)


async def test_a_session_that_is_locked_holds_up_none_of_its_lane(service: Service, other: PostgresqlStore) -> None:
    """Others of its lane are acknowledged meanwhile; what came to it is stored in order once it is free."""
    lease, *_ = await service.open_one_in_each_lane()
    neighbours = [one for one in [await service.open(f"t{n}") for n in range(20)] if one.key % 2 == lease.key % 2]
    async with held(other, LOCK_HEAD, key=lease.key):
        waiting = [service.begin(lease, final_transcript(2))]
        await eventually(True, lambda: asyncio.sleep(0, service.has_own_database(lease)))
        waiting += [service.begin(lease, final_transcript(3)), service.begin(lease, session_end(4))]
        for neighbour in neighbours:
            for seq in (1, 2):
                assert seq == (await service.record(neighbour, final_transcript(seq))).acked
        assert not any(one.done() for one in waiting)
    assert [2, 3, 4] == [(await one).acked for one in waiting]
    assert {"main": [1, 2, 3, 4]} == await seqs_by_producer(service.store, lease.key)
    assert not service.has_own_database(lease)


async def test_a_lane_that_waits_holds_up_no_other(service: Service, other: PostgresqlStore) -> None:
    """While the row of one lane is locked, sessions of another are acknowledged."""
    slow, fast = await service.open_one_in_each_lane()
    async with held(
        other, LOCK_LANE, token=service.store.database.token, lane=service.store.journal.shard_of(slow.key)
    ):
        waiting = service.begin(slow, final_transcript(2))
        for seq in range(2, 6):
            assert seq == (await service.record(fast, final_transcript(seq))).acked
        assert not waiting.done()
    assert 2 == (await waiting).acked


async def test_an_error_concerns_its_lane_only(service: Service) -> None:
    """Batches of one lane fail and its memories are forgotten; those of another are stored, and kept."""
    broken_one, sound = await service.open_one_in_each_lane()
    with broken(service.store, service.store.journal.shard_of(broken_one.key)):
        failing = service.begin(broken_one, final_transcript(2))
        assert 2 == (await service.record(sound, final_transcript(2))).acked
        with pytest.raises(StoreUnavailable):
            await failing
        assert [sound.key] == [key for key in service.read_models.cached if key in (broken_one.key, sound.key)]
    assert 2 == (await service.record(broken_one, final_transcript(2))).acked


async def test_an_error_apart_concerns_its_sessions_only(service: Service, other: PostgresqlStore) -> None:
    """A session that had to be looked at fails alone: what is known of others in its lane stays."""
    lease, *_ = await service.open_one_in_each_lane()
    neighbour = next(one for one in [await service.open(f"t{n}") for n in range(20)] if one.key % 2 == lease.key % 2)
    await service.record(neighbour, final_transcript(1))
    with broken(service.store, service.store.journal.shard_of(lease.key)), pytest.raises(StoreUnavailable):
        await service.record(lease, session_end(2))
    assert (False, True) == (lease.key in service.read_models.cached, neighbour.key in service.read_models.cached)
    assert not service.has_own_database(lease)
    assert 2 == (await service.record(lease, session_end(2))).acked


async def test_events_of_one_session_stay_in_order(service: Service, open_handle: OpenHandle) -> None:
    """Plain events, updates and resends of many sessions at once, of two producers each, are stored once, in order."""
    leases = [await service.open(f"s{n}", name) for n in range(6) for name in ("asr", "llm")]

    async def run(lease: ProducerLease) -> None:
        for seq in range(1, 40, 2):
            events = [final_transcript(seq), final_transcript(seq + 1)]
            again = service.begin(lease, *events) if seq % 5 == 0 else None
            if seq % 7 == 0:
                events.insert(0, events[0])
            recorded = await service.record(lease, *events)
            assert (seq + 1, []) == (recorded.acked, [*recorded.problems])
            if again is not None:
                assert seq + 1 == (await again).acked

    await asyncio.gather(*map(run, leases))
    for lease in leases:
        assert [*range(1, 41)] == (await seqs_by_producer(service.store, lease.key))[lease.producer]


@pytest.mark.parametrize("numbers", [[], [0], [-1, 1, 2**62, -(2**63), 2**63 - 1]])
def test_columns_of_numbers_arrive_as_they_are(database: str, numbers: list[int]) -> None:
    """A column that is sent in one piece has the same numbers on the other side, in their order."""
    session = connect(postgresql.server().url(database))
    arrived = session.rows("select unnest(:numbers::bigint[])", numbers=array("q", numbers))
    assert [(number,) for number in numbers] == arrived
    session.close()
