"""Calls of LLMs, at real servers that behave as badly as they may."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import every_row
from tests.support.servers.certificates import self_signed_tls
from tests.support.servers.faulty_receivers import abort_connection, read_body, tcp_receiver
from tests.support.servers.llm_server import Script, llm_server
from voicemem.errors import LlmFailed
from voicemem.llm.client import EVENTS_AT_ONCE, MAX_ANSWER_BYTES, LlmClient, Timeouts, read_sse_data
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.sse import MAX_LINES

BODY: dict[str, Any] = {"messages": [], "stream": True}
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
BRIEF = Timeouts(connect_s=2.0, read_s=5.0, total_s=0.2)
"""The whole answer takes longer than these let it, however steadily it comes."""
QUICK = Timeouts(connect_s=2.0, read_s=0.3)


@asynccontextmanager
async def models(timeouts: Timeouts = QUICK) -> AsyncIterator[LlmClient]:
    calling = LlmClient(timeouts=timeouts)
    try:
        yield calling
    finally:
        await calling.close()


async def streamed(calling: LlmClient, url: str) -> list[bytes]:
    async with aclosing(calling.stream(LlmEndpoint(url, public_only=False), BODY)) as data:
        return [one async for one in data]


async def why(calling: LlmClient, url: str) -> int | str:
    """The word for what went wrong."""
    with pytest.raises(LlmFailed) as failed:
        await streamed(calling, url)
    return failed.value.why


def saying(*pieces: bytes, after: Callable[[asyncio.StreamWriter], Any] | None = None) -> Any:
    """A server that answers one request with these bytes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_body(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if after is not None:
            after(writer)

    return talk


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


@every_row(
    ("talk", "expected"),
    [
        (silent, "timeout"),
        (saying(OK + b"\r\n: nothing yet\n\n", after=lambda _: None), []),
        (saying(after=abort_connection), "dropped"),
        (saying(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\ndata:", after=abort_connection), "dropped"),
        (saying(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n"), "dropped"),
        (saying(OK + b"Content-Length: 99\r\n\r\ndata: 1\n\n"), "dropped"),
        (saying(OK + b"\r\ndata: 1\n\ndata: 2\n\n"), [b"1", b"2"]),
        (saying(OK + b"\r\ndata: 1\n\ndata: [DONE]\n\ndata: 2\n\n"), [b"1", b"[DONE]"]),
        (saying(OK + b"Content-Encoding: gzip\r\n\r\nno gzip at all"), "invalid_answer"),
        (saying(OK + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"data: 1\n\n")), "invalid_answer"),
        (saying(OK + b"Content-Encoding: identity\r\n\r\ndata: 1\n\n"), [b"1"]),
        (saying(OK + b"\r\n", b"data:\n" * (MAX_LINES + 1)), "too_long"),
        (saying(OK + b"X: y\r\n" * 200 + b"\r\ndata: 1\n\n"), "invalid_answer"),
        (saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "invalid_answer"),
        (saying(OK + b"\r\n", b"x" * (MAX_ANSWER_BYTES + 2)), "too_long"),
        (saying(OK + b"\r\ndata: ", *[b"x" * 2**20 + b"\ndata: "] * 5), "too_long"),
        (saying(b"HTTP/1.1 500 No\r\nContent-Length: 99999999999\r\n\r\n"), 500),
        (saying(b"HTTP/1.1 302 No\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), 302),
    ],
)
async def test_what_servers_do(talk: Any, expected: Any) -> None:
    """Each way to fail has its word; what came before an end without `[DONE]` is told."""
    async with models() as calling, tcp_receiver(talk) as url:
        if isinstance(expected, list):
            assert expected == await streamed(calling, url)
        else:
            assert expected == await why(calling, url)


async def test_certificates_are_checked(tmp_path: Path) -> None:
    """A server that no one vouches for is not spoken to."""
    async with models() as calling, tcp_receiver(silent, tls=self_signed_tls(tmp_path)) as url:
        assert "tls" == await why(calling, url.replace("http:", "https:"))


async def test_a_key_that_no_header_can_have() -> None:
    """It is told as such, and its line cannot be broken."""
    async with models() as calling, llm_server() as llm:
        for key, word in (("vm_…", "invalid_key"), ("a\r\nX-B: 1", "error")):
            with pytest.raises(LlmFailed) as failed:
                await calling.complete(LlmEndpoint(llm.url, key, public_only=False), {"messages": []})
            assert word == failed.value.why
    assert [] == llm.requests


@pytest.mark.parametrize("url", ["http://a..b/", "http://\u2024.example/", "https://a.example:99999/"])
async def test_odd_urls_fail_as_calls(url: str) -> None:
    """What no request can be made of is a failed call, not a fault of ours."""
    async with models() as calling:
        assert isinstance(await why(calling, url), str)


async def test_a_connection_is_used_again() -> None:
    """Also after a stream; and when the server has closed it meanwhile, a fresh one is tried."""
    connections = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        for _ in range(2):  # the third request meets a closed connection
            await read_body(reader)
            connections[-1] += 1
            body = b"data: 1\n\ndata: [DONE]\n\n"
            writer.write(OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    async with models() as calling, tcp_receiver(talk) as url:
        for _ in range(4):
            assert [b"1", b"[DONE]"] == await streamed(calling, url)
    assert [2, 2] == connections


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that goes on for as long as its reader stays."""
    await read_body(reader)
    writer.write(OK + b"\r\n")
    while True:
        writer.write(b": still thinking\n\ndata: 1\n\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_drips_has_a_deadline(stream: bool) -> None:
    """It is given up although something came all the time, and what came before is told."""
    async with models(BRIEF) as calling, tcp_receiver(dripping) as url:
        if stream:
            assert "timeout" == await why(calling, url)
            return
        with pytest.raises(LlmFailed, match="did not answer in time"):
            await calling.complete(LlmEndpoint(url, public_only=False), {"messages": []})


async def test_a_head_that_drips_has_a_deadline() -> None:
    """The deadline is for the whole request, its first line included."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_body(reader)
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with models(BRIEF) as calling, tcp_receiver(talk) as url:
        assert "timeout" == await why(calling, url)


async def test_a_slow_reader_is_not_interrupted() -> None:
    """The deadline ends the wait for an answer, never what is done with a part of it."""
    async with (
        models(BRIEF) as calling,
        tcp_receiver(dripping) as url,
        aclosing(calling.stream(LlmEndpoint(url, public_only=False), BODY)) as data,
    ):
        assert b"1" == await anext(data)
        await asyncio.sleep(0.3)  # longer than the deadline
        with pytest.raises(LlmFailed):
            _ = [one async for one in data]


@pytest.mark.parametrize("text", [b"data: 1\n\n", b"id: 1\n\n"], ids=["data", "no data"])
async def test_a_stream_has_a_bound_of_events(text: bytes) -> None:
    """Events beyond it end the stream, also ones without data; others get their turn between them."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def pieces() -> AsyncIterator[bytes]:
        yield text * 1_001

    counting = asyncio.create_task(count_turns())
    with pytest.raises(LlmFailed, match="too_long"):
        _ = [data async for data in read_sse_data(pieces(), most_events=1_000)]
    counting.cancel()
    assert turns >= 1_000 // EVENTS_AT_ONCE


async def test_a_stream_has_a_bound_of_bytes() -> None:
    """Comments count too, which make no event."""

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b": nothing\n" * 1_000

    with pytest.raises(LlmFailed, match="too_long"):
        _ = [data async for data in read_sse_data(pieces(), most_bytes=100_000)]


async def test_a_whole_answer_has_a_bound() -> None:
    """What is longer is not kept."""
    async with models() as calling, llm_server(Script(raw=b"x" * (MAX_ANSWER_BYTES + 1))) as llm:
        with pytest.raises(LlmFailed) as failed:
            await calling.complete(LlmEndpoint(llm.url, public_only=False), {"messages": []})
        assert "too_long" == failed.value.why
