"""Deliveries over REST: health checks, attempts, sending again."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient
from tests.support.callers.webhooks import (
    CALL,
    SECRET,
    add,
    at_time,
    by_type,
    deliveries,
    finish,
    read,
    settled,
    verified,
)
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, comparable_body

# The health check


async def test_the_health_check_is_agoras(caller: RestClient, hook: WebhookReceiver) -> None:
    """A signed test callback for each event type comes at once, and is no delivery."""
    made = await add(caller, hook.url(), 101, 103, secret=SECRET)
    answered = await caller.post(f"/v1/webhooks/{made['id']}/test")

    assert {101, 103} == set(by_type(hook.webhook_events))
    for webhook_event in hook.webhook_events:
        assert {"channelName": "test_webhook", "uid": 12121212} == webhook_event.payload
        assert verified(webhook_event, SECRET)
    results = answered.json["results"]
    assert (True, [(101, True, 200, None, "answered"), (103, True, 200, None, "answered")]) == (
        answered.json["passed"],
        [tuple(one[key] for key in ("event_type", "passed", "status", "error", "excerpt")) for one in results],
    )
    assert [] == await deliveries(caller, made)


@pytest.mark.parametrize("status", [302, 410, 429, 500])
async def test_a_health_check_that_fails(caller: RestClient, hook: WebhookReceiver, status: int) -> None:
    """It says so, tries nothing again, and has no consequences."""
    hook.otherwise = Reply(status, {"Retry-After": "1", "Location": "/elsewhere"})
    made = await add(caller, hook.url(), 101, 112)
    tried = (await caller.post(f"/v1/webhooks/{made['id']}/test")).json

    assert (False, [(False, status)] * 2) == (
        tried["passed"],
        [(one["passed"], one["status"]) for one in tried["results"]],
    )
    shown = await read(caller, made)
    assert (True, None, 2) == (shown["enabled"], shown["failing_since"], len(hook.webhook_events))


# Deliveries


async def test_every_attempt_is_told(caller: RestClient, hook: WebhookReceiver) -> None:
    """With its time, duration, status and the first bytes of the answer, first the one that failed."""
    hook.replies = [Reply(500)]
    made = await add(caller, hook.url())
    await finish(caller)
    (delivery,) = await settled(caller, made, "delivered")
    webhook_event = hook.webhook_events[0]

    assert ("s", 103, webhook_event.id, None) == tuple(
        delivery[name] for name in ("session_id", "event_type", "notice_id", "next_attempt_at")
    )
    assert [500, 200] == [one["status"] for one in delivery["attempts"]]
    for one in delivery["attempts"]:
        assert (None, "answered", True) == (one["error"], one["excerpt"], 0 <= one["duration_ms"] < 60_000)
        assert delivery["created_at"] <= one["started_at"]


async def test_deliveries_are_found(caller: RestClient, hook: WebhookReceiver) -> None:
    """By session, type and state, and page by page, the newest first."""
    made = await add(caller, hook.url(), 102, 103)
    for number in range(3):
        await finish(caller, f"s{number}")
    everyone = await settled(caller, made, *["delivered"] * 6)

    assert ["s2", "s2", "s1", "s1", "s0", "s0"] == [one["session_id"] for one in everyone]
    assert everyone[2:4] == await deliveries(caller, made, "?session_id=s1")
    assert [103, 103, 103] == [one["event_type"] for one in await deliveries(caller, made, "?event_type=103")]
    assert ([], everyone) == (
        await deliveries(caller, made, "?state=failed"),
        await deliveries(caller, made, "?state=delivered"),
    )
    found, before = [], ""
    while True:
        page = (await caller.get(f"/v1/webhooks/{made['id']}/deliveries?limit=4{before}")).json
        found += page["deliveries"]
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert everyone == found


async def test_a_delivery_is_sent_again(caller: RestClient, hook: WebhookReceiver) -> None:
    """With the same id and payload, though it was delivered; its attempts go on."""
    made = await add(caller, hook.url())
    await finish(caller, "s", *CALL)
    (delivery,) = await settled(caller, made, "delivered")
    answered = await caller.post(f"/v1/webhooks/{made['id']}/deliveries/{delivery['id']}/resend")
    assert (202, "pending") == (answered.status, answered.json["state"])
    first, second = await hook.wait(2)
    (again,) = await settled(caller, made, "delivered")

    assert comparable_body(first) == comparable_body(second)
    assert [200, 200] == [one["status"] for one in again["attempts"]]


async def test_deliveries_that_are_not_there(caller: RestClient, hook: WebhookReceiver) -> None:
    """An unknown delivery, and one of another endpoint, is a 404; nothing is sent."""
    made, other = await add(caller, hook.url()), await add(caller, hook.url("/other"), 102)
    await finish(caller)
    (delivery,) = await settled(caller, made, "delivered")
    await hook.wait(2)
    for place in (f"{other['id']}/deliveries/{delivery['id']}", *(f"{made['id']}/deliveries/{n}" for n in UNKNOWN)):
        assert (404, "unknown_delivery") == (await caller.post(f"/v1/webhooks/{place}/resend")).problem
    for number in ("x", "-1", "9" * 19, "%D9%A1", "1%0A"):
        place = f"{made['id']}/deliveries/{number}/resend"
        assert (400, "invalid_field") == (await caller.post(f"/v1/webhooks/{place}")).problem
    assert 2 == len(hook.webhook_events)


UNKNOWN = ("0", "999999", "9" * 18)


async def test_deliveries_of_an_erased_session_are_gone(caller: RestClient, hook: WebhookReceiver) -> None:
    """They are neither shown nor sent again."""
    made = await add(caller, hook.url())
    await finish(caller)
    (delivery,) = await settled(caller, made, "delivered")
    await caller.delete("/v1/sessions/s")

    assert [] == await deliveries(caller, made)
    answered = await caller.post(f"/v1/webhooks/{made['id']}/deliveries/{delivery['id']}/resend")
    assert (404, "unknown_delivery") == answered.problem
    assert {"recovered": 0} == (await caller.post(f"/v1/webhooks/{made['id']}/recover", {"since": 0})).json


async def test_everything_that_failed_since_a_time_is_recovered(hook: WebhookReceiver) -> None:
    """What failed before, what was delivered and what waits is not sent."""
    async with at_time() as (caller, clock):
        hook.replies = [Reply(200), Reply(410)]
        made = await add(caller, hook.url())
        place = f"/v1/webhooks/{made['id']}"
        await finish(caller, "fine")
        await settled(caller, made, "delivered")
        await finish(caller, "early")
        await settled(caller, made, "failed", "delivered")
        await caller.patch(place, {"enabled": True})
        clock.wait(60)
        since = clock()
        hook.replies = [Reply(410)]
        await finish(caller, "late")
        await settled(caller, made, "failed", "failed", "delivered")
        assert (409, "webhook_disabled") == (await caller.post(f"{place}/recover", {"since": since})).problem
        (late, *_) = await deliveries(caller, made)
        assert (409, "webhook_disabled") == (await caller.post(f"{place}/deliveries/{late['id']}/resend")).problem
        await caller.patch(place, {"enabled": True})
        recovered = await caller.post(f"{place}/recover", {"since": since})
        assert (202, {"recovered": 1}) == (recovered.status, recovered.json)
        await settled(caller, made, "delivered", "failed", "delivered")
        assert {"recovered": 1} == (await caller.post(f"{place}/recover", {"since": 0})).json
        await settled(caller, made, "delivered", "delivered", "delivered")
    assert ["fine", "early", "late", "late", "early"] == [
        webhook_event.json["sid"] for webhook_event in hook.webhook_events
    ]
