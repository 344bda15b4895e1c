"""Presence: tells the store who is connected to this node, and closes the sessions that are over.

Who is connected anywhere, and who is expected back, stands in the store, which decides what that means for a session.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from voicemem.errors import StoreUnavailable
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.store.streams import AWAITED_MS, SessionEnding
from voicemem.transcript.frames import CLOSED

SWEEP_BATCH = 200
"""Sessions closed in one sweep, at most."""
LEFT_MS = 5_000
"""How long the connection of another stack may be gone before its session is closed: nothing else says that it ends."""
SWEEP_S = 0.2
"""Pause between two sweeps."""


class Departure(NamedTuple):
    """A connection that is gone, at Unix ms, and until when its producer is expected back, if at all."""

    lease: ProducerLease
    since_ms: int
    expected_until_ms: int | None


class Presence:
    """The connections of this node, as the store is to know them; and the sweep that closes what is over.

    The last words of a call must not be lost (docs/ingest.md, "End a session"): a session whose end was committed stays
    open until every producer that is connected or expected back has ended as well, or its grace is over.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.connected: dict[tuple[str, str], Counter[str]] = {}
        """How many connections to this node each producer has, by project and session id; for the metrics."""
        self.unrecorded: dict[tuple[int, str], Departure] = {}
        """Connections whose end is not in the store yet, by key and producer."""
        self.left: dict[int, tuple[ProducerLease, int]] = {}
        """Sessions that another stack's connection has left, and when (Unix ms), by key."""

    def connect(self, lease: ProducerLease) -> None:
        """Count a connection, whose open is committed."""
        self.connected.setdefault((lease.project, lease.session_id), Counter())[lease.producer] += 1

    async def disconnect(self, lease: ProducerLease, lost: bool = False) -> None:
        """Count a connection out: with its last one the session falls silent, or closes if its end was committed.

        `lost` says that the connection broke, so that its producer is expected back. Raises `StoreUnavailable`; the
        next sweep repeats it.
        """
        self.count_out(lease)
        now = self.sessions.clock()
        departure = Departure(lease, now, now + AWAITED_MS if lost else None)
        self.unrecorded[lease.key, lease.producer] = departure  # of two connections of one producer the newer counts
        await self.record_departures()

    def count_out(self, lease: ProducerLease) -> None:
        producers = self.connected[lease.project, lease.session_id]
        producers[lease.producer] -= 1
        if not producers[lease.producer]:
            del producers[lease.producer]
        if not producers:
            del self.connected[lease.project, lease.session_id]

    async def record_departures(self) -> None:
        """Note in the store which connections are gone. Raises `StoreUnavailable`; the next sweep repeats it."""
        while self.unrecorded:
            producer, departure = self.unrecorded.popitem()
            try:
                await self.record_departure(departure)
            except StoreUnavailable:
                self.unrecorded.setdefault(producer, departure)
                raise

    async def record_departure(self, departure: Departure) -> None:
        lease, since_ms, until_ms = departure
        store = self.sessions.store
        stream = await store.leave(lease.key, lease.producer, lease.epoch or 0, until_ms, since_ms)
        if stream is not None and stream.state == "running" and stream.ending is not None:
            await self.close_when_ended(lease)

    async def close_when_ended(self, lease: ProducerLease) -> None:
        """Close a session if its end was committed, and nobody's last words are awaited. Raises `StoreUnavailable`."""
        closed = await self.sessions.store.close_ended(lease.key, self.sessions.new_id(), self.sessions.clock())
        if closed is not None:
            self.sessions.on_closed(closed)

    def close_if_left(self, lease: ProducerLease) -> None:
        """Close a session soon, unless somebody is connected to it by then."""
        self.left[lease.key] = lease, self.sessions.clock()

    async def close_left(self) -> None:
        """Close the sessions that were left long enough ago; whoever comes back reopens them."""
        now = self.sessions.clock()
        for key, (_, since) in list(self.left.items()):
            if now >= since + LEFT_MS:
                ending = SessionEnding(since, CLOSED, provisional=True)
                closed = await self.sessions.store.close_session(
                    key, ending, self.sessions.new_id(), now, if_silent=True
                )
                self.left.pop(key, None)
                if closed is not None:
                    self.sessions.on_closed(closed)

    async def sweep(self) -> int:
        """Close the sessions that are due; return how many were closed. Raises `StoreUnavailable`, `StoreRuined`."""
        if not self.sessions.store.healthy:
            await self.sessions.store.probe()
        await self.record_departures()
        now, count = self.sessions.clock(), 0
        await self.close_left()
        for key in await self.sessions.store.find_due(now, SWEEP_BATCH):
            closed = await self.sessions.store.close_session(key, None, self.sessions.new_id(), now)
            if closed is not None:
                self.sessions.on_closed(closed)
                count += 1
        return count


async def sweep_forever(presence: Presence) -> None:
    """Background task: close the sessions that are due, a few times a second."""
    while True:
        with suppress(StoreUnavailable):  # what is due now is still due later
            await presence.sweep()
        await asyncio.sleep(SWEEP_S)
