"""What becomes of the deliveries for an endpoint that is disabled."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    HOOK,
    NOW,
    OPERATOR,
    add_endpoint,
    attempt_of,
    claim_deliveries,
    claim_one_delivery,
    closed_session,
    endpoint_of,
    fail_deliveries,
)
from voicemem.store.deliveries import Delivery
from voicemem.store.port import Store


async def test_a_disabled_receiver_gets_nothing(store: Store) -> None:
    """What waits for a receiver that is disabled is failed; other receivers and what was delivered stay."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    done = await closed_session(store, "s1", hook=None)
    delivery = await claim_one_delivery(store)
    await store.outbox.finish_delivery(delivery, attempt_of(), "delivered", None)
    waiting = await closed_session(store, "s2", HOOK)
    await store.endpoints.disable_endpoint(delivery.endpoint, NOW)

    assert ["delivered"] == [made.state for made in await store.deliveries.list_deliveries(done.key)]
    assert {OPERATOR: "failed", HOOK: "pending"} == {
        made.url: made.state for made in await store.deliveries.list_deliveries(waiting.key)
    }
    assert [HOOK] == [delivery.endpoint.url for delivery in await claim_deliveries(store)]


async def test_what_is_on_its_way_does_not_come_back(store: Store) -> None:
    """An attempt that was on its way when its receiver was disabled is not followed by another."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    for number in (1, 2):
        await closed_session(store, f"s{number}", hook=None)
    gone, failing = await claim_deliveries(store)
    await store.outbox.finish_delivery(gone, attempt_of(410), "failed", None)
    await store.endpoints.disable_endpoint(gone.endpoint, NOW)
    await store.outbox.finish_delivery(failing, attempt_of(500), "pending", NOW + 5000)

    assert [] == await claim_deliveries(store, NOW + 10**9)
    assert ["failed"] == [made.state for made in await store.deliveries.list_deliveries(failing.stream)]


async def test_a_success_on_its_way_still_counts(store: Store) -> None:
    """What was delivered after its receiver was disabled is delivered."""
    stream = await closed_session(store)
    delivery = await claim_one_delivery(store)
    await store.endpoints.disable_endpoint(delivery.endpoint, NOW)
    await store.outbox.finish_delivery(delivery, attempt_of(), "delivered", None)

    assert [Delivery("n", HOOK, 103, "delivered", [attempt_of()])] == await store.deliveries.list_deliveries(stream.key)


async def test_an_endpoint_that_only_fails(store: Store) -> None:
    """It is disabled when its failures began long enough ago; a success is a new beginning."""
    endpoint = await add_endpoint(store, endpoint_of())
    await closed_session(store, "s1", hook=None)
    await fail_deliveries(store, endpoint.key, now_ms=NOW)
    await closed_session(store, "s2", hook=None, now_ms=NOW + 5)
    await fail_deliveries(store, endpoint.key, now_ms=NOW + 5)
    assert NOW == (await store.endpoints.list_endpoints("p"))[0].failing_since_ms
    assert not await store.endpoints.disable_failing(endpoint.key, NOW - 1, NOW + 10)
    await closed_session(store, "s3", hook=None)
    assert await store.outbox.finish_delivery(await claim_one_delivery(store), attempt_of(), "delivered", None)
    assert not await store.endpoints.disable_failing(endpoint.key, NOW + 100, NOW + 100)
    await closed_session(store, "s4", hook=None, now_ms=NOW + 7)
    await fail_deliveries(store, endpoint.key, now_ms=NOW + 7)
    await closed_session(store, "s5", hook=None, now_ms=NOW + 8)
    assert await store.endpoints.disable_failing(endpoint.key, NOW + 7, NOW + 10)

    (disabled,) = await store.endpoints.list_endpoints("p")
    assert (NOW + 10, "failing", NOW + 7) == (
        disabled.disabled_ms,
        disabled.disabled_reason,
        disabled.failing_since_ms,
    )
    assert [] == await claim_deliveries(store, NOW + 10)
    assert not await store.endpoints.disable_failing(endpoint.key, NOW + 7, NOW + 11)


async def test_other_receivers_are_not_disabled_for_failing(store: Store) -> None:
    """The operator's and a session's own are tried as long as sessions end."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    await closed_session(store)
    for delivery in await claim_deliveries(store):
        await store.outbox.finish_delivery(delivery, attempt_of(500), "failed", None)
        assert not await store.endpoints.disable_failing(delivery.endpoint.key, NOW + 10, NOW + 10)


async def test_the_operators_endpoint_fails_and_stays(store: Store) -> None:
    """It is known since when it fails, until it works; it is never disabled for that."""
    await store.directory.set_operator_endpoint("https://operator.example/all", None, "full", NOW)
    await closed_session(store, hook=None)
    (delivery,) = await claim_deliveries(store)
    await store.outbox.finish_delivery(delivery, attempt_of(500, started_ms=NOW + 1), "pending", NOW + 2)
    failing = await store.endpoints.find_operator_endpoint()
    assert failing is not None
    assert (NOW + 1, None) == (failing.failing_since_ms, failing.disabled_ms)
    assert not await store.endpoints.disable_failing(failing.key, NOW + 1, NOW + 2)
    (delivery,) = await claim_deliveries(store, NOW + 2)
    await store.outbox.finish_delivery(delivery, attempt_of(), "delivered", None)
    well = await store.endpoints.find_operator_endpoint()
    assert well is not None
    assert well.failing_since_ms is None
