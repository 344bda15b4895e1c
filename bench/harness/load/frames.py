"""Hand-made websocket frames, for a load generator that must cost far less than the servers under load."""

from __future__ import annotations

from typing import NamedTuple

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
FINAL, MASKED = 0x80, 0x80
NORMAL = (1000).to_bytes(2, "big")
"""The close code of a close frame without one."""
NO_MASK = bytes(4)
"""A mask of zeros leaves the payload unchanged; unmasking it is the same work for the server."""

UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Frame(NamedTuple):
    opcode: int
    payload: bytes
    end: int
    """Where the next frame begins."""


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
    """The frame that begins at `at`; None while it is incomplete. Servers neither mask nor split such small frames."""
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
