"""What of a handshake passes through the proxy, and which requests go no further (docs/proxy.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.http11 import Request, Response

from tests.support.callers.tees import vendor_at
from tests.support.rows import every_row
from tests.support.servers.voice_proxy import RunningProxy, proxy_to
from voicemem.errors import Refused
from voicemem.server.ingest.dialect_connection import parse_target

DIALECT = "openai-realtime"
HANDSHAKE = (
    "GET {target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
)


async def answer_to(proxy: RunningProxy, request: str) -> str:
    """Everything that is answered to the bytes of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request.encode("latin-1"))
    answer = await reader.read()
    writer.close()
    return answer.decode("latin-1")


def handshake(target: str, more: str = "") -> str:
    return HANDSHAKE.format(target=target, more=more)


@asynccontextmanager
async def port_of(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of a server that is no websocket's."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_headers_pass_untouched() -> None:
    """Path, query, headers and cookies reach the vendor as they are, without what is about one hop or is ours."""
    async with vendor_at() as (url, vendor), proxy_to(None, {DIALECT: f"{url}/base/?tier=1"}) as proxy:
        sent = {
            "Authorization": "Bearer sk-secret",
            "OpenAI-Beta": "realtime=v1",
            "Cookie": "a=b; c=d",
            "X-Voicemem-Session": "call",
            "X-Voicemem-User": "ann",
            "Keep-Alive": "timeout=5",
            "Proxy-Authorization": "Basic x",
        }
        async with connect(
            f"{proxy.url(DIALECT)}/realtime/%C3%A9?model=a%20b&x=&voicemem_session=call&voicemem_user=ann",
            additional_headers=sent,
            user_agent_header="Agent/1",
        ):
            request = (await vendor.connected).request
    assert request is not None
    assert "/base/realtime/%C3%A9?tier=1&model=a%20b&x=" == request.path
    names = ["Authorization", "OpenAI-Beta", "Cookie", "User-Agent"]
    assert ["Bearer sk-secret", "realtime=v1", "a=b; c=d", "Agent/1"] == [request.headers[name] for name in names]
    assert url.removeprefix("ws://") == request.headers["Host"]
    gone = ("Keep-Alive", "Proxy-Authorization", "Sec-WebSocket-Extensions", "X-Voicemem-Session", "X-Voicemem-User")
    assert [] == [name for name in gone if name in request.headers]


async def test_subprotocols_pass_both_ways() -> None:
    """The vendor sees those that a browser uses for its key, and the caller the one that the vendor has chosen."""

    async def handle(connection: ServerConnection) -> None:
        await connection.send(json.dumps(connection.request.headers.get_all("Sec-WebSocket-Protocol")))  # type: ignore[union-attr]

    async with (
        serve(handle, "127.0.0.1", 0, subprotocols=["realtime"]) as server,  # type: ignore[list-item]
        proxy_to(None, {DIALECT: f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"}) as proxy,
        connect(proxy.url(DIALECT), subprotocols=["realtime", "openai-insecure-api-key.ek_1"]) as caller,  # type: ignore[list-item]
    ):
        assert ["realtime, openai-insecure-api-key.ek_1"] == json.loads(await caller.recv())
        assert "realtime" == caller.subprotocol


async def test_a_refusal_of_the_vendor_is_passed_on() -> None:
    """Status, headers and body are the vendor's."""

    def refuse(_: ServerConnection, __: Request) -> Response:
        body = b'{"error":"wrong key"}'
        headers = Headers({"Content-Length": str(len(body)), "X-Request-Id": "req_1", "Retry-After": "7"})
        return Response(HTTPStatus.UNAUTHORIZED, "No", headers, body)

    async def handle(_: ServerConnection) -> None: ...

    async with (
        serve(handle, "127.0.0.1", 0, process_request=refuse) as server,
        proxy_to(None, {DIALECT: f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"}) as proxy,
    ):
        with pytest.raises(InvalidStatus) as refused:
            await connect(proxy.url(DIALECT))
        assert (401, "No", b'{"error":"wrong key"}') == (
            refused.value.response.status_code,
            refused.value.response.reason_phrase,
            refused.value.response.body,
        )
        assert ("req_1", "7") == tuple(refused.value.response.headers[name] for name in ("X-Request-Id", "Retry-After"))
        assert not proxy.server.memories.memories, "nothing is remembered of it"


async def test_what_follows_a_refused_handshake_goes_nowhere() -> None:
    """Bytes behind the request of a caller whom the vendor refuses are not sent on."""
    received = bytearray()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
        )
        await writer.drain()
        received.extend(await asyncio.wait_for(reader.read(), 10))
        writer.close()

    async with port_of(refuse) as port, proxy_to(None, {DIALECT: f"ws://127.0.0.1:{port}"}) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        smuggled = "GET /admin HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write((handshake(f"/v1/proxy/{DIALECT}") + smuggled).encode())
        answer = await reader.readuntil(b"no")
        writer.write(smuggled.encode())
        await writer.drain()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 404 Not Found")
        while b"HTTP/1.1" not in received or proxy.server.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert b"/admin" not in received


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b"", "502"), (b"SSH-2.0-OpenSSH_9\r\n\r\n", "502"), (b"HTTP/1.1 " + b"x" * 70_000, "502")],
    ids=["closes", "no HTTP", "endless"],
)
async def test_an_upstream_that_is_no_websocket_server(answer: bytes, status: str) -> None:
    """The caller gets 502, with a sentence about it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with port_of(handle) as port, proxy_to(None, {DIALECT: f"ws://127.0.0.1:{port}"}) as proxy:
        said = await answer_to(proxy, handshake(f"/v1/proxy/{DIALECT}"))
    assert said.startswith(f"HTTP/1.1 {status} ")
    assert '"reason":"upstream_unreachable"' in said


async def test_an_upstream_that_hangs() -> None:
    """An upstream that takes the connection and never answers is given up after the timeout: 504."""
    over = asyncio.Event()

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with (
        port_of(handle) as port,
        proxy_to(None, {DIALECT: f"ws://127.0.0.1:{port}"}, connect_timeout=0.2) as proxy,
    ):
        said = await answer_to(proxy, handshake(f"/v1/proxy/{DIALECT}"))
        over.set()
    assert said.startswith("HTTP/1.1 504 ")
    assert "within 0.2 s" in said


async def test_a_caller_who_does_not_wait() -> None:
    """A caller who leaves before the upstream has answered ends the call at once, and the upstream sees it."""
    came, left = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        assert b"" == await reader.read()
        left.set()
        writer.close()

    async with port_of(handle) as port, proxy_to(None, {DIALECT: f"ws://127.0.0.1:{port}"}) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(handshake(f"/v1/proxy/{DIALECT}").encode())
        await came.wait()
        writer.close()
        async with asyncio.timeout(proxy.server.settings.connect_timeout / 2):
            await left.wait()
            await proxy.server.wait_for_calls(None)
        assert {(DIALECT, "abandoned"): 1} == proxy.server.over


async def test_an_upstream_that_nobody_reaches() -> None:
    """Refused connections, unknown hosts and TLS that fails are 502, each with its reason and without its address."""
    wanted = {
        DIALECT: "ws://127.0.0.1:1",
        "gemini-live": "wss://nowhere.invalid",
    }
    async with proxy_to(None, wanted) as proxy:
        refused = await answer_to(proxy, handshake(f"/v1/proxy/{DIALECT}"))
        unknown = await answer_to(proxy, handshake("/v1/proxy/gemini-live"))
    assert "502" in refused[:12]
    assert "connection refused" in refused
    assert "127.0.0.1" not in refused
    assert "502" in unknown[:12]
    assert "nowhere" not in unknown


@every_row(
    ("target", "more", "status"),
    [
        ("/v1/proxy/wss://evil.example/x", "", 404),
        ("/v1/proxy/evil.example", "", 404),
        ("/v1/proxy/gemini-live", "", 404),
        ("http://evil.example/v1/proxy/openai-realtime", "", 400),
        ("/v1/proxy/openai-realtime?voicemem_upstream=wss://evil.example", "", 400),
        ("/v1/proxy/openai-realtime?Voicemem%5Fsession=a%20b", "", 400),
        ("/v1/proxy/openai-realtime?voicemem_session=a&voicemem_session=b", "", 400),
        ("/v1/proxy/openai-realtime?voicemem_user=a&voicemem_user=b", "", 400),
        ("/v1/proxy/openai-realtime?voicemem_user=" + "x" * 129, "", 400),
        ("/v1/proxy/openai-realtime?voicemem_user=", "", 400),
        ("/v1/proxy/openai-realtime?voicemem_user=a%0Ab", "", 400),
        ("/v1/proxy/openai-realtime", "X-Voicemem-Upstream: wss://evil.example\r\n", 400),
        ("/v1/proxy/openai-realtime/../../admin", "", 400),
        ("/v1/proxy/openai-realtime/%2e%2e/admin", "", 400),
        ("/v1/proxy/openai-realtime/%252e%252e/admin", "", 400),
        ("/v1/proxy/openai-realtime/a%2F..%5Cadmin", "", 400),
        ("/v1/proxy/openai-realtime", "Content-Length: 5\r\n", 400),
        ("/v1/proxy/openai-realtime", "Transfer-Encoding: chunked\r\n", 400),
        ("/v1/proxy/openai-realtime", "Bad Header: x\r\n", 400),
        ("/v1/proxy/openai-realtime", "X-A: b\r\n folded\r\n", 400),
        ("/v1/proxy/openai-realtime", "X-A: b\x00c\r\n", 400),
        ("/v1/proxy/openai-realtime", "Origin: https://evil.example\r\n", 403),
        ("/v1/proxy/openai-realtime", "X-Long: " + "x" * 70_000 + "\r\n", 400),
        ("/elsewhere", "", 404),
    ],
)
async def test_requests_that_go_no_further(target: str, more: str, status: int) -> None:
    """An upstream comes from settings alone, pages of other origins stay out, and bad HTTP is refused as such."""
    async with vendor_at() as (url, vendor), proxy_to(None, {DIALECT: url}) as proxy:
        said = await answer_to(proxy, handshake(target, more))
        assert said.startswith(f"HTTP/1.1 {status} ")
        assert "evil.example" not in said.replace("evil.example ", "")
        assert not vendor.connected.done()


async def test_a_misspelt_parameter_is_named_with_the_nearest() -> None:
    """Also in the query of a dialect's own path."""
    async with vendor_at() as (url, _), proxy_to(None, {DIALECT: url}) as proxy:
        said = await answer_to(proxy, handshake("/v1/proxy/openai-realtime?voicemem_sesion=call"))
    assert "There is no parameter `voicemem_sesion` (did you mean `voicemem_session`?)" in said
    with pytest.raises(Refused, match=r"no parameter `sesion_id` \(did you mean `session_id`\?\)"):
        parse_target("/v1/ingest/openai-realtime?sesion_id=call")


async def test_a_request_that_is_no_handshake() -> None:
    """A plain GET of a path for calls says what would be right."""
    async with proxy_to(None, {DIALECT: "ws://127.0.0.1:1"}) as proxy:
        said = await answer_to(proxy, f"GET /v1/proxy/{DIALECT} HTTP/1.1\r\nHost: x\r\n\r\n")
    assert said.startswith("HTTP/1.1 400 ")
    assert "Upgrade: websocket" in said


async def test_an_origin_that_is_allowed() -> None:
    """Its pages may call, and the vendor sees where they are from."""
    origin = "https://app.example.com"
    async with (
        vendor_at() as (url, vendor),
        proxy_to(None, {DIALECT: url}, allow_origins=(origin,)) as proxy,
        connect(proxy.url(DIALECT), origin=origin),  # type: ignore[arg-type]
    ):
        request = (await vendor.connected).request
        assert request is not None
        assert origin == request.headers["Origin"]
        with pytest.raises((InvalidStatus, InvalidMessage)):
            await connect(proxy.url(DIALECT), origin="https://other.example.com")  # type: ignore[arg-type]


async def test_more_calls_than_there_may_be() -> None:
    """One more is refused with 503, and those that there are go on."""
    async with (
        vendor_at() as (url, vendor),
        proxy_to(None, {DIALECT: url}, max_calls=1) as proxy,
        connect(proxy.url(DIALECT)) as caller,
    ):
        assert "503" in (await answer_to(proxy, handshake(f"/v1/proxy/{DIALECT}")))[:12]
        await caller.send("still here")
        assert "still here" == await (await vendor.connected).recv()
