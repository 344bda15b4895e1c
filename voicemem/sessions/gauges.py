"""Gauges: metrics whose values are looked up only when the metrics are read."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from voicemem.errors import StoreUnavailable
from voicemem.runtime import Clock, entries_of
from voicemem.sessions.lifecycle import Presence
from voicemem.sessions.node_lease import NodeLease
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.quarantine import FOLD_VERSION
from voicemem.store.port import Store
from voicemem.telemetry.metrics import Metrics

STORE_S = 2.0
"""How long the store is waited for: readers of metrics give up soon."""


@dataclass(eq=False)
class Gauges:
    """Sets the gauges of `metrics`.

    `connections` returns the number of open connections by port, `unauthenticated` the number of those whose client
    has not sent a key, `draining` whether the service is shutting down.
    """

    metrics: Metrics
    clock: Clock
    presence: Presence
    read_models: ReadModelCache
    connections: Callable[[], Mapping[str, int]]
    unauthenticated: Callable[[], Mapping[str, int]]
    draining: Callable[[], bool]
    node: NodeLease
    evicted: Counter[str] = field(default_factory=Counter)

    async def refresh(self) -> None:
        """Set all gauges. While the store is down, those that come from it keep their last values."""
        metrics, store = self.metrics, self.presence.sessions.store
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(STORE_S):
                await self.refresh_store(store, self.clock())
        metrics.last_commit_ok.set(store.healthy)
        metrics.draining.set(self.draining())
        metrics.node_info.clear()
        if token := self.node.shown_token():
            metrics.node_info.labels(token, self.node.address).set(1)
        for gauge, counts in (
            (metrics.connections, self.connections()),
            (metrics.connections_unauthenticated, self.unauthenticated()),
        ):
            for kind, count in counts.items():
                gauge.labels(kind).set(count)
        metrics.sessions_connected.set(len(self.presence.connected))
        await self.refresh_memories()

    async def refresh_store(self, store: Store, now: int) -> None:
        metrics = self.metrics
        figures = await store.read_figures(now)
        metrics.sessions.labels("running").set(figures.running)
        metrics.outbox_pending.set(figures.pending)
        metrics.outbox_due.set(figures.due)
        since = now if figures.oldest_pending_ms is None else figures.oldest_pending_ms
        metrics.outbox_oldest_seconds.set(max(0, now - since) / 1000)
        metrics.sessions_set_aside.set(await store.quarantine.count_quarantined(FOLD_VERSION))
        metrics.db_bytes.set(figures.bytes)
        metrics.db_wal_bytes.set(figures.wal_bytes)

    async def refresh_memories(self) -> None:
        metrics, budget = self.metrics, self.read_models.budget
        count = packed = lagging = longest_lag = 0
        async for _, read_model in entries_of(self.read_models.cached):
            count += 1
            packed += read_model.unpacked is None
            lag = read_model.known_position - read_model.position
            lagging, longest_lag = lagging + (lag > 0), max(lag, longest_lag)
        metrics.memories.labels("packed").set(packed)
        metrics.memories.labels("in_use").set(count - packed)
        metrics.fold_lag_events.set(longest_lag)
        metrics.memories_lagging.set(lagging)
        metrics.memories_bytes.labels("in_use").set(budget.memories_in_use)
        metrics.memories_bytes.labels("packed").set(budget.memories_packed)
        metrics.memories_bytes.labels("followed").set(budget.followed)
        metrics.rows_bytes.set(budget.rows)
        metrics.memory_budget_bytes.set(budget.limit)
        for kind, count in (("memories", budget.evicted_memories), ("rows", budget.evicted_rows)):
            metrics.evictions.labels(kind).inc(count - self.evicted[kind])
            self.evicted[kind] = count
