"""Heads of HTTP/1.1 messages (RFC 9112): the request of a handshake is checked and rewritten, its answer only measured.

What is forwarded keeps its order and its letters. Everything is Latin-1, in which every byte is a character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from voicemem.errors import CODES, Refused

MAX_HEAD_BYTES = 64 * 1024
END = b"\r\n\r\n"
MEDIA_TYPE = "application/problem+json"
REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.1")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: [^\r\n]*)?\r\n")
HOP_BY_HOP = (
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
)
"""Headers that are about one connection (RFC 9110, section 7.6.1)."""
UNCOMPRESSED = "sec-websocket-extensions"
"""Not passed on, so that nothing is compressed: the frames are read as they are."""
Headers = list[tuple[str, str]]


class Request(NamedTuple):
    """A request without a body."""

    method: str
    target: str
    """Path and query, as they came."""
    headers: Headers

    def values(self, name: str) -> list[str]:
        """The values of a header, whose name is given in lower case."""
        return [value for other, value in self.headers if other.lower() == name]

    def value(self, name: str) -> str | None:
        """The value of a header that comes once at most. Raises `Refused`."""
        values = self.values(name)
        if len(values) > 1:
            raise Refused("invalid_http", f"The header {name} may be sent once.")
        return values[0] if values else None

    def words(self, name: str) -> list[str]:
        """The items of a list, in lower case."""
        return [word.strip().lower() for value in self.values(name) for word in value.split(",")]


def parse_request(head: bytes) -> Request:
    """The request of a head, with its last line. Raises `Refused` for what is not HTTP/1.1, or has a body."""
    first, *lines = head[: -len(END)].decode("latin-1").split("\r\n")
    start = REQUEST_LINE.fullmatch(first)
    fields = [HEADER.fullmatch(line) for line in lines]
    if start is None or None in fields:
        raise Refused("invalid_http")
    request = Request(start[1], start[2], [(field[1], field[2]) for field in fields if field is not None])
    if request.values("transfer-encoding") or not set(request.values("content-length")) <= {"0"}:
        raise Refused("invalid_http", "A request to the proxy has no body.")
    return request


def is_handshake(request: Request) -> bool:
    """Whether a request asks for a websocket (RFC 6455, section 4.2.1)."""
    asks = "websocket" in request.words("upgrade") and "upgrade" in request.words("connection")
    return request.method == "GET" and asks and len(request.values("sec-websocket-key")) == 1


def handshake_head(target: str, host: str, request: Request, left_out: Iterable[str], added: Headers) -> bytes:
    """The head of the same handshake for another server; `left_out` are names of headers in lower case."""
    gone = {*HOP_BY_HOP, *request.words("connection"), "host", "content-length", UNCOMPRESSED, *left_out}
    kept = [(name, value) for name, value in request.headers if name.lower() not in gone]
    headers = [("Host", host), ("Connection", "Upgrade"), ("Upgrade", "websocket"), *kept, *added]
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1") + END


def status_of(head: bytes) -> int | None:
    """The status of an answer; None for what is not HTTP."""
    start = STATUS_LINE.match(head)
    return None if start is None else int(start[1])


def answer(status: int, media_type: str, body: bytes, headers: Headers | None = None) -> bytes:
    """An answer after which the connection is closed."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Server: voicemem",
        f"Content-Type: {media_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers or ()),
    ]
    return "\r\n".join(lines).encode() + END + body


def refusal(code: str, detail: str) -> bytes:
    """The answer to a request that goes no further: a problem document, as the service's (docs/errors.md)."""
    status = CODES[code].status
    problem = {
        "type": f"urn:voicemem:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "reason": code,
    }
    headers = [("WWW-Authenticate", "Bearer")] if status == 401 else []
    return answer(status, MEDIA_TYPE, msgspec.json.encode(problem), headers)
