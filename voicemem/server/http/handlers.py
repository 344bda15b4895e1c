"""The request that a handler gets, which knows who asks and what its path names; and an answer that is whole."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from voicemem.security.access import Grant
from voicemem.services import Services

T = TypeVar("T")
SERVER = "voicemem"


class Shared:
    """The objects that the handlers of a port share."""

    def __init__(self) -> None:
        self.shared: dict[web.AppKey[Any], Any] = {}

    def __getitem__(self, key: web.AppKey[T]) -> T:
        value: T = self.shared[key]
        return value

    def __setitem__(self, key: web.AppKey[T], value: T) -> None:
        self.shared[key] = value


class Found(NamedTuple):
    """The route of a request, found by its method and path."""

    path: str
    """The path with placeholders, since ids may not appear in metrics; `none` where nothing is served."""
    handler: Handler | None
    values: dict[str, str]
    allowed: tuple[str, ...]
    """The methods that the path takes, where it does not take this one."""
    finish: Finish | None


SERVICES = web.AppKey("services", Services)
APP = web.RequestKey("app", Shared)
FOUND = web.RequestKey("found", Found)
GRANT = web.RequestKey("grant", Grant)


class Request(web.Request):
    """A request; what is known of it is kept where aiohttp's copies of it have it too."""

    @property
    def shared(self) -> Shared:
        return self[APP]

    @property
    def services(self) -> Services:
        return self[APP][SERVICES]

    @property
    def grant(self) -> Grant:
        """The rights of the caller, once a key was shown or none is needed."""
        return self[GRANT]

    @property
    def project(self) -> str | None:
        """The caller's project; None before a key was shown."""
        grant = self.get(GRANT)
        return None if grant is None else grant.project

    @property
    def in_path(self) -> dict[str, str]:
        """The values of the path's placeholders, by their names."""
        return self[FOUND].values


Handler = Callable[[Request], Awaitable[web.StreamResponse]]
Finish = Callable[[Request, web.StreamResponse], Awaitable[None]]
"""Adds to an answer that is about to be sent."""

# Answers whose head and body are sent at once

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

    def __init__(
        self, *body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
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
            head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
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
