"""Endpoints and their deliveries, over REST."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.callers.rest import LOOPBACK, RestClient, RestResponse
from tests.support.clock import ManualClock
from tests.support.events import delta, done, event, final, interrupt, message
from tests.support.servers.webhook_receiver import WebhookEvent
from tests.support.services import ANY_PORT
from tests.support.waiting import eventually
from voicemem.app import running
from voicemem.config.service import Settings
from voicemem.protocol.types import JsonObject

ALL = [101, 102, 103, 111, 112]
CALL: list[JsonObject] = [
    message(0, "Hello.", 1_000, role="assistant", source="greeting"),
    final(1, "Hi.", 2_000),
    delta(1, "Good day to you.", 3_000),
    done(1, 3_500),
    interrupt(1, 4_000, heard_text="Good day "),
    event("metric", 1, 3_100, name="llm_ttft", latency_ms=210),
    event("metric", 1, 3_200, name="tts_ttfb", latency_ms=90.5),
    event("metric", 1, 3_300, name="e2e", latency_ms=700),
]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def add(caller: RestClient, url: str, *event_types: int, **more: Any) -> JsonObject:
    """A new endpoint."""
    types = {"event_types": list(event_types)} if event_types else {}
    answered = await caller.post("/v1/webhooks", {"url": url, **types, **more})
    assert 201 == answered.status, answered.body
    return dict(answered.json)


async def finish(caller: RestClient, session_id: str = "s", *events: JsonObject, **config: Any) -> None:
    """A session that begins, hears these events, and ends."""
    await caller.create(session_id, **config)
    if events:
        await caller.send(*events, session_id=session_id)
    await caller.end(session_id)


async def read(caller: RestClient, made: JsonObject) -> JsonObject:
    return dict((await caller.get(f"/v1/webhooks/{made['id']}")).json)


async def deliveries(caller: RestClient, made: JsonObject, query: str = "") -> list[JsonObject]:
    answered = await caller.get(f"/v1/webhooks/{made['id']}/deliveries{query}")
    assert 200 == answered.status, answered.body
    return list(answered.json["deliveries"])


async def settled(caller: RestClient, made: JsonObject, *states: str) -> list[JsonObject]:
    """The deliveries, the newest first, once their states are these."""

    async def now() -> list[str]:
        return [one["state"] for one in await deliveries(caller, made)]

    await eventually([*states], now)
    return await deliveries(caller, made)


async def attempted(caller: RestClient, made: JsonObject, count: int) -> JsonObject:
    """The one delivery, once it has so many attempts."""

    async def now() -> int:
        return max((len(one["attempts"]) for one in await deliveries(caller, made)), default=0)

    await eventually(count, now)
    (delivery,) = await deliveries(caller, made)
    return delivery


def by_type(webhook_events: list[WebhookEvent]) -> dict[int, WebhookEvent]:
    return {int(webhook_event.json["eventType"]): webhook_event for webhook_event in webhook_events}


async def everything(caller: RestClient, webhook: str, delivery: str = "1") -> list[RestResponse]:
    """What every call about one endpoint answers."""
    place = f"/v1/webhooks/{webhook}"
    return [
        await caller.get(place),
        await caller.patch(place, {"description": "mine"}),
        await caller.get(f"{place}/deliveries"),
        await caller.post(f"{place}/deliveries/{delivery}/resend"),
        await caller.post(f"{place}/test"),
        await caller.post(f"{place}/rotate-secret"),
        await caller.post(f"{place}/recover", {"since": 0}),
        await caller.delete(place),
    ]


async def counted(caller: RestClient, made: JsonObject) -> int:
    return len([one for one in await deliveries(caller, made) if one["attempts"]])


def verified(webhook_event: WebhookEvent, secret: str) -> bool:
    """Whether Standard Webhooks' own verifier takes a webhook event."""
    try:
        Webhook(secret).verify(webhook_event.body, dict(webhook_event.headers))
    except WebhookVerificationError:
        return False
    return True


@asynccontextmanager
async def at_time() -> AsyncIterator[tuple[RestClient, ManualClock]]:
    """A service whose time passes as a test says."""
    clock = ManualClock()
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, allow_addresses=LOOPBACK)
    async with running(settings, clock) as app:
        yield RestClient(app), clock


async def is_enabled(caller: RestClient, made: JsonObject) -> bool:
    return bool((await read(caller, made))["enabled"])
