"""Presence: which producers are connected or expected back, and which sessions therefore fall silent or close."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from voicemem.errors import StoreUnavailable
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.lifecycle import Sessions
from voicemem.store.streams import SessionEnding
from voicemem.transcript.frames import LEFT

SWEEP_BATCH = 200
"""Sessions closed in one sweep, at most."""
AWAITED_MS = 10_000
"""How long a producer without a connection is expected back: after its connection was lost, after it sent over HTTP,
and after a start of the service, which does not know who was connected. An end waits for these producers, but never
longer than the grace (`voicemem.store.streams.GRACE_MS`)."""
LEFT_MS = 5_000
"""How long the connection of another stack may be gone before its session is closed: nothing else says that it ends."""
SWEEP_S = 0.2
"""Pause between two sweeps."""


class ExpectedProducers(NamedTuple):
    """The producers of a session that may still send events."""

    producers: frozenset[str]
    """Those that are connected or expected back."""
    seen: frozenset[str] | None
    """Soon after a start: those that have connected since. All others that the store knows are expected too."""


class PendingClose(NamedTuple):
    """A session with a committed end, and the producers that it waits for.

    By `until_ms` its grace is over, and the sweep has closed it.
    """

    lease: ProducerLease
    expected: ExpectedProducers
    until_ms: int


class Presence:
    """Counts this process's connections to sessions, and closes the sessions that are over.

    The last words of a call must not be lost (docs/ingest.md, "End a session"): a session whose end was committed stays
    open until every producer that is connected or expected back has ended as well, or its grace is over.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.connected: dict[tuple[str, str], Counter[str]] = {}
        """How many connections each producer has, by project and session id."""
        self.last_leases: dict[tuple[str, str], ProducerLease] = {}
        """The lease of the last disconnect from each session that is still connected."""
        self.unrecorded_silences: dict[int, tuple[ProducerLease, int]] = {}
        """Sessions without a connection, and since when (Unix ms), that are not noted in the store yet; by key."""
        self.awaited: dict[tuple[str, str], dict[str, int]] = {}
        """Until when producers without a connection are expected back (Unix ms), by project and session id."""
        self.pending_closes: dict[tuple[str, str], PendingClose] = {}
        """Sessions with a committed end that are not closed yet, by project and id."""
        self.left: dict[tuple[str, str], tuple[ProducerLease, int]] = {}
        """Sessions that another stack's connection has left, and when (Unix ms), by project and id."""
        self.began_ms = sessions.clock()
        self.seen: dict[tuple[str, str], set[str]] = {}
        """Producers that have connected since the start, by project and session id; dropped after `AWAITED_MS`."""

    def connect(self, project: str, session_id: str, producer: str) -> None:
        """Count a connection.

        This comes before its open is committed: otherwise the disconnect of another producer in between would look like
        the last one, and note a silence after the open has ended it.
        """
        self.awaited.get((project, session_id), {}).pop(producer, None)
        if self.sessions.clock() < self.began_ms + AWAITED_MS:
            self.seen.setdefault((project, session_id), set()).add(producer)
        self.connected.setdefault((project, session_id), Counter())[producer] += 1

    def close_if_left(self, lease: ProducerLease) -> None:
        """Close a session soon, unless a connection of it is there by then."""
        self.left[lease.project, lease.session_id] = lease, self.sessions.clock()

    async def close_left(self) -> None:
        """Close the sessions that were left long enough ago; whoever comes back reopens them."""
        now = self.sessions.clock()
        for session, (lease, since) in list(self.left.items()):
            if session in self.connected:
                del self.left[session]
            elif now >= since + LEFT_MS:
                ending = SessionEnding(since, LEFT, provisional=True)
                closed = await self.sessions.store.close_session(lease.key, ending, self.sessions.new_id(), now)
                self.left.pop(session, None)
                if closed is not None:
                    self.sessions.on_closed(closed)

    def expect_producer(self, lease: ProducerLease) -> None:
        """Expect events of a producer without a connection for a while."""
        self.awaited.setdefault((lease.project, lease.session_id), {})[lease.producer] = (
            self.sessions.clock() + AWAITED_MS
        )

    async def disconnect(self, lease: ProducerLease, lost: bool = False) -> None:
        """Count a connection out: the session falls silent with its last one, or closes if only this one was left.

        `lost` says that the connection broke, so that its producer is expected back.
        """
        if lost:
            self.expect_producer(lease)
        self.last_leases[lease.project, lease.session_id] = lease
        await self.count_disconnect(lease.project, lease.session_id, lease.producer)
        await self.close_unless_expected(lease, self.expected_producers(lease))

    async def undo_connect(self, project: str, session_id: str, producer: str) -> None:
        """Count out a connection whose open failed; the session's last real one may have gone meanwhile."""
        with suppress(StoreUnavailable):
            await self.count_disconnect(project, session_id, producer)

    async def count_disconnect(self, project: str, session_id: str, producer: str) -> None:
        """Undo a `connect`; with the last connection the session falls silent. Raises `StoreUnavailable`."""
        producers = self.connected.get((project, session_id), Counter[str]())
        producers[producer] -= 1
        if producers[producer] <= 0:
            del producers[producer]
        if producers:
            return
        self.connected.pop((project, session_id), None)
        lease = self.last_leases.pop((project, session_id), None)
        if lease is not None:
            self.unrecorded_silences[lease.key] = (lease, self.sessions.clock())
            await self.record_silence()

    async def record_silence(self) -> None:
        """Note sessions without a connection in the store. Raises `StoreUnavailable`; the next sweep repeats it."""
        while self.unrecorded_silences:
            key, (lease, since) = self.unrecorded_silences.popitem()
            if (lease.project, lease.session_id) in self.connected:
                continue  # a producer came back meanwhile
            try:
                await self.sessions.store.set_silent_since(key, since)
            except StoreUnavailable:
                self.unrecorded_silences.setdefault(key, (lease, since))
                raise

    async def close_when_ended(self, lease: ProducerLease) -> None:
        """Close a session whose end was committed, unless another expected producer has not ended; then wait for it."""
        expected = self.expected_producers(lease)
        if not await self.close_unless_expected(lease, expected):
            self.pending_closes[lease.project, lease.session_id] = PendingClose(
                lease, expected, self.sessions.clock() + AWAITED_MS
            )

    def expected_producers(self, lease: ProducerLease) -> ExpectedProducers:
        """The producers of a session that are connected or expected back."""
        session, now = (lease.project, lease.session_id), self.sessions.clock()
        awaited = [name for name, until in self.awaited.get(session, {}).items() if until > now]
        seen = self.seen.get(session, set()) if now < self.began_ms + AWAITED_MS else None
        return ExpectedProducers(
            frozenset([*self.connected.get(session, ()), *awaited]), None if seen is None else frozenset(seen)
        )

    async def close_unless_expected(self, lease: ProducerLease, expected: ExpectedProducers) -> bool:
        """Close a session if its end was committed and all these producers have ended; whether it was closed."""
        closed = await self.sessions.store.close_if_ended(
            lease.key, sorted(expected.producers), expected.seen, self.sessions.new_id(), self.sessions.clock()
        )
        if closed is None:
            return False
        self.pending_closes.pop((lease.project, lease.session_id), None)
        self.sessions.on_closed(closed)
        return True

    async def close_pending(self) -> None:
        """Close sessions that waited for producers which are no longer expected.

        The store is asked only when the expected producers of a session have changed since the last look.
        """
        for session, pending_close in list(self.pending_closes.items()):
            expected = self.expected_producers(pending_close.lease)
            if expected != pending_close.expected:
                await self.close_unless_expected(pending_close.lease, expected)
            if session in self.pending_closes:
                self.pending_closes[session] = pending_close._replace(expected=expected)
                if self.sessions.clock() >= pending_close.until_ms:
                    del self.pending_closes[session]

    async def sweep(self) -> int:
        """Close the sessions that are due; return how many were closed. Raises `StoreUnavailable`, `StoreRuined`."""
        if not self.sessions.store.healthy:
            await self.sessions.store.probe()
        await self.record_silence()
        now, count = self.sessions.clock(), 0
        await self.close_pending()
        await self.close_left()
        self.drop_awaited(now)
        for key in await self.sessions.store.find_due(now, SWEEP_BATCH):
            closed = await self.sessions.store.close_session(key, None, self.sessions.new_id(), now)
            if closed is not None:
                self.sessions.on_closed(closed)
                count += 1
        return count

    def drop_awaited(self, now: int) -> None:
        """Stop expecting producers that did not come back in time."""
        if now >= self.began_ms + AWAITED_MS:
            self.seen.clear()
        for session, producers in list(self.awaited.items()):
            if all(until <= now for until in producers.values()):
                del self.awaited[session]


async def sweep_forever(presence: Presence) -> None:
    """Background task: close the sessions that are due, a few times a second."""
    while True:
        with suppress(StoreUnavailable):  # what is due now is still due later
            await presence.sweep()
        await asyncio.sleep(SWEEP_S)
