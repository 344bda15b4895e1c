"""A websocket client that sends whatever it is told to, also what a library would not."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from tests.support.callers.raw_http import TIMEOUT_S, handshake_head
from voicemem.config.service import Address

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def websocket_frame(
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


class RawSocket:
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
        await self.send(websocket_frame(TEXT, json.dumps(event).encode()))

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
                    await self.send(websocket_frame(CLOSE, seen.payload[:2]))
        return code


@asynccontextmanager
async def upgraded_socket(address: Address | str, *lines: str) -> AsyncIterator[RawSocket]:
    """A websocket whose handshake was accepted."""
    host, _, port = str(address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(handshake_head(address, *lines))
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        assert answer.startswith(b"HTTP/1.1 101")
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()
