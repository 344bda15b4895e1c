"""What is still under way for an erased session must not touch the session that comes after it (found by 27)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import freeze_payload
from voicemem.config.session import validate_config
from voicemem.store.outbox import Attempt, ClaimedDelivery
from voicemem.store.port import Store
from voicemem.store.streams import SessionEnding

OWN = {"webhook": {"url": "https://hooks.example.com/a"}}


async def closed(store: Store, session_id: str, at: int) -> tuple[int, ClaimedDelivery]:
    """A closed session's key, and its delivery, claimed."""
    key = (await store.journal.open_producer("p", session_id, "main", validate_config(OWN), None, at)).stream.key
    await store.journal.close_session(key, SessionEnding(at, "api"), f"notice of {session_id}", at)
    (delivery,) = await store.outbox.claim_deliveries(at, 1_000, {}, 10)
    return key, delivery


async def erase(store: Store, key: int) -> None:
    """Erase a session, and take its content out of the store."""
    await store.retention.erase(key, 2)
    while await store.retention.delete_erased([key]):
        pass
    assert await store.retention.finish_erased()


async def test_a_body_of_an_erased_session_goes_nowhere(store: Store) -> None:
    """A body that was made before the erase, and frozen after it, does not become another session's."""
    key, delivery = await closed(store, "erased", 1)
    await erase(store, key)
    _, other = await closed(store, "other", 3)
    assert await freeze_payload(store, delivery, b"what the erased session said") is None
    assert b"its own" == await freeze_payload(store, other, b"its own")


async def test_a_delivery_of_an_erased_session_counts_for_nobody(store: Store) -> None:
    """An attempt that ends after the erase does not finish another session's delivery."""
    key, delivery = await closed(store, "erased", 1)
    await erase(store, key)
    key, _ = await closed(store, "other", 3)
    assert not await store.outbox.finish_delivery(delivery, Attempt(4, 1, 200, None, ""), "delivered", None)
    assert ["pending"] == [delivery.state for delivery in await store.deliveries.list_deliveries(key)]


async def test_a_receiver_of_an_erased_session_disables_nobody(store: Store) -> None:
    """A 410 that comes after the erase does not disable another session's receiver."""
    key, delivery = await closed(store, "erased", 1)
    await erase(store, key)
    key, _ = await closed(store, "other", 3)
    await store.endpoints.disable_endpoint(delivery.endpoint, 4)
    assert ["pending"] == [delivery.state for delivery in await store.deliveries.list_deliveries(key)]
