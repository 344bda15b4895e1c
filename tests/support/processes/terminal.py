"""Commands in a pseudo-terminal, whose screen is what a person would see."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import pyte

TIMEOUT_S = 60.0
LINES_KEPT = 10_000


class Terminal:
    """A terminal with a command in it; it is read until what a test waits for is on its screen."""

    def __init__(self, process: asyncio.subprocess.Process, end: int, rows: int, columns: int) -> None:
        self.process = process
        self.end = end
        self.screen = pyte.HistoryScreen(columns, rows, history=LINES_KEPT, ratio=0.5)
        self.stream = pyte.ByteStream(self.screen)
        self.changed = asyncio.Event()
        self.over = False
        asyncio.get_running_loop().add_reader(end, self.read)

    def read(self) -> None:
        try:
            data = os.read(self.end, 65536)
        except OSError:  # what Linux says once the command is gone
            data = b""
        if not data:
            self.over = True
            asyncio.get_running_loop().remove_reader(self.end)
        self.stream.feed(data)
        self.changed.set()

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, without empty ones at its end."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def scrolled(self) -> list[str]:
        """The lines that have left the screen at its top."""
        rows = self.screen.history.top
        return ["".join(row[column].data for column in range(self.screen.columns)).rstrip() for row in rows]

    @property
    def text(self) -> str:
        """All lines, also those that have left the screen."""
        return "\n".join([*self.scrolled, *self.shown])

    async def until(self, wanted: Callable[[], object]) -> None:
        """Read until this holds. Raises `AssertionError` with the screen if it does not, or the command ends before."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not wanted():
                    assert not self.over, self.text
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(self.text) from None

    def press(self, keys: str) -> None:
        os.write(self.end, keys.encode())

    async def ended(self) -> int:
        """The exit code, once everything is read."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.over:
                self.changed.clear()
                await self.changed.wait()
            return await self.process.wait()


@asynccontextmanager
async def in_terminal(
    *arguments: str, rows: int = 24, columns: int = 100, env: Mapping[str, str] | None = None
) -> AsyncIterator[Terminal]:
    """`voicemem` with these arguments in a terminal of its own, ended with the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "voicemem", *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "TERM": "xterm-256color", **(env or {})},
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    terminal = Terminal(process, ours, rows, columns)
    try:
        yield terminal
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
