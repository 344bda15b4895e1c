"""`copy`: a store moves, clients go on; and what the command refuses."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from click.testing import CliRunner

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final, final_transcript, session_end
from tests.support.postgresql import END_CONNECTIONS, database_of, server
from tests.support.processes.faulty_disks import fill_disk, tmpfs
from tests.support.rows import every_row
from tests.support.services import running_service
from voicemem.cli import main
from voicemem.store import copying

pytestmark = pytest.mark.postgresql
BYTES = "select sum(octet_length(payload))::bigint from journal"


def cut_off(*_: object) -> None:
    """What happens when someone presses Ctrl-C."""
    raise KeyboardInterrupt


def damaging(step: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A step of the command, after which the first event of each journal of the database is damaged."""

    def step_and_damage(*arguments: Any) -> Any:
        result = step(*arguments)
        server().execute("update journal set payload = 'x' where position = 1", name)
        return result

    return step_and_damage


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Where the server keeps its calls."""
    return f"sqlite:{tmp_path}/calls.db"


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database_of(tmp_path) as database:
        yield database


@pytest.fixture
def database(name: str) -> str:
    """Its URL."""
    return server().url(name)


def copy(source: str, target: str, *more: str) -> tuple[int, str]:
    """The exit code and the output of the command."""
    result = CliRunner().invoke(main, ["copy", "--from", source, "--to", target, *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


async def copy_beside(source: str, target: str) -> tuple[int, str]:
    """The same, while this process serves."""
    return await asyncio.to_thread(copy, source, target)


async def fill(store: str, count: int = 3) -> str:
    """A server takes some events of a session that does not end, and is stopped; the store's incarnation."""
    async with running_service(store=store) as app, connected_producer(app) as producer:
        opened = await producer.open()
        await producer.store(*(final_transcript(seq) for seq in range(1, count + 1)))
        return str(opened["incarnation"])


def count_rows(name: str, table: str) -> int:
    ((count,),) = server().execute(f"select count(*) from {table}", name)
    assert isinstance(count, int)
    return count


async def test_producers_go_on_in_the_copy(file: str, database: str, name: str) -> None:
    """They find the same store under the same incarnation, and their next seq; the file is not served any more."""
    incarnation = await fill(file)
    code, output = await copy_beside(file, database)
    assert (0, True) == (code, "1 session (1 running), 3 events" in output), output
    assert server().execute(BYTES, name) == server().execute("select bytes from stored_bytes", name)
    async with running_service(store=database) as app, connected_producer(app) as producer:
        opened = await producer.open()
        assert (4, incarnation, 2) == (opened["next_seq"], opened["incarnation"], opened["epoch"])
        await producer.store(final_transcript(4))
        assert ["Line 1.", "Line 2.", "Line 3.", "Line 4."] == [m["content"] for m in await RestClient(app).contents()]
    with pytest.raises(Exception, match="was moved to postgresql:"):
        await fill(file)


async def test_there_is_a_way_back(file: str, database: str, tmp_path: Path) -> None:
    """What the copy took since comes along, and the database is not served any more."""
    await fill(file)
    assert 0 == (await copy_beside(file, database))[0]
    async with running_service(store=database) as app, open_producer(app) as producer:
        await producer.store(final_transcript(4), session_end(5))
    back = f"sqlite:{tmp_path}/back.db"
    code, output = await copy_beside(database, back)
    assert 0 == code, output
    async with running_service(store=back) as app:
        assert [1, 2, 3, 4, 5] == [row["seq"] for row in await RestClient(app).journal() if row.get("seq")]
    with pytest.raises(Exception, match="was moved to sqlite:"):
        await fill(database)


async def test_a_backup_of_a_moved_file_can_be_served(file: str, database: str, tmp_path: Path) -> None:
    """As another incarnation, as every restored backup."""
    incarnation = await fill(file)
    assert 0 == (await copy_beside(file, database))[0]
    for command, path in (("backup", file), ("restore", f"sqlite:{tmp_path}/again.db")):
        result = await asyncio.to_thread(CliRunner().invoke, main, [command, "--store", path, f"{tmp_path}/b"])
        assert 0 == result.exit_code, result.output
    assert incarnation != await fill(f"sqlite:{tmp_path}/again.db")


async def test_a_dry_run_changes_nothing(file: str, database: str, tmp_path: Path) -> None:
    """It says what would be copied, and makes neither a schema nor a file; both stores are served as before."""
    await fill(file)
    await fill(database)
    server().execute("create database without_schema")
    try:
        for source, target in ((file, server().url("without_schema")), (database, f"sqlite:{tmp_path}/new.db")):
            code, output = await asyncio.to_thread(copy, source, target, "--dry-run")
            assert (0, True) == (code, "1 session (1 running), 3 events" in output), output
            await fill(source, 4)
        assert 0 == count_rows("without_schema", "pg_class where relname = 'meta'")
        assert "new.db" not in os.listdir(tmp_path)
    finally:
        server().execute("drop database without_schema")


async def test_a_target_must_be_empty(file: str, database: str) -> None:
    """A store that holds anything is refused, and stays as it is; so does the source."""
    await fill(file)
    await fill(database)
    code, output = await copy_beside(file, database)
    assert (1, True) == (code, "The target is not empty" in output), output
    await fill(file, 4)


async def test_a_copy_to_a_full_database_goes_on_once_there_is_room(file: str) -> None:
    """It says that the disk of PostgreSQL is full, and what to do; the copy is whole then."""
    async with running_service(store=file) as app:
        api = RestClient(app)
        for number in range(3):
            await api.create(f"s{number}")
            for turn in range(1, 9):
                await api.send(*(final(turn, random_text(turn)) for _ in range(4)), session_id=f"s{number}")
    with tmpfs(server().folder / "small", "48m") as folder, database_on(folder) as (name, url):
        filler = fill_disk(folder)
        os.truncate(filler, filler.stat().st_size - 12 * 2**20)
        code, output = await copy_beside(file, url)
        assert (1, True) == (code, "full" in output and "Run the same command again" in output), output
        filler.unlink()  # PostgreSQL itself can do little before that
        assert 0 < count_rows(name, "journal")
        with pytest.raises(Exception, match="half of a copy"):
            await fill(url)
        code, output = await copy_beside(file, url)
        assert (0, True) == (code, "3 sessions" in output), output
    with pytest.raises(Exception, match="was moved to postgresql:"):
        await fill(file)


def random_text(seed: int) -> str:
    """A text that no compression makes smaller than half."""
    return Random(seed).randbytes(100_000).hex()


@contextmanager
def database_on(folder: Path) -> Iterator[tuple[str, str]]:
    """A database in a folder of its own, which the server may write: its name and URL."""
    if (user := server().user) is not None:
        shutil.chown(folder, user)
    server().execute(f"create tablespace small location '{folder}'")
    server().execute("create database on_small tablespace small")
    server().execute("create extension vector", "on_small")
    try:
        yield "on_small", server().url("on_small")
    finally:
        server().execute(END_CONNECTIONS.format("on_small"))
        server().execute("drop database on_small")
        server().execute("drop tablespace small")


async def test_both_must_be_out_of_service(file: str, database: str, tmp_path: Path) -> None:
    """While a server has the file, or a node serves the database, nothing is copied, from it or into it."""
    async with running_service(store=file):
        code, output = await copy_beside(file, database)
        assert (1, True) == (code, "Another server is already using" in output), output
    async with running_service(store=database):
        code, output = await copy_beside(file, database)
        assert (1, True) == (code, "A node serves this database" in output), output
        code, output = await copy_beside(database, f"sqlite:{tmp_path}/back.db")
        assert (1, True) == (code, "A node serves this database" in output), output


@every_row(
    ("source", "target", "said"),
    [
        ("memory:", "sqlite:x", "A store in memory"),
        ("sqlite:x", "memory:", "A store in memory"),
        ("sqlite:", "postgresql://x/y", "is unknown"),
        ("calls.db", "postgresql://x/y", "is unknown"),
        ("sqlite:a", "sqlite:b", "voicemem backup"),
        ("postgresql://x/y", "postgres://x/z", "its own tools"),
        ("sqlite:missing.db", "postgresql://x/y", "There is no database missing.db"),
    ],
)
def test_stores_that_cannot_be_copied(source: str, target: str, said: str) -> None:
    """Each is refused in one sentence."""
    code, output = copy(source, target)
    assert (1, True) == (code, said in output), output


@pytest.mark.parametrize(("version", "said"), [(0, "not a voicemem database"), (99, "newer than this program's")])
async def test_files_of_other_versions(file: str, database: str, version: int, said: str) -> None:
    """They are refused, and not changed."""
    await fill(file)
    with closing(apsw.Connection(file.removeprefix("sqlite:"))) as connection:
        connection.pragma("user_version", version)
    code, output = await copy_beside(file, database)
    assert (1, True) == (code, said in output), output
    with closing(apsw.Connection(file.removeprefix("sqlite:"))) as connection:
        assert version == connection.pragma("user_version")


async def test_a_file_of_another_program(file: str, database: str) -> None:
    """It is refused as a source and as a target."""
    with closing(apsw.Connection(file.removeprefix("sqlite:"))) as connection:
        connection.execute("create table theirs (x)")
    for source, target in ((file, database), (database, file)):
        code, output = await copy_beside(source, target)
        assert (1, True) == (code, "another program" in output), output


async def test_a_half_of_a_copy(
    file: str, database: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not served; only the same source, unchanged, may finish it."""
    await fill(file)
    await fill(f"sqlite:{tmp_path}/other.db")

    with monkeypatch.context() as patched:
        patched.setattr(copying, "compare_rows", cut_off)
        assert 1 == (await copy_beside(file, database))[0]
    with pytest.raises(Exception, match="half of a copy"):
        await fill(database)
    code, output = await copy_beside(f"sqlite:{tmp_path}/other.db", database)
    assert (1, True) == (code, "half of a copy of another store" in output), output
    rows = count_rows(name, "journal")
    code, output = await copy_beside(file, database)
    assert (0, rows) == (code, count_rows(name, "journal")), output
    assert "going on behind" in output


async def test_a_source_that_was_used_meanwhile(file: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half that was copied is of yesterday: the copy must begin again."""
    await fill(file)

    with monkeypatch.context() as patched:
        patched.setattr(copying, "compare_rows", cut_off)
        await copy_beside(file, database)
    await fill(file)
    code, output = await copy_beside(file, database)
    assert (1, True) == (code, "was used since" in output), output


async def test_a_copy_that_differs(file: str, database: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is not the same is found, the exit code says so, and the source is still the store."""
    await fill(file)

    monkeypatch.setattr(copying, "copy_rows", damaging(copying.copy_rows, name))
    code, output = await copy_beside(file, database)
    assert (3, True) == (code, "of journal, the row with stream 1, position 1 differs" in output), output
    await fill(file, 4)


async def test_a_copy_that_is_damaged_once_it_was_compared(
    file: str, database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the copy cannot read is not left out of the histories: the source is still the store."""
    await fill(file)

    monkeypatch.setattr(copying, "compare_rows", damaging(copying.compare_rows, name))
    code, output = await copy_beside(file, database)
    assert (1, False) == (code, "is the store now" in output), output
    await fill(file, 4)


async def test_damage_is_told_and_copied(file: str, database: str) -> None:
    """A journal that was damaged before is as damaged after; the other sessions are whole."""
    await fill(file)
    with closing(apsw.Connection(file.removeprefix("sqlite:"))) as connection:
        connection.execute("update journal set payload = cast(payload || ' ' as blob) where position = 1")
    code, output = await copy_beside(file, database)
    assert (0, True) == (code, "1 journals are damaged in the source, and so in the copy; keys: 1" in output), output
