"""Hand-made HTTP, for load generators that must cost far less than the servers under load."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast

END = b"\r\n\r\n"
LENGTH = b"content-length:"
CHUNKED = b"transfer-encoding: chunked"
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Answer(NamedTuple):
    status: int
    headers: bytes
    body: bytes

    @property
    def etag(self) -> str:
        """The `ETag` header; empty if there is none."""
        for line in self.headers.split(b"\r\n"):
            if line.lower().startswith(b"etag:"):
                return line.partition(b":")[2].strip().decode()
        return ""


def request(host: str, path: str, *, body: bytes | None = None, headers: str = "") -> bytes:
    """A GET, or a POST if there is a body; `headers` are whole lines."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode()
    about = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{about}{headers}\r\n".encode() + body


class Caller(asyncio.Protocol):
    """One keep-alive connection, with one request under way at a time."""

    transport: asyncio.Transport
    waiting: asyncio.Future[Answer] | None = None

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.have = 0
        self.needed = 0
        """Size of the whole answer in bytes; 0 until its headers have come, or its last chunk if it comes in chunks."""
        self.body_at = 0
        self.is_chunked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own has no common base

    def call(self, text: bytes) -> asyncio.Future[Answer]:
        """Send a request. The future raises `ConnectionError` if the connection is lost before the answer."""
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(text)
        return self.waiting

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.have += len(data)
        if not self.needed and not self.is_chunked:
            self.read_headers()
        if self.is_chunked and b"".join(self.pieces[-2:]).endswith(LAST_CHUNK):
            self.needed = self.have
        if self.needed and self.have >= self.needed:
            self.finish()

    def read_headers(self) -> None:
        whole = b"".join(self.pieces)
        self.pieces = [whole]
        end = whole.find(END)
        if end < 0:
            return
        head = whole[:end].lower()
        self.body_at, self.is_chunked = end + len(END), CHUNKED in head
        if self.is_chunked:
            return
        at = head.find(LENGTH)
        length = int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        self.needed = self.body_at + length

    def finish(self) -> None:
        whole = b"".join(self.pieces)
        body = whole[self.body_at : self.needed]
        answer = Answer(int(whole[9:12]), whole[: self.body_at], join_chunks(body) if self.is_chunked else body)
        self.pieces, self.have, self.needed, self.is_chunked = [], 0, 0, False
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ConnectionError("The server has hung up."))


def join_chunks(body: bytes) -> bytes:
    """The bytes of a body that came in chunks."""
    chunks, at = [], 0
    while size := int(body[at : body.index(b"\r\n", at)], 16):
        begin = body.index(b"\r\n", at) + 2
        chunks.append(body[begin : begin + size])
        at = begin + size + 2
    return b"".join(chunks)


async def connect(host: str, port: int) -> Caller:
    _, caller = await asyncio.get_running_loop().create_connection(Caller, host, port)
    return caller
