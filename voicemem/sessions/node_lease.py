"""This process as a node of its store: its lease, and what it learns from other nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from voicemem.errors import StoreUnavailable
from voicemem.runtime import Clock, NodeIdentity, Runtime
from voicemem.sessions.tails.several import TailHub
from voicemem.store.port import Store
from voicemem.store.records import Node
from voicemem.transcript.state import SNAPSHOT_VERSION
from voicemem.version import __version__

LOG = logging.getLogger("voicemem.nodes")
LEASE_MS = 10_000
"""How long a node counts as alive after it was last heard of."""
HEARTBEAT_S, LOOK_S = 1.0, 0.1
HEARD_MS = 4_000
"""A node that was not heard of for this long counts as having no clients, though its lease still runs: the others take
over its part of the rate limits within a second."""
KEPT_MEASUREMENTS = 8
"""How many measurements of a clock's offset are kept: the one with the shortest round trip counts."""
TAILS_INTERVAL_S = 0.04
"""The time between the starts of two polls of the followed journals, for up to `KEYS_PER_LOOK` of them: half of it for
few, whose poll costs next to nothing, and longer for more."""
FEW_KEYS, KEYS_PER_LOOK = 100, 1_000
LEASES_INTERVAL_S = 1.0
"""The time between two checks for producers that were opened elsewhere: their next event would show it too."""
HeldLease = tuple[int, str, int]
"""Session key, producer and epoch."""


class Measurement(NamedTuple):
    """A measurement of how far another clock is ahead; the one with the shortest round trip is the best."""

    round_trip_ms: int
    offset_ms: int


class NodeClock:
    """A clock in Unix ms that is corrected by the store's, which all nodes share."""

    def __init__(self, clock: Clock) -> None:
        self.own = clock
        self.offset_ms = 0
        self.measured: deque[Measurement] = deque(maxlen=KEPT_MEASUREMENTS)

    def __call__(self) -> int:
        return self.own() + self.offset_ms

    async def correct(self, store: Store) -> None:
        """Measure how far the store's clock is ahead, half a round trip ago. Raises `StoreUnavailable`."""
        sent_ms = self.own()
        store_ms = await store.read_clock()
        answered = self.own()
        if store_ms is None or answered < sent_ms:  # this process's clock was set in between
            return
        newest = trip_ms, offset_ms = Measurement(answered - sent_ms, store_ms - (sent_ms + answered) // 2)
        if any(abs(offset_ms - one.offset_ms) > trip_ms + one.round_trip_ms + 1 for one in self.measured):
            self.measured.clear()  # one of the clocks was set
        self.measured.append(newest)
        self.offset_ms = min(self.measured).offset_ms


class NodeLease(NodeIdentity):
    """The lease of this process as a node, from `start` to `stop`; it also corrects the `node_clock`."""

    def __init__(self, store: Store, runtime: Runtime, node_clock: NodeClock | None = None) -> None:
        super().__init__()
        self.store = store
        self.node_clock = node_clock
        self.clock = runtime.clock
        self.new_id = runtime.new_id
        self.address = ""
        self.fenced_listeners: list[Callable[[], None]] = []
        """Called after others have retired this node, when it has begun again under another token."""
        self.displaced_listeners: list[Callable[[], None]] = []
        """Called when earlier reads of the store may not hold any more."""
        self.count_listeners: list[Callable[[int], None]] = []
        """Called once a second with the number of nodes that have clients, this one included."""

    def shown_token(self) -> str:
        """Return the token if the store may have several nodes; else "", since it would say nothing."""
        return "" if self.store.is_exclusive else self.token

    async def start(self, address: str = "") -> None:
        """Register a new node; without an address it has no clients. Raises `StoreUnavailable`."""
        await self.register(address)
        await self.count_nodes()

    async def register(self, address: str) -> None:
        """Begin under a new token. Raises `StoreUnavailable`."""
        if self.node_clock is not None:
            await self.node_clock.correct(self.store)
        self.address, token, now = address, self.new_id(), self.clock()
        node = Node(
            token=token,
            address=address,
            version=__version__,
            snapshot_version=SNAPSHOT_VERSION,
            started_ms=now,
            expires_ms=now + LEASE_MS,
        )
        await self.store.nodes.start_node(node, now)
        self.token = token

    async def count_nodes(self) -> None:
        """Tell the listeners how many nodes have clients. Raises `StoreUnavailable`."""
        if self.count_listeners and not self.store.is_exclusive:
            since = self.clock() - HEARD_MS
            nodes = await self.store.nodes.list_nodes()
            # Libraries, which listen nowhere, have no clients.
            count = sum(bool(node.address) and node.expires_ms - LEASE_MS > since for node in nodes)
            for listener in self.count_listeners:
                listener(max(count, 1))

    async def stop(self) -> None:
        """Release everything that this node holds. If the store is away, another node does it later."""
        token, self.token = self.token, ""
        if token:
            with suppress(StoreUnavailable):
                await self.store.nodes.retire_node(token, self.clock())

    async def beat(self) -> None:
        """Renew the lease, and free everything that dead nodes hold. Raises `StoreUnavailable`."""
        if self.store.nodes.is_displaced:
            await self.store.nodes.settle(self.clock())
            for listener in self.displaced_listeners:
                listener()
        if self.node_clock is not None:
            await self.node_clock.correct(self.store)
        now = self.clock()
        if not await self.store.nodes.renew_node(self.token, now + LEASE_MS):
            # This process stood still for so long that others took it for dead, or the store is another incarnation:
            # its producers are not connected any more, as far as the store knows, so they must open again.
            LOG.error("The node %s was retired, and starts again", self.token)
            await self.register(self.address)
            for listener in (*self.displaced_listeners, *self.fenced_listeners):
                listener()
        for token in await self.store.nodes.retire_lost_nodes(now):
            LOG.warning("The node %s is gone; its producers are expected elsewhere", token)
        await self.count_nodes()


async def beat_forever(node: NodeLease) -> None:
    """Background task: renew this node's lease, and free what dead nodes hold."""
    while True:
        with suppress(StoreUnavailable):
            await node.beat()
        next_beat = time.monotonic() + HEARTBEAT_S
        while time.monotonic() < next_beat:
            await asyncio.sleep(LOOK_S)
            if node.store.nodes.is_displaced:  # nothing is served until it is settled
                break


@asynccontextmanager
async def registered(node: NodeLease) -> AsyncIterator[None]:
    """Be a node without clients until the end of the block, if the store may have several. Raises `StoreUnavailable`.

    A file has one process, and the next one that opens it frees what this one held.
    """
    if node.store.is_exclusive:
        yield
        return
    await node.start()
    beats = asyncio.create_task(beat_forever(node))
    try:
        yield
    finally:
        beats.cancel()
        with suppress(asyncio.CancelledError):
            await beats
        await node.stop()


class Watcher:
    """Looks for changes by other nodes, and reports them on this one."""

    def __init__(self, store: Store, tails: TailHub) -> None:
        self.store = store
        self.tails = tails
        self.positions: dict[int, int] = {}
        """The ends of followed journals at the last poll."""

    async def poll_journals(self) -> int:
        """Wake the tails of journals that have grown, or are gone; return how many are followed.

        Tails rely on it (`Tail.poll`): after a poll that failed, all of them are woken. Raises `StoreUnavailable`.
        """
        keys = sorted({key for tail in self.tails.open_tails for key in tail.followed})
        before, self.positions = self.positions, {}
        for first in range(0, len(keys), KEYS_PER_LOOK):
            self.positions |= await self.store.nodes.read_positions(keys[first : first + KEYS_PER_LOOK])
        changed = {key for key in keys if key not in self.positions or before.get(key) != self.positions[key]}
        if changed:
            self.tails.notify_keys(changed)
        return len(keys)

    async def poll_leases(self, held: Iterable[HeldLease], supersede: Callable[[HeldLease], None]) -> None:
        """Report which of these leases were superseded on other nodes. Raises `StoreUnavailable`."""
        leases = list(held)
        for first in range(0, len(leases), KEYS_PER_LOOK):
            for lease in await self.store.nodes.find_superseded(leases[first : first + KEYS_PER_LOOK]):
                supersede(lease)


def interval_s(followed: int) -> float:
    """Seconds between the starts of two checks, for a number of journals."""
    return TAILS_INTERVAL_S * (0.5 if 0 < followed <= FEW_KEYS else max(1, -(-followed // KEYS_PER_LOOK)))


async def watch_journals_forever(watcher: Watcher) -> None:
    """Background task: wake the tails of journals that have grown on other nodes."""
    while True:
        began, followed = time.monotonic(), 0
        with suppress(StoreUnavailable):
            followed = await watcher.poll_journals()
        interval = interval_s(followed)
        await asyncio.sleep(max(began + interval - time.monotonic(), interval / 2))  # a slow store gets its rest
