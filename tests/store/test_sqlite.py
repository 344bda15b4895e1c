"""What is special to the embedded store: its file, its one writer, and what happens when the disk fails."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from appends import append

from voicemem.config.session import validate_config
from voicemem.errors import CannotStart, StoreUnavailable
from voicemem.store.admission import Batch, Offer, Outcome
from voicemem.store.records import ApiKey, Attempt
from voicemem.store.sqlite import SqliteStore, schema
from voicemem.store.sqlite.append import append as add
from voicemem.store.sqlite.database import Database, Job
from voicemem.store.sqlite.database_files import lock_file
from voicemem.store.sqlite.schema import Migration, migrations, newest_version
from voicemem.store.sqlite.store import MemoryStore
from voicemem.store.streams import SessionEnding

NOW = 1_778_390_400_000
WAIT_S = 10
"""Longer than anything here takes: a store that leaves somebody waiting fails its test instead of hanging it."""

RECORDER = """
import asyncio, sys
from voicemem.config.session import validate_config
from voicemem.store.admission import Batch, Offer
from voicemem.store.sqlite import SqliteStore

async def record(store, name):
    opened = await store.open("p", name, "main", validate_config({}), None, 1)
    seq = 1
    while True:
        batch = [Offer(n, 1, b'{"type":"metric","seq":%d}' % n) for n in range(seq, seq + 3)]
        await store.append([Batch(opened.stream.key, "main", opened.epoch, 1, offers=batch)], 1)
        seq += 3
        print(name, seq - 1, flush=True)

async def main():
    store = SqliteStore(sys.argv[1])
    await asyncio.gather(*(record(store, name) for name in "abc"))

asyncio.run(main())
"""
"""A server that says what it acknowledges, until it is killed."""


@asynccontextmanager
async def opened(path: str, exclusive: bool = True) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, exclusive)
    try:
        yield store
    finally:
        await store.close_store()


def offer(seq: int, size: int = 10) -> Offer:
    return Offer(seq, NOW, b'{"type":"metric","seq":%d,"name":"%s"}' % (seq, b"x" * size))


async def begin(store: SqliteStore, session_id: str = "s", given: dict[str, Any] | None = None) -> int:
    return (await store.open("p", session_id, "main", validate_config(given or {}), None, NOW)).stream.key


async def send(store: SqliteStore, key: int, *batch: Offer) -> list[Outcome]:
    return [*(await append(store, key, "main", None, batch, NOW)).outcomes]


async def seqs(store: SqliteStore, key: int) -> list[int | None]:
    return [row.seq for row in await store.rows(key, 0, 10**6)]


def insert(name: str) -> Job:
    """A job that can be seen later."""
    return lambda connection: connection.execute("insert into meta values (?, x'00')", (name,)).fetchall()


async def inserted(store: SqliteStore) -> set[str]:
    names: set[str] = await store.database.read(
        lambda connection: {name for (name,) in connection.execute("select name from meta")}
    )
    return names - {"incarnation", "cursor_secret"}


async def together(database: Database, *jobs: Job) -> list[Any]:
    """What becomes of jobs that all wait while the writer is busy with another."""
    busy, free = threading.Event(), threading.Event()

    def hold(connection: apsw.Connection) -> None:
        busy.set()
        free.wait(WAIT_S)

    holding = asyncio.ensure_future(database.write(hold))
    await asyncio.to_thread(busy.wait, WAIT_S)
    waiting = [asyncio.ensure_future(database.write(job)) for job in jobs]
    await asyncio.sleep(0)  # lets them all get into the queue
    free.set()
    await holding
    return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database may be made; nothing is there yet."""
    return str(tmp_path / "voicemem.db")


@pytest.fixture
async def sqlite(path: str) -> AsyncIterator[SqliteStore]:
    """An empty store on a file."""
    async with opened(path) as store:
        yield store


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


# The file


async def test_every_commit_is_synced(sqlite: SqliteStore) -> None:
    """The file is in WAL mode and its writer syncs every commit, as it reads them back itself."""
    writer = sqlite.database.writer

    assert (2, "wal") == (writer.pragma("synchronous"), writer.pragma("journal_mode"))


async def test_a_reader_never_writes(sqlite: SqliteStore) -> None:
    """The reading connection can neither write nor checkpoint."""
    with pytest.raises(StoreUnavailable):
        await sqlite.database.read(insert("written"))

    assert 0 == sqlite.database.reader.pragma("wal_autocheckpoint")
    assert set() == await inserted(sqlite)


async def test_a_second_server_is_refused(sqlite: SqliteStore, path: str) -> None:
    """One server per file: a second one does not start, and leaves the first as it is."""
    with pytest.raises(CannotStart, match="Another server"):
        SqliteStore(path)

    assert [Outcome(1)] == await send(sqlite, await begin(sqlite), offer(1))


async def test_commands_work_beside_a_server(sqlite: SqliteStore, path: str) -> None:
    """A store that is not exclusive opens beside a server, and each sees what the other wrote."""
    async with opened(path, exclusive=False) as beside:
        await beside.add_key(ApiKey("k", "p", "name", b"\0", ("read",), NOW))
        key = await begin(sqlite)
        await send(sqlite, key, offer(1))

        assert await sqlite.key("k") is not None
        assert [1] == await seqs(beside, key)


async def test_a_closed_store_lets_go_of_its_file(path: str) -> None:
    """After a close another server may start, and all is in the one file."""
    async with opened(path) as store:
        await send(store, await begin(store), offer(1))
    assert {"voicemem.db", "voicemem.db.lock"} == set(os.listdir(os.path.dirname(path)))

    async with opened(path) as store:
        assert store.healthy


async def test_a_reopened_store_is_the_same(path: str) -> None:
    """After a restart the store has its incarnation, its secrets and all of its data."""
    async with opened(path) as store:
        identity = (store.incarnation, store.cursor_secret)
        key = await begin(store, given={"name": "joker", "llm": {"api_key": "k"}})
        await send(store, key, offer(1), offer(2))
        stream, rows = await store.stream("p", "s"), await store.rows(key, 0, 10)

    async with opened(path) as store:
        assert identity == (store.incarnation, store.cursor_secret)
        assert (stream, rows) == (await store.stream("p", "s"), await store.rows(key, 0, 10))
        assert (
            "same"
            == (await store.create("p", "s", validate_config({"name": "joker", "llm": {"api_key": "k"}}), NOW))[1]
        )
        assert [Outcome(duplicate=True), Outcome(3)] == await send(store, key, offer(2), offer(3))


async def test_stores_are_not_each_other(path: str) -> None:
    """Every new file has an incarnation and a cursor secret of its own."""
    async with opened(path) as one, opened(path + "2") as other:
        assert one.incarnation != other.incarnation
        assert one.cursor_secret != other.cursor_secret


def set_version(path: str, change: int) -> None:
    connection = apsw.Connection(path)
    connection.pragma("user_version", connection.pragma("user_version") + change)
    connection.close()


async def test_a_newer_schema_is_refused(path: str) -> None:
    """A database that a newer program has written is refused."""
    async with opened(path):
        pass
    set_version(path, +1)

    with pytest.raises(CannotStart, match=r"schema version \d+, newer than this program's version \d+\."):
        SqliteStore(path)


def test_what_is_no_database_is_refused(path: str) -> None:
    """A file of something else is refused and left as it is."""
    other = b"These are no pages of a database. " * 1000
    Path(path).write_bytes(other)

    with pytest.raises(CannotStart):
        SqliteStore(path)
    assert other == Path(path).read_bytes()


@pytest.fixture
def newer_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this program a newer one, whose schema has two more versions."""
    steps = [
        *migrations(),
        Migration(newest_version() + 1, "create table added (name text) strict"),
        Migration(newest_version() + 2, "alter table added add column more text; insert into added values ('a', 'b')"),
    ]
    return lambda: monkeypatch.setattr(schema, "migrations", lambda: steps)


async def test_an_older_schema_is_migrated(path: str, newer_program: Callable[[], None]) -> None:
    """What the file holds stays, and each migration is made once, in order."""
    version = newest_version()
    async with opened(path) as store:
        await send(store, await begin(store), offer(1))
    newer_program()
    for _ in range(2):
        async with opened(path) as store:
            writer = store.database.writer
            assert version + 2 == writer.pragma("user_version")
            assert [("a", "b")] == writer.execute("select name, more from added").fetchall()
            assert [1] == await seqs(store, 1)


def test_a_schema_is_not_changed_under_an_older_server(path: str, newer_program: Callable[[], None]) -> None:
    """A command that opens an older file while its server runs is refused; without a server the file is migrated."""
    version = newest_version()
    SqliteStore(path).database.close()
    newer_program()
    lock = lock_file(path)
    try:
        with pytest.raises(CannotStart, match="older version"):
            SqliteStore(path, exclusive=False)
    finally:
        os.close(lock)
    store = SqliteStore(path, exclusive=False)
    try:
        assert version + 2 == store.database.writer.pragma("user_version")
        os.close(lock_file(path))
    finally:
        store.database.close()


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_database_of_another_program_is_refused(path: str, exclusive: bool) -> None:
    """Whatever its version says, nothing is written into it."""
    other = apsw.Connection(path)
    other.execute("create table calls (id integer); pragma user_version = 3")
    other.close()
    before = Path(path).read_bytes()
    with pytest.raises(CannotStart, match="another program"):
        SqliteStore(path, exclusive)
    assert before == Path(path).read_bytes()


async def test_what_is_refused_is_let_go(path: str) -> None:
    """A file that was refused is held by nobody, and opens once it is right."""
    async with opened(path):
        pass
    set_version(path, +1)
    with pytest.raises(CannotStart):
        SqliteStore(path)
    set_version(path, -1)

    async with opened(path) as store:
        assert store.healthy


@pytest.mark.parametrize("name", ["missing/voicemem.db", "."])
def test_a_place_without_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """A path that cannot be a file does not start."""
    with pytest.raises(CannotStart):
        SqliteStore(str(tmp_path / name))


async def test_an_erased_session_leaves_only_its_name(sqlite: SqliteStore) -> None:
    """After an erase and its sweep no table holds anything that the session's user or producers said."""
    given = {"name": "MARK", "llm": {"api_key": "MARK"}, "webhook": {"url": "https://MARK.example/", "secret": "MARK"}}
    closed, ended = await begin(sqlite, "s1", given), await begin(sqlite, "s2", given)
    for key in (closed, ended):
        end = Offer(1, NOW, b'{"type":"session.end","seq":1,"reason":"MARK"}', ending=SessionEnding(NOW, "MARK"))
        await send(sqlite, key, end)
    await sqlite.close_if_ended(closed, [], None, "n", NOW)
    (export,) = await sqlite.claim_deliveries(NOW, 1000, [], 1)
    await sqlite.freeze(export, b"MARK")
    await sqlite.finish_delivery(export, Attempt(NOW, 12, 500, "MARK", "MARK"), "pending", NOW)
    assert len(marked(sqlite)) > 10
    for key in (closed, ended):
        await sqlite.erase(key, NOW)
    while await sqlite.delete_erased([closed, ended]):
        pass

    assert [] == marked(sqlite)


def marked(store: SqliteStore) -> list[str]:
    """Every value in the database that holds the mark, with its table."""
    connection = store.database.writer
    tables = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    rows = [(table, value) for table in tables for row in connection.execute(f"select * from {table}") for value in row]
    return [f"{table}: {value}" for table, value in rows if "MARK" in str(value)]


def test_others_cannot_read_the_file(path: str) -> None:
    """The file holds the secrets of webhooks, so a new one and its log are their owner's alone."""
    store = SqliteStore(path)
    assert [0o600] * 2 == [os.stat(name).st_mode & 0o777 for name in (path, f"{path}-wal")]
    asyncio.run(store.close_store())


# The one writer


async def test_waiting_jobs_share_a_commit(disk: Disk, path: str) -> None:
    """Whatever waits while the writer is busy goes into one transaction, with one sync."""
    async with opened(path) as store:
        keys = [await begin(store, f"s{number}") for number in range(50)]
        before = disk.syncs
        batches = [Batch(key, "main", 1, NOW, [offer(1).payload], 1) for key in keys]
        jobs = [lambda _, batch=batch: add(store.database.rows, batch, NOW) for batch in batches]
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


def fail(connection: apsw.Connection) -> None:
    raise ValueError("a fault of its own")


def break_a_rule(connection: apsw.Connection) -> None:
    connection.execute("insert into meta values ('incarnation', x'00')")


def misspell(connection: apsw.Connection) -> None:
    connection.execute("selct 1")


def write_and_fail(connection: apsw.Connection) -> None:
    connection.execute("insert into meta values ('half', x'00')")
    raise ValueError("a fault of its own")


@pytest.mark.parametrize("faulty", [fail, write_and_fail, break_a_rule, misspell])
async def test_a_faulty_job_takes_nobody_down(sqlite: SqliteStore, faulty: Job) -> None:
    """A job that raises gets its error and leaves nothing behind; those beside it are committed all the same."""
    before, error, after = await together(sqlite.database, insert("before"), faulty, insert("after"))

    assert isinstance(error, Exception)
    assert ([], []) == (before, after)
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
    async with opened(path) as store:
        assert list(range(1, 31)) == await seqs(store, key)


async def test_resends_are_looked_up_together(sqlite: SqliteStore) -> None:
    """A batch of old events, in a declared gap or not, costs the one writer a few queries and not one for each."""
    key = await begin(sqlite)
    await send(sqlite, key, *map(offer, range(1, 101)))
    await sqlite.open("p", "s", "main", validate_config({}), 301, NOW)
    queries: list[str] = []

    def trace(cursor: apsw.Cursor, query: str, values: apsw.Bindings | None) -> bool:
        queries.append(query)
        return True

    sqlite.database.writer.exec_trace = trace
    outcomes = await send(sqlite, key, *map(offer, range(1, 301)))

    assert [Outcome(duplicate=True)] * 100 + [Outcome(code="seq_conflict")] * 200 == outcomes
    assert len(queries) < 50


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_closed_store_answers(path: str, in_memory: bool) -> None:
    """Reads and writes after the close are told that the store is not there, and nobody is left waiting."""
    store = MemoryStore() if in_memory else SqliteStore(path)
    key = await begin(store)
    await store.close_store()

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(send(store, key, offer(1)), 0.2)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(store.stream("p", "s"), 0.2)


# Faults


@pytest.mark.fault(17)
async def test_what_was_acknowledged_survives_a_kill(path: str) -> None:
    """A server killed in the middle of its work has everything that it acknowledged, whole and in order."""
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", RECORDER, path, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            told = b"".join([await server.stdout.readline() for _ in range(200)])
    finally:
        server.kill()
    told += await server.stdout.read()
    await server.wait()
    lines = told.decode().split("\n")[:-1]  # the last one may have been cut short
    acknowledged = {name: int(seq) for name, seq in map(str.split, lines)}

    async with opened(path) as store:
        assert [("ok",)] == store.database.writer.execute("pragma integrity_check").fetchall()
        assert set("abc") == set(acknowledged)
        for name, last in acknowledged.items():
            stream = await store.stream("p", name)
            assert stream is not None
            assert stream.position >= last
            assert list(range(1, stream.position + 1)) == await seqs(store, stream.key)
            assert [Outcome(stream.position + 1)] == await send(store, stream.key, offer(stream.position + 1))


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
    assert ([], set()) == (await seqs(sqlite, key), await inserted(sqlite))

    writer.pragma("max_page_count", 10**6)
    assert [Outcome(1), Outcome(2)] == await send(sqlite, key, offer(1), offer(2, size=100_000))
    assert sqlite.healthy
    assert [1, 2] == await seqs(sqlite, key)


def fill(connection: apsw.Connection) -> None:
    connection.execute("insert into meta values ('large', zeroblob(100000))")


async def test_an_answer_follows_its_sync(disk: Disk, path: str) -> None:
    """Every acknowledged append was synced by itself, not by some later checkpoint."""
    async with opened(path) as store:
        key = await begin(store)
        for seq in range(1, 6):
            before = disk.syncs
            await send(store, key, offer(seq))

            assert before < disk.syncs


async def test_a_sync_that_fails_stores_nothing(disk: Disk, path: str) -> None:
    """When a commit cannot be synced every waiter is told, and neither this store nor a later one has it."""
    async with opened(path) as store:
        key = await begin(store)
        await send(store, key, offer(1))
        disk.failing = True
        writes = [send(store, key, offer(2)), *(store.database.write(insert(name)) for name in ("lost", "lost too"))]
        answers = await asyncio.gather(*writes, return_exceptions=True)

        assert [StoreUnavailable] * 3 == [type(answer) for answer in answers]
        assert not store.healthy
        assert [1] == await seqs(store, key)
        disk.failing = False
        assert [Outcome(2)] == await send(store, key, offer(2))
        assert store.healthy

    async with opened(path) as store:
        assert [1, 2] == await seqs(store, key)
        assert set() == await inserted(store)
