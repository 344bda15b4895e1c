"""Producer leases: the producers that a connection writes for, their waiting events, and the holder of each lease."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from voicemem.protocol.codec import RejectedEvent
from voicemem.protocol.events import IncomingEvent
from voicemem.protocol.frames import AckFrame
from voicemem.runtime import FairQueue
from voicemem.security.access import Gate
from voicemem.server.http.request import Decoding
from voicemem.sessions.lifecycle import Presence
from voicemem.sessions.recording.batches import EventBatch, ProducerLease
from voicemem.sessions.recording.commits import CommitShard
from voicemem.sessions.recording.recorder import Recorder

ENDED_KEPT = 16
"""Ended leases that a connection still knows."""
AUTH_TIMEOUT_S = 10.0
OPEN_WAIT_S = 1.0
"""How long the answer to an open may take before a client is disconnected."""
MAX_WAITING_IN_ALL = 32 * 1024 * 1024
"""Bytes of frames whose session is not known yet, over all connections; a frame beyond this does not wait."""
LARGE_MESSAGES = 2
"""Large messages of other stacks that are split at a time, over all connections."""


class OpenLease:
    """A lease of a producer, with the events that wait for the next commit."""

    # With a thousand calls, a call's data is not in the processor's cache when its event comes; slots keep it together.
    __slots__ = ("ack_prefix", "batch", "dead", "dialect", "lease", "released", "shard")

    def __init__(self, lease: ProducerLease, shard: CommitShard, dialect: str | None = None) -> None:
        self.lease = lease
        self.shard = shard
        """The shard in which its batches wait for the next commit."""
        self.dialect = dialect
        """The dialect whose frames come in envelopes next to events."""
        self.batch: EventBatch | None = None
        self.ack_prefix = msgspec.json.encode(AckFrame(lease.session_id, lease.producer, 0)).removesuffix(b"0}")
        """An ack up to its seq; the seq and `}` are appended for each."""
        self.dead = False
        """Superseded or failed: later events for it are ignored."""
        self.released = False
        """True if the session was notified that this connection has left it."""


class Leases:
    """The leases of a connection, by session id and producer."""

    __slots__ = ("by_session", "ended", "only", "takes_envelopes")

    def __init__(self) -> None:
        self.by_session: dict[str, dict[str, OpenLease]] = {}
        self.takes_envelopes = False
        """True if any of them has a dialect."""
        self.only: OpenLease | None = None
        """The lease of a connection that has exactly one."""
        self.ended: dict[OpenLease, None] = {}
        """Leases that accept nothing more, the oldest first: a few are kept, to answer events that are sent again."""

    def __iter__(self) -> Iterator[OpenLease]:
        return iter([open_lease for of_session in self.by_session.values() for open_lease in of_session.values()])

    def put(self, lease: ProducerLease, shard: CommitShard, dialect: str | None = None) -> OpenLease | None:
        of_session = self.by_session.setdefault(lease.session_id, {})
        before = of_session.get(lease.producer)
        open_lease = of_session[lease.producer] = OpenLease(lease, shard, dialect)
        self.takes_envelopes = self.takes_envelopes or dialect is not None
        self.only = open_lease if len(self.by_session) == 1 == len(of_session) else None
        return before

    def current(self, lease: ProducerLease) -> OpenLease | None:
        """Return the open lease of this lease, unless a newer one has replaced it."""
        open_lease = self.by_session.get(lease.session_id, {}).get(lease.producer)
        return open_lease if open_lease is not None and open_lease.lease is lease else None

    def forget_oldest(self) -> OpenLease:
        """Forget the oldest ended lease: a client may send all its calls over one connection."""
        oldest = next(iter(self.ended))
        del self.ended[oldest]
        if self.current(oldest.lease) is oldest:
            of_session = self.by_session[oldest.lease.session_id]
            del of_session[oldest.lease.producer]
            if not of_session:
                del self.by_session[oldest.lease.session_id]
        return oldest

    def find(self, event: IncomingEvent | RejectedEvent) -> OpenLease | None:
        """Return the lease of an event that names its session or producer, or of one of several."""
        if event.session_id is not None:
            of_session = self.by_session.get(event.session_id, {})
        else:
            of_session = next(iter(self.by_session.values())) if len(self.by_session) == 1 else {}
        if event.producer is not None:
            return of_session.get(event.producer)
        return next(iter(of_session.values())) if len(of_session) == 1 else None

    def code_for_misplaced(self, event: IncomingEvent) -> str:
        """Return the error code for an event for which `find` knows no lease."""
        named = self.by_session.get(event.session_id) if event.session_id is not None else None
        if event.session_id is None and len(self.by_session) == 1:
            named = next(iter(self.by_session.values()))
        ambiguous = event.producer is None if named else event.session_id is None
        return "session_required" if ambiguous and self.by_session else "not_open"


class Holder(Protocol):
    """A connection, as other connections see it."""

    async def supersede(self, lease: ProducerLease) -> None: ...
    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None: ...


class LeaseHolder(NamedTuple):
    """The connection with a producer's newest epoch."""

    connection: Holder
    lease: ProducerLease


class IngestHost:
    """The common state of a server's connections, and the holder of each lease."""

    def __init__(self, recorder: Recorder, presence: Presence, gate: Gate, decoding: Decoding) -> None:
        self.recorder = recorder
        self.metrics = recorder.telemetry.metrics
        self.presence = presence
        self.gate = gate
        self.decoding = decoding
        self.holders: dict[tuple[int, str], LeaseHolder] = {}
        self.large_messages = FairQueue(LARGE_MESSAGES)
        """Slots to split large messages of other stacks: each may take a hundred times its size for a while."""
        self.auth_timeout_s, self.open_wait_s = AUTH_TIMEOUT_S, OPEN_WAIT_S
        self.waiting_frame_bytes = 0
        """The size of all frames whose session is not known yet, over all connections."""
        self.most_waiting_frame_bytes = MAX_WAITING_IN_ALL

    async def claim(self, connection: Holder, lease: ProducerLease) -> None:
        """Record the connection as the holder of its producer, and supersede the one with the older epoch."""
        # By epoch, not by arrival: two opens are committed in one order, and may come back in the other.
        newest = LeaseHolder(connection, lease)
        before = self.holders.get((lease.key, lease.producer), newest)
        older, newest = sorted((before, newest), key=lambda holder: holder.lease.epoch or 0)
        self.holders[lease.key, lease.producer] = newest
        if older.connection is not newest.connection:
            await older.connection.supersede(older.lease)

    def held_leases(self) -> list[tuple[int, str, int]]:
        """Session key, producer and epoch of every lease that a connection of this node holds."""
        return [(*held, holder.lease.epoch or 0) for held, holder in self.holders.items()]

    def supersede(self, held: tuple[int, str, int]) -> None:
        """Supersede a lease that was opened again on another node."""
        key, producer, epoch = held
        holder = self.holders.get((key, producer))
        if holder is not None and holder.lease.epoch == epoch:
            holder.connection.run_in_background(holder.connection.supersede(holder.lease))

    def release(self, lease: ProducerLease) -> None:
        holder = self.holders.get((lease.key, lease.producer))
        if holder is not None and holder.lease is lease:
            del self.holders[lease.key, lease.producer]
