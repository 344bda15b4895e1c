"""Receivers that refuse, redirect, drip or are gone."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.callers.rest import LOOPBACK, RestClient
from tests.support.callers.webhooks import (
    ALL,
    CALL,
    add,
    at_time,
    attempted,
    counted,
    deliveries,
    finish,
    is_enabled,
    read,
    settled,
)
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, comparable_body
from tests.support.services import ANY_PORT, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.config.service import Settings
from voicemem.context.policy_registry import Policies
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime
from voicemem.services import Services
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.telemetry import Telemetry
from voicemem.webhooks.outbox import FAILING_MS


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(caller: RestClient, hook: WebhookReceiver, status: int) -> None:
    """It is a failed attempt like any other."""
    hook.otherwise = Reply(status, {"Location": hook.url("/elsewhere")})
    made = await add(caller, hook.url())
    await finish(caller)
    delivery = await attempted(caller, made, 2)

    assert [(status, "redirect")] * 2 == [(one["status"], one["error"]) for one in delivery["attempts"]]
    assert ("pending", {"/hook"}) == (delivery["state"], {webhook_event.path for webhook_event in hook.webhook_events})
    assert (await read(caller, made))["failing_since"] == delivery["attempts"][0]["started_at"]


async def test_a_receiver_that_is_gone_is_disabled(
    caller: RestClient, hook: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """410 disables an endpoint, what waits for it is failed, and it hears nothing until it is enabled."""
    hook.replies = [Reply(410)]
    made = await add(caller, hook.url("/hook?token=hush"))
    await finish(caller, "first")
    (delivery,) = await settled(caller, made, "failed")
    await eventually(False, lambda: is_enabled(caller, made))
    assert f"Webhook {made['id']} to 127.0.0.1 is disabled: it answered 410 to event {delivery['notice_id']}" in (
        caplog.messages
    )
    assert "hush" not in caplog.text
    shown = await read(caller, made)
    await finish(caller, "second")
    assert (False, "gone", True) == (shown["enabled"], shown["disabled_reason"], shown["disabled_at"] > 0)
    assert 1 == len(await deliveries(caller, made))
    enabled = (await caller.patch(f"/v1/webhooks/{made['id']}", {"enabled": True})).json
    assert (True, None, None, None) == tuple(
        enabled[name] for name in ("enabled", "disabled_reason", "disabled_at", "failing_since")
    )
    await finish(caller, "third")
    assert "third" == (await hook.wait(2))[1].json["sid"]


async def test_a_receiver_that_was_gone_after_it_had_moved(caller: RestClient, hook: WebhookReceiver) -> None:
    """The 410 of the old address, to an attempt that was under way, does not disable the new one."""
    gate = asyncio.Event()
    hook.replies = [Reply(410, gate=gate)]
    made = await add(caller, hook.url("/old"))
    await finish(caller, "first")
    await hook.wait(1)
    await caller.patch(f"/v1/webhooks/{made['id']}", {"url": hook.url("/new")})
    gate.set()
    await settled(caller, made, "failed")
    await finish(caller, "second")
    assert ["/old", "/new"] == [webhook_event.path for webhook_event in await hook.wait(2)]
    assert await is_enabled(caller, made)


AFTER = [
    ("120", 120, 144),
    ("0", 4, 6),
    ("", 4, 6),
    ("soon", 4, 6),
    ("-5", 4, 6),
    ("1e9", 4, 6),
    ("99999999999", 86_400, 86_400),
    ("1.5", 1.5, 1.8),
    ("Mon, 11 May 2026 05:30:00 GMT", 3600, 86_400),
    ("Fri, 01 Jan 2100 00:00:00 GMT", 86_400, 86_400),
    ("Sat, 01 Jan 2000 00:00:00 GMT", 4, 6),
    ("Mon, 99 May 2026 99:99:99 GMT", 4, 6),
]


@pytest.mark.parametrize(("value", "least_s", "most_s"), AFTER, ids=[value for value, *_ in AFTER])
async def test_too_many_requests(hook: WebhookReceiver, value: str, least_s: float, most_s: float) -> None:
    """After a 429 the next attempt waits as its Retry-After says, in seconds or as a date; garbage is passed over."""
    hook.otherwise = Reply(429, {"Retry-After": value})
    async with at_time() as (caller, clock):
        made = await add(caller, hook.url())
        await finish(caller)
        delivery = await attempted(caller, made, 1)

        assert ("pending", 1, 429) == (delivery["state"], len(hook.webhook_events), delivery["attempts"][0]["status"])
        assert least_s <= (delivery["next_attempt_at"] - clock()) / 1000 <= most_s


@pytest.mark.parametrize(
    ("said", "state", "status", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Drip: ", "pending", None, "timeout"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", "delivered", 200, None),
        (b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n", "pending", 500, None),
    ],
    ids=["head", "body", "body of an error"],
)
async def test_a_receiver_that_drips(said: bytes, state: str, status: int | None, error: str | None) -> None:
    """One that drips its head has not answered in time; one that drips its body has, and what came is shown."""

    over, calls = asyncio.Event(), set[asyncio.Task[None] | None]()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            while not over.is_set():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    receiver = await asyncio.start_server(drip, "127.0.0.1", 0)
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, allow_addresses=LOOPBACK)
    app = App(settings, Services(InMemoryStore(), settings, Policies(), Runtime(), Telemetry.untraced()))
    app.services.sender.timeout_s = 0.3
    try:
        await app.start()
        caller = RestClient(app)
        made = await add(caller, f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/")
        await finish(caller)
        delivery = await attempted(caller, made, 1)
    finally:
        await app.stop()
        await app.services.store.close_store()
        over.set()
        await asyncio.gather(*(call for call in calls if call is not None))
        receiver.close()
    (attempt, *_) = delivery["attempts"]
    assert (state, status, error) == (delivery["state"], attempt["status"], attempt["error"])
    assert 250 <= attempt["duration_ms"]
    assert re.fullmatch("x*" if status is None else "x+", attempt["excerpt"])


async def test_an_endpoint_that_is_turned_off(caller: RestClient, hook: WebhookReceiver) -> None:
    """What waits for it is failed, sessions that end meanwhile make nothing for it, and it can be turned on again."""
    hook.otherwise = Reply(500)
    made = await add(caller, hook.url(), 103)
    place = f"/v1/webhooks/{made['id']}"
    await finish(caller, "first")
    await attempted(caller, made, 2)
    off = (await caller.patch(place, {"enabled": False})).json
    (delivery,) = await deliveries(caller, made)
    await finish(caller, "second")
    assert (False, "request", "failed", None) == (
        off["enabled"],
        off["disabled_reason"],
        delivery["state"],
        delivery["next_attempt_at"],
    )
    hook.otherwise = Reply()
    await caller.patch(place, {"enabled": True})
    await caller.post(f"{place}/recover", {"since": 0})
    await settled(caller, made, "delivered")
    assert {"first"} == {webhook_event.json["sid"] for webhook_event in hook.webhook_events}
    made = await add(caller, hook.url("/never"), enabled=False)
    assert (False, "request") == (made["enabled"], made["disabled_reason"])


async def test_an_endpoint_that_fails_for_days_is_disabled(
    hook: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Five days of failures only; a success begins them again."""
    hook.otherwise = Reply(500)
    async with at_time() as (caller, clock):
        made = await add(caller, hook.url())
        await finish(caller, "first")
        await attempted(caller, made, 2)
        first = await read(caller, made)
        hook.otherwise = Reply()
        clock.wait(FAILING_MS // 1000)
        await settled(caller, made, "delivered")
        well = await read(caller, made)
        hook.otherwise = Reply(500)
        await finish(caller, "second")
        await eventually(2, lambda: attempts_of_newest(caller, made))
        clock.wait(FAILING_MS // 1000 - 1)
        await eventually(3, lambda: attempts_of_newest(caller, made))
        nearly = await read(caller, made)
        clock.wait(2 * 86_400)
        await settled(caller, made, "failed", "delivered")
        over = await read(caller, made)
    assert (True, True) == (first["enabled"], first["failing_since"] is not None)
    assert (True, None) == (well["enabled"], well["failing_since"])
    assert (True, None) == (nearly["enabled"], nearly["disabled_reason"])
    assert f"Webhook {made['id']} to 127.0.0.1 is disabled: it failed for days" in caplog.text
    assert (False, "failing", nearly["failing_since"]) == (
        over["enabled"],
        over["disabled_reason"],
        over["failing_since"],
    )


async def attempts_of_newest(caller: RestClient, made: JsonObject) -> int:
    return len((await deliveries(caller, made))[0]["attempts"])


async def test_webhook_events_outlive_the_process(tmp_path: Path, hook: WebhookReceiver) -> None:
    """A start and a close that could not be told are told by the next process, as they were."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    hook.otherwise = Reply(500)
    async with running_service(store=store, allow_addresses=LOOPBACK) as app:
        caller = RestClient(app)
        made = await add(caller, hook.url(), *ALL)
        await finish(caller, "s", *CALL, name="before")
        await eventually(5, lambda: counted(caller, made))
    before = {webhook_event.json["eventType"]: comparable_body(webhook_event) for webhook_event in hook.webhook_events}
    hook.webhook_events.clear()
    hook.otherwise = Reply()
    async with running_service(store=store, allow_addresses=LOOPBACK) as app:
        caller = RestClient(app)
        await caller.patch(f"/v1/webhooks/{made['id']}", {"description": "later"})
        for delivery in await deliveries(caller, made):
            await caller.post(f"/v1/webhooks/{made['id']}/deliveries/{delivery['id']}/resend")
        await settled(caller, made, *["delivered"] * 5)
    assert before == {
        webhook_event.json["eventType"]: comparable_body(webhook_event) for webhook_event in hook.webhook_events
    }
