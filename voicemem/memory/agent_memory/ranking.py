"""The order of a page when recency counts too, as agent-memory-server has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicemem.memory.long_term.records import Memory

DAY_MS = 86_400_000


class Recency(NamedTuple):
    """How much it counts how well a memory fits, how lately it was accessed and how lately it was made."""

    semantic_weight: float = 0.8
    recency_weight: float = 0.2
    freshness_weight: float = 0.6
    novelty_weight: float = 0.4
    half_life_last_access_days: float = 7.0
    half_life_created_days: float = 30.0

    def score(self, memory: Memory, fit: float, now_ms: int) -> float:
        accessed_ms = memory.created_at if memory.last_accessed is None else memory.last_accessed
        freshness = decay(now_ms - accessed_ms, self.half_life_last_access_days)
        novelty = decay(now_ms - memory.created_at, self.half_life_created_days)
        recency = self.freshness_weight * freshness + self.novelty_weight * novelty
        return self.semantic_weight * fit + self.recency_weight * recency


def decay(age_ms: int, half_life_days: float) -> float:
    """1 now, and half as much after each half-life."""
    return float(0.5 ** (max(0, age_ms) / DAY_MS / half_life_days))


def rerank(page: Sequence[tuple[Memory, float]], recency: Recency, now_ms: int) -> list[tuple[Memory, float]]:
    """The same memories; of equal ones the one that stood first stays first."""
    return sorted(page, key=lambda found: -recency.score(found[0], found[1], now_ms))
