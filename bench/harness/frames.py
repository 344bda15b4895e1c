"""Websocket frames by hand, for a load generator that must cost far less than the servers that it loads."""

from __future__ import annotations

from typing import NamedTuple

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
FINAL, MASKED = 0x80, 0x80
NORMAL = (1000).to_bytes(2, "big")
"""The code of a close without a reason."""
NO_MASK = bytes(4)
"""A mask of zeros leaves the payload as it is; the server's work to take it off is the same."""

UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Frame(NamedTuple):
    opcode: int
    payload: bytes
    end: int
    """Where the next one begins."""


def client_frame(payload: bytes, opcode: int = TEXT) -> bytes:
    size = len(payload)
    if size < 126:
        length = bytes([MASKED | size])
    elif size < 65_536:
        length = bytes([MASKED | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([MASKED | 127]) + size.to_bytes(8, "big")
    return bytes([FINAL | opcode]) + length + NO_MASK + payload


def server_frame(data: bytes, at: int) -> Frame | None:
    """The frame that begins there; None while it is not all there. Servers mask nothing, and split nothing so small."""
    if len(data) < at + 2:
        return None
    size, begin = data[at + 1], at + 2
    if size == 126:
        size, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
    elif size == 127:
        size, begin = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
    if len(data) < begin + size:
        return None
    return Frame(data[at] & 0x0F, data[begin : begin + size], begin + size)
