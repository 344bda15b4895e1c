"""No connection is made to an address that is blocked, whatever its name says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from tests.support.rows import every_row
from tests.support.servers.resolver import FakeResolver
from voicemem.security.address_guard import AddressNotAllowedError, allowed_networks, guarded_connector


@asynccontextmanager
async def server(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[tuple[int, list[str]]]:
    """A web server's port and the paths that it was asked for."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()


async def get(url: str, connector: aiohttp.TCPConnector) -> int:
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url, allow_redirects=False, headers={"Connection": "close"}) as response,
    ):
        return response.status


def resolves_to(*addresses: str) -> Callable[[], aiohttp.TCPConnector]:
    return lambda: guarded_connector(resolver=FakeResolver(list(addresses)))


@every_row(
    ("host", "connector"),
    [
        ("127.0.0.1", guarded_connector),
        ("localhost", guarded_connector),
        ("0x7f000001", guarded_connector),
        ("①②⑦.⓪.⓪.①", guarded_connector),
        ("[::ffff:127.0.0.1]", guarded_connector),
        ("[::1]", guarded_connector),
        ("0.0.0.0", guarded_connector),
        ("public.example", resolves_to("127.0.0.1")),
        ("public.example", resolves_to("127.0.0.1", "127.0.0.2")),
    ],
)
async def test_no_connection_is_made_to_a_blocked_address(
    host: str, connector: Callable[[], aiohttp.TCPConnector]
) -> None:
    """Literals, odd spellings and names that resolve inside are stopped before a socket is opened."""
    async with server() as (port, asked):
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await get(f"http://{host}:{port}/", connector())
    assert isinstance(caught.value.os_error, AddressNotAllowedError)
    assert asked == []


async def test_a_mixed_name_reaches_its_open_addresses_only() -> None:
    """Of a name with blocked and open addresses the blocked ones are never called."""
    async with server("127.0.0.1") as (port, inside), server("127.0.0.2", port) as (_, outside):
        resolver = FakeResolver(["127.0.0.1", "127.0.0.2"])
        connector = guarded_connector(allowed=allowed_networks(["127.0.0.2"]), resolver=resolver)
        assert await get(f"http://mixed.example:{port}/", connector) == 200
    assert (inside, outside) == ([], ["/"])


@pytest.mark.fault(59)
async def test_a_name_that_changes_between_two_calls_is_stopped() -> None:
    """DNS rebinding does not help: the address of every single connection counts."""
    async with server("127.0.0.1") as (port, inside), server("127.0.0.2", port) as (_, outside):
        resolver = FakeResolver(["127.0.0.2"], ["127.0.0.1"])
        allowed = allowed_networks(["127.0.0.2"])
        assert await get(f"http://rebinding.example:{port}/1", guarded_connector(allowed=allowed, resolver=resolver))
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(f"http://rebinding.example:{port}/2", guarded_connector(allowed=allowed, resolver=resolver))
    assert (inside, outside) == ([], ["/1"])
