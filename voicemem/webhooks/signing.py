"""Sign webhooks, and verify them on the receiver's side (docs/webhook.md, "Verify a signature").

Every request has the signatures of two schemes: Agora's notification callbacks (HMAC of the body, in hex) and Standard
Webhooks 1.0.0 (HMAC of id, time and body, in base64).
"""

import base64
import hmac
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from voicemem.config.secrets import decode_standard_secret
from voicemem.config.service import Address

AGORA_SHA1 = "Agora-Signature"
AGORA_SHA256 = "Agora-Signature-V2"
WEBHOOK_ID = "webhook-id"
WEBHOOK_TIMESTAMP = "webhook-timestamp"
WEBHOOK_SIGNATURE = "webhook-signature"
MAX_BODY_BYTES = 64 * 1024 * 1024
"""The history of a long call is larger than aiohttp's default limit."""


def signature_headers(
    body: bytes, *, secret: str | None, notice_id: str, timestamp_s: int, old_secret: str | None = None
) -> dict[str, str]:
    """The headers that identify and sign one attempt; without a secret they only identify it.

    With an old secret, the header of Standard Webhooks holds both signatures. Agora's hold the new one alone, since
    receivers compare the whole header.
    """
    headers = {WEBHOOK_ID: notice_id, WEBHOOK_TIMESTAMP: str(timestamp_s)}
    if secret:
        headers |= _signatures(body, secret, notice_id, str(timestamp_s))
    if secret and old_secret:
        old = _signatures(body, old_secret, notice_id, str(timestamp_s))
        headers[WEBHOOK_SIGNATURE] += f" {old[WEBHOOK_SIGNATURE]}"
    return headers


def verify(
    headers: Mapping[str, str], body: bytes, secret: str | None, now_s: float, tolerance_s: float = 300
) -> dict[str, bool]:
    """Which signatures of a request are valid, by header name: False for one that is missing, wrong or too old.

    Age (`webhook-timestamp` against `now_s`) matters for the Standard Webhooks signature only: Agora signs no time.
    """
    received = {name.lower(): value for name, value in headers.items()}
    timestamp = received.get(WEBHOOK_TIMESTAMP, "")
    valid = dict.fromkeys((AGORA_SHA1, AGORA_SHA256, WEBHOOK_SIGNATURE), False)
    if not secret:  # an empty key would let anyone sign
        return valid
    for name, expected in _signatures(body, secret, received.get(WEBHOOK_ID, ""), timestamp).items():
        # The header may list several signatures, so that a secret can be changed without a gap.
        valid[name] = any(
            hmac.compare_digest(_octets(signature), expected.encode())
            for signature in received.get(name.lower(), "").split()
        )
    is_time = re.fullmatch("[0-9]{1,12}", timestamp) is not None
    valid[WEBHOOK_SIGNATURE] &= is_time and abs(now_s - int(timestamp)) <= tolerance_s
    return valid


def _signatures(body: bytes, secret: str, notice_id: str, timestamp: str) -> dict[str, str]:
    text_key = secret.encode("utf-8", "surrogateescape")  # as written, even if an environment variable is not UTF-8
    signed = b".".join((_octets(notice_id), _octets(timestamp), body))
    standard = hmac.digest(decode_standard_secret(secret) or text_key, signed, "sha256")
    return {
        AGORA_SHA1: hmac.digest(text_key, body, "sha1").hex(),
        AGORA_SHA256: hmac.digest(text_key, body, "sha256").hex(),
        WEBHOOK_SIGNATURE: "v1," + base64.b64encode(standard).decode("ascii"),
    }


def _octets(text: str) -> bytes:
    """A header's value as bytes; servers hand on undecodable bytes as surrogates."""
    return text.encode("utf-8", "surrogatepass")


class WebhookEvent(NamedTuple):
    """A webhook event as it arrived: its headers, its decoded body, and which of its signatures are valid."""

    headers: Mapping[str, str]
    body: dict[str, Any]
    verified: dict[str, bool]


class WebhookReceiver:
    """Listens for webhooks and hands each to `on_event`. Answers 401 to a wrong signature, 400 to a broken body."""

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
