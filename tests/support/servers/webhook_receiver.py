"""A webhook receiver that keeps what it gets, and answers as a test says."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple

from aiohttp import web
from multidict import CIMultiDictProxy

from voicemem.protocol.types import JsonObject


class Reply(NamedTuple):
    """How a receiver answers one notice; with `gate`, not before that is set."""

    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    gate: asyncio.Event | None = None


class WebhookEvent(NamedTuple):
    """One POST as it came in."""

    path: str
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        return dict(json.loads(self.body))

    @property
    def payload(self) -> JsonObject:
        return dict(self.json["payload"])

    @property
    def id(self) -> str:
        return str(self.json["noticeId"])


class WebhookReceiver:
    """Keeps every webhook event; answers with the next of `replies`, or with `otherwise` when none is left."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.otherwise = Reply()
        self.webhook_events: list[WebhookEvent] = []
        self.changed = asyncio.Condition()
        self.at_once: Counter[str] = Counter()
        """How many requests are being answered, by path, and the most that ever were."""
        self.most: Counter[str] = Counter()
        self.port = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def handle(self, request: web.Request) -> web.Response:
        webhook_event = WebhookEvent(request.path, request.headers, await request.read())
        reply = self.replies.pop(0) if self.replies else self.otherwise
        self.at_once[request.path] += 1
        self.most[request.path] = max(self.most[request.path], self.at_once[request.path])
        async with self.changed:
            self.webhook_events.append(webhook_event)
            self.changed.notify_all()
        try:
            if reply.gate is not None:
                await reply.gate.wait()
        finally:
            self.at_once[request.path] -= 1
        return web.Response(status=reply.status, headers=reply.headers, text="answered")

    async def wait(self, count: int = 1, timeout_s: float = 10.0) -> list[WebhookEvent]:
        """The webhook events, once there are so many."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(lambda: len(self.webhook_events) >= count)
        return self.webhook_events

    async def one(self) -> WebhookEvent:
        """The first webhook event, once it is there."""
        return (await self.wait())[0]


@asynccontextmanager
async def webhook_receiver(*replies: Reply) -> AsyncIterator[WebhookReceiver]:
    """A receiver on a free port, which refuses connections again after the block."""
    receiver = WebhookReceiver(*replies)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.port = runner.addresses[0][1]
        yield receiver
    finally:
        await runner.cleanup()


def body_without_send_time(body: bytes) -> bytes:
    """A webhook's body without the one thing that may differ between attempts."""
    return re.sub(rb'"notifyMs":\d+', b'"notifyMs":0', body)


def comparable_body(webhook_event: WebhookEvent) -> bytes:
    """A body without the one thing that may differ between attempts."""
    return re.sub(rb'"notifyMs":\d+', b'"notifyMs":0', webhook_event.body)
