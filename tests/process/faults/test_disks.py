"""A disk that fails under the real server: what it says, what it keeps, how it comes back (faults 30 to 35)."""

# ruff: noqa: ASYNC221, ASYNC240, SIM300 (files are small and no one else waits; asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.events import LARGE_TEXT, final_transcript
from tests.support.processes.faulty_disks import (
    failing_syscalls,
    fill_disk,
    tmpfs,
)
from tests.support.processes.service_process import ServiceProcess, running_process, start_process
from tests.support.waiting import eventually
from voicemem.protocol.types import JsonObject

SYNC = "fdatasync:error=EIO:when=1"
"""One sync fails; those after it succeed, and do not tell that what was written before them is lost."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a database may be made."""
    return tmp_path / "calls.db"


def seqs(rows: list[JsonObject]) -> list[int]:
    """The seqs of a journal, without the server's own events."""
    return [row["seq"] for row in rows if row["seq"] is not None]


async def status(server: ServiceProcess, path: str) -> int:
    """What one of its probes answers."""
    return (await server.api.get(path)).status


async def resume(server: ServiceProcess, last: int) -> None:
    """A producer comes back, sends what is missing up to this seq, and all is there once."""
    async with open_producer(server, "again") as other:
        await other.store(final_transcript(1))
    async with connected_producer(server) as producer:
        following = (await producer.open())["next_seq"]
        await producer.store(*(final_transcript(seq) for seq in range(following, last + 1)))
    assert [*range(1, last + 1)] == seqs(await server.api.journal())


async def refuses(server: ServiceProcess, seq: int) -> None:
    """It acknowledges nothing, neither on a websocket nor over HTTP, and is alive but not ready."""
    async with connected_producer(server) as producer:
        await producer.send({"type": "session.open", "session_id": "s"})
        code, frames = await producer.closed()
        assert (1013, ["store_unavailable"]) == (code, [frame.get("code") for frame in frames])
    answered = await server.api.post("/v1/sessions/s/events", [final_transcript(seq)])
    assert (503, "store_unavailable") == answered.problem
    assert [503, 200] == [await status(server, "/readyz"), await status(server, "/livez")]


async def lives_through(server: ServiceProcess, fault: str) -> None:
    """A producer in the middle of its call while this fault begins and ends."""
    async with open_producer(server) as producer:
        await producer.store(*(final_transcript(seq) for seq in range(1, 6)))
        async with failing_syscalls(server, fault):
            await producer.send(final_transcript(6))
            code, frames = await producer.closed()
            assert (1013, ["error"]) == (code, [frame["type"] for frame in frames])
            await refuses(server, 6)
            assert [*range(1, 6)] == seqs(await server.api.journal())
    await eventually(200, lambda: status(server, "/readyz"))
    await resume(server, 8)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("pwrite64:error=ENOSPC", id="30 no space"),
        pytest.param("pwrite64:error=EIO", id="32 write error"),
        pytest.param("pwrite64:error=EROFS", id="34 read-only"),
    ],
)
async def test_writes_that_fail(path: Path, fault: str) -> None:
    """30, 32, 34: nothing more is acknowledged, `readyz` says so, and all goes on when the disk does."""
    async with running_process(path) as server:
        await lives_through(server, fault)
    async with running_process(path) as server:
        assert [*range(1, 9)] == seqs(await server.api.journal())


async def test_a_full_disk(tmp_path: Path) -> None:
    """30: while a file system is full, commands say so, and nothing acknowledged is lost when it has room again."""
    with tmpfs(tmp_path / "disk", "4m") as folder:
        async with running_process(folder / "calls.db", log=tmp_path / "stderr") as server:
            async with open_producer(server) as producer:
                await producer.store(*(final_transcript(seq) for seq in range(1, 6)))
                filler = fill_disk(folder)
                acked = 5
                for seq in range(6, 100):  # what the log has room for already is stored
                    await producer.send(final_transcript(seq, text=LARGE_TEXT))
                    frame = await producer.next()
                    if frame["type"] == "error":
                        assert "store_unavailable" == frame["code"]
                        break
                    acked = frame["seq"]
            assert [*range(1, acked + 1)] == seqs(await server.api.journal())
            command = ("-m", "voicemem", "erase", "s", "--yes", "--url", server.rest)
            erasing = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
            assert b"The store cannot be written: its disk is full." in (await erasing.communicate())[1]
            assert [503, 200] == [await status(server, "/readyz"), await status(server, "/livez")]
            filler.unlink()
            await eventually(200, lambda: status(server, "/readyz"))
            await resume(server, acked + 3)
            assert "Traceback" not in server.log.read_text()


@pytest.mark.needs("strace")
async def test_a_sync_that_fails_acknowledges_nothing(path: Path) -> None:
    """31: what could not be synced is not acknowledged, whatever the next sync says."""
    async with running_process(path) as server:
        async with open_producer(server) as producer:
            await producer.store(*(final_transcript(seq) for seq in range(1, 6)))
            async with failing_syscalls(server, SYNC):
                await producer.send(final_transcript(6))
                _, frames = await producer.closed()
                assert "ack" not in [frame["type"] for frame in frames]
        await server.kill()
    async with running_process(path) as server:
        await resume(server, 8)


@pytest.mark.needs("strace")
async def test_a_sync_that_fails_ends_the_server(path: Path) -> None:
    """31: the kernel forgets what it could not sync, so the server says so and exits; the next one goes on."""
    async with running_process(path) as server:
        async with open_producer(server) as producer:
            await producer.store(*(final_transcript(seq) for seq in range(1, 6)))
            async with failing_syscalls(server, SYNC):
                await producer.send(final_transcript(6))
                assert 1 == await server.ended(3)
        assert "sync" in server.log.read_text()
        assert "Traceback" not in server.log.read_text()
    async with running_process(path) as server:
        await resume(server, 8)


@pytest.mark.needs("strace")
async def test_a_slow_sync(path: Path) -> None:
    """33: while a sync takes 5 s nothing is acknowledged, probes and reads answer; then the ack comes."""
    async with running_process(path) as server, open_producer(server) as producer:
        await producer.store(*(final_transcript(seq) for seq in range(1, 6)))
        async with failing_syscalls(server, "fdatasync:delay_enter=5000000:when=1"):
            await producer.send(final_transcript(6))
            acking = asyncio.create_task(producer.expect_ack(6))
            for _ in range(5):
                assert [200, 200] == [await status(server, "/livez"), await status(server, "/readyz")]
                assert [*range(1, 6)] == seqs(await server.api.journal())
            assert not acking.done()
            await acking
        assert [*range(1, 7)] == seqs(await server.api.journal())


async def test_a_long_reader(path: Path) -> None:
    """35: a reader in another process that never ends holds up no one, and the log is used again after it."""
    async with running_process(path) as server, open_producer(server) as producer:
        await producer.store(final_transcript(1))
        reader = apsw.Connection(str(path))
        reader.execute("begin").execute("select count(*) from sqlite_schema").fetchall()
        await producer.store(*(final_transcript(seq, text=LARGE_TEXT) for seq in range(2, 92)))
        assert 18_000_000 < os.path.getsize(f"{path}-wal")  # more than it may have without a reader
        reader.close()
        sizes, seq = [0, 1], 92
        while sizes[-1] != sizes[-2]:  # until it has been moved into the file, and begins again
            await asyncio.sleep(0.05)
            await producer.store(final_transcript(seq, text=LARGE_TEXT))
            sizes, seq = [*sizes, os.path.getsize(f"{path}-wal")], seq + 1
        assert sizes[-1] < 40_000_000
        await producer.store(*(final_transcript(seq + more, text=LARGE_TEXT) for more in range(70)))
        assert sizes[-1] == os.path.getsize(f"{path}-wal")
        assert 200 == await status(server, "/readyz")
        assert [*range(1, seq + 70)] == seqs(await server.api.journal())


async def test_a_start_on_a_read_only_file(tmp_path: Path) -> None:
    """34: a server that may not write its database does not start, and says so in a sentence."""
    with tmpfs(tmp_path / "disk", "4m") as folder:
        path = folder / "calls.db"
        async with running_process(path) as server, open_producer(server) as producer:
            await producer.store(final_transcript(1))
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        log = tmp_path / "stderr"
        process = await start_process(path, "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0", log=log)
        await asyncio.wait_for(process.communicate(), 30)
        assert (1, 1) == (process.returncode, log.read_text().count("\n"))
        assert "Read-only" in log.read_text()


@pytest.mark.parametrize("end", ["", "-wal"])
@pytest.mark.parametrize("how", ["replaced", "deleted", "truncated"])
async def test_a_file_that_is_not_at_its_place_any_more_takes_nothing(path: Path, how: str, end: str) -> None:
    """What is written to it or its log would be lost with the process: it acknowledges nothing, says why, and ends."""
    async with running_process(path) as server:
        await server.api.create()
        await server.api.send(final_transcript(1))
        gone = path.with_name(path.name + end)
        if how == "truncated":
            os.truncate(gone, gone.stat().st_size // 2 if end else 0)
        else:
            gone.rename(path.with_suffix(".moved"))
        if how == "replaced":
            gone.write_bytes(path.with_suffix(".moved").read_bytes())
        refused = await server.api.post("/v1/sessions", {"session_id": "other"})
        assert (503, "store_unavailable") == refused.problem
        assert "moved, deleted, replaced or truncated" in refused.json["detail"]
        assert 1 == await server.ended()
    assert "moved, deleted, replaced or truncated" in server.log.read_text()
