"""A webhook receiver that verifies signatures: for trying out, for the demo, and as an example to copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from voicemem.config.service import Address
from voicemem.webhooks.signing import verify

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The history of a long call is larger than aiohttp's default limit."""


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
