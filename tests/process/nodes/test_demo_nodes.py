"""The demo of several nodes, as `make demo-nodes` runs it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bench.harness.node_processes import PostgresqlServer
from tests.support.postgresql import needs_server

pytestmark = pytest.mark.postgresql
DEMO_S = 240.0
"""It takes half a minute; how long on a busy machine is not what is tested."""


async def start_demo(folder: Path) -> asyncio.subprocess.Process:
    """The demo in a process of its own, with all of its files in a folder."""
    needs_server()
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.nodes.demo", "--fast"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "120"},
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for a socket is in it, which PostgreSQL's user may enter."""
    with tempfile.TemporaryDirectory(prefix="voicemem-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def left_in(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


def still_running(pids: list[str]) -> list[str]:
    return [pid for pid in pids if Path("/proc", pid).exists()]


async def test_nothing_is_lost_when_a_node_is_killed(folder: Path) -> None:
    """Half of the producers move, each event is stored once, memories and webhooks are those of an undisturbed call."""
    process = await start_demo(folder)
    printed = (await asyncio.wait_for(process.communicate(), DEMO_S))[0].decode()
    assert 0 == process.returncode, printed
    assert "18 come to node A, 18 to node B" in printed
    assert "Its 18 producers have connected again, to node B" in printed
    assert "456 sent, 0 lost, 0 stored twice" in printed
    assert "12 of 12 equal to that of the same call on one node" in printed
    assert "12 of 12 came exactly once" in printed
    assert 4 == printed.count("✓")
    assert 1 == printed.count("alive")
    assert [] == left_in(folder)


async def test_a_demo_that_is_interrupted_leaves_nothing_behind(folder: Path) -> None:
    """After Ctrl-C no process of the demo runs, and its files are gone."""
    process = await start_demo(folder)
    assert process.stdout is not None
    printed = ""
    while "calls begin" not in printed:
        line = await asyncio.wait_for(process.stdout.readline(), DEMO_S)
        assert line, printed
        printed += line.decode()
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), DEMO_S)
    assert 0 != process.returncode
    assert [] == left_in(folder)
    assert [] == still_running(re.findall(r"process (\d+)", printed))


def test_programs_that_its_user_cannot_enter_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL does not run as root, and below root's home others find nothing: it runs from a copy all the same."""
    needs_server()
    monkeypatch.setattr(PostgresqlServer, "may_run", lambda *_: False)
    server = PostgresqlServer()
    server.start()
    try:
        assert server.programs.is_relative_to(server.folder)
        with psycopg.connect(server.url()) as connection:
            assert (1,) == connection.execute("select 1").fetchone()
    finally:
        server.remove()
    assert not server.folder.exists()
