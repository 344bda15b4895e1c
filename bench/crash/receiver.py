"""The webhook receiver of a crash run: it answers well or badly, and reports when a kill would hurt most."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

from aiohttp import web

from bench.crash.history import History
from bench.crash.moments import Trigger
from voicemem.runtime import now_ms
from voicemem.webhooks.outbox import MAX_IN_FLIGHT
from voicemem.webhooks.requests import verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MAX_BODY_BYTES = 64 * 1024 * 1024
SLOW_S = 0.2
TIDE_S, TIDE_SHARE = 1.0, 0.01
"""Now and then nothing is answered for a while, so that as many attempts are in flight as the sender allows."""
QUIET_MS = 70_000
"""For so long after a node may have counted as dead, what it was sending may be sent by another one as well."""


class Receiver:
    """Records webhooks in the history. It fails a webhook on purpose at most once, so that its retry comes soon."""

    def __init__(self, history: History, trigger: Trigger, rng: random.Random) -> None:
        self.history = history
        self.trigger = trigger
        self.rng = rng
        self.failed: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.in_flight: list[web.Request] = []
        self.most = 0
        """In flight at a time."""
        self.tide_until = 0.0
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/hook", self.receive)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start(self, port: int) -> None:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", port).start()

    async def stop(self) -> None:
        await self.runner.cleanup()

    async def receive(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        right = verify(request.headers, body, SECRET, time.time())
        webhook_event = self.history.noticed(request.headers.get("webhook-id"), body, all(right.values()))
        self.trigger.hit("webhook arrived")
        self.in_flight.append(request)
        try:
            self.count()
            return await self.answer_somehow(request, webhook_event)
        finally:
            self.in_flight.remove(request)

    def count(self) -> None:
        """Check how many attempts are in flight whose sender still lives."""
        count = sum(one.transport is not None and not one.transport.is_closing() for one in self.in_flight)
        self.most = max(self.most, count)
        if count > MAX_IN_FLIGHT and not self.history.is_troubled(now_ms() - QUIET_MS):
            self.history.find("", f"{count} deliveries to one URL were in flight, {MAX_IN_FLIGHT} are allowed")

    async def answer_somehow(self, request: web.Request, webhook_event: str) -> web.StreamResponse:
        if self.rng.random() < TIDE_SHARE:
            self.tide_until = time.monotonic() + TIDE_S
        how = self.rng.choices(["at once", "slow", "500", "reset"], [70, 10, 10, 10])[0]
        if how in ("500", "reset") and webhook_event in self.failed:
            how = "at once"
        self.outcomes[how] += 1
        await asyncio.sleep(max(self.tide_until - time.monotonic(), SLOW_S if how == "slow" else 0))
        return await self.answer(request, webhook_event, how)

    async def answer(self, request: web.Request, webhook_event: str, how: str) -> web.StreamResponse:
        response: web.StreamResponse = web.Response(status=500 if how == "500" else 200)
        if how in ("500", "reset"):
            self.failed.add(webhook_event)
        if how == "reset":
            transport: Any = request.transport
            if transport is not None:
                transport.abort()
            return response
        try:
            await response.prepare(request)
            await response.write_eof()
        except ConnectionError:
            return response  # the service was killed meanwhile
        if how != "500":
            self.trigger.hit("webhook answered")
        return response
