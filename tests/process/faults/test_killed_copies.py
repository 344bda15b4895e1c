"""A copy that is killed goes on where it was, at whatever moment that happened."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgresql import database_of, server
from tests.support.processes.killed_copies import run_copy
from tests.support.profiles import seeds
from tests.support.stores.full_stores import FullStore, answers
from voicemem.store.engines import open_store
from voicemem.store.sqlite.store import SqliteStore

pytestmark = pytest.mark.postgresql
MOST_KILLS = 5
MOMENTS = [f"{method} {when}" for method in ("prepare", "add", "hand_over", "finish") for when in ("before", "after")]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    with database_of(tmp_path) as name:
        yield server().url(name)


async def full_file(path: Path) -> tuple[FullStore, dict[str, Any]]:
    """A file with some of everything, and what it answers."""
    store = SqliteStore(str(path))
    full = FullStore(store)
    drawn = random.Random(7)
    names = ["create", "open", "send", "send", "send", "close", "user", "add_key", "add_receiver", "compact", "deliver"]
    await full.do([(drawn.choice(names), drawn.randrange(10), drawn.randrange(40)) for _ in range(120)])
    expected = await answers(full, store)
    await store.close_store()
    return full, expected


async def answered(full: FullStore, url: str) -> dict[str, Any]:
    store = open_store(url)
    try:
        return await answers(full, store)
    finally:
        await store.close_store()


async def test_a_copy_killed_at_each_step_goes_on(tmp_path: Path, database: str) -> None:
    """Before and after each kind of step, one after the other, in both directions: the copy answers as the source."""
    full, expected = await full_file(tmp_path / "calls.db")
    back = f"sqlite:{tmp_path}/back.db"
    for source, target, moments in (
        (f"sqlite:{tmp_path}/calls.db", database, MOMENTS),
        (database, back, ["add after", "hand_over after", "finish after"]),
    ):
        for moment in moments:
            code, output = await run_copy(source, target, moment)
            assert -signal.SIGKILL == code, (moment, output)
        code, output = await run_copy(source, target)  # nothing was left to do
        assert (1, True) == (code, "The target is not empty" in output), output
        assert expected == await answered(full, target)


@pytest.mark.parametrize("seed", seeds(1))
async def test_a_copy_killed_again_and_again_comes_to_its_end(tmp_path: Path, database: str, seed: int) -> None:
    """At random times, each run from where the last one was: the copy answers what the source did."""
    full, expected = await full_file(tmp_path / "calls.db")
    drawn = random.Random(seed)
    back = f"sqlite:{tmp_path}/back.db"
    for source, target in ((f"sqlite:{tmp_path}/calls.db", database), (database, back)):
        for kills in range(MOST_KILLS + 1):
            time_s = drawn.uniform(0.05, 1.5)
            code, output = await run_copy(source, target, "never" if kills == MOST_KILLS else f"{time_s:.4f}")
            if code != -signal.SIGALRM:
                break
        assert code == 0 or "The target is not empty" in output, output
        assert expected == await answered(full, target)


def test_a_command_that_is_ended_leaves_nothing_half_made(tmp_path: Path) -> None:
    """SIGTERM in the midst of a backup, or of an export, is as Ctrl-C: the older file is what there is."""
    for making in (
        "from voicemem.store.sqlite.backup import replacing; making = replacing('f', 'f')",
        "from voicemem.cli.common import written_file; making = written_file(Path('f'), True)",
    ):
        (tmp_path / "f").write_bytes(b"older")
        code = f"""
import os, signal
from pathlib import Path
from voicemem.cli.common import end_at_sigterm
end_at_sigterm()
{making}
with making:
    assert len(os.listdir(".")) == 2
    os.kill(os.getpid(), signal.SIGTERM)
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert (128 + 15, "") == (done.returncode, done.stderr)
        assert {"f": b"older"} == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
