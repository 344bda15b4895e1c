"""Reading from servers that are silent, slow or away: it ends in time, and says why."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.support.callers.client_sessions import (
    FAR_S,
    REFUSING,
    SHORT_S,
    acknowledged_seqs,
    client_for,
    in_time,
    options,
    send_transcripts,
)
from tests.support.servers.listeners import Handler, listener, say_nothing, trickle
from tests.support.servers.network_proxy import NetworkProxy
from voicemem.app import App
from voicemem.client import Client, Closed, RequestRefused, SyncClient, Unreachable
from voicemem.config.service import Address


@pytest.mark.parametrize(("handle", "scheme"), [(say_nothing, "http"), (say_nothing, "https"), (trickle, "http")])
async def test_a_context_comes_in_time_or_not_at_all(app: App, handle: Handler, scheme: str) -> None:
    """Silence and an answer that trickles in end after the context's own time, every attempt included."""
    async with listener(handle) as address:
        given = options(context_timeout_s=SHORT_S)
        async with Client(f"ws://{app.ingest_address}", f"{scheme}://{address}", options=given) as client:
            session = await client.open("s")
            async with in_time():
                with pytest.raises(Unreachable) as unreachable:
                    await session.context(style="openai")
    url = f"{scheme}://{address}/v1/sessions/s/context"
    assert f"GET {url}: timed out after 0.3 s." == unreachable.value.detail


async def test_a_backlog_that_is_full_counts_too(app: App) -> None:
    """A listener that accepts no one any more, whose machine answers no SYN, ends after the context's own time."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        address = Address("127.0.0.1", full.getsockname()[1])
        async with client_for(app.ingest_address, address) as client:
            session = await client.open("s")
            async with in_time():
                with pytest.raises(Unreachable, match=r"timed out after 0\.3 s"):
                    await session.context(timeout=SHORT_S)
        for one in waiting:
            one.close()


async def test_a_refused_read_says_where(app: App) -> None:
    """All attempts being refused, the error comes at once, with address and reason."""
    async with client_for(app.ingest_address, Address("127.0.0.1", 1)) as client:
        session = await client.open("s")
        for read in (session.history, session.turns):
            with pytest.raises(Unreachable, match=f"GET http://{REFUSING}/v1/sessions/s/.*: connection refused"):
                await read()


async def test_a_read_that_hangs_is_asked_again_alongside(app: App) -> None:
    """Of two attempts the second goes out while the first still waits, and its answer counts."""
    async with NetworkProxy(app.rest_address) as proxy, client_for(app.ingest_address, proxy.address) as client:
        session = await client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        await session.context()
        (first,) = proxy.passing
        first.swallowing.add("to_client")  # as if the way had died without a word
        assert 1 == len((await session.context(timeout=FAR_S / 3))["messages"])
        assert proxy.accepted > 1


async def test_a_read_of_a_closed_client_says_so(app: App) -> None:
    """After closing, reading raises `Closed`."""
    async with client_for(app.ingest_address, app.rest_address) as client:
        session = await client.open("s")
        await session.history()
    with pytest.raises(Closed):
        await session.context()


async def test_a_number_in_a_list_is_no_error_of_the_client(app: App) -> None:
    """What is not a name goes to the server, which refuses it."""
    async with client_for(app.ingest_address, app.rest_address) as client:
        session = await client.open("s")
        enrich: Any = [1]
        with pytest.raises(RequestRefused, match="invalid_query"):
            await session.context(enrich=enrich)


async def test_the_synchronous_client_keeps_the_same_times(app: App) -> None:
    """Open, reads and close of `SyncClient` end in time too, with the same errors."""

    def call(address: str) -> None:
        short = options(open_timeout_s=SHORT_S, context_timeout_s=SHORT_S)
        with SyncClient(f"ws://{address}", options=short) as client:
            with pytest.raises(Unreachable, match=r"timed out after 0\.3 s"):
                client.open("s")
            assert {} == client.dropped
        with SyncClient(f"ws://{app.ingest_address}", f"http://{address}", options=short) as client:
            session = client.open("s", timeout=FAR_S)
            for read in (session.context, lambda: session.history(timeout=SHORT_S), lambda: session.turns(timeout=0.1)):
                with pytest.raises(Unreachable, match="timed out after"):
                    read()

    async with listener(say_nothing) as address, in_time():
        await asyncio.to_thread(call, address)
