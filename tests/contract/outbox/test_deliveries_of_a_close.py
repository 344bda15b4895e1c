"""A close makes a delivery for every receiver."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    END,
    HOOK,
    NOW,
    OPERATOR,
    append_offers,
    claim_deliveries,
    claim_one_delivery,
    close,
    close_idle,
    closed_session,
    offer,
    offers,
    open_key,
    update_offer,
)
from voicemem.store.outbox import Endpoint, SessionHeader
from voicemem.store.port import Store


async def test_a_close_delivers_to_every_receiver(store: Store) -> None:
    """A close makes one delivery for the operator's receiver and one for the session's own, of the same webhook."""
    await store.directory.set_operator_endpoint(OPERATOR, "operator-secret")
    webhook = {"url": HOOK, "secret": "own-secret", "contents": "standard"}
    key = await open_key(store, given={"webhook": webhook})
    await append_offers(store, key, *offers(1, 3))
    await store.journal.close_session(key, END, "n1", NOW)
    deliveries = {delivery.endpoint.url: delivery for delivery in await claim_deliveries(store)}

    assert {OPERATOR, HOOK} == set(deliveries)
    assert {(key, "n1", 103, 4, None, 0)} == {
        (
            delivery.stream,
            delivery.notice_id,
            delivery.event_type,
            delivery.position,
            delivery.payload,
            delivery.attempts,
        )
        for delivery in deliveries.values()
    }
    own, operator = deliveries[HOOK].endpoint, deliveries[OPERATOR].endpoint
    assert Endpoint(own.key, key, HOOK, "own-secret", "standard", True, None) == own
    assert Endpoint(operator.key, None, OPERATOR, "operator-secret", "full", False, None) == operator


async def test_without_a_receiver_there_is_no_delivery(store: Store) -> None:
    """A session that no one wants to hear of makes no delivery."""
    stream = await closed_session(store, hook=None)

    assert ([], None, []) == (
        await claim_deliveries(store),
        await store.outbox.next_delivery_ms(),
        await store.deliveries.list_deliveries(stream.key),
    )


async def test_no_delivery_for_a_disabled_receiver(store: Store) -> None:
    """Receivers that were disabled or taken away get nothing from later closes."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    first = await closed_session(store, "s1", hook=None)
    await store.endpoints.disable_endpoint((await claim_one_delivery(store)).endpoint, NOW)
    key = await open_key(store, "s2", {"webhook": {"url": HOOK}})
    await append_offers(store, key, update_offer(1, {"webhook": {"url": None}}))
    await close(store, key)

    assert [] == await store.deliveries.list_deliveries(key)
    assert 1 == len(await store.deliveries.list_deliveries(first.key))


async def test_a_receiver_may_come_during_the_call(store: Store) -> None:
    """The receiver that counts is the one at the close, with its newest secret."""
    key = await open_key(store, given={"webhook": {"url": HOOK, "secret": "old"}})
    await append_offers(store, key, update_offer(1, {"webhook": {"secret": "new"}}))
    await append_offers(store, key, update_offer(2, {"webhook": {"url": HOOK + "/2"}}))
    await close(store, key)
    delivery = await claim_one_delivery(store)

    assert (HOOK + "/2", "new") == (delivery.endpoint.url, delivery.endpoint.secret)


async def test_a_receiver_may_come_back(store: Store) -> None:
    """A session's receiver that was taken away and is given again hears of the close."""
    key = await open_key(store, given={"webhook": {"url": HOOK}})
    await append_offers(
        store, key, update_offer(1, {"webhook": {"url": None}}), update_offer(2, {"webhook": {"url": HOOK}})
    )
    await close(store, key)

    assert HOOK == (await claim_one_delivery(store)).endpoint.url


async def test_every_close_delivers_again(store: Store) -> None:
    """A session that was reopened is delivered again at its next close, at the position of that close."""
    key = await open_key(store, given={"webhook": {"url": HOOK}})
    await close_idle(store, key, "n1")
    await append_offers(store, key, offer(1), now_ms=NOW + 1)
    await close(store, key, END, "n2", NOW + 2)
    deliveries = await claim_deliveries(store, NOW + 2)

    assert [("n1", 1), ("n2", 4)] == [(delivery.notice_id, delivery.position) for delivery in deliveries]


async def test_a_delivery_is_of_its_close(store: Store) -> None:
    """What stands around the contents of a delivery is as it was at its close, whatever the session became later."""
    first = {"name": "joker", "channel": "c", "labels": {"a": "1"}, "webhook": {"url": HOOK}}
    key = await open_key(store, given=first, now_ms=NOW - 9)
    await close_idle(store, key, "n1")
    await append_offers(
        store, key, update_offer(1, {"name": "other", "channel": None, "labels": {"a": "2"}}), now_ms=NOW + 1
    )
    await close(store, key, END, "n2", NOW + 2)
    deliveries = {delivery.notice_id: delivery.header for delivery in await claim_deliveries(store, NOW + 2)}

    assert SessionHeader("s", "joker", "c", {"a": "1"}, NOW - 9, NOW, "idle") == deliveries["n1"]
    assert SessionHeader("s", "other", None, {"a": "2"}, NOW - 9, NOW + 2, END.reason) == deliveries["n2"]


async def test_what_is_not_closed_is_not_delivered(store: Store) -> None:
    """A close that does nothing makes no delivery."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    key = await open_key(store)
    await store.journal.close_session(key, None, "n", NOW)
    await store.journal.close_ended(key, "n", NOW)

    assert [] == await claim_deliveries(store)
