"""Endpoints of projects: kept, changed, deleted."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from msgspec.structs import replace

from tests.support.stores.contract import (
    HOOK,
    NOW,
    OPERATOR,
    add_endpoint,
    attempt_of,
    claim_deliveries,
    claim_one_delivery,
    closed_session,
    delivery_states,
    endpoint_of,
)
from voicemem.store.port import Store


async def test_endpoints_are_kept_by_project(store: Store) -> None:
    """They are found by project and id, in the order in which they were made, as they were given."""
    first = await add_endpoint(store, endpoint_of("e1", 101, 112, description="ours", contents="standard"))
    second = await add_endpoint(store, endpoint_of("e2", disabled_ms=NOW, disabled_reason="request"))
    other = await add_endpoint(store, endpoint_of("e1", project="other"))

    assert [first, second] == await store.endpoints.list_endpoints("p")
    assert (first, other, None) == (
        await store.endpoints.find_endpoint("p", "e1"),
        await store.endpoints.find_endpoint("other", "e1"),
        await store.endpoints.find_endpoint("other", "e2"),
    )
    assert replace(endpoint_of("e1", 101, 112, description="ours", contents="standard"), key=first.key) == first
    assert await store.endpoints.add_endpoint(endpoint_of("e3"), 2) is None
    assert [first, second] == await store.endpoints.list_endpoints("p")


async def test_changing_an_endpoint(store: Store) -> None:
    """Every field may change; what waits goes where it is then, and what is unknown stays unknown."""
    endpoint = await add_endpoint(store, endpoint_of())
    await closed_session(store, hook=None)
    new = {"url": HOOK, "secret": "new", "old_secret": "old", "old_secret_until_ms": NOW, "event_types": (101,)}
    changed = await store.endpoints.change_endpoint("p", "e1", lambda old: replace(old, **new))

    assert (
        replace(endpoint, **new)
        == changed
        == await store.endpoints.find_endpoint("p", "e1")
        == (await claim_one_delivery(store)).endpoint
    )
    assert await store.endpoints.change_endpoint("other", "e1", lambda old: replace(old, url=OPERATOR)) is None
    assert await store.endpoints.change_endpoint("p", "e2", lambda old: replace(old, url=OPERATOR)) is None


async def test_an_endpoint_that_is_disabled_waits_for_nothing(store: Store) -> None:
    """What waits is failed, and nothing new is made, until it is enabled."""
    endpoint = await add_endpoint(store, endpoint_of())
    await closed_session(store, "s1", hook=None)
    await store.endpoints.change_endpoint("p", "e1", lambda old: replace(old, disabled_ms=NOW))
    await closed_session(store, "s2", hook=None)
    assert ([], None) == (await claim_deliveries(store), await store.outbox.next_delivery_ms())
    await store.endpoints.change_endpoint("p", "e1", lambda old: replace(old, disabled_ms=None))
    await closed_session(store, "s3", hook=None)

    assert ["s3"] == [delivery.header.session_id for delivery in await claim_deliveries(store)]
    states = [(one.session_id, one.delivery.state) for one in await delivery_states(store, endpoint)]
    assert [("s3", "pending"), ("s1", "failed")] == states


async def test_an_endpoint_that_is_gone_says_so(store: Store) -> None:
    """Its reason can be read."""
    endpoint = await add_endpoint(store, endpoint_of())
    await store.endpoints.disable_endpoint(endpoint, NOW + 1)

    assert replace(endpoint, disabled_ms=NOW + 1, disabled_reason="gone") == await store.endpoints.find_endpoint(
        "p", "e1"
    )


async def test_deleting_an_endpoint(store: Store) -> None:
    """Nothing is sent to it or known of it any more; what was on its way comes to its end without harm."""
    endpoint = await add_endpoint(store, endpoint_of())
    await closed_session(store, "s1", hook=None)
    on_its_way = await claim_one_delivery(store)
    await closed_session(store, "s2", hook=None)
    assert not await store.endpoints.delete_endpoint("other", "e1")
    assert await store.endpoints.delete_endpoint("p", "e1")
    assert not await store.endpoints.delete_endpoint("p", "e1")
    await store.outbox.finish_delivery(on_its_way, attempt_of(500), "pending", NOW + 1)

    assert ([], None, []) == (
        await store.endpoints.list_endpoints("p"),
        await store.endpoints.find_endpoint("p", "e1"),
        await claim_deliveries(store, NOW + 10**9),
    )
    assert ([], None) == (await delivery_states(store, endpoint), await store.outbox.next_delivery_ms())
