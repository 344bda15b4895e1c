"""`backup` and `restore`: beside a running server, and into a file that a server then runs on."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import stat
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.services import running_service
from voicemem.cli import main


def command(name: str, *arguments: object) -> tuple[int, str]:
    """The exit code and the output of a command."""
    result = CliRunner().invoke(main, [name, *map(str, arguments)])
    return result.exit_code, result.output


async def beside(name: str, *arguments: object) -> tuple[int, str]:
    """The same, while this process serves."""
    return await asyncio.to_thread(command, name, *arguments)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Where the server keeps its calls."""
    return f"sqlite:{tmp_path}/calls.db"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the backup goes."""
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "calls.backup"


def fill(store: str, count: int = 3) -> None:
    """Run a server that takes some events, and is stopped."""

    async def serve() -> None:
        async with running_service(store=store) as app, open_producer(app) as producer:
            await producer.store(*(final_transcript(seq) for seq in range(1, count + 1)))

    asyncio.run(serve())


def journaled(store: str) -> list[int]:
    """The seqs that a server on this store has."""

    async def serve() -> list[int]:
        async with running_service(store=store) as app:
            return [row["seq"] for row in await RestClient(app).journal()]

    return asyncio.run(serve())


async def test_a_restored_backup_is_the_store_under_another_incarnation(store: str, file: Path) -> None:
    """What was there at the backup is there again; a producer sees that it is another store, and goes on."""
    async with running_service(store=store) as app, connected_producer(app) as producer:
        before = await producer.open()
        await producer.store(*(final_transcript(seq) for seq in range(1, 4)))
        assert 0 == (await beside("backup", "--store", store, file))[0]
        await producer.store(final_transcript(4), final_transcript(5))
    code, output = command("restore", "--store", store, "--force", file)
    assert (0, f"{store[7:]} is restored from {file}") == (code, output.splitlines()[-1])
    async with running_service(store=store) as app, connected_producer(app) as producer:
        after = await producer.open()
        assert (4, False) == (after["next_seq"], before["incarnation"] == after["incarnation"])
        assert ["Line 1.", "Line 2.", "Line 3."] == [m["content"] for m in await RestClient(app).contents()]
        await producer.open(from_seq=6)
        await producer.store(final_transcript(6))
        assert {"type": "session.gap", "producer": "main", "from_seq": 4, "to_seq": 5} == (
            await RestClient(app).journal(query="?after=3")
        )[0]["event"]


async def test_a_backup_beside_a_busy_server_is_of_one_moment(store: str, file: Path) -> None:
    """While events stream in: it comes to an end, has what was acknowledged before, and is a prefix of the call."""
    stopped = asyncio.Event()

    async with running_service(store=store) as app, open_producer(app) as producer:
        await producer.store(*(final_transcript(seq, "x" * 5_000) for seq in range(1, 1_001)))

        async def stream() -> int:
            for seq in itertools.count(1_001):
                await producer.store(final_transcript(seq))
                if stopped.is_set():
                    return seq
            raise AssertionError

        streaming = asyncio.create_task(stream())
        code, output = await beside("backup", "--store", store, file)
        stopped.set()
        last = await streaming
        assert (0, f"{file} is a backup of {store[7:]}") == (code, output.splitlines()[-1])
    assert 0 == command("restore", "--store", f"{store}.copy", file)[0]
    async with running_service(store=f"{store}.copy") as app:
        seqs = [row["seq"] for row in await RestClient(app).journal()]
        assert list(range(1, len(seqs) + 1)) == seqs
        assert 1_000 <= len(seqs) <= last


def test_a_backup_is_one_file_that_only_its_owner_may_read(store: str, file: Path) -> None:
    """It holds secrets; nothing else is left beside it."""
    fill(store)
    assert 0 == command("backup", "--store", store, file)[0]
    assert [file] == list(file.parent.iterdir())
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)


def test_nothing_is_overwritten_without_being_told(store: str, file: Path) -> None:
    """Neither a backup nor a store; with --force both are."""
    fill(store)
    file.write_text("an older one")
    for name in ("backup", "restore"):
        code, output = command(name, "--store", store, file)
        assert (1, True) == (code, "--force" in output), output
        assert [] == [word for word in ("restored", "copied", "is a backup") if word in output]
    assert "an older one" == file.read_text()
    assert 0 == command("backup", "--store", store, "--force", file)[0]
    assert 0 == command("restore", "--store", store, "--force", file)[0]


async def test_a_store_that_is_served_is_not_restored(store: str, file: Path) -> None:
    """Not even with --force; the server goes on undisturbed."""
    await asyncio.to_thread(fill, store)
    command("backup", "--store", store, file)
    async with running_service(store=store) as app:
        code, output = await beside("restore", "--store", store, "--force", file)
        assert (1, True) == (code, "Another server is already using" in output)
        assert 3 == len(await RestClient(app).journal())
    assert [file] == list(file.parent.iterdir())


def test_a_store_that_another_process_reads_is_not_restored(store: str, file: Path) -> None:
    """Whoever has the file open would go on with a log that belongs to another file. No locks are left behind."""
    fill(store)
    command("backup", "--store", store, file)
    locks = [Path(f"{store[7:]}{suffix}") for suffix in (".lock", ".opening")]
    for lock in locks:
        lock.unlink()
    with closing(apsw.Connection(store[7:])) as reader:
        reader.execute("select * from streams").fetchall()
        code, output = command("restore", "--store", store, "--force", file)
        assert (1, True) == (code, "has" in output and "open" in output), output
    assert [] == [lock for lock in locks if lock.exists()]


def test_a_log_that_a_killed_server_left_does_not_meet_the_restored_file(store: str, file: Path) -> None:
    """The old file's log is taken away, also when the old file is damaged."""
    fill(store)
    command("backup", "--store", store, file)
    path = Path(store[7:])
    path.write_bytes(b"SQLite format 3\0" + b"damaged" * 1_000)
    Path(f"{path}-wal").write_bytes(b"left behind")
    assert 0 == command("restore", "--store", store, "--force", file)[0]
    assert not Path(f"{path}-wal").exists()
    assert [1, 2, 3] == journaled(store)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "not a voicemem database"), (b"not a database" * 500, "not a database")],
    ids=["empty", "text"],
)
def test_what_is_no_backup_is_not_restored(store: str, file: Path, content: bytes, why: str) -> None:
    """Nor is a store made of it."""
    file.write_bytes(content)
    code, output = command("restore", "--store", store, file)
    assert (1, True) == (code, why in output), output
    assert [] == list(Path(store[7:]).parent.glob("calls.db*"))


def test_a_damaged_backup_is_not_restored(store: str, file: Path) -> None:
    """A page that was written over is found before the file takes the store's name."""
    fill(store, 200)
    command("backup", "--store", store, file)
    pages = bytearray(file.read_bytes())
    for page in range(4096, len(pages), 4096):
        pages[page : page + 8] = b"\x0d\xff\xff\xff\xff\xff\xff\xff"
    file.write_bytes(pages)
    code, output = command("restore", "--store", f"{store}.other", file)
    assert (1, True) == (code, "The database is damaged" in output or "cannot be copied: " in output), output
    assert [] == [found.name for found in Path(store[7:]).parent.glob("calls.db.other*")]


def test_a_backup_of_a_newer_version_is_not_restored(store: str, file: Path) -> None:
    """Its schema is unknown to this program."""
    fill(store)
    command("backup", "--store", store, file)
    with closing(apsw.Connection(str(file))) as backup:
        backup.execute("pragma user_version = 9999")
    code, output = command("restore", "--store", store, "--force", file)
    assert (1, True) == (code, "9999" in output), output


def test_what_cannot_be_copied_is_said_plainly(store: str, file: Path) -> None:
    """A store that is not there, one in memory, one of another kind, a folder that is not there."""
    for url, why in (
        (store, "There is no database"),
        ("memory:", "A store in memory"),
        ("postgresql://x", "files of SQLite"),
        ("mysql://x", "unknown"),
    ):
        code, output = command("backup", "--store", url, file)
        assert (1, True) == (code, why in output), output
    assert not Path(store[7:]).exists()
    fill(store)
    command("backup", "--store", store, file)
    code, output = command("restore", "--store", "sqlite:/no/such/folder/calls.db", file)
    assert (1, True) == (code, "cannot be written" in output), output
