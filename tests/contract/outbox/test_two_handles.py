"""Two outboxes on one store share nothing but the work."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

from tests.support.stores.contract import claim_deliveries, claim_one_delivery, closed_session
from voicemem.store.port import Store


async def test_two_outboxes_share_nothing(two_handles: tuple[Store, Store]) -> None:
    """Outboxes that claim at once never get the same delivery, and together get all."""
    for number in range(20):
        await closed_session(two_handles[0], f"s{number}", notice_id=f"n{number}")

    claims = await asyncio.gather(*(claim_deliveries(store, limit=3) for store in two_handles * 4))
    assert sorted(f"n{number}" for number in range(20)) == sorted(
        delivery.notice_id for deliveries in claims for delivery in deliveries
    )
    assert [] == await claim_deliveries(two_handles[1])


async def test_two_freeze_one_body(two_handles: tuple[Store, Store]) -> None:
    """Whoever freezes at once, all send the same body."""
    await closed_session(two_handles[0])
    delivery = await claim_one_delivery(two_handles[0])

    assert 1 == len(
        set(await asyncio.gather(*(store.freeze_payload(delivery, b"%d" % id(store)) for store in two_handles * 3)))
    )
