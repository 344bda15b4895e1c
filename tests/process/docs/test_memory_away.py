"""The program of the page about a memory that is away runs as printed, with a service that is stopped."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import ServiceProcess, running_process

END_S = 60.0


class Agent:
    """The program as a process; a caller's words go in, and what it prints comes out."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), END_S)).decode()

    async def replies_to(self, words: str) -> list[str]:
        """What it prints about these words, up to its reply."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n".encode())
        lines = [await self.line()]
        while not lines[-1].startswith("You have said"):
            lines.append(await self.line())
        return lines

    async def hang_up(self) -> tuple[int, str]:
        """Its exit code, and what it still printed."""
        out, errors = await asyncio.wait_for(self.process.communicate(b"\n"), END_S)
        return await self.process.wait(), (out + errors).decode()


async def agent_of(rest: int, ingest: int) -> Agent:
    program = (ROOT / "examples" / "agent_without_memory.py").read_text()
    program = program.replace("127.0.0.1:8765", f"127.0.0.1:{ingest}").replace("127.0.0.1:8080", f"127.0.0.1:{rest}")
    pipe = asyncio.subprocess.PIPE
    return Agent(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-c", program, "call-1"), stdin=pipe, stdout=pipe, stderr=pipe
        )
    )


async def said(process: ServiceProcess) -> list[str]:
    contents = await process.api.contents("call-1")
    return [message["content"] for message in contents if message["role"] == "user"]


async def test_an_agent_goes_on_while_the_service_is_stopped(tmp_path: Path) -> None:
    """It replies from its own messages while the service does not answer, and in the end everything is stored."""
    rest, ingest = free_ports(2)
    async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest) as process:
        agent = await agent_of(rest, ingest)
        assert "You have said 1 things.\n" == (await agent.replies_to("Hello?"))[-1]
        process.signal(signal.SIGSTOP)
        assert "You have said 2 things.\n" == (await agent.replies_to("Are you there?"))[-1]
        assert "You have said 3 things.\n" == (await agent.replies_to("I cannot hear you."))[-1]
        process.signal(signal.SIGCONT)
        code, printed = await agent.hang_up()
        assert (0, False) == (code, "Traceback" in printed), printed
        assert ["Hello?", "Are you there?", "I cannot hear you."] == await said(process)


async def test_an_agent_begins_while_the_service_is_not_there(tmp_path: Path) -> None:
    """A call that begins without a memory is stored from its first word once the service has started."""
    rest, ingest = free_ports(2)
    agent = await agent_of(rest, ingest)
    assert ["You have said 1 things.\n"] == await agent.replies_to("Hello?")
    assert "connection refused" in await agent.line()
    async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest) as process:
        await agent.replies_to("Who is there?")
        code, printed = await agent.hang_up()
        assert (0, False) == (code, "Traceback" in printed), printed
        assert ["Hello?", "Who is there?"] == await said(process)
