"""The outbox: when and how often deliveries are attempted, to whom, and with which body. Time is what the tests say."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import LOOPBACK
from tests.support.clock import NOW, ManualClock
from tests.support.events import delta, final
from tests.support.servers.resolver import FakeResolver
from tests.support.servers.webhook_receiver import Reply, WebhookEvent, WebhookReceiver, webhook_receiver
from tests.support.stores.outbox_rig import OutboxRig
from voicemem.config.session import validate_config
from voicemem.security.address_guard import allowed_networks
from voicemem.store.deliveries import Delivery
from voicemem.store.outbox import Attempt
from voicemem.store.port import Store
from voicemem.store.sqlite.store import InMemoryStore, SqliteStore
from voicemem.webhooks.outbox import LEASE_MS, MAX_IN_FLIGHT, REFILL_THRESHOLD, RETRY_DELAYS_S, OutboxWorker
from voicemem.webhooks.requests import WebhookSender, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def office() -> AsyncIterator[OutboxRig]:
    """An empty store, and a sender that may call this machine."""
    store = InMemoryStore()
    async with WebhookSender(allowed=allowed_networks(LOOPBACK)) as sender:
        yield OutboxRig(store, sender, ManualClock())
    await store.close_store()


@pytest.fixture
async def hook(office: OutboxRig) -> AsyncIterator[WebhookReceiver]:
    """The operator's receiver."""
    async with webhook_receiver() as receiver:
        await office.store.directory.set_operator_endpoint(receiver.url(), SECRET)
        yield receiver


@asynccontextmanager
async def at_work(*outboxes: OutboxWorker) -> AsyncIterator[asyncio.Event]:
    """Outboxes that run until the end of the block, and the event that wakes them."""
    wake = asyncio.Event()
    loops = [asyncio.create_task(outbox.run(wake)) for outbox in outboxes]
    try:
        yield wake
    finally:
        for task in [*loops, *(task for outbox in outboxes for task in outbox.tasks)]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def comparable_body(webhook_event: WebhookEvent) -> bytes:
    """A body without the one thing that may differ between attempts."""
    return re.sub(rb'"notifyMs":\d+', b'"notifyMs":0', webhook_event.body)


def texts(webhook_event: WebhookEvent) -> list[str]:
    return [message["content"] for message in webhook_event.payload["contents"]]


def statuses(delivery: Delivery) -> list[int | None]:
    return [attempt.status for attempt in delivery.attempts]


# One delivery


async def test_a_closed_session_is_delivered_once(office: OutboxRig, hook: WebhookReceiver) -> None:
    """One close makes one POST, after which nothing is due."""
    key = await office.closed()
    assert [1, 0] == [await office.attempt(), await office.attempt()]
    (webhook_event,) = hook.webhook_events
    assert ("n1", "s", NOW) == (webhook_event.id, webhook_event.json["sid"], webhook_event.json["notifyMs"])
    assert ["Hi.", ""] == texts(webhook_event)  # nothing of the reply can have been spoken yet
    assert "delivered" == (await office.delivery(key)).state
    assert await office.due_in_s() is None
    assert (set(), {}) == (office.outbox.tasks, dict(office.outbox.in_flight))


async def test_every_attempt_is_logged(office: OutboxRig, hook: WebhookReceiver) -> None:
    """The log says when each attempt was made, what came back, and the beginning of the answer."""
    hook.replies = [Reply(500)]
    key = await office.closed()
    await office.attempt()
    office.clock.wait(1)
    await office.attempt()
    delivery = await office.delivery(key)
    assert ("n1", hook.url(), 103) == (delivery.notice_id, delivery.url, delivery.event_type)
    expected = [Attempt(NOW, 0, 500, None, "answered"), Attempt(NOW + 1000, 0, 200, None, "answered")]
    assert expected == [attempt._replace(duration_ms=0) for attempt in delivery.attempts]
    assert all(0 <= attempt.duration_ms < 10_000 for attempt in delivery.attempts)


async def test_all_attempts_carry_the_same_body_but_for_their_time(office: OutboxRig, hook: WebhookReceiver) -> None:
    """The noticeId is constant and the bytes are frozen; notifyMs and the signatures are each attempt's own."""
    hook.otherwise = Reply(500)
    await office.closed()
    for delay in (0, 0, 5, 300):
        office.clock.wait(delay)
        assert 1 == await office.attempt()
    assert 1 == len({comparable_body(webhook_event) for webhook_event in hook.webhook_events})
    assert [NOW, NOW, NOW + 5000, NOW + 305_000] == [
        webhook_event.json["notifyMs"] for webhook_event in hook.webhook_events
    ]
    for webhook_event in hook.webhook_events:
        now_s = webhook_event.json["notifyMs"] // 1000
        assert ("n1", str(now_s)) == (webhook_event.headers["webhook-id"], webhook_event.headers["webhook-timestamp"])
        assert all(verify(webhook_event.headers, webhook_event.body, SECRET, now_s).values())


async def test_retries_follow_the_schedule_and_end(office: OutboxRig, hook: WebhookReceiver) -> None:
    """At once, 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h; then the delivery is kept as failed."""
    hook.otherwise = Reply(500)
    key = await office.closed()
    for delay in RETRY_DELAYS_S:
        await office.attempt()
        assert delay == await office.due_in_s()
        if delay:
            office.clock.wait(delay - 1)
            assert 0 == await office.attempt()
            office.clock.wait(1)
    await office.attempt()
    delivery = await office.delivery(key)
    assert ("failed", len(RETRY_DELAYS_S) + 1) == (delivery.state, len(delivery.attempts))
    office.clock.wait(10**6)
    assert 0 == await office.attempt()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120 * 1.1),
        ("7.5", 7.5 * 1.1),
        (format_datetime(datetime.fromtimestamp(NOW / 1000 + 120, UTC), usegmt=True), 120 * 1.1),
        ("315360000", 86_400),
        ("soon", 5),
        ("-1", 5),
        ("", 5),
    ],
)
@pytest.mark.fault(53)
async def test_retry_after_is_honoured(office: OutboxRig, hook: WebhookReceiver, value: str, seconds: float) -> None:
    """Seconds and dates are waited for, at most a day; garbage changes nothing. (A jitter of one half adds a tenth.)"""
    hook.replies = [Reply(503, {"Retry-After": value})]
    key = await office.closed()
    await office.attempt()
    due_s = await office.due_in_s()
    assert due_s == pytest.approx(seconds, rel=0.11)
    office.clock.wait((due_s or 0) - 0.1)
    assert 0 == await office.attempt()
    office.clock.wait(0.2)
    assert 1 == await office.attempt()
    assert "delivered" == (await office.delivery(key)).state


@pytest.mark.fault(55)
async def test_410_disables_the_endpoint(
    office: OutboxRig, hook: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Who says that no one is there is not called again: not for this delivery, a waiting one, or a later close."""
    hook.replies = [Reply(410)]
    keys = [await office.closed("a", "n1")]
    await office.attempt()
    office.clock.wait(100_000)
    keys.append(await office.closed("b", "n2"))
    assert 0 == await office.attempt()
    assert "failed" == (await office.delivery(keys[0])).state
    assert [] == await office.store.deliveries.list_deliveries(keys[1])
    assert 1 == len(hook.webhook_events)
    assert "The operator's webhook to 127.0.0.1 is disabled: it answered 410 to event n1" in caplog.messages


@pytest.mark.fault(55)
async def test_410_fails_what_waits_for_the_endpoint(office: OutboxRig, hook: WebhookReceiver) -> None:
    """Deliveries that were to be tried again are given up with the endpoint."""
    hook.replies = [Reply(503), Reply(410)]
    waiting = await office.closed("a", "n1")
    await office.attempt()
    await office.closed("b", "n2")
    await office.attempt()
    assert "failed" == (await office.delivery(waiting)).state
    assert await office.due_in_s() is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.fault(56)
async def test_redirects_are_not_followed(office: OutboxRig, hook: WebhookReceiver, status: int) -> None:
    """A redirect is a failed attempt: the body goes where it was meant to go, or nowhere."""
    hook.replies = [Reply(status, {"Location": hook.url("/elsewhere")})]
    key = await office.closed()
    await office.attempt()
    assert ["/hook"] == [webhook_event.path for webhook_event in hook.webhook_events]
    assert ("pending", [status]) == ((await office.delivery(key)).state, statuses(await office.delivery(key)))
    assert "redirect" == (await office.delivery(key)).attempts[0].error


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 502, 503])
async def test_whatever_is_no_success_is_tried_again(office: OutboxRig, hook: WebhookReceiver, status: int) -> None:
    """Only 2xx is success; a receiver that is being repaired gets the webhook event later."""
    hook.replies = [Reply(status)]
    key = await office.closed()
    await office.attempt()
    office.clock.wait(10)
    await office.attempt()
    assert "delivered" == (await office.delivery(key)).state


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_success(office: OutboxRig, hook: WebhookReceiver, status: int) -> None:
    """A receiver may say yes in its own way."""
    hook.replies = [Reply(status)]
    key = await office.closed()
    await office.attempt()
    assert ("delivered", [status]) == ((await office.delivery(key)).state, statuses(await office.delivery(key)))


@pytest.mark.fault(47)
async def test_a_receiver_that_is_down_is_tried_again(office: OutboxRig, caplog: pytest.LogCaptureFixture) -> None:
    """A refused connection is logged with its word, and the webhook event comes when the receiver does."""
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    await office.store.directory.set_operator_endpoint(f"http://127.0.0.1:{port}/hook", SECRET)
    key = await office.closed()
    await office.attempt()
    said = "The operator's webhook to 127.0.0.1: attempt 1 of event n1 of session s failed (refused)"
    assert said in caplog.text
    assert "/hook" not in caplog.text
    assert [(None, "refused")] == [(one.status, one.error) for one in (await office.delivery(key)).attempts]
    async with webhook_receiver() as receiver:
        await office.store.directory.set_operator_endpoint(receiver.url(), SECRET)
        await office.attempt()
        assert ["n1"] == [webhook_event.id for webhook_event in receiver.webhook_events]


@pytest.mark.fault(50)
async def test_a_receiver_that_never_answers_is_given_up(office: OutboxRig, hook: WebhookReceiver) -> None:
    """An attempt is bounded; the next one waits, for a receiver that is slow has too much to do."""
    hook.replies = [Reply(gate=asyncio.Event())]
    key = await office.closed()
    async with WebhookSender(timeout_s=0.1) as impatient:
        await office.attempt(office.another(sender=impatient))
    assert ["timeout"] == [attempt.error for attempt in (await office.delivery(key)).attempts]
    due_s = await office.due_in_s()
    assert due_s is not None
    assert due_s >= 5


@pytest.mark.fault(61)
async def test_a_new_secret_signs_the_next_attempt(office: OutboxRig, hook: WebhookReceiver) -> None:
    """A secret that is changed between two attempts is used from then on."""
    hook.replies = [Reply(500)]
    await office.closed()
    await office.attempt()
    await office.store.directory.set_operator_endpoint(hook.url(), "another secret")
    await office.attempt()
    first, second = hook.webhook_events
    assert all(verify(first.headers, first.body, SECRET, NOW // 1000).values())
    assert all(verify(second.headers, second.body, "another secret", NOW // 1000).values())


# What is in the body


async def test_the_body_is_the_memory_at_the_close(office: OutboxRig, hook: WebhookReceiver) -> None:
    """A session that was reopened and went on before the first attempt is delivered as it was when it closed."""
    key = await office.begin()
    await office.say(key, final(1, "Hi.", NOW - 9), delta(1, "Good day ", NOW - 5))
    await office.close(key, provisional=True)
    await office.say(key, delta(1, "to you.", NOW + 5), final(2, "Bye.", NOW + 9))
    assert 1 == await office.attempt()
    (webhook_event,) = hook.webhook_events
    assert ["Hi.", ""] == texts(webhook_event)  # nothing of the reply can have been spoken yet
    assert webhook_event.payload["contents"][1]["metadata"]["interrupted"] is True


async def test_the_body_does_not_change_between_attempts(office: OutboxRig, hook: WebhookReceiver) -> None:
    """What was sent once is sent again, whatever happened to the session meanwhile and whoever sends it."""
    hook.replies = [Reply(500)]
    key = await office.begin(labels={"a": "1"}, name="Before")
    await office.say(key, final(1, "Hi.", NOW))
    await office.close(key, provisional=True)
    await office.attempt()
    await office.say(key, final(1, "Changed.", NOW), final(2, "More.", NOW + 1))
    patch = validate_config({"name": "After", "labels": {"a": None}})
    await office.store.journal.change_config(key, patch, b'{"type":"session.update"}', NOW)
    await office.attempt(office.another())
    first, second = hook.webhook_events
    assert comparable_body(first) == comparable_body(second)


async def test_each_close_makes_a_delivery_of_its_own(office: OutboxRig, hook: WebhookReceiver) -> None:
    """A session that was reopened and closed again is delivered twice: two noticeIds, two memories."""
    key = await office.begin()
    await office.say(key, final(1, "Hi.", NOW))
    await office.close(key, "n1", provisional=True)
    await office.say(key, final(2, "Still here.", NOW + 1))
    await office.close(key, "n2")
    assert 2 == await office.attempt()
    assert {"n1": ["Hi."], "n2": ["Hi.", "Still here."]} == {
        webhook_event.id: texts(webhook_event) for webhook_event in hook.webhook_events
    }


async def test_the_operators_and_the_sessions_receiver_both_hear(office: OutboxRig, hook: WebhookReceiver) -> None:
    """One close, one noticeId, two receivers, each with its own contents and secret, and its own retries."""
    own = {"url": hook.url("/own"), "secret": "own secret", "contents": "standard"}
    hook.replies = [Reply(500)]
    await office.closed(webhook=own)
    assert 2 == await office.attempt()
    assert 1 == await office.attempt()
    by_path = {webhook_event.path: webhook_event for webhook_event in hook.webhook_events}
    assert {"/hook", "/own"} == set(by_path)
    assert {"n1"} == {webhook_event.id for webhook_event in hook.webhook_events}
    assert [{"role", "content"}] * 2 == [set(message) for message in by_path["/own"].payload["contents"]]
    assert {"role", "content", "turn_id", "timestamp", "metadata"} == set(by_path["/hook"].payload["contents"][0])
    for path, secret in (("/own", "own secret"), ("/hook", SECRET)):
        assert all(verify(by_path[path].headers, by_path[path].body, secret, NOW // 1000).values())


async def test_without_receivers_nothing_is_due(office: OutboxRig) -> None:
    """A session that no one wants to hear of leaves no delivery."""
    key = await office.closed()
    assert ([], None) == (await office.store.deliveries.list_deliveries(key), await office.due_in_s())


@pytest.mark.fault(60)
async def test_an_erased_session_is_not_delivered(office: OutboxRig, hook: WebhookReceiver) -> None:
    """What waits for its next attempt is gone with the session."""
    hook.replies = [Reply(500)]
    key = await office.closed()
    await office.attempt()
    await office.store.retention.erase(key, NOW)
    office.clock.wait(100_000)
    assert 0 == await office.attempt()
    assert 1 == len(hook.webhook_events)


async def test_a_session_erased_before_its_attempt_is_not_sent(office: OutboxRig, hook: WebhookReceiver) -> None:
    """An erase that comes between the claim and the attempt counts: not even a name leaves the house."""
    key = await office.closed(name="Secret name")
    await office.outbox.start_due()
    await office.store.retention.erase(key, NOW)
    await asyncio.gather(*office.outbox.tasks)
    assert [] == hook.webhook_events


# Many deliveries


async def close_many(office: OutboxRig, count: int, prefix: str = "s", **config: Any) -> list[str]:
    """Close so many sessions; their noticeIds."""
    names = [f"{prefix}{number}" for number in range(count)]
    for name in names:
        await office.closed(name, name, **config)
    return sorted(names)


def ids(receiver: WebhookReceiver) -> list[str]:
    return sorted(webhook_event.id for webhook_event in receiver.webhook_events)


async def test_at_most_8_are_in_flight_to_one_endpoint(office: OutboxRig, hook: WebhookReceiver) -> None:
    """However many sessions end at once, a receiver answers 8 at a time, and gets them all."""
    gate = asyncio.Event()
    hook.otherwise = Reply(gate=gate)
    expected = await close_many(office, 30)
    async with at_work(office.outbox):
        await hook.wait(MAX_IN_FLIGHT)
        assert 0 == await office.outbox.start_due()
        gate.set()
        await hook.wait(30)
    assert (8, expected) == (hook.most["/hook"], ids(hook))


async def test_at_most_8_are_in_flight_to_one_url_of_many_sessions(office: OutboxRig) -> None:
    """Sessions that each name the same receiver do not flood it either."""
    async with webhook_receiver() as receiver:
        receiver.otherwise = Reply(gate=asyncio.Event())
        await close_many(office, 30, webhook={"url": receiver.url()})
        async with at_work(office.outbox):
            await receiver.wait(MAX_IN_FLIGHT)
            await office.outbox.start_due()
            await asyncio.wait(office.outbox.tasks, timeout=0.2)
        assert MAX_IN_FLIGHT == receiver.most["/hook"]


async def test_attempts_that_hang_leave_the_others_their_places(office: OutboxRig, hook: WebhookReceiver) -> None:
    """A receiver that answers only some of its requests is sent more, at first several at a time, then each."""
    hook.replies += [Reply(gate=asyncio.Event())] * 6
    expected = await close_many(office, 20)
    assert MAX_IN_FLIGHT == await office.outbox.start_due()
    while len(office.outbox.tasks) > 6:
        await asyncio.wait(office.outbox.tasks, return_when=asyncio.FIRST_COMPLETED)
    assert 0 == await office.outbox.start_due(REFILL_THRESHOLD)
    async with at_work(office.outbox):
        await hook.wait(20)
    assert expected == ids(hook)


async def test_a_slow_receiver_does_not_hold_up_another(office: OutboxRig, hook: WebhookReceiver) -> None:
    """While the operator's receiver answers nothing, sessions' own receivers are served."""
    hook.otherwise = Reply(gate=asyncio.Event())
    async with webhook_receiver() as fast, at_work(office.outbox) as wake:
        await close_many(office, 20, "slow")
        wake.set()
        await hook.wait(MAX_IN_FLIGHT)
        await office.closed("quick", "quick", webhook={"url": fast.url()})
        wake.set()
        assert "quick" == (await fast.one()).id


async def test_many_slow_receivers_do_not_hold_up_another(office: OutboxRig) -> None:
    """One tenant's receivers that never answer, hundreds of them, take nothing from the others."""
    async with webhook_receiver() as slow, webhook_receiver() as fast:
        slow.otherwise = Reply(gate=asyncio.Event())
        for number in range(300):
            hook = {"url": slow.url(f"/{number}")}
            key = await office.begin(f"s{number}", webhook=hook)
            await office.close(key, f"s{number}")
        async with at_work(office.outbox) as wake:
            await slow.wait(200, 60)
            await office.closed("quick", "quick", webhook={"url": fast.url()})
            wake.set()
            assert "quick" == (await fast.wait(1, 3))[0].id


async def test_two_outboxes_on_one_store_deliver_each_delivery_once(office: OutboxRig, hook: WebhookReceiver) -> None:
    """Whoever claims a delivery delivers it, and no one else does."""
    expected = await close_many(office, 40)
    async with at_work(office.outbox, office.another()):
        await hook.wait(40)
    assert expected == ids(hook)


async def test_two_processes_on_one_file_deliver_each_delivery_once(tmp_path: Path) -> None:
    """The same with a handle of its own for each outbox."""
    stores = [SqliteStore(str(tmp_path / "v.db"), exclusive=False) for _ in range(2)]
    async with webhook_receiver() as hook, WebhookSender() as sender:
        office = OutboxRig(stores[0], sender, ManualClock())
        await stores[0].directory.set_operator_endpoint(hook.url(), SECRET)
        expected = await close_many(office, 40)
        async with at_work(office.outbox, office.another(stores[1])):
            await hook.wait(40)
        assert expected == ids(hook)
    for store in stores:
        await store.close_store()


@pytest.mark.fault(65)
async def test_of_two_that_attempt_at_once_only_one_gets_the_delivery(office: OutboxRig, hook: WebhookReceiver) -> None:
    """While one attempt is under way, its delivery is no one else's."""
    gate = asyncio.Event()
    hook.otherwise = Reply(gate=gate)
    await office.closed()
    assert 1 == await office.outbox.start_due()
    assert 0 == await office.attempt(office.another())
    gate.set()
    await asyncio.gather(*office.outbox.tasks)
    assert 1 == len(hook.webhook_events)


async def test_an_outbox_that_died_is_succeeded_after_its_lease(office: OutboxRig, hook: WebhookReceiver) -> None:
    """The next outbox makes the attempt once more: the same noticeId, the same bytes."""
    hook.replies = [Reply(gate=asyncio.Event())]
    key = await office.closed()
    await office.outbox.start_due()
    await hook.one()
    for task in office.outbox.tasks:
        task.cancel()
    office.clock.wait(LEASE_MS / 1000 - 1)
    assert 0 == await office.attempt(office.another())
    office.clock.wait(1)
    assert 1 == await office.attempt(office.another())
    first, second = hook.webhook_events
    assert comparable_body(first) == comparable_body(second)
    assert "delivered" == (await office.delivery(key)).state


@pytest.mark.fault(22)
async def test_an_outbox_that_woke_too_late_does_not_count(office: OutboxRig, hook: WebhookReceiver) -> None:
    """An attempt that outlived its lease cannot undo what its successor has achieved."""
    gate = asyncio.Event()
    hook.replies = [Reply(500, gate=gate)]
    key = await office.closed()
    await office.outbox.start_due()
    await hook.one()
    office.clock.wait(LEASE_MS / 1000)
    assert 1 == await office.attempt(office.another())
    gate.set()
    await asyncio.gather(*office.outbox.tasks)
    delivery = await office.delivery(key)
    assert ("delivered", [200]) == (delivery.state, statuses(delivery))


async def test_finishing_waits_for_attempts_under_way(office: OutboxRig, hook: WebhookReceiver) -> None:
    """An outbox that is to stop lets its attempts come to their end, but not for ever."""
    gate = asyncio.Event()
    hook.otherwise = Reply(gate=gate)
    key = await office.closed()
    await office.outbox.start_due()
    await hook.one()
    await office.outbox.finish_running(0.01)
    assert "pending" == (await office.delivery(key)).state
    gate.set()
    await office.outbox.finish_running(5)
    assert "delivered" == (await office.delivery(key)).state


async def test_an_outbox_outlives_an_outage_of_the_store(tmp_path: Path) -> None:
    """While nothing can be committed it goes on looking, and delivers when it can again."""
    store = SqliteStore(str(tmp_path / "v.db"))
    async with webhook_receiver() as hook, WebhookSender() as sender:
        office = OutboxRig(store, sender, ManualClock())
        await store.directory.set_operator_endpoint(hook.url(), SECRET)
        await office.closed()
        await store.database.write(lambda connection: connection.raw.set_busy_timeout(0))
        holder = SqliteStore(str(tmp_path / "v.db"), exclusive=False)
        holder.database.writer.execute("begin immediate")
        async with at_work(office.outbox) as wake:
            await until_unhealthy(store, wake)
            holder.database.writer.execute("rollback")
            wake.set()
            assert "n1" == (await hook.one()).id
        await holder.close_store()
    await store.close_store()


async def until_unhealthy(store: Store, wake: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        while store.healthy:
            wake.set()
            await asyncio.sleep(0.01)


# Whom it may call


@pytest.mark.fault(59)
async def test_a_name_that_leads_inside_is_not_called(office: OutboxRig, hook: WebhookReceiver) -> None:
    """A session's receiver with a public name and a private address is refused when it is called, and tried again."""
    await office.store.directory.turn_off_operator_endpoint()
    key = await office.closed(webhook={"url": hook.url(host="receiver.example")})
    async with WebhookSender(resolver=FakeResolver(["127.0.0.1"])) as guard_route:
        assert 1 == await office.attempt(office.another(sender=guard_route))
    assert [] == hook.webhook_events
    delivery = await office.delivery(key)
    assert ("pending", ["address_not_allowed"]) == (delivery.state, [one.error for one in delivery.attempts])


async def test_a_literal_that_came_into_the_store_is_not_called(office: OutboxRig, hook: WebhookReceiver) -> None:
    """Also without the check of the API in front, a private address of a session is never connected to."""
    await office.store.directory.turn_off_operator_endpoint()
    await office.closed(webhook={"url": hook.url()})
    async with WebhookSender() as guard_route:
        await office.attempt(office.another(sender=guard_route))
    assert [] == hook.webhook_events


async def test_an_allowed_network_is_called(office: OutboxRig, hook: WebhookReceiver) -> None:
    """What the operator has put on the list is called for sessions, too."""
    await office.closed(webhook={"url": hook.url("/own", host="receiver.example")})
    async with WebhookSender(resolver=FakeResolver(["127.0.0.1"]), allowed=allowed_networks(LOOPBACK)) as sender:
        await office.attempt(office.another(sender=sender))
    assert ["/hook", "/own"] == sorted(webhook_event.path for webhook_event in hook.webhook_events)


async def test_the_operators_receiver_may_be_private(office: OutboxRig, hook: WebhookReceiver) -> None:
    """The operator knows the house."""
    await office.store.directory.set_operator_endpoint(hook.url(host="receiver.internal"), SECRET)
    await office.closed()
    async with WebhookSender(resolver=FakeResolver(["127.0.0.1"])) as guard_route:
        await office.attempt(office.another(sender=guard_route))
    assert 1 == len(hook.webhook_events)
