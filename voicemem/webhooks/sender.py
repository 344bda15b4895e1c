"""Send a webhook event as one signed POST (docs/webhook.md). Whatever happens, the outcome is an `AttemptResult`."""

import asyncio
import io
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

from voicemem.security.address_guard import AddressNotAllowedError, Network, guarded_connector
from voicemem.telemetry import Telemetry
from voicemem.webhooks.outbox import AttemptRequest, AttemptResult, Send, verdict
from voicemem.webhooks.signing import signature_headers

EXCERPT_BYTES = 256
READ_BYTES = 4096
"""How much of an answer is read: all of most answers, so that their connections can be reused."""
KEEPALIVE_S = 2.0
"""Long enough for sessions that end together to share a connection; shorter than receivers keep idle ones."""
LOG = logging.getLogger("voicemem.webhooks")
_WORDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (AddressNotAllowedError, "address_not_allowed"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
    ((ConnectionError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError), "reset"),
    (OSError, "unreachable"),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, UnicodeError), "invalid_url"),
    (aiohttp.ClientResponseError, "bad_answer"),
)


@dataclass(slots=True)
class _Attempt:
    """The facts of an attempt so far; they outlive a timeout in the middle."""

    status: int | None = None
    error: str | None = None
    retry_after: str | None = None
    body: bytearray = field(default_factory=bytearray)
    reused: bool = False
    """True if the connection was used before."""


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
        self._public: aiohttp.ClientSession | None = None
        self._any: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Create the pools, in a running event loop; no connection is made yet."""
        self._public = _session(
            guarded_connector(allowed=self._allowed, resolver=self._resolver, keepalive_s=KEEPALIVE_S)
        )
        self._any = _session(aiohttp.TCPConnector(resolver=self._resolver, limit=0, keepalive_timeout=KEEPALIVE_S))

    async def close(self) -> None:
        for session in (self._public, self._any):
            if session is not None:
                await session.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, request: AttemptRequest) -> AttemptResult:
        """Make one attempt. Never raises for what a receiver or the network does; cancellation passes through."""
        session = self._public if request.public_only else self._any
        if session is None:
            raise RuntimeError("the sender is not open")
        attempt = _Attempt()
        began = time.monotonic()
        try:
            # One bound for everything: DNS, a second connection, an answer that trickles in.
            async with asyncio.timeout(self.timeout_s):
                await _deliver(session, request, attempt, self._extra_headers())
        # The outermost edge: a peer can make the stack below fail in more ways than a list could name, and an attempt
        # that raised would be neither logged nor retried.
        except Exception as error:
            if attempt.status is None:  # otherwise the receiver has answered: a later failure only shortens the excerpt
                attempt.error = _word(error)
        seconds = time.monotonic() - began
        # Undecodable header bytes arrive as surrogates; databases accept neither those nor a NUL.
        retry_after = attempt.retry_after and attempt.retry_after[:64].encode("ascii", "replace").decode("ascii")
        excerpt = attempt.body[:EXCERPT_BYTES].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return AttemptResult(attempt.status, attempt.error, retry_after, round(seconds * 1000), excerpt)


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    async def note_reuse(
        _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionReuseconnParams
    ) -> None:
        context.trace_request_ctx.reused = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note_reuse)
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=False,  # a proxy would connect for us, past the guard
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,
        read_bufsize=READ_BYTES,
        trace_configs=[trace],
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "voicemem"},
    )


async def _deliver(
    session: aiohttp.ClientSession, request: AttemptRequest, attempt: _Attempt, extra_headers: Mapping[str, str]
) -> None:
    while True:
        attempt.reused = False
        try:
            return await _post(session, request, attempt, extra_headers)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # The receiver may have closed an idle connection just as it was reused. That is not the receiver's fault,
            # so only a fresh connection decides; `timeout_s` bounds the loop. One that did arrive twice has the
            # same webhook-id both times.
            if attempt.status is not None or not attempt.reused:
                raise


async def _post(
    session: aiohttp.ClientSession, request: AttemptRequest, attempt: _Attempt, extra_headers: Mapping[str, str]
) -> None:
    headers = signature_headers(
        request.body,
        secret=request.secret,
        notice_id=request.notice_id,
        timestamp_s=request.timestamp_s,
        old_secret=request.old_secret,
    )
    response = await session.post(
        request.url,
        data=io.BytesIO(request.body),  # in pieces: a long call's history in one write would hold up the event loop
        headers={**extra_headers, **headers},
        allow_redirects=False,
        trace_request_ctx=attempt,
    )
    try:
        attempt.status = response.status
        attempt.error = "redirect" if 300 <= response.status < 400 else None
        attempt.retry_after = response.headers.get("Retry-After")
        while piece := await response.content.read(READ_BYTES - len(attempt.body)):
            attempt.body += piece
    finally:
        response.close()  # after a complete read this does nothing: the connection is back in the pool


def _word(error: Exception) -> str:
    """The stable short word for what went wrong (`AttemptResult.error`)."""
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "dns"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    for kinds, word in _WORDS:
        if isinstance(cause, kinds):
            return word
    LOG.warning("A webhook attempt failed with %s", type(error).__qualname__)
    return "error"


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
            fields = {
                "session_id": request.session_id,
                "event_type": request.event_type,
                "notice_id": request.notice_id,
                "host": host,
                "status": answer.status,
                "result": result,
                "ms": answer.duration_ms,
            }
            LOG.info("Webhook attempt: %s", answer.error or answer.status, extra=fields)
        metrics.webhook_attempts.labels(result).inc()
        metrics.webhook_attempt_seconds.observe(answer.duration_ms / 1000)
        return answer

    return observed


def url_host(url: str) -> str:
    """The host of a URL, without path and query, which may hold a secret."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
