"""The webhook sender against real receivers: deadlines, sizes, TLS, redirects, blocked addresses."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook

from tests.support.servers.certificates import self_signed_tls
from tests.support.servers.faulty_receivers import Handler, abort_connection, tcp_receiver, web_receiver
from tests.support.servers.resolver import FakeResolver
from voicemem.security.address_guard import allowed_networks
from voicemem.webhooks.outbox import AttemptRequest, AttemptResult, Body, next_delay_s, verdict
from voicemem.webhooks.requests import WebhookSender, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"noticeId":"n1","payload":{}}'
TIMEOUT_S = 0.3


def shipment(url: str, **changes: Any) -> AttemptRequest:
    values: dict[str, Any] = {
        "secret": SECRET,
        "public_only": False,
        "notice_id": "n1",
        "event_type": 103,
        "session_id": "s",
        "body": BODY,
        "timestamp_s": int(time.time()),
    }
    values |= changes
    return AttemptRequest(url, **values)


def in_parts(*parts: bytes) -> Body:
    async def each() -> AsyncGenerator[bytes, None]:
        for part in parts:
            yield part

    return Body(sum(map(len, parts)), each)


async def send(url: str, sender: WebhookSender | None = None, **changes: Any) -> AttemptResult:
    """One attempt by a sender of its own, with time enough for a busy machine."""
    async with sender or WebhookSender(timeout_s=10.0) as opened:
        return await opened.send(shipment(url, **changes))


async def read_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(BODY)


def answering(status: int, **options: Any) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, **options)

    return handle


async def never_called(_: web.Request) -> web.Response:
    raise AssertionError("this address must not be called")


@pytest.mark.parametrize("status", [200, 201, 204])
async def test_a_2xx_answer_is_a_delivery(status: int) -> None:
    """Any 2xx, with a body or without, is a plain success."""
    async with web_receiver(answering(status)) as url:
        answer = await send(url)
    assert (answer.status, answer.error, answer.excerpt) == (status, None, "")
    assert verdict(answer) == "delivered"


async def test_the_receiver_gets_the_exact_bytes_and_three_right_signatures() -> None:
    """The body arrives unchanged as JSON, and the public verifier and our own accept its headers."""
    got: list[tuple[bytes, dict[str, str]]] = []

    async def handle(request: web.Request) -> web.Response:
        got.append((await request.read(), dict(request.headers)))
        return web.Response(text="thanks")

    async with web_receiver(handle) as url:
        answer = await send(url)
    [(body, headers)] = got
    assert body == BODY
    assert (headers["Content-Type"], headers["Content-Length"]) == ("application/json", str(len(BODY)))
    Webhook(SECRET).verify(body, headers)
    assert all(verify(headers, body, SECRET, datetime.now(UTC).timestamp()).values())
    assert answer.excerpt == "thanks"


async def test_without_a_secret_nothing_is_signed() -> None:
    """An endpoint without a secret gets the id and the time only."""
    names: set[str] = set()

    async def handle(request: web.Request) -> web.Response:
        names.update(name.lower() for name in request.headers)
        return web.Response()

    async with web_receiver(handle) as url:
        await send(url, secret=None)
    assert {"webhook-id", "webhook-timestamp"} <= names
    assert not {"webhook-signature", "agora-signature", "agora-signature-v2"} & names


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.fault(56)
async def test_redirects_are_not_followed(status: int) -> None:
    """A redirect is an answer to be tried again; its target is never called."""
    async with (
        web_receiver(never_called) as target,
        web_receiver(answering(status, headers={"Location": target})) as url,
    ):
        answer = await send(url)
    assert (answer.status, answer.error) == (status, "redirect")
    assert verdict(answer) == "retry"


@pytest.mark.parametrize(("status", "meaning"), [(410, "gone"), (400, "retry"), (429, "retry"), (500, "retry")])
async def test_refusals_come_back_with_their_status(status: int, meaning: str) -> None:
    """A status is no transport error, and 410 alone means gone."""
    async with web_receiver(answering(status, text="no")) as url:
        answer = await send(url)
    assert (answer.status, answer.error, answer.excerpt) == (status, None, "no")
    assert verdict(answer) == meaning


@pytest.mark.parametrize(
    ("value", "given", "delay_s"),
    [
        (b"120", "120", 120),
        (b"soon", "soon", 5),
        (b"\xff" * 100, "?" * 64, 5),
        (b"Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
    ],
)
@pytest.mark.fault(53)
async def test_retry_after_is_handed_on(value: bytes, given: str, delay_s: float) -> None:
    """The header comes back as short storable text, whatever bytes it holds."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: " + value + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with tcp_receiver(talk) as url:
        answer = await send(url)
    assert (answer.status, answer.retry_after) == (503, given)
    assert next_delay_s(1, answer, 0.0, time.time()) == delay_s


@pytest.mark.fault(50)
async def test_a_receiver_that_never_answers_times_out() -> None:
    """The attempt ends at its time limit."""

    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with tcp_receiver(talk) as url:
        answer = await send(url, WebhookSender(timeout_s=TIMEOUT_S))
    assert (answer.status, answer.error) == (None, "timeout")
    assert TIMEOUT_S * 1000 <= answer.duration_ms < 1500


@pytest.mark.parametrize("endless", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["status line", "interim answers"])
@pytest.mark.fault(51)
async def test_a_receiver_that_drips_its_head_times_out(endless: bytes) -> None:
    """Bytes that come slowly, or interim answers without end, do not stretch the time limit."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 " if endless == b"H" else b"")
        while not reader.at_eof():
            writer.write(b"1" if endless == b"H" else endless)
            await writer.drain()
            await asyncio.sleep(0.15)

    async with tcp_receiver(talk) as url:
        answer = await send(url, WebhookSender(timeout_s=TIMEOUT_S))
    assert (answer.status, answer.error) == (None, "timeout")
    assert answer.duration_ms < 1500


@pytest.mark.fault(51)
async def test_a_receiver_that_drips_its_body_has_answered() -> None:
    """The status decides, even when the rest of the answer does not come within the time limit."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.1)

    async with tcp_receiver(talk) as url:
        answer = await send(url, WebhookSender(timeout_s=TIMEOUT_S))
    assert (answer.status, answer.error) == (200, None)
    assert set(answer.excerpt) == {"x"}
    assert answer.duration_ms < 1500


@pytest.mark.fault(47)
async def test_nobody_listens() -> None:
    """A refused connection has its own word."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert (await send(f"http://127.0.0.1:{port}/")).error == "refused"


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.fault(58)
async def test_a_connection_that_breaks_before_the_answer(sent: bytes, reset: bool) -> None:
    """A close or a reset before the whole head of an answer is a reset; a fresh connection is not tried twice."""
    calls = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await read_request(reader)
        writer.write(sent)
        await writer.drain()
        if reset:
            abort_connection(writer)

    async with tcp_receiver(talk) as url:
        answer = await send(url)
    assert (answer.status, answer.error, calls) == (None, "reset", 1)


async def test_a_reset_in_the_body_leaves_the_answer() -> None:
    """What was processed and answered with 200 counts, although the connection broke after it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.05)
        abort_connection(writer)

    async with tcp_receiver(talk) as url:
        answer = await send(url)
    assert (answer.status, answer.error, answer.excerpt) == (200, None, "half")


@pytest.mark.parametrize("noise", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00\xff" * 50, b"HTTP/1.1 999999 X\r\n\r\n"])
async def test_what_is_no_http_is_a_bad_answer(noise: bytes) -> None:
    """A peer that speaks another protocol has its own word."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(noise)
        await writer.drain()

    async with tcp_receiver(talk) as url:
        assert (await send(url)).error == "bad_answer"


@pytest.mark.fault(57)
async def test_a_gzip_bomb_is_not_unpacked() -> None:
    """A compressed answer stays compressed, and only its beginning is looked at."""
    bomb = gzip.compress(bytes(10_000_000))
    handle = answering(200, body=bomb, headers={"Content-Encoding": "gzip"})
    async with web_receiver(handle) as url:
        answer = await send(url)
    assert answer.status == 200
    assert answer.excerpt == bomb[:256].decode("utf-8", "replace").replace("\0", "\ufffd")


@pytest.mark.fault(57)
async def test_an_endless_answer_is_cut_off() -> None:
    """Of a huge answer a few KiB are read; then the connection is dropped."""
    written = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 100_000)
            written += 100_000

    async with web_receiver(handle) as url:
        answer = await send(url, WebhookSender(timeout_s=1.5))
    assert (answer.status, answer.excerpt) == (200, "x" * 256)
    assert answer.duration_ms < 1000
    assert written < 20_000_000


async def test_a_large_body_is_sent_whole() -> None:
    """The history of a very long call, which comes in parts, arrives with its length and is signed."""
    parts = b'"', b"x" * 3_000_000, b'"'
    seen: list[object] = []

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        verified = verify(request.headers, body, SECRET, datetime.now(UTC).timestamp())
        seen.append((request.content_length, len(body), all(verified.values())))
        return web.Response()

    async with web_receiver(handle) as url:
        answer = await send(url, WebhookSender(timeout_s=1.5), body=in_parts(*parts))
    assert (answer.status, seen) == (200, [(3_000_002, 3_000_002, True)])


async def test_a_receiver_that_reads_nothing_but_answers() -> None:
    """An answer before the body was read is taken as it is."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.sleep(0.1)

    async with tcp_receiver(talk) as url:
        answer = await send(url, body=in_parts(*[b"x" * 1_000_000] * 8))
    assert (answer.status, answer.excerpt) == (413, "no")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]"])
async def test_public_only_shipments_never_reach_inside(host: str) -> None:
    """Addresses that came through the API may not lead to private addresses, however they are written."""
    async with web_receiver(never_called) as url:
        answer = await send(url.replace("127.0.0.1", host), public_only=True)
    assert (answer.status, answer.error) == (None, "address_not_allowed")
    assert verdict(answer) == "retry"


@pytest.mark.fault(59)
async def test_public_only_looks_at_what_a_name_resolves_to() -> None:
    """A public name with a private address is stopped; on the operator's allow-list, or his own, it is called."""
    names = FakeResolver(["127.0.0.1"])
    async with web_receiver(answering(200)) as url:
        named = url.replace("127.0.0.1", "hook.example")
        stopped = await send(named, WebhookSender(resolver=names), public_only=True)
        allowed = WebhookSender(resolver=names, allowed=allowed_networks(["127.0.0.0/8"]))
        listed = await send(named, allowed, public_only=True)
        own = await send(named, WebhookSender(resolver=names), public_only=False)
    assert (stopped.error, listed.status, own.status) == ("address_not_allowed", 200, 200)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy setting neither leads past the guard nor sees a webhook event."""
    async with web_receiver(never_called) as proxy, web_receiver(answering(200)) as url:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("http_proxy", proxy)
        assert (await send(url)).status == 200
        assert (await send(url, public_only=True)).error == "address_not_allowed"


@pytest.mark.fault(48)
async def test_an_unknown_name() -> None:
    """A name that does not resolve has its own word."""
    assert (await send("http://nowhere.example/", WebhookSender(resolver=FakeResolver([])))).error == "dns"


@pytest.mark.parametrize("url", ["", "http://", "ftp://example.com/", "http://[::1", f"http://{'a' * 64}.example/"])
async def test_urls_that_cannot_be_called(url: str) -> None:
    """Even a URL that never should have been stored gives an answer."""
    assert (await send(url)).error == "invalid_url"


@pytest.mark.fault(49)
async def test_tls_to_a_server_without_it() -> None:
    """https to a plain http server is a TLS error."""
    async with web_receiver(never_called) as url:
        assert (await send(url.replace("http:", "https:"))).error == "tls"


@pytest.mark.fault(49)
async def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    """A receiver with a certificate of its own making does not get the webhook event."""
    got = bytearray()

    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        got.extend(await reader.read(-1))

    async with tcp_receiver(talk, self_signed_tls(tmp_path)) as url:
        answer = await send(url.replace("http:", "https:"))
    assert (answer.status, answer.error, bytes(got)) == (None, "tls", b"")


async def test_connections_are_used_again_and_dead_ones_are_no_failure() -> None:
    """Webhook events in a row share a connection, and one that the receiver has dropped is replaced in time."""
    served: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(3):
            await read_request(reader)
            if number == 2:
                return  # closes, as if it had been idle for too long
            served.append(number)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

    async with tcp_receiver(talk) as url, WebhookSender(timeout_s=TIMEOUT_S) as sender:
        answers = [await sender.send(shipment(url)) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert served == [0, 1, 0, 1]


async def test_cookies_of_a_receiver_are_not_sent_back() -> None:
    """Attempts share nothing, even to the same receiver."""
    cookies: list[str | None] = []

    async def handle(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie"))
        return web.Response(headers={"Set-Cookie": "a=b"})

    async with web_receiver(handle) as url, WebhookSender() as sender:
        await sender.send(shipment(url.replace("127.0.0.1", "localhost")))
        await sender.send(shipment(url.replace("127.0.0.1", "localhost")))
    assert cookies == [None, None]


async def test_many_attempts_at_once_do_not_wait_for_each_other() -> None:
    """Slow receivers take no places from others: 120 attempts are all under way before the first is answered."""
    everyone = asyncio.Barrier(120)

    async def slow(_: web.Request) -> web.Response:
        await everyone.wait()
        return web.Response()

    async with web_receiver(slow) as url, WebhookSender(timeout_s=15) as sender:
        answers = await asyncio.gather(*(sender.send(shipment(url)) for _ in range(120)))
    assert {answer.status for answer in answers} == {200}


async def test_cancellation_passes_through() -> None:
    """A sender that is stopped in the middle of an attempt stops."""
    arrived = asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        arrived.set()
        await asyncio.sleep(10)
        return web.Response()

    async with web_receiver(handle) as url, WebhookSender() as sender:
        attempt = asyncio.create_task(sender.send(shipment(url)))
        await arrived.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt


async def test_a_sender_that_is_not_open_says_so() -> None:
    """Sending before open is a mistake of the program, not of a receiver; closing twice is none."""
    sender = WebhookSender()
    with pytest.raises(RuntimeError, match="not open"):
        await sender.send(shipment("http://127.0.0.1/"))
    await sender.close()
    async with sender:
        pass
    await sender.close()
