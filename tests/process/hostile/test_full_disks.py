"""Commands that write to a full disk say so, say how much they need, change nothing, and leave nothing behind."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import postgresql
from tests.support.callers.rest import RestClient
from tests.support.events import LARGE_TEXT, final
from tests.support.processes.faulty_disks import fill_disk, tmpfs
from tests.support.services import running_service

IS_FULL = "is full: "


def voicemem(*arguments: str, inject: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, where `inject` says so with failing system calls."""
    strace = [] if inject is None else ["strace", "-f", "-o", os.devnull, "-e", f"inject={inject}"]
    return subprocess.run(
        [*strace, sys.executable, "-m", "voicemem", *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    """A store of some MiB."""
    path = tmp_path / "calls.db"
    async with running_service(store=f"sqlite:{path}") as app:
        api = RestClient(app)
        await api.create()
        for turn in range(1, 9):
            await api.send(*(final(turn, LARGE_TEXT) for _ in range(4)))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "small", "1m") as folder:
        yield folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "filler"}


def refused(done: subprocess.CompletedProcess[str], before: dict[str, bytes], folder: Path) -> str:
    """The sentence of a command that failed and changed nothing."""
    assert 1 == done.returncode, done.stderr
    assert IS_FULL in done.stderr, done.stderr
    assert "B, and " in done.stderr
    assert "not an error" not in done.stderr
    assert before == contents(folder)
    return done.stderr


def test_a_backup_to_a_full_disk(database: Path, small: Path) -> None:
    """With room for a part and with none, also in place of an older one, which stays."""
    store, file = f"sqlite:{database}", small / "backup.db"
    needed = f"{database.stat().st_size / 2**20:,.1f} MiB"
    stderr = refused(voicemem("backup", "--store", store, str(file)), {}, small)
    assert f"{file} needs {needed}" in stderr
    assert stderr.rstrip().endswith("Nothing was changed.")
    file.write_bytes(b"older")
    fill_disk(small)
    refused(voicemem("backup", "--store", store, "--force", str(file)), {"backup.db": b"older"}, small)


def test_a_store_on_a_full_disk(small: Path) -> None:
    """Commands that need it say why they cannot have it."""
    store = f"sqlite:{small / 'calls.db'}"
    assert 0 == voicemem("keys", "create", "--store", store, "--scope", "admin").returncode
    fill_disk(small)
    for command in (("keys", "create", "--scope", "read"), ("keys", "list")):
        done = voicemem(*command, "--store", store)
        assert 1 == done.returncode
        assert "its disk is full, and nothing was changed." in done.stderr


def test_a_restore_to_a_full_disk(database: Path, small: Path) -> None:
    """The store that is there stays as it is, and is served again."""
    target = f"sqlite:{small / 'calls.db'}"
    refused(voicemem("restore", "--store", target, str(database)), {}, small)
    keys = voicemem("keys", "create", "--store", target, "--scope", "read")
    assert 0 == keys.returncode, keys.stderr
    filler = fill_disk(small)
    before = contents(small)
    refused(voicemem("restore", "--store", target, "--force", str(database)), before, small)
    filler.unlink()
    assert 0 == voicemem("keys", "list", "--store", target).returncode


@pytest.mark.parametrize("when", [1, 3, 40, 200])
def test_any_write_may_be_the_one_without_room(database: Path, tmp_path: Path, when: int) -> None:
    """Whichever page the disk has no room for, at the beginning or in the last transaction."""
    folder = tmp_path / "there"
    folder.mkdir()
    for command in (
        ("backup", "--store", f"sqlite:{database}", str(folder / "b.db")),
        ("restore", "--store", f"sqlite:{folder / 'r.db'}", str(database)),
    ):
        done = voicemem(*command, inject=f"pwrite64:error=ENOSPC:when={when}+")
        refused(done, {}, folder)


async def test_exports_to_a_full_disk(tmp_path: Path, small: Path) -> None:
    """Of calls, and of users."""
    async with running_service(store="memory:") as app:
        api = RestClient(app)
        await api.create(user_id="ann")
        for turn in range(1, 8):
            await api.send(final(turn, LARGE_TEXT))
        await api.end()
        rest = ("--url", f"http://{app.rest_address}", "--output", str(small / "out"))
        for command in (
            ("export", "s", *rest),
            ("export", "--all", "--format", "jsonl", *rest),
            ("export-user", "ann", *rest),
        ):
            refused(await asyncio.to_thread(voicemem, *command), {}, small)


def test_a_copy_to_a_full_disk(database: Path, small: Path) -> None:
    """A file on a full disk that is to become the store is not made."""
    fill_disk(small)
    done = voicemem("copy", "--from", "postgresql://nobody@127.0.0.1:1/none", "--to", f"sqlite:{small / 'c.db'}")
    assert 1 == done.returncode


@pytest.mark.postgresql
async def test_a_copy_for_which_the_disk_is_too_small(tmp_path: Path, small: Path) -> None:
    """It says what it has taken so far, and goes on where there is more room; the source is served as before."""
    with postgresql.database_of(tmp_path) as database:
        source = postgresql.server().url(database)
        async with running_service(store=source) as app:
            api = RestClient(app)
            await api.create()
            for turn in range(1, 9):
                await api.send(*(final(turn, LARGE_TEXT) for _ in range(4)))
        copying = ("copy", "--from", source, "--to", f"sqlite:{small / 'c.db'}")
        done = await asyncio.to_thread(voicemem, *copying)
        assert (1, True) == (done.returncode, IS_FULL in done.stderr), done.stderr
        needed = re.search(r"needs more than ([0-9,.]+) (KiB|MiB)", done.stderr)
        assert needed is not None, done.stderr
        assert float(needed[1]) * {"KiB": 1, "MiB": 1024}[needed[2]] > 512
        assert "The source was not changed" in done.stderr
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=64m", str(small)], check=True)
        done = await asyncio.to_thread(voicemem, *copying)
        assert 0 == done.returncode, done.stderr
