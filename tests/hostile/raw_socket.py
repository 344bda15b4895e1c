"""A websocket client that sends whatever it is told to, also what a library would not."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from voicemem.config.service import Address

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
TIMEOUT_S = 60.0


def head(address: Address | str, *lines: str, path: str = "/v1/ingest") -> bytes:
    """The head of a websocket handshake, and these lines in it."""
    key = base64.b64encode(b"0123456789abcdef").decode()
    given = [f"GET {path} HTTP/1.1", f"Host: {address}", "Upgrade: websocket", "Connection: Upgrade"]
    given += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *lines]
    return "\r\n".join([*given, "", ""]).encode()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length: int | None = None,
) -> bytes:
    """A frame with its flags as given; `length` may announce more than the payload has. The mask is all zeros."""
    size = len(payload) if length is None else length
    mask = 0x80 if masked else 0
    if size < 126:
        sizes = struct.pack("!B", mask | size)
    elif size < 65_536:
        sizes = struct.pack("!BH", mask | 126, size)
    else:
        sizes = struct.pack("!BQ", mask | 127, size)
    return bytes([fin << 7 | rsv << 4 | opcode]) + sizes + (bytes(4) if masked else b"") + payload


async def answers(address: Address, sent: bytes) -> bytes:
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


def statuses(answer: bytes) -> list[int]:
    """The status of each answer in these bytes."""
    return [int(status) for status in re.findall(rb"HTTP/\d\.\d (\d+) ", answer)]


class Seen(NamedTuple):
    """A frame of the server's."""

    opcode: int
    payload: bytes

    @property
    def close(self) -> int:
        return int.from_bytes(self.payload[:2])

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.payload))


class Raw:
    """An open websocket, below any library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Send bytes, until the server hangs up."""
        with suppress(ConnectionError):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()

    async def send_event(self, event: dict[str, Any]) -> None:
        await self.send(frame(TEXT, json.dumps(event).encode()))

    async def next(self) -> Seen:
        """The next frame of the server. Raises `IncompleteReadError`, `ConnectionError` when it hangs up."""
        async with asyncio.timeout(TIMEOUT_S):
            opcode, size = await self.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return Seen(opcode & 0x0F, await self.reader.readexactly(size))

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next text frame, which must be of this type."""
        while (seen := await self.next()).opcode != TEXT:
            pass
        assert kind == seen.json["type"]
        return seen.json

    async def closed(self) -> int | None:
        """The code with which the server closes, past whatever else it says; None when it just hangs up."""
        code = None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                seen = await self.next()
                if seen.opcode == CLOSE:
                    code = seen.close
                    await self.send(frame(CLOSE, seen.payload[:2]))
        return code


@asynccontextmanager
async def shaken(address: Address | str, *lines: str) -> AsyncIterator[Raw]:
    """A websocket whose handshake was accepted."""
    host, _, port = str(address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head(address, *lines))
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        assert answer.startswith(b"HTTP/1.1 101")
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()
