"""Slim rows of sessions."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    NOW,
    add_endpoint,
    attempt_of,
    claim_deliveries,
    closed_session,
    endpoint_of,
    open_key,
)
from voicemem.store.port import Store
from voicemem.store.records import SessionFilter

EVERYTHING = SessionFilter(project="p")


async def webhooks(store: Store) -> dict[str, object]:
    rows = await store.list_overviews(EVERYTHING)
    return {row.session_id: (row.webhooks, row.next_attempt_ms) for row in rows}


async def test_a_row_tells_what_became_of_its_webhooks(store: Store) -> None:
    """The worst of all deliveries of a session, and when the next attempt is due."""
    await add_endpoint(store, endpoint_of("e1"))
    await add_endpoint(store, endpoint_of("e2"))
    await open_key(store, "none")
    await closed_session(store, "s", hook=None, notice_id="n")
    assert {"none": (None, None), "s": ("pending", NOW)} == await webhooks(store)
    first, second = await claim_deliveries(store, NOW)
    await store.finish_delivery(first, attempt_of(), "delivered", None)
    await store.finish_delivery(second, attempt_of(), "pending", NOW + 7)
    assert ("pending", NOW + 7) == (await webhooks(store))["s"]
    (again,) = await claim_deliveries(store, NOW + 7)
    await store.finish_delivery(again, attempt_of(), "failed", None)
    assert ("failed", None) == (await webhooks(store))["s"]
