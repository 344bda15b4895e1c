"""Requests of webhooks: signed and sent as a POST, and verified by a receiver (docs/webhook.md).

Every request has the signatures of two schemes: Agora's notification callbacks (HMAC of the body, in hex) and Standard
Webhooks 1.0.0 (HMAC of id, time and body, in base64). Whatever happens to one, the outcome is an `AttemptResult`.
"""

import asyncio
import base64
import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.abc import AbstractResolver

from voicemem.config.service import Address
from voicemem.config.session import STANDARD_PREFIX, decode_standard_secret
from voicemem.security.address_guard import UNKNOWN_ERROR, Network, connectors, direct_session, error_word, send_request
from voicemem.telemetry import Telemetry
from voicemem.webhooks.outbox import AttemptRequest, AttemptResult, Send, url_host, verdict

AGORA_SHA1 = "Agora-Signature"
AGORA_SHA256 = "Agora-Signature-V2"
WEBHOOK_ID = "webhook-id"
WEBHOOK_TIMESTAMP = "webhook-timestamp"
WEBHOOK_SIGNATURE = "webhook-signature"
MAX_BODY_BYTES = 64 * 1024 * 1024
"""The history of a long call is larger than aiohttp's default limit."""


class Signing:
    """The headers that identify and sign one attempt, whose body is added in parts; without a secret it is unsigned.

    With an old secret, the header of Standard Webhooks holds both signatures. Agora's hold the new one alone, since
    receivers compare the whole header.
    """

    def __init__(self, secret: str | None, notice_id: str, timestamp: str, old_secret: str | None = None) -> None:
        self.headers = {WEBHOOK_ID: notice_id, WEBHOOK_TIMESTAMP: timestamp}
        about = b".".join((_octets(notice_id), _octets(timestamp), b""))
        self.secrets = [_hashes(one, about) for one in ((secret, old_secret) if secret else ()) if one]

    def add(self, part: bytes) -> None:
        for one in chain(*self.secrets):
            one.update(part)

    def signed(self) -> dict[str, str]:
        if not self.secrets:
            return self.headers
        sha1, sha256, _ = self.secrets[0]
        standard = " ".join("v1," + base64.b64encode(one.digest()).decode("ascii") for _, _, one in self.secrets)
        return self.headers | {
            AGORA_SHA1: sha1.hexdigest(),
            AGORA_SHA256: sha256.hexdigest(),
            WEBHOOK_SIGNATURE: standard,
        }


def _hashes(secret: str, about: bytes) -> tuple[hmac.HMAC, hmac.HMAC, hmac.HMAC]:
    text_key = secret.encode("utf-8", "surrogateescape")  # as written, even if an environment variable is not UTF-8
    standard_key = decode_standard_secret(secret) if secret.startswith(STANDARD_PREFIX) else None
    standard = hmac.new(standard_key or text_key, about, "sha256")
    return hmac.new(text_key, digestmod="sha1"), hmac.new(text_key, digestmod="sha256"), standard


def _octets(text: str) -> bytes:
    """Return a header's value as bytes; servers hand on undecodable bytes as surrogates."""
    return text.encode("utf-8", "surrogatepass")


def verify(
    headers: Mapping[str, str], body: bytes, secret: str | None, now_s: float, tolerance_s: float = 300
) -> dict[str, bool]:
    """Check the signatures of a request, by header name: False for one that is missing, wrong or too old.

    Age (`webhook-timestamp` against `now_s`) matters for the Standard Webhooks signature only: Agora signs no time.
    """
    received = {name.lower(): value for name, value in headers.items()}
    timestamp = received.get(WEBHOOK_TIMESTAMP, "")
    valid = dict.fromkeys((AGORA_SHA1, AGORA_SHA256, WEBHOOK_SIGNATURE), False)
    if not secret:  # an empty key would let anyone sign
        return valid
    signing = Signing(secret, received.get(WEBHOOK_ID, ""), timestamp)
    signing.add(body)
    signed = signing.signed()
    for name in valid:
        # The header may list several signatures, so that a secret can be changed without a gap.
        valid[name] = any(
            hmac.compare_digest(_octets(signature), signed[name].encode())
            for signature in received.get(name.lower(), "").split()
        )
    is_time = re.fullmatch("[0-9]{1,12}", timestamp) is not None
    valid[WEBHOOK_SIGNATURE] &= is_time and abs(now_s - int(timestamp)) <= tolerance_s
    return valid


class WebhookEvent(NamedTuple):
    """A webhook event as it arrived: its headers, its decoded body, and which of its signatures are valid."""

    headers: Mapping[str, str]
    body: dict[str, Any]
    verified: dict[str, bool]


class WebhookReceiver:
    """Listens for webhooks and hands each to `on_event`, unverified ones too; answers these 401, a broken body 400."""

    def __init__(self, secret: str | None, on_event: Callable[[WebhookEvent], Any]) -> None:
        self.secret = secret
        self.on_event = on_event
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/{path:.*}", self.receive)
        self.runner = web.AppRunner(app, access_log=None)

    async def start(self, address: Address) -> Address:
        """Start to listen; the address with the actual port. Raises `OSError`."""
        await self.runner.setup()
        await web.TCPSite(self.runner, address.host, address.port).start()
        return Address(address.host, self.runner.addresses[0][1])

    async def stop(self) -> None:
        await self.runner.cleanup()

    async def receive(self, request: web.Request) -> web.Response:
        raw = await request.read()
        verified = verify(request.headers, raw, self.secret, time.time())
        try:
            body = msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return web.json_response({"detail": "The body must be a JSON object."}, status=400)
        self.on_event(WebhookEvent(request.headers, body, verified))
        if self.secret is not None and not all(verified.values()):
            return web.json_response({"detail": "A signature is missing or wrong."}, status=401)
        return web.json_response({})


EXCERPT_BYTES = 256
READ_BYTES = 4096
"""How much of an answer is read: all of most answers, so that their connections can be reused."""
KEEPALIVE_S = 2.0
"""Long enough for sessions that end together to share a connection; shorter than receivers keep idle ones."""
DEFAULT_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "voicemem"}
LOG = logging.getLogger("voicemem.webhooks")


class WebhookSender:
    """Sends webhook events until it is closed.

    It has two pools of connections: one that reaches public addresses only, for URLs that came through the API, and
    one for the operator's own. `allowed` are networks that count as public, `timeout_s` bounds one attempt from the
    DNS query to the answer, and `extra_headers` gives headers to send with the signatures.
    """

    def __init__(
        self,
        *,
        allowed: Sequence[Network] = (),
        timeout_s: float = 15.0,
        resolver: AbstractResolver | None = None,
        extra_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._allowed = tuple(allowed)
        self.timeout_s = timeout_s
        self._resolver = resolver
        self._extra_headers = extra_headers
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether the address guard applies."""

    async def open(self) -> None:
        """Create the pools, in a running event loop; no connection is made yet."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=None)
        for public_only, connector in connectors(self._allowed, self._resolver, KEEPALIVE_S).items():
            self._sessions[public_only] = direct_session(
                connector, timeout, read_bufsize=READ_BYTES, headers=DEFAULT_HEADERS
            )

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, request: AttemptRequest) -> AttemptResult:
        """Make one attempt. Never raises for what a receiver or the network does; cancellation passes through."""
        session = self._sessions.get(request.public_only)
        if session is None:
            raise RuntimeError("the sender is not open")
        answer, body, began = AttemptResult(), bytearray(), time.monotonic()
        try:
            # One bound for everything: DNS, a second connection, an answer that trickles in.
            async with asyncio.timeout(self.timeout_s):
                await _post(session, request, self._extra_headers(), answer, body)
        # The outermost edge: a peer can make the stack below fail in more ways than a list could name, and an attempt
        # that raised would be neither logged nor retried.
        except Exception as error:
            if answer.status is None:  # otherwise the receiver has answered: a later failure only shortens the excerpt
                answer.error = error_word(error)
                if answer.error == UNKNOWN_ERROR:
                    LOG.warning("A webhook attempt failed with %s", type(error).__qualname__)
        answer.duration_ms = round((time.monotonic() - began) * 1000)
        # Undecodable header bytes arrive as surrogates; databases accept neither those nor a NUL.
        answer.retry_after = answer.retry_after and answer.retry_after[:64].encode("ascii", "replace").decode("ascii")
        answer.excerpt = body[:EXCERPT_BYTES].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return answer


async def _post(
    session: aiohttp.ClientSession,
    request: AttemptRequest,
    extra_headers: Mapping[str, str],
    answer: AttemptResult,
    received: bytearray,
) -> None:
    """Send a request, and note what is known of the answer so far, which outlives a timeout in the middle."""
    signing = Signing(request.secret, request.notice_id, str(request.timestamp_s), request.old_secret)
    body, headers = request.body, dict(extra_headers)
    if isinstance(body, bytes):
        signing.add(body)
    else:
        headers["Content-Length"] = str(body.size)
        if request.secret:
            async for part in body.parts():
                signing.add(part)

    def make_body() -> Any:
        return body if isinstance(body, bytes) else body.parts()

    headers |= signing.signed()
    # One that arrives twice, since its connection was closed as it was reused, has the same webhook-id both times.
    response = await send_request(session, "POST", request.url, make_body, headers=headers)
    try:
        answer.status = response.status
        answer.error = "redirect" if 300 <= response.status < 400 else None
        answer.retry_after = response.headers.get("Retry-After")
        while piece := await response.content.read(READ_BYTES - len(received)):
            received += piece
    finally:
        response.close()  # after a complete read this does nothing: the connection is back in the pool


def observe_webhooks(send: Send, telemetry: Telemetry) -> Send:
    """`send` with every attempt counted, traced and logged."""
    metrics, tracer = telemetry

    async def observed(request: AttemptRequest) -> AttemptResult:
        host = url_host(request.url)
        with tracer.span("webhook", "client", {"http.request.method": "POST", "server.address": host}, []) as span:
            answer = await send(request)
            result = "failed" if (meaning := verdict(answer)) == "retry" else meaning
            if answer.status is not None:
                span.set_attribute("http.response.status_code", answer.status)
            if result != "delivered":
                span.fail(answer.error or str(answer.status))
            fields = {name: getattr(request, name) for name in ("session_id", "event_type", "notice_id")}
            fields |= {"host": host, "status": answer.status, "result": result, "ms": answer.duration_ms}
            LOG.info("Webhook attempt: %s", answer.error or answer.status, extra=fields)
        metrics.webhook_attempts.labels(result).inc()
        metrics.webhook_attempt_seconds.observe(answer.duration_ms / 1000)
        return answer

    return observed
