"""A SQLite store as a whole: its file, its schema, one writer, and what is refused."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import apsw
import pytest

from tests.support.stores.sqlite import (
    NOW,
    begin,
    insert,
    inserted,
    offer,
    opened_session,
    send,
    set_version,
    stored_seqs,
)
from voicemem.config.session import validate_config
from voicemem.errors import CannotStart, StoreUnavailable
from voicemem.store.append_rules import Offer, Outcome
from voicemem.store.directory import ApiKey
from voicemem.store.outbox import Attempt
from voicemem.store.session_filters import SessionFilter
from voicemem.store.sqlite.store import InMemoryStore, SqliteStore
from voicemem.store.streams import SessionEnding


async def test_nothing_touches_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory leaves no file where it runs."""
    monkeypatch.chdir(tmp_path)
    store = InMemoryStore()
    await store.journal.open_producer("p", "s", "main", validate_config({}), None, 1_000)
    await store.close_store()

    assert not os.listdir(tmp_path)


async def test_every_commit_is_synced(sqlite: SqliteStore) -> None:
    """The file is in WAL mode and its writer syncs every commit, as it reads them back itself."""
    writer = sqlite.database.writer

    assert (2, "wal") == (writer.pragma("synchronous"), writer.pragma("journal_mode"))


async def test_a_reader_never_writes(sqlite: SqliteStore) -> None:
    """The reading connection can neither write nor checkpoint."""
    with pytest.raises(StoreUnavailable):
        await sqlite.database.read(insert("written"))

    assert sqlite.database.reader is not None
    assert 0 == sqlite.database.reader.raw.pragma("wal_autocheckpoint")
    assert set() == await inserted(sqlite)


async def test_a_second_server_is_refused(sqlite: SqliteStore, path: str) -> None:
    """One server per file: a second one does not start, and leaves the first as it is."""
    with pytest.raises(CannotStart, match="Another server"):
        SqliteStore(path)

    assert [Outcome(1)] == await send(sqlite, await begin(sqlite), offer(1))


async def test_commands_work_beside_a_server(sqlite: SqliteStore, path: str) -> None:
    """A store that is not exclusive opens beside a server, and each sees what the other wrote."""
    async with opened_session(path, exclusive=False) as beside:
        await beside.directory.add_key(ApiKey("k", "p", "name", b"\0", ("read",), NOW))
        key = await begin(sqlite)
        await send(sqlite, key, offer(1))

        assert await sqlite.directory.find_key("k") is not None
        assert [1] == await stored_seqs(beside, key)


async def test_a_closed_store_lets_go_of_its_file(path: str) -> None:
    """After a close another server may start, and all is in the one file."""
    async with opened_session(path) as store:
        await send(store, await begin(store), offer(1))
    assert {"voicemem.db", "voicemem.db.lock", "voicemem.db.opening"} == set(os.listdir(os.path.dirname(path)))

    async with opened_session(path) as store:
        assert store.healthy


def test_what_is_no_database_is_refused(path: str) -> None:
    """A file of something else is refused and left as it is."""
    other = b"These are no pages of a database. " * 1000
    Path(path).write_bytes(other)

    with pytest.raises(CannotStart):
        SqliteStore(path)
    assert other == Path(path).read_bytes()


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
    """A file that was refused is held by no one, and opens once it is right."""
    async with opened_session(path):
        pass
    set_version(path, +1)
    with pytest.raises(CannotStart):
        SqliteStore(path)
    set_version(path, -1)

    async with opened_session(path) as store:
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
    await sqlite.journal.close_ended(closed, "n", NOW)
    (delivery,) = await sqlite.outbox.claim_deliveries(NOW, 1000, {}, 1)
    await sqlite.outbox.freeze_payload(delivery, b"MARK")
    await sqlite.outbox.finish_delivery(delivery, Attempt(NOW, 12, 500, "MARK", "MARK"), "pending", NOW)
    assert len(marked(sqlite)) > 10
    for key in (closed, ended):
        await sqlite.retention.erase(key, NOW)
    while await sqlite.retention.delete_erased([closed, ended]):
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


async def test_lists_that_look_through_rows_hold_up_no_reads(sqlite: SqliteStore) -> None:
    """A list by label or channel waits for others of its kind, and a history or a list by an index does not."""
    goes_on = threading.Event()
    scan = asyncio.ensure_future(sqlite.database.scan(lambda _: goes_on.wait(30)))
    try:
        lists = [SessionFilter(project="p", label=("desk", "front")), SessionFilter(project="p", channel="c")]
        waiting = [asyncio.ensure_future(sqlite.journal.list_sessions(wanted)) for wanted in lists]
        for wanted in (
            SessionFilter(project="p"),
            SessionFilter(project="p", user_id="u"),
            SessionFilter(project="p", state="running"),
        ):
            assert [] == await sqlite.journal.list_sessions(wanted)
        assert [] == await sqlite.journal.read_rows(1, 0, 10)
        assert not any(task.done() for task in (scan, *waiting))
    finally:
        goes_on.set()
    assert [[], []] == await asyncio.gather(*waiting)
    assert await scan


async def test_the_log_is_moved_beside_commits(sqlite: SqliteStore, path: str) -> None:
    """It begins again once it is long, though a commit always follows the one before."""
    assert sqlite.database.checkpoints is not None
    sqlite.database.checkpoints.pages, sqlite.database.checkpoints.most_pages = 20, 60

    async def keep_writing(name: str) -> None:
        for number in range(10_000):
            await sqlite.database.write(insert(f"{name}{number}"))
            if times_begun(f"{path}-wal") >= 3:
                return
        pytest.fail("after 20,000 commits the log had not begun again three times")

    await asyncio.gather(keep_writing("a"), keep_writing("b"))


def times_begun(log: str) -> int:
    """How often a write-ahead log has begun again: the checkpoint sequence number of its header.

    Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
    """
    with open(log, "rb") as file:
        return int.from_bytes(file.read(16)[12:], "big")


async def test_a_long_log_begins_again_between_two_commits(sqlite: SqliteStore) -> None:
    """The writer itself moves what a checkpoint beside it has left."""
    checkpoints = sqlite.database.checkpoints
    assert checkpoints is not None
    checkpoints.pages = 10**9
    for number in range(100):
        await sqlite.database.write(insert(f"before {number}"))
    checkpoints.is_last_step_due = True
    await sqlite.database.write(insert("after"))
    pages, moved = sqlite.database.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    assert 0 < pages == moved < 20


async def test_a_store_whose_file_is_cut_short_is_not_healthy(sqlite: SqliteStore, path: str) -> None:
    """It says so before anything is written, and a file that grows is well."""
    assert sqlite.healthy
    await sqlite.database.write(insert("x" * 100_000))
    sqlite.database.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    assert sqlite.healthy
    os.truncate(path, os.path.getsize(path) - 4_096)  # noqa: ASYNC240 (a test may)
    assert not sqlite.healthy


async def test_a_failed_sync_of_a_checkpoint_ruins_the_store(sqlite: SqliteStore) -> None:
    """As one of a commit does: what the kernel has dropped is not known."""
    assert sqlite.database.checkpoints is not None
    sqlite.database.checkpoints.sync_failed = True
    with pytest.raises(StoreUnavailable):
        await sqlite.database.write(insert("written"))
    assert sqlite.database.writing.ruined
