"""One websocket connection: its messages become batches for the recorder, and the answers go back in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from voicemem.dialects import registry
from voicemem.errors import CODES, InvalidFrame, Refused, StoreUnavailable, VoicememError
from voicemem.protocol.codec import (
    DecodedEvent,
    RejectedEvent,
    decode_event,
    decode_fast,
    split_frame,
)
from voicemem.protocol.events import Auth, FrameEvent, IncomingEvent, SessionOpen, SessionUpdate
from voicemem.protocol.frames import GOAWAY, Error, Ready
from voicemem.security.access import Grant
from voicemem.server.http.request import LARGE_BYTES
from voicemem.server.ingest.producer_leases import ENDED_KEPT, IngestHost, Leases, OpenLease
from voicemem.server.ingest.websocket import MAX_BYTES_BEFORE_KEY, EventSocket, Throttle
from voicemem.sessions.recording import recorder
from voicemem.sessions.recording.batches import EventBatch, ProducerLease
from voicemem.sessions.recording.commits import log_session

NEEDS_TASK = SessionOpen, Auth, SessionUpdate
"""Frames that take time before the next one is processed: the store must be asked, or a schema checked."""
NEEDS_VALIDATION = SessionUpdate, FrameEvent
"""Events that are journaled in another form than they were sent."""
BEFORE_KEY = "Before a key a frame may be at most 16 KiB; send the key first, in the header or an auth frame."
OVER_RATE = "The key is over its rate; nothing is lost, and events are taken at the key's rate."
WINDOW_BYTES = 1024 * 1024
"""Bytes received and not yet answered, above which the connection is not read, and TCP holds the sender back."""
CLEAN_CLOSES = (1000, 1001)
"""Close codes of clients that leave on purpose; any other connection is lost."""
EXPEL_FLUSH_S = 0.3
"""How long answers to events before a revoked key may take: a store that does not answer must not delay the close."""


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """Takes messages until the client leaves, the server drains, or an error closes the connection."""

    websocket: EventSocket
    host: IngestHost
    shown: InitVar[Grant | None]
    """The rights of the client, if the handshake had a key."""
    origin: object = None
    """The trace that the client's handshake is part of."""
    grant: Grant | None = None
    leases: Leases = field(default_factory=Leases)
    frame_task: asyncio.Task[None] | None = None
    """Works on a frame that needs the store: a `session.open`, or a key."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    backlog: deque[bytes] | tuple[()] = ()
    """Messages that wait for `frame_task`, or for the rate of the key; an empty deque would take 760 bytes."""
    reading_stopped: bool = False
    """True if nothing more is processed: the connection failed, or the server drains."""
    draining: bool = False
    unanswered: int = 0
    """Bytes received and not yet answered."""
    in_flight: int = 0
    """Batches not yet answered."""
    all_answered: asyncio.Event | None = None
    """Set when no batch is left to answer; None unless someone waits for that."""
    unstored_in_a_row: int = 0
    """Events in a row that stored nothing."""
    throttle: Throttle = field(init=False)

    def __post_init__(self, shown: Grant | None) -> None:
        self.throttle = Throttle(self.host.recorder.clock, self.pause_reading, self.resume)
        if shown is not None:
            self.accept(shown)

    async def run(self) -> None:
        if self.grant is None:
            asyncio.get_running_loop().call_later(self.host.auth_timeout_s, self.check_auth_deadline)
        self.websocket.listen(self.on_message if self.throttle.bytes is None else self.on_metered_message)
        await self.websocket.wait_closed()
        too_big = self.websocket.failed_with == CODES["too_big"].close
        if too_big and not self.reading_stopped:  # the library finds this, before any message was complete
            self.count_rejected("too_big")

    @property
    def project(self) -> str | None:
        """The project of the key; None before the client has sent one."""
        return None if self.grant is None else self.grant.project

    def stop_reading(self) -> None:
        self.reading_stopped = True
        self.throttle.metered = False  # nothing more is processed
        self.backlog = ()

    async def flush(self) -> None:
        if self.frame_task is not None and self.frame_task is not asyncio.current_task():
            await self.frame_task
        while self.in_flight:
            self.all_answered = self.all_answered or asyncio.Event()
            await self.all_answered.wait()

    # Messages in

    def on_message(self, message: bytes, binary: bool) -> None:
        """Take one message; it waits in the backlog behind a frame that needs the store, or for the rate."""
        if self.reading_stopped:
            return
        try:
            if binary:
                raise InvalidFrame("binary_frame")
            if self.frame_task is not None or self.throttle.held:
                self.unanswered += len(message)
                self.backlog = self.backlog or deque()
                self.backlog.append(message)
            else:
                self.take_message(message)
        except VoicememError as error:
            self.fail(error)
        if self.unanswered > WINDOW_BYTES:
            self.websocket.set_reading(False)

    def on_metered_message(self, message: bytes, binary: bool) -> None:
        """Take one message of a key with a byte rate. It is the listener only then: others pay nothing."""
        self.on_message(message, binary)
        self.throttle.charge_bytes(len(message))

    def take_message(self, message: bytes) -> None:
        """Take a message whose turn it is. Raises `InvalidFrame`."""
        decoded = decode_fast(message) if self.leases.by_session else None
        if decoded is not None:
            events, text = decoded
            open_lease = self.lease_of(events[0])
            if open_lease is not None:
                throttle = self.throttle
                throttle.allowance -= len(events)
                if throttle.allowance < 0:
                    throttle.charge_taken()
                if (batch := self.batch_of(open_lease, len(message))) is not None:
                    batch.add_transcript(events, text)
                return
        self.take_apart(message)

    def take_apart(self, message: bytes) -> None:
        """Take a message that may hold any events, one by one. Raises `InvalidFrame`."""
        # Events are stored in the order in which they were sent. So after a frame that must wait for the store, the
        # rest of its message goes to a task and later messages into the backlog, until the task has processed them;
        # beyond the window the socket is not read, and TCP holds the sender back. A long message goes to the task as
        # well, which lets others run in between.
        if self.grant is None:
            if len(message) > MAX_BYTES_BEFORE_KEY:
                raise InvalidFrame("too_big", BEFORE_KEY)
            self.websocket.set_reading(False)  # until the key was checked
        if len(message) > LARGE_BYTES:
            self.frame_task = asyncio.create_task(self.process_rest(partial(self.process_large, message)))
            return
        pieces = split_frame(message)
        if not pieces:
            self.count_unstored()
        size = len(message) // max(1, len(pieces))
        self.throttle.count(len(pieces))
        decode = registry.decode_enveloped if self.leases.takes_envelopes else decode_event
        arrivals = map(decode, map(bytes, pieces))
        if self.grant is None or len(pieces) > recorder.YIELD_EVERY:
            self.frame_task = asyncio.create_task(self.process_rest(partial(self.process_events, arrivals, size)))
            return
        for arrival in arrivals:
            if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, NEEDS_TASK):
                rest = partial(self.process_events, chain([arrival], arrivals), size)
                self.frame_task = asyncio.create_task(self.process_rest(rest))
                return
            self.enqueue(arrival, size)

    async def process_rest(self, beginning: Callable[[], Awaitable[None]]) -> None:
        try:
            await beginning()
            while self.backlog and not self.throttle.held:
                message = self.backlog.popleft()
                self.unanswered -= len(message)
                await self.process_large(message)
        except VoicememError as error:
            self.fail(error)
        finally:
            self.frame_task = None
            self.resume_if_room()

    async def process_large(self, message: bytes) -> None:
        """Take a message that may be large: it is decoded on a thread, some events at a time."""
        decode, owner = self.host.decoding.decode, self.project
        pieces = await decode(len(message), partial(split_frame, message), owner)
        if not pieces:
            self.count_unstored()
        size = len(message) // max(1, len(pieces))
        self.throttle.count(len(pieces))
        for first in range(0, len(pieces), recorder.YIELD_EVERY):
            part = pieces[first : first + recorder.YIELD_EVERY]
            decode_one = registry.decode_enveloped if self.leases.takes_envelopes else decode_event
            decoded = partial(list[DecodedEvent | RejectedEvent], map(decode_one, map(bytes, part)))
            arrivals = await decode(len(part) * size, decoded, owner)
            await self.process_events(iter(arrivals), size)

    async def process_events(self, arrivals: Iterator[DecodedEvent | RejectedEvent], size: int) -> None:
        for count, arrival in enumerate(arrivals, 1):
            if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, Auth):
                await self.authenticate(arrival.event.token)
                continue
            if self.grant is None:
                await self.authenticate(None)
            if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionOpen):
                await self.open(arrival.event)
            else:
                if recorder.is_update(arrival) and (open_lease := self.lease_of(arrival.event)) is not None:
                    arrival = await self.host.recorder.check_update(open_lease.lease, arrival)
                self.enqueue(arrival, size)
            if count % recorder.YIELD_EVERY == 0:
                await recorder.give_way()

    # The rate of the key

    def pause_reading(self, notify: bool) -> None:
        if notify:
            self.send_error(Refused("rate_limited", OVER_RATE))
        self.websocket.set_reading(False)

    def resume(self) -> None:
        try:
            while self.backlog and self.frame_task is None and not self.throttle.held and not self.reading_stopped:
                message = self.backlog.popleft()
                self.unanswered -= len(message)
                self.take_message(message)
        except VoicememError as error:
            self.fail(error)
        self.resume_if_room()

    def process_backlog(self) -> None:
        self.throttle.release()  # the connection has ended, and its messages are here: they are charged, but not held
        self.resume()

    # Events to leases

    def lease_of(self, event: IncomingEvent | RejectedEvent) -> OpenLease | None:
        """Return the lease that an event belongs to, if that is clear."""
        if self.leases.only is not None and event.session_id is None and event.producer is None:
            return self.leases.only
        return self.leases.find(event)

    def enqueue(self, arrival: DecodedEvent | RejectedEvent, size: int) -> None:
        """Add one event to the batch of its lease. Raises `InvalidFrame` for a flood."""
        event = arrival.event if isinstance(arrival, DecodedEvent) else arrival
        open_lease = self.lease_of(event)
        if open_lease is None:
            if isinstance(arrival, RejectedEvent):
                refused = Refused(arrival.code, arrival.detail)
            else:
                refused = Refused(self.leases.code_for_misplaced(arrival.event))
            self.refuse(refused, event.session_id, event.producer, event.seq)
            return
        if open_lease.dead:
            return
        if isinstance(event, NEEDS_VALIDATION) and isinstance(arrival, DecodedEvent):
            if isinstance(event, FrameEvent) and event.dialect == registry.OF_THE_LEASE:
                event = replace(event, dialect=open_lease.dialect or registry.OF_THE_LEASE)
            if isinstance(event, FrameEvent) and event.ts is None and event.seq is None:
                event = replace(event, ts=self.host.recorder.clock())
            if event is not arrival.event:
                arrival = DecodedEvent(event, arrival.payload)
            validated = self.host.recorder.validate(open_lease.lease, arrival)
            if open_lease.lease.sender.is_unidentified:
                self.run_in_background(self.identify(open_lease.lease))
            if validated is None:
                return
            arrival = validated
        if (batch := self.batch_of(open_lease, size)) is not None:
            batch.add(arrival)

    async def identify(self, lease: ProducerLease) -> None:
        """Set the session's user; if the store is away, the next frame tries again."""
        with suppress(StoreUnavailable):
            await self.host.recorder.identify(lease)

    def batch_of(self, open_lease: OpenLease, size: int) -> EventBatch | None:
        """Return the batch for events of `size` bytes; None if their lease accepts no more."""
        if open_lease.dead:
            return None
        batch = open_lease.batch
        if batch is None or batch.is_sealed:
            lease = open_lease.lease
            batch = open_lease.batch = EventBatch(
                lease.key,
                lease.producer,
                lease.epoch,
                lease=lease,
                on_result=partial(self.on_result, open_lease),
                kind="websocket",
                origin=self.origin,
            )
            open_lease.shard.enqueue(batch)
            self.in_flight += 1
        batch.received_bytes += size
        self.unanswered += size
        return batch

    def refuse(self, refused: Refused, session_id: str | None, producer: str | None, seq: int | None = None) -> None:
        self.send_error(refused, session_id, producer, seq)
        self.host.metrics.count_refused(refused.code)
        if self.grant is not None:
            self.host.recorder.refusals.note(self.grant.project, session_id, refused.code, refused.detail)
        self.count_unstored()

    def count_unstored(self) -> None:
        self.unstored_in_a_row += 1
        if self.unstored_in_a_row > recorder.FLOOD_LIMIT:
            raise InvalidFrame("flood")

    # Answers out

    def on_result(self, open_lease: OpenLease, batch: EventBatch, error: VoicememError | None) -> None:
        self.in_flight -= 1
        self.unanswered -= batch.received_bytes
        if open_lease.batch is batch:
            open_lease.batch = None  # otherwise its events would stay in memory until the next batch
        if batch.position is not None:  # all of it was stored, as nearly always
            if not open_lease.dead:
                self.unstored_in_a_row = 0
                self.websocket.send_nowait(b"%b%d}" % (open_lease.ack_prefix, batch.next_seq - 1))
        elif error is not None:
            open_lease.dead = True
            self.fail(error)
        elif any(problem.code == "superseded" for problem in batch.problems):
            self.run_in_background(self.supersede(open_lease.lease))
        elif not open_lease.dead:
            try:
                self.report_result(open_lease, batch)
            except InvalidFrame as flood:
                self.fail(flood)
        if not self.in_flight and self.all_answered is not None:
            self.all_answered.set()
            self.all_answered = None
        if not self.websocket.reading:
            self.resume_if_room()

    def report_result(self, open_lease: OpenLease, batch: EventBatch) -> None:
        """Send the errors of a batch, then its ack. Raises `InvalidFrame` for a flood."""
        if batch.taken:
            self.unstored_in_a_row = 0
        for problem in batch.problems:
            self.websocket.send_nowait(msgspec.json.encode(problem))
            if not batch.taken and problem.code != "seq_gap":
                self.count_unstored()
        if batch.acked is not None:
            self.websocket.send_nowait(b"%b%d}" % (open_lease.ack_prefix, batch.acked))
        if batch.ended:
            self.run_in_background(self.close_when_ended(batch.lease))
        if batch.ended or any(problem.code == "session_ended" for problem in batch.problems):
            self.leases.ended[open_lease] = None
            if len(self.leases.ended) > ENDED_KEPT:
                self.run_in_background(self.release(self.leases.forget_oldest()))

    def resume_if_room(self) -> None:
        if self.unanswered <= WINDOW_BYTES and not (self.throttle.held and not self.reading_stopped):
            self.websocket.set_reading(True)

    # The key

    def check_auth_deadline(self) -> None:
        """Close a connection without a key, which the handshake or an early first frame should have brought."""
        if self.grant is None and self.frame_task is None:
            self.fail(InvalidFrame("unauthorized", "No key came in time."))

    async def authenticate(self, token: str | None) -> None:
        """Accept a key, or continue without one if none is needed. Raises `InvalidFrame` to close the connection."""
        try:
            grant = await self.host.gate.grant_token(token, self.websocket.address)
            grant.require("ingest", grant.session_id)
        except Refused as refused:
            raise InvalidFrame(refused.code, refused.detail) from None
        if self.grant is not None and not grant.includes(self.grant):
            raise InvalidFrame("forbidden", "A later key or token must allow everything that the earlier one allowed.")
        if not self.websocket.authenticate():
            raise InvalidFrame("too_many_connections")
        self.accept(grant)

    def accept(self, grant: Grant) -> None:
        """Make this grant the connection's, and charge its events and bytes to the grant's rates."""
        is_first = self.grant is None
        self.grant = grant
        self.throttle.meter(self.host.gate.limits.event_buckets(grant.principal))
        if self.throttle.bytes is not None and self.websocket.listener is not None:  # the key came in a frame
            self.websocket.listener = self.on_metered_message
            self.throttle.charge_bytes(sum(map(len, self.backlog)) if is_first else 0)

    # Leases

    async def open(self, frame: SessionOpen) -> None:
        """Open a lease, in the order of the frames: earlier events are stored first."""
        assert self.grant is not None
        await self.flush()
        grant, presence, sessions = self.grant, self.host.presence, self.host.presence.sessions
        project, may_call_out, may_set = grant.project, grant.allows("admin"), grant.session_id is None
        if frame.dialect is not None and frame.dialect not in registry.DIALECTS:
            refused = Refused("unknown_dialect", registry.no_such_dialect(frame.dialect))
            self.refuse(refused, frame.session_id, frame.producer)
            return
        session_id = frame.session_id or grant.session_id or sessions.new_id()
        producer = frame.producer or recorder.DEFAULT_PRODUCER
        try:
            grant.require("ingest", session_id)
            if grant.session_id is not None:
                await sessions.store.journal.get_session(project, session_id)  # a session token creates no session
            opened, next_turn, warnings = await self.host.recorder.open_producer(
                project, session_id, frame, may_call_out, grant.key_id
            )
        except VoicememError as error:
            if not isinstance(error, Refused):
                raise
            self.refuse(error, frame.session_id, frame.producer)
            return
        if opened.created or opened.reopened:
            sessions.webhooks_due.set()
        lease = ProducerLease(opened.stream, producer, opened.epoch, may_call_out, may_set, grant.key_id)
        presence.connect(lease)
        before = self.leases.put(lease, self.host.recorder.commits.shard_of(lease.key), frame.dialect)
        if before is not None:
            await self.release(before)
        ready = Ready(
            session_id=opened.stream.id,
            producer=producer,
            state=opened.stream.state,
            epoch=opened.epoch,
            next_seq=opened.next_seq,
            next_turn=next_turn,
            incarnation=sessions.store.directory.incarnation,
            window=WINDOW_BYTES,
            warnings=warnings or UNSET,
        )
        self.websocket.send_nowait(msgspec.json.encode(ready))
        await self.host.claim(self, lease)

    async def supersede(self, lease: ProducerLease) -> None:
        """Report once that a newer connection has opened this producer; its later events here are ignored."""
        open_lease = self.leases.current(lease)
        if open_lease is None or open_lease.dead:
            return
        log_session("superseded", lease.project, lease.session_id, producer=lease.producer)
        self.send_error(Refused("superseded"), lease.session_id, lease.producer)
        await self.release(open_lease)

    async def release(self, open_lease: OpenLease, lost: bool = False) -> None:
        """Release a lease, once; `lost` if its client did not close the connection on purpose."""
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
        if self.reading_stopped:
            return
        self.stop_reading()
        self.count_rejected(error.code)
        self.send_error(error)
        self.websocket.set_reading(True)  # otherwise the client's answer to the close is never read
        self.run_in_background(self.websocket.close(CODES[error.code].close or 1011, error.code))

    async def drain(self) -> None:
        """Accept nothing more, answer everything received, close with 1012."""
        self.draining = True
        self.process_backlog()
        self.stop_reading()
        # A client that is sent away opens again on another node at once. An open that is still under way here would
        # supersede that newer one, so the client is sent away after its answer, unless the store takes too long.
        if self.frame_task is not None:
            await asyncio.wait([self.frame_task], timeout=self.host.open_wait_s)
        self.websocket.send_nowait(GOAWAY)
        await self.flush()
        await self.websocket.close(1012, "draining")

    async def close_with_error(self, error: VoicememError) -> None:
        """Accept nothing more, answer everything received, then report the error and close with its close code."""
        if self.reading_stopped or self.websocket.failed_with is not None:  # it is being closed already
            return
        self.process_backlog()
        self.stop_reading()
        self.count_rejected(error.code)
        self.websocket.set_reading(True)  # otherwise the client's answer to the close is never read
        # A revoked key must be off the service soon, so the answers get a short time. They are awaited again after
        # the close, so that everything received is stored before the connection counts as ended.
        answered = asyncio.create_task(self.flush())
        await asyncio.wait([answered], timeout=EXPEL_FLUSH_S)
        self.send_error(error)
        await self.websocket.close(CODES[error.code].close or 1008, error.code)
        await answered

    async def wind_down(self) -> None:
        """After the close: store everything that the client sent, then release every lease."""
        self.process_backlog()
        await self.flush()
        self.stop_reading()
        for open_lease in self.leases:
            await self.release(open_lease, lost=self.websocket.close_code not in CLEAN_CLOSES)
        self.throttle.drop_references()

    def send_error(
        self, error: VoicememError, session_id: str | None = None, producer: str | None = None, seq: int | None = None
    ) -> None:
        """Send an error; one about the connection, not an event, names no session, producer or seq."""
        problem = Error(session_id=session_id, producer=producer, seq=seq, code=error.code, detail=error.detail)
        self.websocket.send_nowait(msgspec.json.encode(problem))

    def count_rejected(self, code: str) -> None:
        self.host.metrics.connections_rejected.labels(code).inc()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
