"""Deliveries are claimed under a lease, attempted, and finished once."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    END,
    HOOK,
    LEASE_MS,
    NOW,
    OPERATOR,
    attempt_of,
    claim_deliveries,
    claim_one_delivery,
    close,
    close_idle,
    closed_session,
    freeze_payload,
    kept_payload,
    open_key,
    open_session,
    start_alone,
)
from voicemem.store.deliveries import Delivery
from voicemem.store.port import Store

MANY = 220
"""More deliveries than an engine looks at to find those of receivers that are not busy."""


async def test_a_claim_is_a_lease(store: Store) -> None:
    """No one else gets a delivery until its lease ends; then it is claimed under a new one."""
    await closed_session(store)
    first = await claim_one_delivery(store)

    assert [] == await claim_deliveries(store, NOW + LEASE_MS - 1)
    second = await claim_one_delivery(store, NOW + LEASE_MS)
    assert first.key == second.key
    assert first.lease < second.lease


async def test_a_start_ends_the_leases_of_dead_processes(store: Store) -> None:
    """What they were attempting, and what the clock put into the future, is claimed at once; retries wait."""
    await closed_session(store, "leased", notice_id="n1")
    await closed_session(store, "later", notice_id="n2", now_ms=NOW + 3_600_000)
    waiting, leased = (
        await closed_session(store, "waiting", notice_id="n3", now_ms=NOW - 1),
        await claim_deliveries(store),
    )
    assert ["n3", "n1"] == [delivery.notice_id for delivery in leased]
    assert await store.outbox.finish_delivery(leased[0], attempt_of(500), "pending", NOW + 5000)
    await start_alone(store, NOW)

    assert {"n1", "n2"} == {delivery.notice_id for delivery in await claim_deliveries(store)}
    assert ["pending"] == [made.state for made in await store.deliveries.list_deliveries(waiting.key)]
    assert not await store.outbox.finish_delivery(leased[1], attempt_of(), "delivered", None)


async def test_the_oldest_deliveries_come_first(store: Store) -> None:
    """Deliveries are claimed in the order in which they became due, at most as many as asked for."""
    for number in (3, 1, 2, 4):
        await closed_session(store, f"s{number}", notice_id=f"n{number}", now_ms=NOW + number)

    assert ["n1", "n2"] == [delivery.notice_id for delivery in await claim_deliveries(store, NOW + 3, limit=2)]
    assert ["n3"] == [delivery.notice_id for delivery in await claim_deliveries(store, NOW + 3)]


async def test_busy_receivers_are_left_out(store: Store) -> None:
    """Deliveries of busy receivers stay unclaimed, and do not stand in the way of others."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    await closed_session(store, "s1", hook=None)
    busy = (await claim_one_delivery(store)).endpoint.url
    await closed_session(store, "s2", hook=None)
    await closed_session(store, "s3", HOOK)

    assert [HOOK] == [
        delivery.endpoint.url
        for delivery in await claim_deliveries(store, busy=[busy, "https://other.example/"], limit=1)
    ]
    assert [] == await claim_deliveries(store, busy=[busy])
    assert [OPERATOR, OPERATOR] == [
        delivery.endpoint.url for delivery in await claim_deliveries(store, busy=["https://other.example/"])
    ]


async def test_a_claim_takes_what_there_is(store: Store) -> None:
    """Where a receiver has fewer places than it has deliveries, the same claim has others' behind them."""
    for number in range(20):
        await closed_session(store, f"s{number}", HOOK, now_ms=NOW + number)
    await closed_session(store, "other", "https://other.example/", now_ms=NOW + 20)
    claimed = await store.outbox.claim_deliveries(NOW + 20, LEASE_MS, {HOOK: 1}, 8, places=4)
    assert ["s0", "s1", "s2", "other"] == [delivery.header.session_id for delivery in claimed]
    assert [] == await store.outbox.claim_deliveries(NOW + 20, LEASE_MS, {HOOK: 4}, 8, places=4)


async def test_the_first_frozen_body_stays(store: Store) -> None:
    """The payload that was kept first is what everybody sends, in every attempt."""
    await closed_session(store)
    first = await claim_one_delivery(store)
    second = await claim_one_delivery(store, NOW + LEASE_MS)

    assert b"first" == await freeze_payload(store, second, b"first")
    assert b"first" == await freeze_payload(store, first, b"second")
    assert b"first" == await kept_payload(store, (await claim_one_delivery(store, NOW + 2 * LEASE_MS)).payload)


async def test_a_body_in_parts_is_one_claims(store: Store) -> None:
    """What a claim that was lost has left is not mixed with what another makes, and is frozen with its last part."""
    await closed_session(store)
    first = await claim_one_delivery(store)
    assert await store.outbox.freeze_payload(first, b"lost ", is_last=False) is None
    second = await claim_one_delivery(store, NOW + LEASE_MS)
    assert second.payload is None
    assert await store.outbox.freeze_payload(second, b"one, ", is_last=False) is None
    assert await store.outbox.freeze_payload(first, b"late", before=5) is None
    assert await store.outbox.freeze_payload(second, b"two, ", before=5, is_last=False) is None
    frozen = await store.outbox.freeze_payload(second, b"three", before=10)
    assert b"one, two, three" == await kept_payload(store, frozen)
    assert frozen is not None
    assert frozen.is_new
    assert frozen._replace(is_new=False) == (await claim_one_delivery(store, NOW + 2 * LEASE_MS)).payload


async def test_a_delivered_delivery_is_done(store: Store) -> None:
    """What was delivered is not claimed again, and its attempt can be read."""
    stream = await closed_session(store)
    delivery = await claim_one_delivery(store)

    assert await store.outbox.finish_delivery(delivery, attempt_of(204), "delivered", None)
    assert [] == await claim_deliveries(store, NOW + 10**9)
    assert [Delivery("n", HOOK, 103, "delivered", [attempt_of(204)])] == await store.deliveries.list_deliveries(
        stream.key
    )


async def test_a_failed_attempt_is_tried_again(store: Store) -> None:
    """A delivery that waits for another attempt is claimed when that is due, with its attempts counted."""
    stream = await closed_session(store)
    assert await store.outbox.finish_delivery(await claim_one_delivery(store), attempt_of(500), "pending", NOW + 5000)

    assert [] == await claim_deliveries(store, NOW + 4999)
    delivery = await claim_one_delivery(store, NOW + 5000)
    assert 1 == delivery.attempts
    assert await store.outbox.finish_delivery(delivery, attempt_of(None, "timeout", NOW + 5000), "failed", None)
    attempts = [attempt_of(500), attempt_of(None, "timeout", NOW + 5000)]
    assert [Delivery("n", HOOK, 103, "failed", attempts)] == await store.deliveries.list_deliveries(stream.key)
    assert [] == await claim_deliveries(store, NOW + 10**9)


async def test_a_finish_counts_only_under_its_lease(store: Store) -> None:
    """Whoever lost the lease changes nothing and logs nothing."""
    stream = await closed_session(store)
    slow = await claim_one_delivery(store)
    fast = await claim_one_delivery(store, NOW + LEASE_MS)

    assert not await store.outbox.finish_delivery(slow, attempt_of(200), "delivered", None)
    assert [Delivery("n", HOOK, 103, "pending", [])] == await store.deliveries.list_deliveries(stream.key)
    assert await store.outbox.finish_delivery(fast, attempt_of(410), "failed", None)
    assert not await store.outbox.finish_delivery(slow, attempt_of(200), "delivered", None)
    assert [Delivery("n", HOOK, 103, "failed", [attempt_of(410)])] == await store.deliveries.list_deliveries(stream.key)


async def test_a_finish_counts_once(store: Store) -> None:
    """A finish gives its lease back: a second one, after a doubtful commit, does nothing."""
    stream = await closed_session(store)
    delivery = await claim_one_delivery(store)

    assert await store.outbox.finish_delivery(delivery, attempt_of(500), "pending", NOW + 1)
    assert not await store.outbox.finish_delivery(delivery, attempt_of(500), "pending", NOW + 2)
    assert [Delivery("n", HOOK, 103, "pending", [attempt_of(500)])] == await store.deliveries.list_deliveries(
        stream.key
    )
    assert NOW + 1 == await store.outbox.next_delivery_ms()


async def test_when_the_next_delivery_is_due(store: Store) -> None:
    """The next delivery is the earliest that is due, or whose lease ends; none when nothing waits."""
    assert await store.outbox.next_delivery_ms() is None
    await closed_session(store, "s1", now_ms=NOW)
    assert NOW == await store.outbox.next_delivery_ms()
    delivery = await claim_one_delivery(store)
    assert NOW + LEASE_MS == await store.outbox.next_delivery_ms()
    await closed_session(store, "s2", now_ms=NOW + 7)
    assert NOW + 7 == await store.outbox.next_delivery_ms()
    await store.outbox.finish_delivery(delivery, attempt_of(500), "pending", NOW + 5)
    assert NOW + 5 == await store.outbox.next_delivery_ms()
    for claimed in await claim_deliveries(store, NOW + 7):
        await store.outbox.finish_delivery(claimed, attempt_of(), "delivered", None)
    assert await store.outbox.next_delivery_ms() is None


async def test_busy_receivers_hide_nobody(store: Store) -> None:
    """However much waits for receivers that are busy, or were taken away, what is due for others is found."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    for number in range(MANY):
        await closed_session(store, f"s{number}", hook=None, now_ms=NOW + number)
    await closed_session(store, "late", HOOK + "/late", now_ms=NOW + 10**6)
    await closed_session(store, "own", HOOK, now_ms=NOW + 10**6 + 1)
    later = NOW + 10**6 + 2

    found = await claim_deliveries(store, later, busy=[OPERATOR])
    assert [HOOK + "/late", HOOK] == [delivery.endpoint.url for delivery in found]
    assert [] == await claim_deliveries(store, later, busy=[OPERATOR])
    await store.directory.turn_off_operator_endpoint()
    await closed_session(store, "last", HOOK, now_ms=later)
    assert [HOOK] == [delivery.endpoint.url for delivery in await claim_deliveries(store, later)]


async def test_deliveries_stand_in_their_order(store: Store) -> None:
    """A session's deliveries are its own, in the order in which they were made."""
    key = await open_key(store, given={"webhook": {"url": HOOK}})
    await close_idle(store, key, "n1")
    await open_session(store, now_ms=NOW + 1)
    await close(store, key, END, "n2", NOW + 2)
    await closed_session(store, "other")
    waiting = [Delivery(notice_id, HOOK, 103, "pending", []) for notice_id in ("n1", "n2")]

    assert waiting == await store.deliveries.list_deliveries(key)


async def test_an_erase_meets_an_attempt_on_its_way(store: Store) -> None:
    """A delivery whose session is erased meanwhile can be finished by no one."""
    stream = await closed_session(store)
    delivery = await claim_one_delivery(store)
    await store.retention.erase(stream.key, NOW)

    assert await freeze_payload(store, delivery, b"body") is None
    assert not await store.outbox.finish_delivery(delivery, attempt_of(), "delivered", None)
    assert [] == await store.deliveries.list_deliveries(stream.key)
