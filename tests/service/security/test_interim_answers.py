"""A server that the service calls may send some interim responses before its answer, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from voicemem.security.address_guard import MOST, BoundedResponseHandler, allowed_networks, guarded_connector

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000


@asynccontextmanager
async def server(*pieces: bytes, for_ever: bool = False) -> AsyncIterator[str]:
    """The URL of a server that answers each request with these pieces; `for_ever` repeats them until it is left."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for piece in pieces:
                    writer.write(piece)
                while for_ever:
                    writer.writelines(pieces)
                    await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=guarded_connector(allowed=allowed_networks(["127.0.0.0/8"])))


async def test_interim_responses_without_end_are_given_up() -> None:
    """The request fails, others go on meanwhile, and what was sent is not kept."""
    async with server(INTERIM * 1000, for_ever=True) as url, session() as http:
        with pytest.raises(aiohttp.ClientResponseError, match="interim"):
            await http.get(url)


async def test_some_interim_responses_are_passed_over() -> None:
    """The answer behind them is whole, in each request of a connection, in one piece with them or in many."""
    for pieces in ((INTERIM * MOST + ANSWER,), (*[INTERIM] * MOST, ANSWER)):
        async with server(*pieces) as url, session() as http:
            for _ in range(3):
                async with http.get(url) as response:
                    assert response.status == 200
                    assert len(await response.read()) == 300_000


def test_what_is_overridden_is_there() -> None:
    """aiohttp still makes its connections with the factory, and calls what is overridden."""
    assert {"data_received", "feed_data", "set_exception", "is_eof"} <= {*dir(ResponseHandler)}
    assert BoundedResponseHandler.__mro__[1] is ResponseHandler


async def test_every_connection_is_bounded() -> None:
    """The guarded connector makes no other."""
    connector = guarded_connector()
    assert isinstance(connector._factory(), BoundedResponseHandler)
    await connector.close()
