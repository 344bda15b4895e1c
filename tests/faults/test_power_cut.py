"""What a power cut leaves behind, and a disk that gives back other bits than it was given (faults 27 to 29)."""

# ruff: noqa: ASYNC240, SIM300 (files are small and nobody else waits; asserts read `expected == actual`)
from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from appends import append
from callers import Caller, service
from producers import producing, said

from bench.powercut.disk import Disk
from voicemem.config.session import validate_config
from voicemem.errors import StoreUnavailable
from voicemem.store.admission import Offer
from voicemem.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
STEP = int(os.environ.get("TORN_LOG_STEP", "7"))
Tables = dict[str, list[tuple[Any, ...]]]


def powercut(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the last line of the program."""
    command = [sys.executable, "-m", "bench.powercut", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


# 27


def test_power_cuts_lose_nothing_acknowledged() -> None:
    """27: whatever becomes of unsynced writes, all that was acknowledged is there, once, and nothing else."""
    code, told = powercut("--rounds", "12", "--seed", "27")
    assert (0, []) == (code, told["first"])
    assert told["cuts"] == 12
    assert min(told["acknowledged_events_checked"], told["torn_writes"], told["unsynced_writes"]["dropped"]) > 0


def test_power_cuts_find_what_is_not_kept() -> None:
    """27: the program sees losses under synchronous=NORMAL, and damage where the database is not synced in time."""
    code, told = powercut("--rounds", "20", "--seed", "27", "--prove")
    assert code == 0
    assert told["prove"]["synchronous=NORMAL"]["lost"] > 0
    assert told["prove"]["unsynced database"]["findings"] > 0


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


async def test_a_restart_after_a_failed_sync(disk: Disk, tmp_path: Path) -> None:
    """27 and 31: what a process acknowledges after one whose sync failed is there after a power cut."""
    path = tmp_path / "calls.db"
    store = SqliteStore(str(path))
    key = (await store.open("p", "s", "main", validate_config({}), None, 1)).stream.key
    await append(store, key, "main", None, [Offer(1, 1, EVENTS[0])], 1)
    disk.sync_error = 1
    with pytest.raises(StoreUnavailable):
        await append(store, key, "main", None, [Offer(2, 1, EVENTS[1])], 1)
    await store.close_store()
    store = SqliteStore(str(path))
    for seq in (2, 3):
        (outcome,) = (await append(store, key, "main", None, [Offer(seq, 1, EVENTS[seq - 1])], 1)).outcomes
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
        key = (await store.open("p", "s", "main", validate_config({}), None, 1)).stream.key
        for seq, payload in enumerate(EVENTS, 1):
            before = os.path.getsize(f"{path}-wal")
            await append(store, key, "main", 1, [Offer(seq, 1, payload)], 1)
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
        return [row.payload for row in await store.rows(key, 0, 1_000) if row.producer == "main"]
    finally:
        await store.close_store()


def test_a_torn_log_at_every_byte(files: Files, tmp_path: Path) -> None:
    """28: wherever in its last commit the log ends, exactly the commits before are there; the last needs every byte.

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


async def test_a_torn_log_under_a_store(files: Files, tmp_path: Path) -> None:
    """28: a store opens on a log that ends anywhere, or in garbage, and goes on after the last whole commit."""
    choice = random.Random(28)
    for number in range(40):
        log = files.log[: choice.randrange(files.before, len(files.log))] + choice.randbytes(5_000 * (number % 2))
        assert EVENTS[:-1] == await stored(files.lay(tmp_path, log=log), files.key), number


async def test_a_flipped_bit_in_the_log(files: Files, tmp_path: Path) -> None:
    """29: the log's checksums end it before the damage: what is served is true, though less."""
    choice = random.Random(29)
    for _ in range(40):
        found = await stored(files.lay(tmp_path, log=flipped(files.log, choice)), files.key)
        assert EVENTS[: len(found)] == found


def flipped(content: bytes, choice: random.Random) -> bytes:
    """The same but for one bit."""
    changed = bytearray(content)
    changed[choice.randrange(len(changed))] ^= 1 << choice.randrange(8)
    return bytes(changed)


SPOKEN = "Line 7 of the call."


async def damaged(path: Path, old: bytes, new: bytes) -> None:
    """A stopped service's database in which these bytes, wherever they stand, have become others."""
    async with service(store=f"sqlite:{path}") as app, producing(app) as producer:
        await producer.store(*(said(seq, text=f"Line {seq} of the call.") for seq in range(1, 10)))
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


async def test_damaged_pages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """29: pages that SQLite cannot read are a 503 for those who need them; the service lives, and nothing crashes."""
    path = tmp_path / "calls.db"
    await damaged(path, b"", b"")
    content = bytearray(path.read_bytes())
    at = content.index(SPOKEN.encode()) // 4096 * 4096
    content[at : at + 8] = b"\xff" * 8
    path.write_bytes(content)
    async with service(store=f"sqlite:{path}") as app:
        api = Caller(app)
        assert (503, "store_unavailable") == (await api.get("/v1/sessions/s/history")).told
        assert 200 == (await api.get("/livez")).status
    assert "Traceback" not in caplog.text


async def test_a_flipped_bit_in_the_database(tmp_path: Path) -> None:
    """29: what was not said is not served."""
    path = tmp_path / "calls.db"
    await damaged(path, SPOKEN.encode(), SPOKEN.replace("7", "6").encode())
    async with service(store=f"sqlite:{path}") as app:
        assert (503, "store_unavailable") == (await Caller(app).get("/v1/sessions/s/history")).told


async def test_a_damaged_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """29: an event that cannot be read any more is a store that cannot be read, and no fault of the program."""
    path = tmp_path / "calls.db"
    await damaged(path, b'"' + SPOKEN.encode(), b"!" + SPOKEN.encode())
    async with service(store=f"sqlite:{path}") as app:
        assert (503, "store_unavailable") == (await Caller(app).get("/v1/sessions/s/history")).told
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_damaged_configuration(tmp_path: Path) -> None:
    """29: a configuration that cannot be read is that session's trouble alone."""
    path = tmp_path / "calls.db"
    async with service(store=f"sqlite:{path}") as app:
        await Caller(app).create("s", name="damaged")
        await Caller(app).create("t", name="whole")
    path.write_bytes(path.read_bytes().replace(b'"damaged"', b'!damaged"'))
    async with service(store=f"sqlite:{path}") as app:
        assert 200 == (await Caller(app).get("/v1/sessions/t")).status
