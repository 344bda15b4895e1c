"""The operator's own receiver."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    HOOK,
    NOW,
    OPERATOR,
    append_offers,
    claim_deliveries,
    claim_one_delivery,
    close_idle,
    closed_session,
    open_key,
    update_offer,
)
from voicemem.store.directory import OPERATOR_OVERLAP_MS
from voicemem.store.port import Store


async def test_the_operators_receiver_hears_of_every_session(store: Store) -> None:
    """A session's own receiver hears of that session only, the operator's of all."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    first = await closed_session(store, "s1", HOOK)
    second = await closed_session(store, "s2", None)
    deliveries = await claim_deliveries(store)

    heard = {(first.key, HOOK), (first.key, OPERATOR), (second.key, OPERATOR)}
    assert (3, heard) == (len(deliveries), {(delivery.stream, delivery.endpoint.url) for delivery in deliveries})


async def test_the_operators_endpoint_is_found_unless_it_was_taken_away(store: Store) -> None:
    """One that is disabled is still there; one that the operator gave up is not."""
    assert await store.endpoints.find_operator_endpoint() is None
    await store.directory.set_operator_endpoint(OPERATOR, None)
    await closed_session(store, hook=None)
    delivery = await claim_one_delivery(store)
    assert delivery.endpoint == await store.endpoints.find_operator_endpoint()
    await store.endpoints.disable_endpoint(delivery.endpoint, NOW)
    found = await store.endpoints.find_operator_endpoint()
    assert found is not None
    assert (OPERATOR, NOW, "gone") == (found.url, found.disabled_ms, found.disabled_reason)
    await store.directory.turn_off_operator_endpoint()
    assert await store.endpoints.find_operator_endpoint() is None


async def test_another_operators_receiver(store: Store) -> None:
    """A new URL replaces the operator's receiver; giving one, be it the same, enables it."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    await closed_session(store, "s1", hook=None)
    await store.endpoints.disable_endpoint((await claim_one_delivery(store)).endpoint, NOW)
    await closed_session(store, "s2", hook=None)
    assert [] == await claim_deliveries(store)
    await store.directory.set_operator_endpoint(OPERATOR + "/new", "secret")
    stream = await closed_session(store, "s3", hook=None)

    delivery = await claim_one_delivery(store)
    assert (stream.key, OPERATOR + "/new", "secret") == (
        delivery.stream,
        delivery.endpoint.url,
        delivery.endpoint.secret,
    )


async def test_the_contents_of_the_operators_receiver(store: Store) -> None:
    """They are full unless they are given, and each start gives them again."""
    for given, expected in (((), "full"), (("standard",), "standard"), ((), "full")):
        await store.directory.set_operator_endpoint(OPERATOR, None, *given)
        found = await store.endpoints.find_operator_endpoint()
        assert found is not None
        assert expected == found.contents


async def test_no_operators_receiver_any_more(store: Store) -> None:
    """Without its URL the operator's receiver hears no more, and with it again."""
    await store.directory.turn_off_operator_endpoint()
    await store.directory.set_operator_endpoint(OPERATOR, None)
    await store.directory.turn_off_operator_endpoint()
    await closed_session(store, "s1", hook=None)
    assert [] == await claim_deliveries(store)
    await store.directory.set_operator_endpoint(OPERATOR, None)
    await closed_session(store, "s2", hook=None)
    assert 1 == len(await claim_deliveries(store))


async def test_what_waits_for_a_removed_receiver_is_not_sent(store: Store) -> None:
    """When a receiver is taken away, the operator's or a session's own, what waits for it is not sent to it."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    key = await open_key(store, given={"webhook": {"url": HOOK}})
    await close_idle(store, key)
    await append_offers(store, key, update_offer(1, {"webhook": {"url": None}}), now_ms=NOW + 1)
    await store.directory.turn_off_operator_endpoint()

    assert [] == [delivery.endpoint.url for delivery in await claim_deliveries(store, NOW + 1)]


async def test_a_secret_that_is_replaced_signs_for_another_day(store: Store) -> None:
    """At the same URL, so that receivers and nodes are switched one by one; the same secret again changes nothing."""
    await store.directory.set_operator_endpoint(OPERATOR, "old", now_ms=NOW)
    await store.directory.set_operator_endpoint(OPERATOR, "new", now_ms=NOW + 1)
    await store.directory.set_operator_endpoint(OPERATOR, "new", now_ms=NOW + 2)
    found = await store.endpoints.find_operator_endpoint()
    assert found is not None
    assert ("new", "old", NOW + 1 + OPERATOR_OVERLAP_MS) == (found.secret, found.old_secret, found.old_secret_until_ms)
    await store.directory.set_operator_endpoint(HOOK, "other", now_ms=NOW + 3)
    found = await store.endpoints.find_operator_endpoint()
    assert found is not None
    assert (HOOK, "other", None) == (found.url, found.secret, found.old_secret)
