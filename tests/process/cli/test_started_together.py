"""A server and a command that open a new file at the same moment: there is one store, with all that was promised."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import random
import sys
from contextlib import closing
from pathlib import Path

import apsw

ROUNDS, MOST_DELAY_S = 20, 0.05
COUNT_KEYS = "select count(*) from keys"
PROGRAM = """
import asyncio, sys, time
from voicemem.security.access import Access
from voicemem.store.engines import open_store

async def work(path, is_server):
    store = open_store(f"sqlite:{path}", exclusive=is_server)
    if is_server:
        await store.probe()
    else:
        await Access(store.directory).create_key("default", "n", ("read",))
    await store.close_store()

print("ready", flush=True)
for line in sys.stdin:
    delay, path = line.split()
    time.sleep(float(delay))
    asyncio.run(work(path, sys.argv[1] == "server"))
    print("done", flush=True)
"""


class Opener:
    """A process that opens one file after the other, as a server or as a command."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self) -> str:
        """Its next line; an empty one where it has failed, which it explains on standard error."""
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()

    async def open(self, path: Path, delay_s: float) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{delay_s} {path}\n".encode())
        return await self.says()

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


async def start_opener(kind: str) -> Opener:
    arguments = (sys.executable, "-c", PROGRAM, kind)
    pipe = asyncio.subprocess.PIPE
    opener = Opener(await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe))
    assert "ready" == await opener.says()
    return opener


async def test_a_server_and_a_command_make_a_store_together(tmp_path: Path) -> None:
    """Both succeed, the file is whole, and the key that was created is in it, whoever comes first."""
    server, command = await start_opener("server"), await start_opener("command")
    try:
        for number in range(ROUNDS):
            path, delays = tmp_path / f"calls{number}.db", [0.0, random.uniform(0, MOST_DELAY_S)]
            random.shuffle(delays)
            said = await asyncio.gather(server.open(path, delays[0]), command.open(path, delays[1]))
            assert ["done"] * 2 == list(said), f"round {number}, delays {delays}"
            with closing(apsw.Connection(str(path))) as connection:
                assert ("ok", 1) == (connection.pragma("integrity_check"), connection.execute(COUNT_KEYS).get)
    finally:
        await server.end()
        await command.end()
