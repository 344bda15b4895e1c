"""The parts of the demo of several nodes: how calls are divided, and the proxy in front of the nodes."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.harness import node_processes as postgresql_server
from bench.harness.node_processes import Proxy, find_installation
from bench.nodes.demo import PRODUCERS, Call, producer_of
from voicemem.cli.common import CommandFailed
from voicemem.cli.demo.one_call import recorded_call
from voicemem.config.service import Address


@asynccontextmanager
async def named_server(name: bytes) -> AsyncIterator[Address]:
    """A server that answers every line with its name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(name + b"\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


@asynccontextmanager
async def running_proxy(*targets: Address) -> AsyncIterator[Proxy]:
    proxy = Proxy(targets)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def ask(proxy: Proxy) -> tuple[bytes, asyncio.StreamWriter]:
    """Who answers on a new connection, which stays open."""
    reader, writer = await asyncio.open_connection(*proxy.address)
    writer.write(b"who?\n")
    return (await asyncio.wait_for(reader.readline(), 10)).strip(), writer


async def test_the_proxy_spreads_connections() -> None:
    """Each node gets as many as the other."""
    async with named_server(b"A") as a, named_server(b"B") as b, running_proxy(a, b) as proxy:
        answers = [await ask(proxy) for _ in range(6)]
        assert {b"A": 3, b"B": 3} == Counter(name for name, _ in answers)
        for _, writer in answers:
            writer.close()


async def test_the_proxy_leaves_out_a_node_that_is_gone() -> None:
    """The connection goes to the other one instead; with none it ends."""
    async with named_server(b"A") as gone:
        pass
    async with named_server(b"B") as b, running_proxy(gone, b) as proxy:
        for _ in range(2):
            name, writer = await ask(proxy)
            assert b"B" == name
            writer.close()
    async with running_proxy(gone) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        assert b"" == await asyncio.wait_for(reader.read(), 10)
        writer.close()


def test_every_producer_has_a_part_of_the_call() -> None:
    """What was recorded as one is divided; each part says by itself that the call is over."""
    events = recorded_call()
    parts = Counter(producer_of(event) for event in events if event["type"] != "session.end")
    assert set(PRODUCERS) == set(parts)
    assert parts.total() + len(PRODUCERS) == Call("s", events).total


def test_without_a_postgresql_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plain sentence, with the command."""
    monkeypatch.setattr(postgresql_server, "WHEEL", "no_such_wheel")
    with pytest.raises(CommandFailed, match="pip install 'voicemem-core"):
        find_installation()
