"""Torn logs, failed syncs and flipped bits under a store (faults 27 to 29)."""

# ruff: noqa: ASYNC240 (files are small and no one else waits; asserts read `expected == actual`)
from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from bench.powercut.disk import Disk
from tests.support.stores.contract import append_batch
from voicemem.config.session import validate_config
from voicemem.errors import StoreUnavailable
from voicemem.store.append_rules import Offer
from voicemem.store.sqlite.store import SqliteStore

STEP = int(os.environ.get("TORN_LOG_STEP", "7"))
Tables = dict[str, list[tuple[Any, ...]]]


# 27


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Stands under every store that the test opens; a store that is closed on it has died."""

    def die(connection: apsw.Connection) -> None:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    disk = Disk(random.Random(31))
    apsw.connection_hooks.append(die)
    yield disk
    apsw.connection_hooks.remove(die)
    disk.unregister()


@pytest.mark.fault(27)
@pytest.mark.fault(31)
async def test_a_restart_after_a_failed_sync(disk: Disk, tmp_path: Path) -> None:
    """What a process acknowledges after one whose sync failed is there after a power cut."""
    path = tmp_path / "calls.db"
    store = SqliteStore(str(path))
    key = (await store.journal.open_producer("p", "s", "main", validate_config({}), None, 1)).stream.key
    await append_batch(store.journal, key, "main", None, [Offer(1, 1, EVENTS[0])], 1)
    disk.sync_error = 1
    with pytest.raises(StoreUnavailable):
        await append_batch(store.journal, key, "main", None, [Offer(2, 1, EVENTS[1])], 1)
    await store.close_store()
    store = SqliteStore(str(path))
    for seq in (2, 3):
        (outcome,) = (
            await append_batch(store.journal, key, "main", None, [Offer(seq, 1, EVENTS[seq - 1])], 1)
        ).outcomes
        assert outcome.code is None
    disk.end("when all is acknowledged")
    await store.close_store()
    assert disk.image is not None
    disk.revive()
    other = tmp_path / "found"
    other.mkdir()
    for name, content in disk.image.items():
        (other / Path(name).name).write_bytes(content)
    assert EVENTS[:3] == await stored(str(other / path.name), key)


# 28 and 29


class Files(NamedTuple):
    """A database with its log, and how much of the log there was before the last commit."""

    database: bytes
    log: bytes
    before: int
    key: int

    def lay(self, folder: Path, database: bytes | None = None, log: bytes | None = None) -> str:
        """Write them, or others in their place, into a folder."""
        path = folder / "torn.db"
        path.write_bytes(self.database if database is None else database)
        Path(f"{path}-wal").write_bytes(self.log if log is None else log)
        Path(f"{path}-shm").unlink(missing_ok=True)
        return str(path)


EVENTS = [b'{"type":"asr","seq":%d,"turn_id":%d,"text":"Line %d.","final":true}' % (n, n, n) for n in range(1, 7)]


@pytest.fixture
async def files(tmp_path: Path) -> Files:
    """A store's files after acknowledged commits, of which the last is only in the log."""
    path = str(tmp_path / "calls.db")
    await SqliteStore(path).close_store()  # so that the log holds only what comes now
    store = SqliteStore(path)
    try:
        key = (await store.journal.open_producer("p", "s", "main", validate_config({}), None, 1)).stream.key
        for seq, payload in enumerate(EVENTS, 1):
            before = os.path.getsize(f"{path}-wal")
            await append_batch(store.journal, key, "main", 1, [Offer(seq, 1, payload)], 1)
        return Files(Path(path).read_bytes(), Path(f"{path}-wal").read_bytes(), before, key)
    finally:
        await store.close_store()


def tables(path: str) -> Tables:
    """All rows that a process finds which opens this database; the log stays as it is."""
    connection = apsw.Connection(path)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("pragma locking_mode = exclusive")  # without a shared index, which takes time
        names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
        return {name: connection.execute(f"select * from {name}").fetchall() for name in names}
    finally:
        connection.close()


async def stored(path: str, key: int) -> list[bytes]:
    """What a store says that it has of the session. Raises `CannotStart`, `StoreUnavailable`."""
    store = SqliteStore(path, exclusive=False)
    try:
        return [row.payload for row in await store.journal.read_rows(key, 0, 1_000) if row.producer == "main"]
    finally:
        await store.close_store()


@pytest.mark.long
@pytest.mark.fault(28)
def test_a_torn_log_at_every_byte(files: Files, tmp_path: Path) -> None:
    """Wherever in its last commit the log ends, exactly the commits before are there; the last needs every byte.

    With TORN_LOG_STEP=1 in the environment at every byte, which takes a while.
    """
    path = files.lay(tmp_path)
    whole, sizes = tables(path), range(len(files.log) - 1, files.before - 1, -STEP)
    earlier = tables(files.lay(tmp_path, log=files.log[: files.before]))
    assert whole != earlier
    files.lay(tmp_path)
    for size in sizes:
        os.truncate(f"{path}-wal", size)
        assert earlier == tables(path), size


@pytest.mark.fault(28)
async def test_a_torn_log_under_a_store(files: Files, tmp_path: Path) -> None:
    """A store opens on a log that ends anywhere, or in garbage, and goes on after the last whole commit."""
    choice = random.Random(28)
    for number in range(40):
        log = files.log[: choice.randrange(files.before, len(files.log))] + choice.randbytes(5_000 * (number % 2))
        assert EVENTS[:-1] == await stored(files.lay(tmp_path, log=log), files.key), number


@pytest.mark.fault(29)
async def test_a_flipped_bit_in_the_log(files: Files, tmp_path: Path) -> None:
    """The log's checksums end it before the damage: what is served is true, though less."""
    choice = random.Random(29)
    for _ in range(40):
        found = await stored(files.lay(tmp_path, log=flipped(files.log, choice)), files.key)
        assert EVENTS[: len(found)] == found


def flipped(content: bytes, choice: random.Random) -> bytes:
    """The same but for one bit."""
    changed = bytearray(content)
    changed[choice.randrange(len(changed))] ^= 1 << choice.randrange(8)
    return bytes(changed)
