"""Bytes to an HTTP port, and the bytes that come back."""

from __future__ import annotations

import asyncio
import base64
import re
from contextlib import suppress

from voicemem.app import App
from voicemem.config.service import Address


async def raw_exchange(app: App, request: bytes, until: bytes | None = None, timeout_s: float = 5.0) -> bytes:
    """What the REST port answers to these bytes, until it closes the connection or has said `until`."""
    reader, writer = await asyncio.open_connection(*app.rest_address)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read() if until is None else reader.readuntil(until), timeout_s)
    finally:
        writer.close()
        await writer.wait_closed()


TIMEOUT_S = 60.0


def handshake_head(address: Address | str, *lines: str, path: str = "/v1/ingest") -> bytes:
    """The head of a websocket handshake, and these lines in it."""
    key = base64.b64encode(b"0123456789abcdef").decode()
    given = [f"GET {path} HTTP/1.1", f"Host: {address}", "Upgrade: websocket", "Connection: Upgrade"]
    given += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *lines]
    return "\r\n".join([*given, "", ""]).encode()


async def raw_answers(address: Address, sent: bytes) -> bytes:
    """All that is answered to these bytes, until the server hangs up."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        pieces: list[bytes] = []
        with suppress(ConnectionError):
            writer.write(sent)
            async with asyncio.timeout(TIMEOUT_S):
                while piece := await reader.read(65_536):
                    pieces.append(piece)
        return b"".join(pieces)
    finally:
        writer.transport.abort()


def status_codes(answer: bytes) -> list[int]:
    """The status of each answer in these bytes."""
    return [int(status) for status in re.findall(rb"HTTP/\d\.\d (\d+) ", answer)]
