"""The webhook receiver of a crash run: it answers well or badly, and reports when a kill would hurt most."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

from aiohttp import web

from bench.crash.history import History
from bench.crash.server import Trigger
from voicemem.webhooks.signing import verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MAX_BODY_BYTES = 64 * 1024 * 1024
SLOW_S = 0.2


class Receiver:
    """Records webhooks in the history. It fails a notice on purpose at most once, so that its retry comes soon."""

    def __init__(self, history: History, trigger: Trigger, rng: random.Random) -> None:
        self.history = history
        self.trigger = trigger
        self.rng = rng
        self.failed: set[str] = set()
        self.outcomes: Counter[str] = Counter()
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
        notice = self.history.noticed(request.headers.get("webhook-id"), body, all(right.values()))
        self.trigger.hit("webhook arrived")
        how = self.rng.choices(["at once", "slow", "500", "reset"], [70, 10, 10, 10])[0]
        if how in ("500", "reset") and notice in self.failed:
            how = "at once"
        self.outcomes[how] += 1
        if how == "slow":
            await asyncio.sleep(SLOW_S)
        return await self.answer(request, notice, how)

    async def answer(self, request: web.Request, notice: str, how: str) -> web.StreamResponse:
        response: web.StreamResponse = web.Response(status=500 if how == "500" else 200)
        if how in ("500", "reset"):
            self.failed.add(notice)
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
