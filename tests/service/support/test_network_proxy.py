"""The proxy of the tests: each toxic does what it says, and without any the bytes pass as they are."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.servers.network_proxy import NetworkProxy
from voicemem.config.service import Address

DATA = bytes(range(256)) * 1000


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self.connections = 0
        self.ended = asyncio.Event()
        """Set when a connection was ended by its peer."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


@pytest.fixture
def echo() -> Echo:
    """The server behind the proxy."""
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[NetworkProxy]:
    """A proxy in front of an echo."""
    server = await asyncio.start_server(echo.answer, "127.0.0.1", 0)
    async with NetworkProxy(Address("127.0.0.1", server.sockets[0].getsockname()[1])) as proxy:
        yield proxy
    server.close()


class Caller:
    """A connection to the echo, through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), 10)

    async def rest(self) -> bytes:
        """All that comes until the end; raises `ConnectionResetError` for a RST."""
        return await asyncio.wait_for(self.reader.read(), 10)

    async def hears_nothing(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.reader.read(1), seconds)
        except TimeoutError:
            return True
        return False


@pytest.fixture
async def caller(proxy: NetworkProxy) -> AsyncIterator[Caller]:
    """A connection through the proxy."""
    caller = Caller(*await asyncio.open_connection(proxy.address.host, proxy.address.port))
    yield caller
    caller.writer.transport.abort()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_bytes_pass_as_they_are(caller: Caller) -> None:
    """Without toxics everything arrives, and an end is passed on."""
    caller.send(DATA)
    assert DATA == await caller.read(len(DATA))
    caller.writer.write_eof()
    assert b"" == await caller.rest()


async def test_latency_and_jitter_hold_back_and_keep_order(proxy: NetworkProxy, caller: Caller) -> None:
    """Bytes come no earlier than the latency, in their order."""
    proxy.to_server.latency_s, proxy.to_client.latency_s, proxy.to_client.jitter_s = 0.1, 0.05, 0.05
    began = now()
    for begin in range(0, len(DATA), 16_000):
        caller.send(DATA[begin : begin + 16_000])
        await asyncio.sleep(0)
    assert DATA == await caller.read(len(DATA))
    assert now() - began >= 0.14


async def test_bandwidth_is_bounded(proxy: NetworkProxy, caller: Caller) -> None:
    """A transfer takes at least its size over the bandwidth."""
    proxy.to_server.bytes_per_s = 20_000
    began = now()
    caller.send(DATA[:6_000])
    assert DATA[:6_000] == await caller.read(6_000)
    assert now() - began >= 0.28


async def test_slices_are_one_byte_each(proxy: NetworkProxy, caller: Caller) -> None:
    """Segments of one byte arrive one by one, and whole in the end."""
    proxy.to_server.slice_bytes = 1
    caller.send(DATA[:500])
    assert DATA[:500] == await caller.read(500)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_limit_ends_the_connection_after_its_bytes(proxy: NetworkProxy, caller: Caller, reset: bool) -> None:
    """So many bytes pass, and not one more; then comes a FIN or a RST."""
    proxy.to_client.limit_bytes, proxy.to_client.reset_at_limit = 1234, reset
    caller.send(DATA)
    if reset:
        with pytest.raises(ConnectionResetError):
            await caller.rest()
    else:
        assert DATA[:1234] == await caller.rest()


async def test_swallowed_bytes_are_silence(proxy: NetworkProxy, caller: Caller, echo: Echo) -> None:
    """A half-open connection passes nothing on, not even its end, and is not healed by itself."""
    caller.send(b"a")
    assert b"a" == await caller.read(1)
    proxy.to_client.swallow = True
    caller.send(b"b")
    assert await caller.hears_nothing(0.1)
    proxy.to_client.swallow = False
    caller.send(b"c")
    assert await caller.hears_nothing(0.1)
    assert not echo.ended.is_set()


async def test_a_timeout_ends_a_half_open_connection(proxy: NetworkProxy, caller: Caller) -> None:
    """With a timeout the connection ends so long after its first swallowed bytes."""
    proxy.to_server.swallow, proxy.to_server.timeout_s = True, 0.1
    began = now()
    caller.send(b"a")
    assert b"" == await caller.rest()
    assert now() - began >= 0.09


async def test_a_slow_close_holds_back_the_end(proxy: NetworkProxy, caller: Caller, echo: Echo) -> None:
    """The server hears of the client's end late."""
    proxy.to_server.slow_close_s = 0.1
    began = now()
    caller.writer.close()
    await asyncio.wait_for(echo.ended.wait(), 10)
    assert now() - began >= 0.09


async def test_a_reset_reaches_both_ends(proxy: NetworkProxy, caller: Caller, echo: Echo) -> None:
    """Both ends hear a RST, at once."""
    caller.send(b"a")
    await caller.read(1)
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await caller.rest()
    await asyncio.wait_for(echo.ended.wait(), 10)


async def test_a_cut_is_an_end(proxy: NetworkProxy, caller: Caller) -> None:
    """A cut connection has ended without an error."""
    caller.send(b"a")
    await caller.read(1)
    proxy.cut()
    assert b"" == await caller.rest()


async def test_down_refuses_and_up_listens_on_the_same_port(proxy: NetworkProxy, caller: Caller, echo: Echo) -> None:
    """While it is down connections are refused; afterwards the address is the same."""
    caller.send(b"a")
    await caller.read(1)
    await proxy.down()
    with pytest.raises(ConnectionResetError):
        await caller.rest()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(proxy.address.host, proxy.address.port)
    await proxy.up()
    again = Caller(*await asyncio.open_connection(proxy.address.host, proxy.address.port))
    again.send(b"b")
    assert b"b" == await again.read(1)
    assert (2, 2) == (echo.connections, proxy.accepted)
    again.writer.close()


async def test_the_target_may_change(proxy: NetworkProxy) -> None:
    """New connections go where the target is then; one that no one listens at is a reset."""
    proxy.target = Address("127.0.0.1", 1)
    caller = Caller(*await asyncio.open_connection(proxy.address.host, proxy.address.port))
    assert await ended(caller)
    caller.writer.close()


async def ended(caller: Caller) -> bool:
    try:
        return await caller.rest() == b""
    except ConnectionResetError:
        return True
