"""The writer of a store: group commits, faulty jobs, a disk that fails."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import apsw
import pytest

from tests.support.stores.sqlite import NOW, WAIT_S, begin, insert, inserted, offer, opened_session, send, stored_seqs
from voicemem.config.session import validate_config
from voicemem.errors import StoreUnavailable
from voicemem.store.append_rules import Batch, Outcome
from voicemem.store.sqlite import files
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.driver import Job, SqliteDatabase
from voicemem.store.sqlite.store import SqliteStore


async def together(database: SqliteDatabase, *jobs: Job) -> list[Any]:
    """What becomes of jobs that all wait while the writer is busy with another."""
    busy, free = threading.Event(), threading.Event()

    def hold(connection: SqliteConnection) -> None:
        busy.set()
        free.wait(WAIT_S)

    holding = asyncio.ensure_future(database.write(hold))
    await asyncio.to_thread(busy.wait, WAIT_S)
    waiting = [asyncio.ensure_future(database.write(job)) for job in jobs]
    await asyncio.sleep(0)  # lets them all get into the queue
    free.set()
    await holding
    return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)


class Disk(apsw.VFS):
    """The machine's own disk, which counts the syncs of write-ahead logs and can be made to fail them."""

    def __init__(self) -> None:
        self.base = apsw.vfs_names()[0]
        super().__init__("failing", self.base, makedefault=True)
        self.failing = False
        self.syncs = 0

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's)
        return File(self, name, flags)


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(disk.base, name, flags)
        self.disk = disk
        self.log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xSync(self, flags: int) -> None:  # noqa: N802 (SQLite's)
        if self.log and self.disk.failing:
            raise apsw.IOError("the disk is gone")
        super().xSync(flags)
        self.disk.syncs += self.log


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Stands under every store that the test opens."""
    disk = Disk()
    yield disk
    disk.unregister()


# The one writer


async def test_waiting_jobs_share_a_commit(disk: Disk, path: str) -> None:
    """Whatever waits while the writer is busy goes into one transaction, with one sync."""
    async with opened_session(path) as store:
        keys = [await begin(store, f"s{number}") for number in range(50)]
        before = disk.syncs
        batches = [Batch(key, "main", 1, NOW, [offer(1).payload], 1) for key in keys]
        jobs = [lambda _, batch=batch: store.database.streams.append(batch, NOW) for batch in batches]
        results = await together(store.database, *jobs)

        assert 1 == disk.syncs - before
        assert [1] * 50 == [result.position for result in results]


async def test_jobs_run_in_their_order(sqlite: SqliteStore) -> None:
    """Jobs see what was asked for before them, in the same transaction too."""
    order: list[int] = []
    results = await together(
        sqlite.database, *[lambda connection, number=number: order.append(number) for number in range(20)]
    )

    assert list(range(20)) == order
    assert [None] * 20 == results


def fail(connection: SqliteConnection) -> None:
    raise ValueError("a fault of its own")


def break_a_rule(connection: SqliteConnection) -> None:
    connection.execute("insert into meta values ('incarnation', x'00')")


def misspell(connection: SqliteConnection) -> None:
    connection.execute("selct 1")


def write_and_fail(connection: SqliteConnection) -> None:
    connection.execute("insert into meta values ('half', x'00')")
    raise ValueError("a fault of its own")


@pytest.mark.parametrize("faulty", [fail, write_and_fail, break_a_rule, misspell])
async def test_a_faulty_job_takes_nobody_down(sqlite: SqliteStore, faulty: Job) -> None:
    """A job that raises gets its error and leaves nothing behind; those beside it are committed all the same."""
    before, error, after = await together(sqlite.database, insert("before"), faulty, insert("after"))

    assert isinstance(error, Exception)
    assert (1, 1) == (before, after)
    assert {"before", "after"} == await inserted(sqlite)
    assert sqlite.healthy


@pytest.mark.fault(24)
async def test_a_caller_may_leave(sqlite: SqliteStore) -> None:
    """A write whose caller has gone is committed, and those beside it are answered."""
    left = asyncio.ensure_future(sqlite.database.write(insert("left")))
    stayed = asyncio.ensure_future(sqlite.database.write(insert("stayed")))
    await asyncio.sleep(0)
    left.cancel()
    await stayed

    assert {"left", "stayed"} == await inserted(sqlite)


async def test_a_close_finishes_what_waits(path: str) -> None:
    """Everything that was asked for before the close is committed and answered."""
    store = SqliteStore(path)
    key = await begin(store)
    waiting = [asyncio.ensure_future(send(store, key, offer(seq))) for seq in range(1, 31)]
    await asyncio.sleep(0)
    await store.close_store()

    assert [[Outcome(seq)] for seq in range(1, 31)] == await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    async with opened_session(path) as store:
        assert list(range(1, 31)) == await stored_seqs(store, key)


async def test_resends_are_looked_up_together(sqlite: SqliteStore) -> None:
    """A batch of old events, in a declared gap or not, costs the one writer a few queries and not one for each."""
    key = await begin(sqlite)
    await send(sqlite, key, *map(offer, range(1, 101)))
    await sqlite.journal.open_producer("p", "s", "main", validate_config({}), 301, NOW)
    queries: list[str] = []

    def trace(cursor: apsw.Cursor, query: str, values: apsw.Bindings | None) -> bool:
        queries.append(query)
        return True

    sqlite.database.writer.exec_trace = trace
    outcomes = await send(sqlite, key, *map(offer, range(1, 301)))

    assert [Outcome(duplicate=True)] * 100 + [Outcome(code="seq_conflict")] * 200 == outcomes
    assert len(queries) < 50


# Faults


async def test_a_full_disk_stores_nothing(sqlite: SqliteStore) -> None:
    """When the disk is full every waiter is told, nothing of theirs is stored, and it goes on once there is room."""
    key = await begin(sqlite)
    writer = sqlite.database.writer
    writer.pragma("max_page_count", writer.pragma("page_count") + 3)
    answers = await together(sqlite.database, insert("small"), fill, insert("another"))

    assert [StoreUnavailable] * 3 == [type(answer) for answer in answers]
    assert not sqlite.healthy
    with pytest.raises(StoreUnavailable):
        await send(sqlite, key, offer(1), offer(2, size=100_000))
    assert ([], set()) == (await stored_seqs(sqlite, key), await inserted(sqlite))

    writer.pragma("max_page_count", 10**6)
    assert [Outcome(1), Outcome(2)] == await send(sqlite, key, offer(1), offer(2, size=100_000))
    assert sqlite.healthy
    assert [1, 2] == await stored_seqs(sqlite, key)


def fill(connection: SqliteConnection) -> None:
    connection.execute("insert into meta values ('large', zeroblob(100000))")


async def test_a_commit_waits_for_the_lock_of_another(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for the lock again and again, as rarely at the end as at first, until the other is done."""
    asked, ask = list[int](), files.wait_for_lock

    def ask_and_end(waits: int) -> bool:
        asked.append(waits)
        if waits == 20:
            holder.execute("commit")
        return ask(waits)

    monkeypatch.setattr(files, "wait_for_lock", ask_and_end)
    store = SqliteStore(path)
    with closing(apsw.Connection(path)) as holder:
        holder.execute("begin immediate")
        await store.database.write(insert("one"))
    assert ([*range(21)], {"one"}) == (asked, await inserted(store))
    assert not ask(files.LOCK_WAITS)
    await store.close_store()


async def test_a_commit_beside_a_failed_sync_heals_nothing(sqlite: SqliteStore) -> None:
    """A checkpoint whose sync failed is noted by a job; others in its transaction do not prove that the disk works."""
    await together(sqlite.database, lambda connection: sqlite.database.writing.mark_ruined(), insert("beside"))
    assert not sqlite.healthy
    with pytest.raises(StoreUnavailable):
        await sqlite.database.write(insert("later"))
    assert not sqlite.healthy


async def test_an_answer_follows_its_sync(disk: Disk, path: str) -> None:
    """Every acknowledged append was synced by itself, not by some later checkpoint."""
    async with opened_session(path) as store:
        key = await begin(store)
        for seq in range(1, 6):
            before = disk.syncs
            await send(store, key, offer(seq))

            assert before < disk.syncs


async def test_a_sync_that_fails_stores_nothing(disk: Disk, path: str) -> None:
    """When a commit cannot be synced every waiter is told, and neither this store nor a later one has it."""
    async with opened_session(path) as store:
        key = await begin(store)
        await send(store, key, offer(1))
        disk.failing = True
        writes = [send(store, key, offer(2)), *(store.database.write(insert(name)) for name in ("lost", "lost too"))]
        answers = await asyncio.gather(*writes, return_exceptions=True)

        assert [StoreUnavailable] * 3 == [type(answer) for answer in answers]
        assert not store.healthy
        assert [1] == await stored_seqs(store, key)
        disk.failing = False
        assert [Outcome(2)] == await send(store, key, offer(2))
        assert store.healthy

    async with opened_session(path) as store:
        assert [1, 2] == await stored_seqs(store, key)
        assert set() == await inserted(store)
