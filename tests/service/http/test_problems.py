"""Errors over HTTP: always a problem document, never what was sent, never how voicemem works inside."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from aiohttp import ClientSession, web
from websockets.asyncio.client import connect

from tests.support.callers.raw_http import raw_exchange
from tests.support.callers.rest import PROBLEM, RestClient, RestResponse
from tests.support.routes import ROUTES
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.config.service import Address
from voicemem.errors import InvalidFrame, Refused, StoreUnavailable
from voicemem.server.http.application import Application
from voicemem.server.http.connections import ConnectionLimits, PortConnections, listen
from voicemem.telemetry import Telemetry
from voicemem.telemetry.metrics import Metrics, Tracer

HEAD = b"Host: localhost\r\nConnection: close\r\n"
PATHS = sorted({route.path for route in ROUTES})
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of a service with one empty session."""
    caller = RestClient(await serve())
    await caller.create()
    return caller


def filled(path: str, value: str = "s") -> str:
    """A route's path with a value for its parameters."""
    return re.sub(r"\{\w+\}", value, path)


# Paths and methods

NOWHERE = ["/", "/v1", "/v1/", "/v2/sessions", "/v1/sessions/", "/v1/sessions/s/", "/v1/sessions/s/x", "//livez"]
NOWHERE += ["/livez/", "/LIVEZ", "/v1/sessions/s/history/1", "/v1/sessions/../livez", "/favicon.ico", "/%00", "/%2e%2e"]
NOWHERE += ["/v1/sessions/a/b", "/v1/sessions/s//history", "/v1;/sessions", "/" + "x" * 4000, "/v1/sessions%2Fs"]


@every_row("path", NOWHERE)
async def test_unknown_paths_are_404(api: RestClient, path: str) -> None:
    """Where nothing is, a problem document says so."""
    assert (404, "not_found") == (await api.get(path)).problem


def methods_of_ids(path: str) -> set[str]:
    """The methods of a path with an id at its end, which could be the last word of this one."""
    parent, _, word = path.rpartition("/")
    others = (
        route for route in ROUTES if route.path.startswith(f"{parent}/{{") and "/" not in route.path[len(parent) + 1 :]
    )
    return set() if word.startswith("{") else {route.method for route in others}


@every_row("path", PATHS)
async def test_wrong_methods_are_405_and_told_the_right_ones(api: RestClient, path: str) -> None:
    """Allow names exactly the methods that the path takes."""
    allowed = with_head({route.method for route in ROUTES if route.path == path})
    for method in set(METHODS) - allowed - methods_of_ids(path) - {"HEAD"}:
        answered = await api.call(method, filled(path))
        assert (405, "method_not_allowed") == answered.problem
        assert allowed == set(answered.headers["Allow"].split(", "))


def with_head(methods: set[str]) -> set[str]:
    """Methods that a path takes, with HEAD beside GET."""
    return methods | {"HEAD"} if "GET" in methods else methods


async def test_head_is_answered_as_get_without_the_body(api: RestClient) -> None:
    """With its status and headers, if it is whole or an error; at once, if it is sent in pieces or a tail."""
    for path in sorted({route.path for route in ROUTES if route.method == "GET"}):
        async with asyncio.timeout(5):
            head = await api.call("HEAD", filled(path))
        assert b"" == head.body
        if path not in (
            "/v1/events",
            "/metrics",
            "/v1/operations",
        ):  # the first never ends, others change by themselves
            got = await api.get(filled(path))
            assert got.status == head.status, path
            differing = {
                name for name in {*got.headers, *head.headers} if got.headers.get(name) != head.headers.get(name)
            }
            assert {"Date", "Transfer-Encoding"} >= differing, (path, got, head)


BAD_IDS = ["a%2Fb", "%2F", "%00", "a%00", "..%2F..", "%2e%2e%2f", "a%20b", "a%0Ab", "%ff", "%C3%A9", "%F0%9F%98%80"]
BAD_IDS += ["x" * 129, "a;b", "a,b", "a@b", "a~b", "~", "a'b", "%22", "a+b", "$", "%25", "%u0041"]


@every_row("session_id", BAD_IDS)
async def test_ids_that_cannot_be_are_refused_on_every_path(api: RestClient, session_id: str) -> None:
    """Slashes, NULs, dots between them, other letters and too many of them are a 400 wherever an id stands."""
    for route in ROUTES:
        if "{id}" in route.path:
            answered = await api.call(route.method, filled(route.path, session_id))
            assert (400, "invalid_field") == answered.problem


@every_row("query", ["nonsense=1", "nonsense", "=1", "session_id=s", "token=x", "api_key=x", "%00=1"])
async def test_unknown_parameters_are_refused_on_every_path(api: RestClient, query: str) -> None:
    """A parameter that a path does not know is never passed over."""
    for route in (route for route in ROUTES if query.partition("=")[0] not in route.query.__struct_fields__):
        answered = await api.call(route.method, f"{filled(route.path)}?{query}")
        assert (400, "invalid_query") == answered.problem
    assert "running" == (await api.session())["state"]


async def test_unknown_parameters_are_not_repeated(api: RestClient) -> None:
    """What stands in a query may be a secret, or a name."""
    answered = await api.get("/v1/sessions?limit=hush&state=hush&label=hush")
    assert (400, "invalid_query") == answered.problem
    assert b"hush" not in answered.body


# Bodies

NO_OBJECTS = [b"{", b"{}{}", b"{'a':1}", b"\xff", b"\xef\xbb\xbf{}", b"NaN", b'{"a":NaN}', "{}".encode("utf-16")]
NO_OBJECTS += [b"[]", b"7", b'"x"', b"null", b'{"a":' * 33 + b"1" + b"}" * 33, b"[" * 100_000, b'{"name":"\\ud800"}']
NO_OBJECTS += [
    b'{"name":"\xed\xa0\x80"}',
    b'{"name":"\x00"}',
    b'{"idle_timeout":1e400}',
    b'{"name":' + b"9" * 5000 + b"}",
]
WITH_BODIES = [("POST", "/v1/sessions"), ("PATCH", "/v1/sessions/s"), ("POST", "/v1/sessions/s/end")]
ANY_OBJECT = ("PUT", "/v1/sessions/s/data")
"""Whose body may be any object."""
WITH_BODIES += [("PATCH", "/v1/users/u/working-memory"), ANY_OBJECT]
WITH_BODIES += [("POST", "/v1/sessions/s/working-memory/tools")]


@every_row("body", NO_OBJECTS, ids=lambda body: str(body[:20]))
@every_row(("method", "path"), WITH_BODIES)
async def test_bodies_that_are_no_objects_are_400(api: RestClient, method: str, path: str, body: bytes) -> None:
    """Whatever else comes as a body is refused, and changes nothing."""
    assert 400 == (await api.call(method, path, data=body)).problem[0]
    assert [("s", 0)] == [
        (one["session_id"], one["position"]) for one in (await api.get("/v1/sessions")).json["sessions"]
    ]


@every_row(("method", "path"), WITH_BODIES)
async def test_bodies_over_1_mib_are_413(api: RestClient, method: str, path: str) -> None:
    """A body is at most 1 MiB, whatever it holds."""
    parts = iter([b"{}", b" " * 700_000, b" " * 700_000])

    async def body() -> Any:
        for part in parts:
            yield part

    assert (413, "too_big") == (await api.call(method, path, data=body())).problem


@pytest.mark.parametrize(("method", "path"), [one for one in WITH_BODIES if one != ANY_OBJECT])
async def test_what_was_sent_is_not_repeated(
    api: RestClient, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the answer nor the log holds a value of a bad body."""
    for value in ("hush", ["hush"], {"hush": "hush"}, "hush's", "hush'\"hush", 'a "hush"'):
        for name in ("session_id", "reason", "state", "labels", "llm", "user_id"):
            answered = await api.call(method, path, json={"llm": {"style": value}} | {name: {"style": value}})
            assert 400 == answered.problem[0]
            assert b"hush" not in answered.body
    assert "hush" not in caplog.text


# Below the routes

NO_HTTP = [
    b"hush\r\n\r\n",
    b"HUSH /livez HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /livez HTTP/9.9\r\n" + HEAD + b"\r\n",
    b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: hush\r\n\r\n",
    b"GET /livez HTTP/1.1\r\n" + HEAD + b"Authorization: Bearer " + b"hush" * 2500 + b"\r\n\r\n",
    b"GET /" + b"hush" * 2500 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /livez HTTP/1.1\r\n" + HEAD + b"".join(b"X%d: hush\r\n" % number for number in range(130)) + b"\r\n",
    b"GET /\xff\x00hush HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"POST /v1/sessions HTTP/1.1\r\n" + HEAD + b"Content-Length: hush\r\n\r\n",
    b"POST /v1/sessions HTTP/1.1\r\n" + HEAD + b"Content-Length: -1\r\n\r\n",
    b"POST /v1/sessions HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/sessions HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nhush\r\n",
    b"POST /v1/sessions HTTP/1.1\r\n" + HEAD + b"Expect: hush\r\nContent-Length: 2\r\n\r\n{}",
]
IDS = [str(request[:24]) + str(number) for number, request in enumerate(NO_HTTP)]


@every_row("request_", NO_HTTP, ids=IDS)
async def test_what_is_no_http_is_refused_and_the_service_lives(app: App, request_: bytes) -> None:
    """Broken requests get a 4xx, and the next caller is served."""
    assert re.match(rb"HTTP/1\.[01] 4\d\d ", await raw_exchange(app, request_, until=b"\r\n"))
    assert 200 == (await RestClient(app).get("/livez")).status


@every_row("request_", NO_HTTP, ids=IDS)
async def test_what_is_no_http_is_answered_by_a_problem(app: App, request_: bytes) -> None:
    """Every HTTP error is a problem document, also those that no route sees."""
    answer = await raw_exchange(app, request_)
    assert f"Content-Type: {PROBLEM}".encode() in answer


@every_row("request_", NO_HTTP, ids=IDS)
async def test_what_is_no_http_is_neither_repeated_nor_logged(
    app: App, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys and texts in broken requests stand in no answer and in no log, and fill no log with tracebacks."""
    answer = await raw_exchange(app, request_)
    assert b"hush" not in answer
    assert "hush" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_pipelined_requests_are_answered_in_their_order(serve: Serve) -> None:
    """A hundred requests in one write get a hundred answers."""
    requests = b"".join(b"GET /v1/sessions/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in range(99))
    answer = await raw_exchange(await serve(), requests + b"GET /livez HTTP/1.1\r\n" + HEAD + b"\r\n")
    assert [b"404"] * 99 + [b"200"] == re.findall(rb"HTTP/1\.1 (\d+)", answer)


async def test_no_answer_says_what_the_server_is_made_of(serve: Serve) -> None:
    """`Server` is voicemem on both ports: answers, errors, streams, what is no HTTP, handshakes taken and refused."""
    app = await serve()
    heads = [await raw_exchange(app, b"nonsense\r\n\r\n")]
    for path in (b"/livez", b"/nothing", b"/v1/sessions/none/history", b"/api/conversational-ai-agent/v2/projects/p/x"):
        heads.append(await raw_exchange(app, b"GET %b HTTP/1.1\r\n%b\r\n" % (path, HEAD)))
    tail = b"GET /v1/events HTTP/1.1\r\nAccept: text/event-stream\r\n%b\r\n" % HEAD
    heads.append(await raw_exchange(app, tail, until=b"\r\n\r\n"))
    for request in (b"GET / HTTP/1.1", b"GET /v1/ingest HTTP/1.1", b"POST / HTTP/1.1"):
        reader, writer = await asyncio.open_connection(*app.ingest_address)
        writer.write(b"%b\r\n%b\r\n" % (request, HEAD))
        heads.append(await asyncio.wait_for(reader.read(), 10))
        writer.close()
    async with connect(f"ws://{app.ingest_address}/v1/ingest") as socket:
        assert socket.response is not None
        assert "voicemem" == socket.response.headers["Server"]
    for head in heads:
        assert [b"voicemem"] == re.findall(rb"(?m)^Server: (.*)\r$", head), head
        assert b"aiohttp" not in head


# Whatever a handler raises

RAISED: list[tuple[BaseException, int, str]] = [
    (Refused("unknown_session"), 404, "unknown_session"),
    (Refused("seq_gap", "Said so."), 409, "seq_gap"),
    (InvalidFrame("too_deep"), 400, "too_deep"),
    (StoreUnavailable(), 503, "store_unavailable"),
    (TimeoutError(), 408, "timeout"),
    (InvalidFrame("too_big"), 413, "too_big"),
    (RuntimeError("hush"), 500, "internal"),
    (KeyError("hush"), 500, "internal"),
    (RecursionError("hush"), 500, "internal"),
]


async def raised(error: BaseException) -> RestResponse:
    """What a caller gets when a handler raises this."""

    async def handler(request: web.Request) -> web.Response:
        raise error

    app = Application(Telemetry(Metrics(), Tracer()))
    app.add_route("GET", "/", handler)
    runner = web.ServerRunner(app.server())
    await runner.setup()
    listening = await listen(
        runner, Address("127.0.0.1", 0), connections=PortConnections(ConnectionLimits(8, 8), lambda: None)
    )
    try:
        port = listening.sockets[0].getsockname()[1]
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as answer:
            return RestResponse(answer.status, answer.headers, await answer.read())
    finally:
        listening.close()
        await runner.cleanup()


@every_row(("error", "status", "code"), RAISED, ids=lambda value: str(value)[:30])
async def test_whatever_is_raised_becomes_a_problem(error: BaseException, status: int, code: str) -> None:
    """A caller sees status, code and sentence, and nothing of the exception."""
    answered = await raised(error)
    assert (status, code) == answered.problem
    assert b"hush" not in answered.body


async def test_an_error_of_our_own_tells_its_sentence() -> None:
    """The sentence that was raised is the document's detail."""
    assert "Said so." == (await raised(Refused("seq_gap", "Said so."))).json["detail"]


async def test_only_what_is_our_fault_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A caller's mistakes leave no trace in the log; a fault of ours leaves its traceback for the operator."""
    await raised(Refused("unknown_session"))
    assert [] == caplog.records
    await raised(RuntimeError("oops"))
    (record,) = caplog.records
    assert ("ERROR", True) == (record.levelname, record.exc_info is not None)


async def test_who_lacks_a_key_is_told_the_scheme() -> None:
    """A 401 says how a key is sent."""
    assert "Bearer" == (await raised(Refused("unauthorized"))).headers["WWW-Authenticate"]
