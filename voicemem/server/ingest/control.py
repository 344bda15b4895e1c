"""What steers a websocket connection: its key, the leases that it opens and loses, and the ways in which it ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

from voicemem.dialects.registry import DIALECTS, no_such_dialect
from voicemem.errors import CODES, InvalidFrame, Refused, StoreUnavailable, VoicememError
from voicemem.protocol.events import SessionOpen
from voicemem.protocol.frames import GOAWAY
from voicemem.security.access import Grant
from voicemem.security.rate_limits import EventBuckets
from voicemem.server.http.request import Decoding
from voicemem.server.ingest.answers import error_frame, ready_frame
from voicemem.server.ingest.leases import Leases, OpenLease
from voicemem.server.ingest.throttle import Throttle
from voicemem.server.ingest.websocket import EventSocket
from voicemem.sessions.lifecycle import log_session
from voicemem.sessions.nodes.presence import Presence
from voicemem.sessions.recording.batches import EventProblem, ProducerLease
from voicemem.sessions.recording.recorder import DEFAULT_PRODUCER, Recorder
from voicemem.telemetry.metrics import Metrics

WINDOW_BYTES = 1024 * 1024
"""Received and not yet answered; above it the connection is not read, and TCP holds the sender back."""
CLEAN_CLOSES = (1000, 1001)
"""Close codes of clients that leave on purpose; any other connection is lost."""
OPEN_WAIT_S = 1.0
"""For the answer to an open, before a client is sent away."""
EXPEL_FLUSH_S = 0.3
"""For answers to what came before a key was revoked; a store that does not answer does not delay the close."""


class IngestHost(Protocol):
    """The server that a connection is part of."""

    recorder: Recorder
    presence: Presence
    metrics: Metrics
    decoding: Decoding
    waiting_frame_bytes: int
    """Of frames whose session is not known yet, in all connections."""

    @property
    def incarnation(self) -> str: ...

    async def grant(self, token: str | None, address: str | None) -> Grant: ...

    def event_buckets(self, grant: Grant) -> EventBuckets: ...

    async def claim(self, connection: ConnectionControl, lease: ProducerLease) -> None: ...

    def release(self, lease: ProducerLease) -> None: ...


class ConnectionControl(ABC):
    """The rare steps of a connection; `Connection` adds the path that every event takes."""

    def __init__(self, websocket: EventSocket, host: IngestHost, grant: Grant | None) -> None:
        self.websocket = websocket
        self.host = host
        self.grant: Grant | None = None
        self.leases = Leases()
        self.frame_task: asyncio.Task[None] | None = None
        """Works on a frame that needs the store: a `session.open`, or a key."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.reading_stopped = False
        """Whether nothing more is taken: the connection failed, or the server drains."""
        self.draining = False
        self.throttle = Throttle(host.recorder.clock, self.pause_reading, self.resume)
        if grant is not None:
            self.accept(grant)

    @abstractmethod
    def pause_reading(self, notify: bool) -> None:
        """Leave what comes to TCP, since the key is over its rate; say so if `notify`."""

    @abstractmethod
    def resume(self) -> None:
        """Take the messages that had to wait, as far as the rate allows, then read on."""

    @abstractmethod
    def process_backlog(self) -> None:
        """Take every message that had to wait, also over the rate."""

    @abstractmethod
    def stop_reading(self) -> None:
        """Take nothing from now on."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until everything that was received is answered."""

    @abstractmethod
    def refuse(self, refused: Refused, session_id: str | None, producer: str | None, seq: int | None = None) -> None:
        """Send an error frame for something that stored nothing. Raises `InvalidFrame` for a flood."""

    # The key

    def check_auth_deadline(self) -> None:
        """Close a connection without a key: where one is needed, the handshake or an early first frame brings it."""
        if self.grant is None and self.frame_task is None:
            self.fail(InvalidFrame("unauthorized", "No key came in time."))

    async def authenticate(self, token: str | None) -> None:
        """Accept a key, or go on without one where none is needed. Raises `InvalidFrame` to close the connection."""
        try:
            grant = await self.host.grant(token, self.websocket.address)
        except Refused as refused:
            raise InvalidFrame(refused.code, refused.detail) from None
        if self.grant is not None and not grant.includes(self.grant):
            raise InvalidFrame("forbidden", "A later key or token must allow everything that the earlier one allowed.")
        if not self.websocket.authenticate():
            raise InvalidFrame("too_many_connections")
        self.accept(grant)

    def accept(self, grant: Grant) -> None:
        """Make this grant the connection's, and charge its events to the grant's rates."""
        self.grant = grant
        self.throttle.meter(self.host.event_buckets(grant))

    # Leases

    async def open(self, frame: SessionOpen) -> None:
        """Open a lease, in the order of the frames: what was sent before is stored before."""
        assert self.grant is not None
        await self.flush()
        grant, presence, sessions = self.grant, self.host.presence, self.host.presence.sessions
        project, may_call_out = grant.project, grant.allows("admin")
        if frame.dialect is not None and frame.dialect not in DIALECTS:
            refused = Refused("unknown_dialect", no_such_dialect(frame.dialect))
            self.refuse(refused, frame.session_id, frame.producer)
            return
        session_id = frame.session_id or grant.session_id or sessions.new_id()
        producer = frame.producer or DEFAULT_PRODUCER
        try:
            grant.require("ingest", session_id)
            if grant.session_id is not None:
                await sessions.get(project, session_id)  # a session token creates no session
            opened, next_turn = await self.host.recorder.open_producer(
                project, session_id, frame, may_call_out, grant.key_id
            )
        except VoicememError as error:
            if not isinstance(error, Refused):
                raise
            self.refuse(error, frame.session_id, frame.producer)
            return
        if opened.created or opened.reopened:
            sessions.webhooks_due.set()
        may_set = grant.session_id is None
        lease = ProducerLease(opened.stream, producer, opened.epoch, may_call_out, may_set, grant.key_id)
        presence.connect(lease)
        before = self.leases.put(lease, frame.dialect)
        if before is not None:
            await self.release(before)
        self.websocket.send_nowait(ready_frame(opened, producer, next_turn, self.host.incarnation, WINDOW_BYTES))
        await self.host.claim(self, lease)

    async def supersede(self, lease: ProducerLease) -> None:
        """Report once that a newer connection has opened this producer; what still comes for it is ignored."""
        open_lease = self.leases.current(lease)
        if open_lease is None or open_lease.dead:
            return
        open_lease.dead = True
        log_session("superseded", lease.project, lease.session_id, producer=lease.producer)
        problem = EventProblem(None, "superseded", CODES["superseded"].sentence)
        self.websocket.send_nowait(error_frame(problem, lease.session_id, lease.producer))
        await self.release(open_lease)

    async def release(self, open_lease: OpenLease, lost: bool = False) -> None:
        """Give a lease back, once; `lost` when its client did not close the connection on purpose."""
        open_lease.dead = True
        if open_lease.released:
            return
        open_lease.released = True
        self.host.release(open_lease.lease)
        with suppress(StoreUnavailable):  # the sweep writes it once the store is back
            await self.host.presence.disconnect(open_lease.lease, lost)

    async def close_when_ended(self, lease: ProducerLease) -> None:
        with suppress(StoreUnavailable):  # the sweep closes sessions that have ended
            await self.host.presence.close_when_ended(lease)

    # The end

    def fail(self, error: VoicememError) -> None:
        """Report an error, and close with the close code of its code."""
        if self.reading_stopped:
            return
        self.stop_reading()
        self.count_rejected(error.code)
        self.send_error(error)
        self.websocket.set_reading(True)  # otherwise the client's answer to the close is never read
        self.run_in_background(self.websocket.close(CODES[error.code].close or 1011, error.code))

    async def drain(self) -> None:
        """Take nothing more, answer what came, close with 1012."""
        self.draining = True
        self.process_backlog()
        self.stop_reading()
        # A client that is sent away opens again on another node at once. An open that is still under way here would
        # supersede that newer one, so the client is sent away after its answer, unless the store takes too long.
        if self.frame_task is not None:
            await asyncio.wait([self.frame_task], timeout=OPEN_WAIT_S)
        self.websocket.send_nowait(GOAWAY)
        await self.flush()
        await self.websocket.close(1012, "draining")

    async def expel(self, error: VoicememError) -> None:
        """Take nothing more, answer what came, then report the error and close with the close code of its code."""
        if self.reading_stopped:
            return
        self.process_backlog()
        self.stop_reading()
        self.count_rejected(error.code)
        self.websocket.set_reading(True)  # otherwise the client's answer to the close is never read
        # A revoked key must be off the service soon, so the answers get a short time. They are awaited again after
        # the close, so that what was received is stored before the connection counts as gone.
        answered = asyncio.create_task(self.flush())
        await asyncio.wait([answered], timeout=EXPEL_FLUSH_S)
        self.send_error(error)
        await self.websocket.close(CODES[error.code].close or 1008, error.code)
        await answered

    async def wind_down(self) -> None:
        """After the close: store what the client had sent, then release every lease."""
        self.process_backlog()
        await self.flush()
        self.stop_reading()
        for open_lease in self.leases:
            await self.release(open_lease, lost=self.websocket.close_code not in CLEAN_CLOSES)

    def send_error(self, error: VoicememError) -> None:
        """Send an error that is about the connection, and not about one event."""
        self.websocket.send_nowait(error_frame(EventProblem(None, error.code, error.detail)))

    def count_rejected(self, code: str) -> None:
        self.host.metrics.connections_rejected.labels(code).inc()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
