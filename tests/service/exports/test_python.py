"""Calls as documents, by the client and by the library."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json

import pytest

import voicemem
from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import RestClient
from tests.support.checks.vcon import check_vcon
from tests.support.samples.cut_call import CUT_CALL
from voicemem.app import App
from voicemem.client import RequestRefused, SyncClient, Unreachable
from voicemem.client.options import Options
from voicemem.client.transport.rest import RestClient as ClientRest
from voicemem.client.transport.rest import read_lines
from voicemem.errors import Refused


async def test_the_client_exports_calls(app: App) -> None:
    """One as a text; many line by line, also from synchronous code."""
    api = RestClient(app)
    await api.create("s1", user_id="ann")
    await api.create("s2")
    await api.send(*CUT_CALL, session_id="s1")
    async with client_to(app) as client:
        check_vcon(json.loads(await client.export("s1")))
        assert (await client.export("s1", "webvtt")).startswith("WEBVTT\n")
        lines = [line async for line in client.export_calls("markdown", user_id="ann")]
        with pytest.raises(RequestRefused, match="format"):
            await client.export("s1", "pdf")
    assert ["calls", "call", "end"] == [line["type"] for line in lines]

    def in_a_thread() -> tuple[str, int]:
        with SyncClient(f"ws://{app.ingest_address}", f"http://{app.rest_address}") as client:
            return client.export("s1", "markdown"), sum(line["type"] == "call" for line in client.export_calls())

    assert (lines[1]["document"], 2) == await asyncio.to_thread(in_a_thread)


async def test_an_export_that_is_cut_short_is_noticed() -> None:
    """A part of all calls is not taken for all of them."""

    async def serve_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b'{"type":"calls","format":"csv","sessions":2}\n'
        )
        writer.close()

    async with await asyncio.start_server(serve_half, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        rest = ClientRest(f"http://{host}:{port}", None, Options())
        try:
            with pytest.raises(Unreachable, match="cut short"):
                [line async for line in read_lines(rest, "/v1/exports", {"format": "csv"})]
        finally:
            await rest.close()


async def test_the_library_exports_calls() -> None:
    """The same documents without a server; what cannot be asked is refused."""
    async with voicemem.open() as library:
        call = await library.create("s1", user_id="ann", labels={"line": "shop"})
        await call.record(*CUT_CALL)
        await library.create("s2")
        check_vcon(json.loads(await call.export()))
        lines = [line async for line in library.export_calls("csv", label="line:shop", state="running")]
        assert await call.export("csv") == lines[1]["document"]
        assert {"type": "end", "calls": 1, "unreadable": 0} == lines[-1]
        for wrong in ({"format": "pdf"}, {"colour": "red"}, {"label": "shop"}):
            with pytest.raises(Refused):
                [line async for line in library.export_calls(**wrong)]
