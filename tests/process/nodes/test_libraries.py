"""Programs that use the library, as nodes of a PostgreSQL store."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import voicemem
from tests.support.postgresql import database_of, server
from tests.support.waiting import eventually
from voicemem.store.records import Node

pytestmark = pytest.mark.postgresql
PROGRAM = """
import asyncio, sys, voicemem

async def main():
    async with voicemem.open(sys.argv[1]) as library:
        call = await library.create("s")
        await call.add({"role": "user", "content": "Hello."})
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
EXPIRE = "update nodes set expires_ms = 0 where token = '{}'"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database_of(tmp_path) as name:
        yield name


async def test_a_library_that_dies_is_retired_by_others(database: str) -> None:
    """Each program is a node without an address; one that was killed is forgotten once its lease is over."""
    url = server().url(database)
    async with voicemem.open(url) as library:

        async def others() -> list[Node]:
            own = library.services.node.token
            return [node for node in await library.store.nodes.list_nodes() if node.token != own]

        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, url, stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        assert b"ready\n" == await program.stdout.readline()
        (other,) = await others()
        assert "" == other.address
        program.kill()
        await program.wait()
        server().execute(EXPIRE.format(other.token), database)
        await eventually([], others)
        call = await library.get("s")
        assert ["Hello."] == [message.content for message in await call.history()]
    assert [(0,)] == server().execute("select count(*) from nodes", database)
