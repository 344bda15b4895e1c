"""The deliveries of a project over all endpoints, and how its endpoints do."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from tests.support.stores.contract import (
    NOW,
    add_endpoint,
    attempt_of,
    claim_deliveries,
    closed_session,
    delivery_states,
    endpoint_of,
    freeze_payload,
    kept_payload,
)
from voicemem.store.deliveries import DeliveryFilter, DeliveryPage, EndpointCounts
from voicemem.store.port import Store

OWN = "https://own.example/hook"


async def listed(store: Store, operators: bool = False, stream: int | None = None, **wanted: Any) -> DeliveryPage:
    return await store.deliveries.list_project_deliveries("p", DeliveryFilter(**wanted), operators, stream)


def webhook_events(page: DeliveryPage) -> list[str]:
    return [one.delivery.delivery.notice_id for one in page.deliveries]


async def test_deliveries_of_a_project(store: Store) -> None:
    """Those to a session's own receiver are there too, the operator's only if asked for, no other project's."""
    await store.directory.set_operator_endpoint("https://operator.example/all", None, "full", NOW)
    endpoint = await add_endpoint(store, endpoint_of("e1", 102))
    await add_endpoint(store, endpoint_of("e2", 102, project="other"))
    stream = await closed_session(store, "s1", hook=OWN, notice_id="n1")
    await closed_session(store, "s2", hook=None, notice_id="n2")
    page, everything = await listed(store), await listed(store, operators=True)

    assert {"n2-102", "n1", "n1-102"} == set(webhook_events(page))
    assert page.next_before is None
    assert {OWN: None, endpoint.url: "e1"} == {one.endpoint.url: one.endpoint.id for one in page.deliveries}
    assert 5 == len(everything.deliveries)
    assert {"s1"} == {one.delivery.session_id for one in (await listed(store, stream=stream.key)).deliveries}
    assert ["n2-102"] == webhook_events(await listed(store, session_id="s2"))
    assert [] == (await store.deliveries.list_project_deliveries("nobody", DeliveryFilter(), True)).deliveries
    await store.retention.erase(stream.key, NOW)
    assert ["n2-102"] == webhook_events(await listed(store))


async def test_by_state_in_pages(store: Store) -> None:
    """Each state has its list, which goes on where the page before ended."""
    await add_endpoint(store, endpoint_of("e1", 103))
    for number in range(5):
        await closed_session(store, f"s{number}", hook=None, notice_id=f"n{number}")
    states = {"n0": "failed", "n1": "delivered", "n2": "failed", "n3": "failed"}
    for delivery in await claim_deliveries(store):
        state: Any = states.get(delivery.notice_id)
        if state is not None:
            await store.outbox.finish_delivery(delivery, attempt_of(500), state, None)

    assert (["n1"], ["n4"]) == (
        webhook_events(await listed(store, state="delivered")),
        webhook_events(await listed(store, state="pending")),
    )
    first = await listed(store, state="failed", limit=2)
    assert ["n3", "n2"] == webhook_events(first)
    second = await listed(store, state="failed", limit=2, before=first.next_before)
    assert (["n0"], None) == (webhook_events(second), second.next_before)
    assert [attempt_of(500)] == second.deliveries[0].delivery.delivery.attempts


async def test_one_with_what_was_sent(store: Store) -> None:
    """A delivery is found with the payload of its body, once that is made; one of another project is not."""
    await add_endpoint(store, endpoint_of("e1", 103))
    await closed_session(store, hook=None, notice_id="n")
    key = (await listed(store)).deliveries[0].delivery.key
    found = await store.deliveries.find_project_delivery("p", key, False)
    assert found is not None
    assert ("n", None) == (found[0].delivery.delivery.notice_id, found[1])
    (delivery,) = await claim_deliveries(store)
    await freeze_payload(store, delivery, b'{"sent":1}')
    found = await store.deliveries.find_project_delivery("p", key, False)
    assert found is not None
    assert b'{"sent":1}' == await kept_payload(store, found[1])
    assert await store.deliveries.find_project_delivery("other", key, True) is None
    assert await store.deliveries.find_project_delivery("p", key + 100, True) is None


async def test_how_endpoints_do(store: Store) -> None:
    """What was delivered and failed since a time is counted, and all that waits."""
    endpoint = await add_endpoint(store, endpoint_of("e1", 103))
    idle = await add_endpoint(store, endpoint_of("e2", 101))
    for number in range(4):
        await closed_session(store, f"s{number}", hook=None, notice_id=f"n{number}", now_ms=NOW + number)
    results: dict[str, Any] = {"n0": "failed", "n1": "failed", "n2": "delivered"}
    for delivery in await claim_deliveries(store, NOW + 10):
        if delivery.notice_id in results:
            await store.outbox.finish_delivery(delivery, attempt_of(), results[delivery.notice_id], None)
    assert 4 == len(await delivery_states(store, endpoint))

    counts = await store.deliveries.count_endpoint_deliveries([endpoint.key, idle.key], NOW + 1)
    assert {endpoint.key: EndpointCounts(1, 1, 1), idle.key: EndpointCounts(0, 0, 4)} == counts


async def test_a_page_of_many_that_are_others(store: Store) -> None:
    """After as many as are looked at for one page, the list goes on with the next page."""
    await closed_session(store, hook=OWN)
    store.deliveries.most_scanned = 1
    others = await store.deliveries.list_project_deliveries("q", DeliveryFilter(limit=1), False)
    assert ([], False) == (others.deliveries, others.next_before is None)
    store.deliveries.most_scanned = 100
    assert DeliveryPage([], None) == await store.deliveries.list_project_deliveries("q", DeliveryFilter(limit=1), False)
