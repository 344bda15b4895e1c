"""Appends to a store, as tests of its port make them."""

from __future__ import annotations

from collections.abc import Sequence

from voicemem.store.admission import Batch, Offer, Outcome
from voicemem.store.port import Journal
from voicemem.store.records import AppendResult


async def append(
    store: Journal, key: int, producer: str, epoch: int | None, offers: Sequence[Offer], now_ms: int
) -> AppendResult:
    """One batch, as plain payloads where it can be one, with the outcome of each event."""
    seqs = [offer.seq for offer in offers if offer == Offer(offer.seq, now_ms, offer.payload)]
    first = next(iter(seqs), None) or 0
    if first and seqs == [*range(first, first + len(offers))]:
        batch = Batch(key, producer, epoch, now_ms, [offer.payload for offer in offers], first)
    else:
        batch = Batch(key, producer, epoch, now_ms, offers=offers)
    (appended,) = await store.append([batch], now_ms)
    if appended.position is None:
        return appended
    positions = range(appended.position, appended.position + len(offers))
    return appended._replace(outcomes=[Outcome(position) for position in positions])
