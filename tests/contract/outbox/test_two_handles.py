"""Two outboxes on one store share nothing but the work."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools

from tests.support.stores.contract import (
    HOOK,
    LEASE_MS,
    NOW,
    attempt_of,
    begin_node,
    claim_deliveries,
    claim_one_delivery,
    closed_session,
    freeze_payload,
)
from voicemem.store.outbox import ClaimedDelivery
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
        set(await asyncio.gather(*(freeze_payload(store, delivery, b"%d" % id(store)) for store in two_handles * 3)))
    )


async def test_nodes_share_the_places_of_a_receiver(two_handles: tuple[Store, Store]) -> None:
    """Whoever claims, and however many at once, a URL never has more under lease than it has places."""
    nodes = dict(zip("abcdef", two_handles * 3, strict=True))
    for token, store in nodes.items():
        await begin_node(store, token)
    for number in range(20):
        await closed_session(two_handles[0], f"s{number}", notice_id=f"n{number}")
    await closed_session(two_handles[0], "other", HOOK + "/other", now_ms=NOW + 1)

    async def claim(node: str, now_ms: int = NOW + 1, **taken: int) -> list[ClaimedDelivery]:
        in_use = {HOOK: taken.get("taken", 0)}
        return await nodes[node].outbox.claim_deliveries(now_ms, LEASE_MS, in_use, 5, node, places=8)

    claims = dict(zip(nodes, await asyncio.gather(*map(claim, nodes)), strict=True))
    claimed = [delivery for deliveries in claims.values() for delivery in deliveries]
    assert 8 == len([one for one in claimed if one.endpoint.url == HOOK])
    own = {node: sum(one.endpoint.url == HOOK for one in deliveries) for node, deliveries in claims.items()}
    again = [await claim(node, taken=count) for node, count in own.items()]
    assert [HOOK + "/other"] == [
        one.endpoint.url for one in [*claimed, *itertools.chain(*again)] if one.endpoint.url != HOOK
    ]
    done = next(one for one in claimed if one.endpoint.url == HOOK)
    assert await two_handles[1].outbox.finish_delivery(done, attempt_of(), "delivered", None)
    freed = [await claim(node, taken=count - (done in claims[node])) for node, count in own.items()]
    assert 1 == sum(map(len, freed))
    assert 5 == len(await claim("a", NOW + 1 + LEASE_MS))
