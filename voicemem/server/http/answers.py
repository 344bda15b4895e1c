"""Answers that are whole: their head and body are sent at once."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from voicemem.server.http.problems import SERVER
from voicemem.server.http.routes import JSON, NOTHING

EMPTY = HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED


@lru_cache(maxsize=1)
def http_date(seconds: int) -> str:
    """The value of a `Date` header at Unix seconds."""
    return formatdate(seconds, usegmt=True)


class Answer(web.StreamResponse):
    """A status, headers and a body of JSON in pieces; none of JSON where it is empty.

    It writes itself what aiohttp's `Response` would find out about it: that costs more than to send it. Its headers are
    made by the service alone, so none can break a line.
    """

    def __init__(self, *body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] = NOTHING) -> None:
        super().__init__(status=status)
        self.pieces = body
        self.own_headers = headers
        self.keeps_connection = False
        self.writer: AbstractStreamWriter | None = None

    @property
    def prepared(self) -> bool:
        return self.writer is not None

    @property
    def keep_alive(self) -> bool:
        return self.keeps_connection

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter:
        self.writer, self.keeps_connection = request.writer, request.keep_alive
        version, head = request.version, f"HTTP/1.1 {self.status} {self.reason}\r\n"
        if version != HttpVersion11:
            head = f"HTTP/{version.major}.{version.minor}{head[8:]}"
        if size := sum(map(len, self.pieces)):
            head += f"Content-Type: {JSON}\r\nContent-Length: {size}\r\n"
        elif self.status not in EMPTY:
            head += "Content-Length: 0\r\n"
        for name, value in self.own_headers.items():
            head += f"{name}: {value}\r\n"
        for name, value in self.headers.items():
            head += f"{name}: {value}\r\n"
        if version == HttpVersion11 and not self.keeps_connection:
            head += "Connection: close\r\n"
        elif version == HttpVersion10 and self.keeps_connection:
            head += "Connection: keep-alive\r\n"
        head += f"Date: {http_date(int(time.time()))}\r\nServer: {SERVER}\r\n\r\n"
        pieces = () if request.method == "HEAD" else self.pieces
        await self.writer.write(b"".join((head.encode(), *pieces)))
        return self.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Wait until the reader has taken so much that a next answer can be written."""
        assert self.writer is not None
        await self.writer.drain()
