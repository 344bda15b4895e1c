"""The programs that docs/ shows, taken out of their pages and run as they are printed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.needs import needs, node_version
from tests.support.paths import DOCS, ROOT

FILE_NAME = re.compile(r"`([\w-]+\.(?:py|mjs|html|jsonl))`")
ENDINGS = {"python": ".py", "js": ".mjs", "html": ".html", "jsonl": ".jsonl"}
END_S = 60.0


def printed_programs(page: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages, in their order."""
    return [text for language, text in fenced(page) if language in languages]


def fenced(page: str) -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def save_programs(page: str, folder: Path, changes: Mapping[str, str]) -> None:
    """Save each file of a page under the name that the page says last before it, with these texts replaced."""
    folder.mkdir(exist_ok=True)
    for said, language, text in re.findall(r"(.*?)```(\w+)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        names = FILE_NAME.findall(said)
        if names and names[-1].endswith(ENDINGS.get(language, "-")):
            for old, new in changes.items():
                text = text.replace(old, new)
            (folder / names[-1]).write_text(text)


def install_javascript_client(folder: Path) -> None:
    """Have the programs of a folder find the package `voicemem`, as npm installs it from a directory."""
    (folder / "node_modules").mkdir(parents=True, exist_ok=True)
    (folder / "node_modules" / "voicemem").symlink_to(ROOT / "clients" / "javascript")


def node_command() -> list[str]:
    """What runs Node with a global `WebSocket`."""
    return [needs("node"), *(() if node_version() >= (22, 0) else ("--experimental-websocket",))]


def command(file: str) -> list[str]:
    """What runs a file, by its name."""
    return [sys.executable, "-u", file] if file.endswith(".py") else [*node_command(), file]


class Program:
    """A program that runs; what it prints is read as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out = ""
        self.errors = ""
        assert process.stdout is not None
        assert process.stderr is not None
        self.reading = [
            asyncio.create_task(self.read(process.stdout, "out")),
            asyncio.create_task(self.read(process.stderr, "errors")),
        ]

    async def read(self, stream: asyncio.StreamReader, name: str) -> None:
        while line := await stream.readline():
            setattr(self, name, getattr(self, name) + line.decode())

    async def says(self, text: str) -> None:
        """Wait until it has printed this, as a result or as a warning."""
        async with asyncio.timeout(END_S):
            while text not in self.out + self.errors:
                assert not self.ended, f"it has ended: {self.out}{self.errors}"
                await asyncio.sleep(0.02)

    @property
    def ended(self) -> bool:
        return all(task.done() for task in self.reading)

    async def end(self) -> int:
        """Its exit code, once it has ended by itself and all that it printed is read."""
        _, running = await asyncio.wait(self.reading, timeout=END_S)
        assert not running, f"it has not ended: {self.out}{self.errors}"
        return await self.process.wait()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.end()


@asynccontextmanager
async def running_program(folder: Path, file: str, **env: str) -> AsyncIterator[Program]:
    """Run a file in its folder; it is killed at the end of the block."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VOICEMEM_", "NODE_"))}
    process = await asyncio.create_subprocess_exec(
        *command(file),
        cwd=folder,
        env={**clean, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    program = Program(process)
    try:
        yield program
    finally:
        await program.kill()


async def run_shell(text: str, folder: Path) -> str:
    """What shell commands print; they must succeed."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-e", "-o", "pipefail", "-c", text),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), END_S)
    assert process.returncode == 0, errors
    return out.decode()
