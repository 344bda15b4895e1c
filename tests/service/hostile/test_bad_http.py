"""Bad input 81 to 92: what is no HTTP, or HTTP that no honest client sends, on both ports.

77 to 80, slow callers, are in `test_slow_callers.py`.
"""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.callers.bad_input import MIB, SECRET, event
from tests.support.callers.producer import connected_producer
from tests.support.callers.raw_http import handshake_head as handshake
from tests.support.callers.raw_http import raw_answers, status_codes
from tests.support.callers.rest import PROBLEM, RestClient
from tests.support.events import final_transcript
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App

EVENTS = "/v1/sessions/s/events"
GOOD = b"[" + event(seq=1).encode() + b"]"
HOST = b"Host: localhost\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\n" + HOST
POST = b"POST /v1/sessions/s/events HTTP/1.1\r\n" + HOST
LAST = b"Connection: close\r\n"
SHAKE = handshake("localhost", f"X-Secret: {SECRET}").removesuffix(b"\r\n")
"""A good handshake, but for the empty line at its end."""


class Broken(NamedTuple):
    """A request, which gets this status and then nothing more."""

    number: str
    sent: bytes
    status: int = 400


def length(text: str) -> bytes:
    """A body whose length is given like this."""
    return POST + f"Content-Length: {text}\r\n\r\n".encode() + GOOD


def encoding(text: str, chunks: bytes = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)) -> bytes:
    """A body whose transfer encoding is given like this."""
    return POST + f"Transfer-Encoding: {text}\r\n\r\n".encode() + chunks


HANGS_UP = 0
"""The status where the server closes the connection without a word."""
REST = [
    *(
        Broken(f"81 Content-Length {text!r}", length(text))
        for text in ("-1", "+5", "0x5", "5,5", "5, 6", "five", "", "1e3", "5 5", "\u0665", "9" * 30)
    ),
    Broken("81 two lengths that differ", POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + GOOD),
    Broken("82 length and chunks", POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GOOD),
    Broken("82 chunks and length", POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + GOOD),
    *(
        Broken(f"82 Transfer-Encoding {text!r}", encoding(text))
        for text in ("xchunked", "chunked, identity", "chunked, chunked", "identity, gzip", "\x0bchunked", "gzip")
    ),
    Broken("82 a chunk of no size", encoding("chunked", b"geheim\r\n")),
    Broken("82 a chunk of size -1", encoding("chunked", b"-1\r\ngeheim\r\n")),
    Broken("82 a chunk of size 0x5", encoding("chunked", b"0x5\r\ngeheim\r\n")),
    Broken("82 a chunk without its end", encoding("chunked", b"6\r\ngeheim0\r\n\r\n")),
    Broken("82 white space before the colon", POST + b"Content-Length : 5\r\n\r\n" + GOOD),
    Broken("82 a folded header", POST + b"X-A: b\r\n Content-Length: 5\r\n\r\n" + GOOD),
    Broken("82 a NUL in a header", POST + b"X-A: b\0geheim\r\n\r\n"),
    Broken("82 a line of CR only", LIVEZ + b"X-A: b\rX-Geheim: c\r\n\r\n"),
    Broken("82 a header without a name", LIVEZ + b": geheim\r\n\r\n"),
    Broken("82 a header without a colon", LIVEZ + b"geheim\r\n\r\n"),
    Broken("83 two Hosts", LIVEZ + b"Host: geheim\r\n\r\n"),
    Broken("84 129 headers", LIVEZ + b"".join(b"X%d: geheim\r\n" % n for n in range(129)) + b"\r\n"),
    Broken("84 10,000 headers", LIVEZ + b"X: geheim\r\n" * 10_000 + b"\r\n"),
    Broken("85 a target of 9 KiB", b"GET /" + b"geheim" * 1536 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    Broken("85 a value of 9 KiB", LIVEZ + b"X: " + b"geheim" * 1536 + b"\r\n\r\n"),
    Broken("85 a name of 9 KiB", LIVEZ + b"geheim" * 1536 + b": x\r\n\r\n"),
    Broken("85 a line of 1 MiB", b"GET /" + b"geheim" * (MIB // 6)),
    Broken("85 a value of 1 MiB", LIVEZ + b"X: " + b"geheim" * (MIB // 6)),
    Broken("91 no HTTP", b"geheim\r\n\r\n"),
    Broken("91 TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"geheim" * 80),
    Broken("91 an unknown method", b"GEHEIM /livez HTTP/1.1\r\n" + HOST + b"\r\n"),
    Broken("91 a method with a NUL", b"G\0T /livez HTTP/1.1\r\n" + HOST + b"\r\n"),
    Broken("91 CONNECT", b"CONNECT geheim:443 HTTP/1.1\r\nHost: localhost\r\n" + LAST + b"\r\n", 404),
    Broken("91 HTTP/9.9", b"GET /livez HTTP/9.9\r\n" + HOST + b"\r\n"),
    Broken("91 HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Broken("91 HTTP/0.9", b"GET /geheim\r\n\r\n", 404),
    Broken("91 another protocol", b"GET /livez GEHEIM/1.1\r\n" + HOST + b"\r\n"),
    Broken("91 an expectation", POST + b"Expect: geheim\r\nContent-Length: 2\r\n" + LAST + b"\r\n[]"),
    Broken("92 a target that is no path", b"GET geheim HTTP/1.1\r\n" + HOST + b"\r\n"),
    Broken("92 raw bytes in a target", b"GET /\xff\x00geheim HTTP/1.1\r\n" + HOST + b"\r\n"),
    Broken("92 a space in a target", b"GET /a geheim HTTP/1.1\r\n" + HOST + b"\r\n"),
]
UPGRADE = [
    Broken("81 a body before the upgrade", SHAKE + b"Content-Length: 6\r\n\r\ngeheim", HANGS_UP),
    Broken("82 chunks before the upgrade", SHAKE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", HANGS_UP),
    Broken("83 two Hosts", SHAKE + b"Host: geheim\r\n\r\n"),
    Broken("84 129 headers", SHAKE + b"".join(b"X%d: geheim\r\n" % n for n in range(129)) + b"\r\n", 431),
    Broken("85 a target of 9 KiB", b"GET /" + b"geheim" * 1536 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    Broken("85 a value of 9 KiB", SHAKE + b"X: " + b"geheim" * 1536 + b"\r\n\r\n", 431),
    Broken("91 no HTTP", b"geheim\r\n\r\n", HANGS_UP),
    Broken("91 POST", SHAKE.replace(b"GET", b"POST") + b"\r\n", 405),
    Broken("91 HTTP/1.0", SHAKE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n", 505),
    Broken("91 no upgrade", b"GET /v1/ingest HTTP/1.1\r\n" + HOST + b"\r\n", 426),
    Broken("91 another upgrade", SHAKE.replace(b"Upgrade: websocket", b"Upgrade: h2c") + b"\r\n", 426),
    Broken("91 an old version of the protocol", SHAKE.replace(b"Version: 13", b"Version: 8") + b"\r\n"),
    Broken("91 a bad key", re.sub(rb"(Sec-WebSocket-Key: )\S+", rb"\1abc", SHAKE) + b"\r\n"),
    Broken("91 no key", re.sub(rb"Sec-WebSocket-Key: \S+\r\n", b"", SHAKE) + b"\r\n"),
    *(
        Broken(f"92 the path {path}", SHAKE.replace(b"/v1/ingest", path.encode()) + b"\r\n", 404)
        for path in (
            "/",
            "/v1/../v1/ingest",
            "/v1/ingest/",
            "/v1%2fingest",
            "/v1/ingest%00",
            "//v1/ingest",
            "/V1/ingest",
        )
    ),
    Broken("92 raw bytes in the path", SHAKE.replace(b"/v1/ingest", b"/\xff\x00geheim") + b"\r\n", HANGS_UP),
]


@pytest.fixture
async def app(serve: Serve) -> App:
    app = await serve()
    await RestClient(app).create()
    return app


async def check(app: App, logged: pytest.LogCaptureFixture) -> None:
    """The session has nothing but what checks have sent, callers and producers are served, and nothing was logged."""
    api = RestClient(app)
    assert {"check"} >= {row["producer"] for row in await api.journal()}
    assert 200 == (await api.get("/livez")).status
    async with connected_producer(app) as producer:
        ready = await producer.open(producer="check")
        await producer.store(final_transcript(ready["next_seq"]))
    assert "" == logged.text


@every_row("broken", REST, ids=lambda broken: f"{broken.number}, REST")
async def test_broken_requests(app: App, caplog: pytest.LogCaptureFixture, broken: Broken) -> None:
    """Each gets one problem document that repeats nothing, and nothing behind it is taken for a request."""
    answer = await raw_answers(app.rest_address, broken.sent)
    assert [broken.status] == status_codes(answer)
    assert f"Content-Type: {PROBLEM}".encode() in answer
    assert SECRET.encode() not in answer.lower()
    await check(app, caplog)


@every_row("broken", UPGRADE, ids=lambda broken: f"{broken.number}, ingest")
async def test_broken_handshakes(app: App, caplog: pytest.LogCaptureFixture, broken: Broken) -> None:
    """Each is refused before the upgrade with a problem document, without a word of it in answer and log."""
    answer = await raw_answers(app.ingest_address, broken.sent)
    assert ([] if broken.status == HANGS_UP else [broken.status]) == status_codes(answer)
    assert broken.status == HANGS_UP or f"Content-Type: {PROBLEM}".encode() in answer
    assert SECRET.encode() not in answer.lower()
    await check(app, caplog)


# One by one


@pytest.mark.parametrize("hang_up", [True, False], ids=["half closed", "cut"])
async def test_81_a_body_shorter_than_announced(app: App, caplog: pytest.LogCaptureFixture, hang_up: bool) -> None:
    """A body that ends before its length is no body, however good it looks."""
    _, writer = await asyncio.open_connection(*app.rest_address)
    writer.write(POST + b"Content-Length: %d\r\n\r\n" % (len(GOOD) + 1) + GOOD)
    await writer.drain()
    if hang_up:
        writer.write_eof()
    writer.transport.abort()
    await check(app, caplog)


async def test_84_85_the_limits_do_not_bite_early(app: App) -> None:
    """A hundred headers, and lines of 8,000 bytes, are taken."""
    many = b"".join(b"X%d: x\r\n" % number for number in range(100))
    long = b"X: " + b"x" * 8000 + b"\r\n"
    assert [200] == status_codes(await raw_answers(app.rest_address, LIVEZ + many + LAST + b"\r\n"))
    assert [200] == status_codes(await raw_answers(app.rest_address, LIVEZ + long + LAST + b"\r\n"))


@pytest.mark.long
async def test_86_pipelined_requests(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Ten thousand are answered in their order, one by one; meanwhile others are served."""
    paths = [b"/livez", b"/nowhere"]
    requests = b"".join(b"GET " + paths[n % 2] + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" for n in range(9_999))
    answering = asyncio.create_task(raw_answers(app.rest_address, requests + LIVEZ + LAST + b"\r\n"))
    assert 200 == (await RestClient(app).get("/livez")).status
    assert [*[200, 404] * 4_999, 200, 200] == status_codes(await answering)
    await check(app, caplog)


BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "gzip of gzip": lambda body: gzip.compress(gzip.compress(body)),
    "gzip of many members": lambda body: gzip.compress(b" ") * 40_000,
}


@pytest.mark.long
@every_row("name", BOMBS)
@every_row("path", [EVENTS, "/v1/sessions", "/v1/sessions/s/end", "/nowhere"])
async def test_87_gzip_bombs(app: App, caplog: pytest.LogCaptureFixture, path: str, name: str) -> None:
    """A small body that unpacks to much is a 4xx wherever it is sent, and is never unpacked whole."""
    bomb = BOMBS[name](b"[" + b" " * 30_000_000 + b"]")
    assert len(bomb) < MIB
    answered = await RestClient(app).call("POST", path, {"Content-Encoding": name.split()[0]}, data=bomb)
    assert answered.problem[0] in (400, 404, 413)
    await check(app, caplog)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "image/png"]
)
async def test_88_the_content_type_says_nothing(app: App, kind: str) -> None:
    """A body is read as JSON whatever it is called; what is none is refused whatever it is called."""
    api, headers = RestClient(app), {"Content-Type": kind}
    for body in (b"seq=1&text=geheim", b"--x\r\nContent-Disposition: form-data\r\n\r\n[]\r\n--x--"):
        assert 400 == (await api.call("POST", EVENTS, headers, data=body)).problem[0]
    assert [] == await api.journal()
    assert 2 == (await api.call("POST", EVENTS, headers, data=GOOD)).json["next_seq"]


INSIDE = b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n"
"""A request that stands in the body of another."""
BODIES = [
    b"Content-Length: %d\r\n\r\n%s" % (len(INSIDE), INSIDE),
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(INSIDE), INSIDE),
]


@pytest.mark.parametrize("body", BODIES, ids=["length", "chunks"])
async def test_89_an_upgrade_with_a_body(app: App, caplog: pytest.LogCaptureFixture, body: bytes) -> None:
    """No port upgrades such a request, and what stands in its body is not taken for a request of its own."""
    upgrade, last = SHAKE.replace(b"/v1/ingest", b"/livez"), LIVEZ + LAST + b"\r\n"
    assert [200, 200] == status_codes(await raw_answers(app.rest_address, upgrade + body + last))
    assert [] == status_codes(await raw_answers(app.ingest_address, SHAKE + body + last))
    await check(app, caplog)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "", "file://"])
async def test_90_a_bad_origin(app: App, caplog: pytest.LogCaptureFixture, origin: str) -> None:
    """Without keys a page from elsewhere reaches neither port."""
    answered = await RestClient(app).call("POST", EVENTS, {"Origin": origin}, data=GOOD)
    assert (403, "foreign_origin") == answered.problem
    assert [403] == status_codes(
        await raw_answers(app.ingest_address, SHAKE + b"Origin: " + origin.encode() + b"\r\n\r\n")
    )
    await check(app, caplog)


IDS = ["..%2F..%2Fetc%2Fpasswd", "a%00b", "a%0d%0ab", "%ff", "%252e", "..%5c..", "%c0%ae%c0%ae", "a%2fb", "%e2%80%ae"]


@every_row("session_id", IDS)
async def test_92_traversals_and_nuls_in_ids(app: App, caplog: pytest.LogCaptureFixture, session_id: str) -> None:
    """An id that cannot be is a 400 wherever it stands, decoded once and no more."""
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/history"), ("POST", "/events")):
        answered = await RestClient(app).call(method, f"/v1/sessions/{session_id}{path}")
        assert (400, "invalid_field") == answered.problem
    await check(app, caplog)
