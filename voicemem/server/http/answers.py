"""Answers that are whole: their head and body are sent at once."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from voicemem.server.http.routes import JSON, NOTHING


@lru_cache(maxsize=1)
def http_date(seconds: int) -> str:
    """The value of a `Date` header at Unix seconds."""
    return formatdate(seconds, usegmt=True)


class Answer(web.StreamResponse):
    """A status, headers and a body of JSON; none of JSON where it is empty.

    It says itself what aiohttp's `Response` would find out about it: that costs more than to send it.
    """

    def __init__(self, body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] = NOTHING) -> None:
        super().__init__(status=status, headers={"Content-Type": JSON, **headers} if body else headers)
        self.whole_body = body
        self.writer: AbstractStreamWriter | None = None
        self.keeps_connection = False

    @property
    def prepared(self) -> bool:
        return self.writer is not None

    @property
    def keep_alive(self) -> bool:
        return self.keeps_connection

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter:
        headers, version = self.headers, request.version
        self.writer, self.keeps_connection = request.writer, request.keep_alive
        if self.whole_body or self.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers["Content-Length"] = str(len(self.whole_body))
        headers["Date"] = http_date(int(time.time()))
        if self.keeps_connection:
            if version == HttpVersion10:
                headers["Connection"] = "keep-alive"
        elif version == HttpVersion11:
            headers["Connection"] = "close"
        await self.writer.write_headers(f"HTTP/{version.major}.{version.minor} {self.status} {self.reason}", headers)
        return self.writer

    async def write_eof(self, data: bytes = b"") -> None:
        assert self.writer is not None
        await self.writer.write_eof(self.whole_body)
