"""The deliveries of an endpoint, and sending them again."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support.stores.contract import (
    NOW,
    add_endpoint,
    attempt_of,
    claim_deliveries,
    claim_one_delivery,
    closed_session,
    delivery_states,
    endpoint_of,
    fail_deliveries,
    freeze_payload,
)
from voicemem.store.deliveries import Delivery, EndpointDelivery
from voicemem.store.outbox import Endpoint
from voicemem.store.port import Store


async def test_deliveries_of_an_endpoint(store: Store) -> None:
    """They are listed with their attempts, the newest first, by what is asked for."""
    endpoint = await add_endpoint(store, endpoint_of("e1", 102, 103))
    await add_endpoint(store, endpoint_of("e2"))
    for number in (1, 2):
        await closed_session(store, f"s{number}", hook=None, notice_id=f"n{number}", now_ms=NOW + number)
    for delivery in await claim_deliveries(store, NOW + 1):
        await store.outbox.finish_delivery(delivery, attempt_of(), "delivered", None)
    everyone = await delivery_states(store, endpoint)

    assert ["n2", "n2-102", "n1", "n1-102"] == [one.delivery.notice_id for one in everyone]
    url = endpoint.url
    assert [
        EndpointDelivery(everyone[0].key, "s2", NOW + 2, NOW + 2, Delivery("n2", url, 103, "pending", [])),
        EndpointDelivery(everyone[2].key, "s1", NOW + 1, None, Delivery("n1", url, 103, "delivered", [attempt_of()])),
    ] == await delivery_states(store, endpoint, event_type=103)
    assert (
        everyone[2:]
        == await delivery_states(store, endpoint, session_id="s1")
        == await delivery_states(store, endpoint, state="delivered")
    )
    assert everyone[1:3] == await delivery_states(store, endpoint, before=everyone[0].key, limit=2)


async def test_sending_again(store: Store) -> None:
    """What was delivered, has failed or waits is due at once; the attempts of before count for the log only."""
    endpoint, other = (
        await add_endpoint(store, endpoint_of()),
        await add_endpoint(store, endpoint_of("e2", 101, project="other")),
    )
    stream = await closed_session(store, hook=None)
    await attempt_once(store, endpoint, "delivered")
    (delivered,) = await delivery_states(store, endpoint)
    assert await store.deliveries.resend(other.key, delivered.key, NOW) is None
    assert await store.deliveries.resend(endpoint.key, delivered.key + 100, NOW) is None
    again = await store.deliveries.resend(endpoint.key, delivered.key, NOW + 9)

    assert again is not None
    assert ("pending", NOW + 9) == (again.delivery.state, again.due_ms)
    delivery = await claim_one_delivery(store, NOW + 9)
    assert (4, 1, 1) == (delivery.payload_bytes, delivery.attempts, delivery.restarted_at)
    assert await store.outbox.finish_delivery(delivery, attempt_of(500), "pending", NOW + 10**6)
    assert await store.deliveries.resend(endpoint.key, delivered.key, NOW + 10) is not None
    delivery = await claim_one_delivery(store, NOW + 10)
    assert (2, 2) == (delivery.attempts, delivery.restarted_at)
    await store.retention.erase(stream.key, NOW)
    assert await store.deliveries.resend(endpoint.key, delivered.key, NOW + 11) is None
    assert [] == await delivery_states(store, endpoint)


async def attempt_once(store: Store, endpoint: Endpoint, state: Any) -> None:
    """One attempt of the one delivery that is due."""
    delivery = await claim_one_delivery(store)
    assert endpoint.key == delivery.endpoint.key
    await freeze_payload(store, delivery, b"body")
    await store.outbox.finish_delivery(delivery, attempt_of(), state, None)


async def test_an_attempt_under_way_is_not_doubled(store: Store) -> None:
    """Sending again what is leased makes no second attempt beside it, and a success then stands."""
    endpoint = await add_endpoint(store, endpoint_of())
    await closed_session(store, hook=None)
    claimed = await claim_one_delivery(store)
    (delivery,) = await delivery_states(store, endpoint)
    await store.deliveries.resend(endpoint.key, delivery.key, NOW + 1)

    assert [] == await claim_deliveries(store, NOW + 1)
    assert await store.outbox.finish_delivery(claimed, attempt_of(), "delivered", None)
    assert ["delivered"] == [one.delivery.state for one in await delivery_states(store, endpoint)]
    assert [] == await claim_deliveries(store, NOW + 10**9)


async def test_recovering(store: Store) -> None:
    """What failed since a time is due; not what failed before, was delivered, waits, or is another endpoint's."""
    endpoint, other = await add_endpoint(store, endpoint_of()), await add_endpoint(store, endpoint_of("e2"))
    await closed_session(store, "old", hook=None, now_ms=NOW)
    await fail_deliveries(store, endpoint.key)
    await store.endpoints.change_endpoint("p", "e2", lambda old: replace(old, disabled_ms=NOW))
    for number in (1, 2):
        await closed_session(store, f"s{number}", hook=None, now_ms=NOW + number)
    await fail_deliveries(store, endpoint.key, 2, NOW + 2)
    await closed_session(store, "waits", hook=None, now_ms=NOW + 10**6)
    gone = await closed_session(store, "gone", hook=None, now_ms=NOW + 3)
    await fail_deliveries(store, endpoint.key, 1, NOW + 3)
    await store.retention.erase(gone.key, NOW + 3)

    assert 2 == await store.deliveries.resend_failed(endpoint.key, NOW + 1, NOW + 4)
    assert {"s1", "s2"} == {delivery.header.session_id for delivery in await claim_deliveries(store, NOW + 4)}
    assert 1 == await store.deliveries.resend_failed(endpoint.key, 0, NOW + 4)
    assert 1 == await store.deliveries.resend_failed(other.key, 0, NOW + 4)
