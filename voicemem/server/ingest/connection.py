"""One websocket connection: it opens lines, hands their events to the recorder, and answers in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

from voicemem.errors import CODES, InvalidFrame, Refused, StoreUnavailable, VoicememError
from voicemem.protocol.codec import DecodedEvent, RejectedEvent, decode_event, decode_fast, split_frame
from voicemem.protocol.events import Auth, SessionOpen, SessionUpdate
from voicemem.protocol.frames import GOAWAY
from voicemem.security.access import Grant
from voicemem.security.rate_limits import Bucket
from voicemem.server.ingest.answers import error_frame, ready_frame
from voicemem.server.ingest.leases import Leases, OpenLease
from voicemem.server.ingest.throttle import Throttle
from voicemem.server.ingest.websocket import EventSocket
from voicemem.sessions.batches import BatchResult, PendingBatch, Problem, ProducerLease
from voicemem.sessions.presence import Presence
from voicemem.sessions.recorder import DEFAULT_PRODUCER, FLOOD, SLICE, Recorder
from voicemem.telemetry.metrics import Metrics

WINDOW_BYTES = 1024 * 1024
"""Received and not yet answered; over it the connection is not read, and TCP holds the sender back."""
NEEDS_STORE = SessionOpen, Auth
"""Frames for which the store must be asked before anything that follows is taken."""
AUTH_TIMEOUT_S = 10.0
CLEAN_CLOSES = (1000, 1001)
"""Close codes of those who mean to go; any other connection is lost."""
EXPEL_FLUSH_S = 0.3
"""For the answers to what came before a key was revoked; a store that does not answer holds up no closing."""
OVER_RATE = "Over the rate of the key; nothing is lost, and what comes is taken at this rate."


class IngestHost(Protocol):
    """The server that a connection is part of."""

    recorder: Recorder
    presence: Presence
    metrics: Metrics
    incarnation: str

    async def grant(self, token: str | None) -> Grant: ...

    def event_bucket(self, grant: Grant) -> Bucket | None: ...

    async def claim(self, connection: Connection, lease: ProducerLease) -> None: ...

    def release(self, lease: ProducerLease) -> None: ...


class Connection:
    """Hears messages until the client goes, the server drains, or something is wrong beyond an error frame."""

    def __init__(self, websocket: EventSocket, host: IngestHost, grant: Grant | None, origin: object = None) -> None:
        self.websocket = websocket
        self.host = host
        self.grant: Grant | None = None
        self.origin = origin
        """The trace that the client's handshake is part of."""
        self.leases = Leases()
        self.unanswered = 0
        """Bytes received and not yet answered."""
        self.in_flight = 0
        """Batches that were not answered yet."""
        self.all_answered = asyncio.Event()
        self.unstored_in_a_row = 0
        """Events in a row that stored nothing."""
        self.backlog: deque[bytes] = deque()
        """Messages that wait for what was asked before them."""
        self.frame_task: asyncio.Task[None] | None = None
        """An open or a key that is under way."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.reading_stopped = False
        """Whether nothing more is taken: it failed, or the server drains."""
        self.throttle = Throttle(host.recorder.clock, self.throttle_reading, self.resume)
        if grant is not None:
            self.accept(grant)

    # The life of a connection

    async def run(self) -> None:
        """Until the connection is closed."""
        if self.grant is None:
            asyncio.get_running_loop().call_later(AUTH_TIMEOUT_S, self.check_auth_deadline)
        self.websocket.listen(self.on_message)
        await self.websocket.wait_closed()
        if (
            not self.reading_stopped and self.websocket.failed_with == CODES["too_big"].close
        ):  # which the library sees first
            self.count_rejected("too_big")

    def count_rejected(self, code: str) -> None:
        self.host.metrics.connections_rejected.labels(code).inc()

    def check_auth_deadline(self) -> None:
        """Where a key is needed and none came with the handshake, the first frame must bring it, soon."""
        if self.grant is None and self.frame_task is None:
            self.fail(InvalidFrame("unauthorized", "No key came in time."))

    def stop_reading(self) -> None:
        self.reading_stopped = True
        self.throttle.stop()
        self.backlog.clear()

    async def drain(self) -> None:
        """Take nothing more, answer what came, close with 1012."""
        self.process_backlog()
        self.stop_reading()
        self.websocket.send_nowait(GOAWAY)
        await self.flush()
        await self.websocket.close(1012, "draining")

    async def expel(self, error: VoicememError) -> None:
        """Take nothing more, answer what came, then say why it is over, and close with the code's close code."""
        if self.reading_stopped:
            return
        self.process_backlog()
        self.stop_reading()
        self.count_rejected(error.code)
        self.websocket.set_reading(True)  # else the client's answer to the close is not heard
        answered = asyncio.create_task(self.flush())
        await asyncio.wait([answered], timeout=EXPEL_FLUSH_S)
        self.websocket.send_nowait(error_frame(Problem(None, error.code, error.detail)))
        await self.websocket.close(CODES[error.code].close or 1008, error.code)
        await answered

    async def wind_down(self) -> None:
        """After the connection: store what it had sent, and let go of its lines."""
        self.process_backlog()
        await self.flush()
        self.stop_reading()
        for open_lease in self.leases:
            await self.release(open_lease, lost=self.websocket.close_code not in CLEAN_CLOSES)

    async def release(self, open_lease: OpenLease, lost: bool = False) -> None:
        open_lease.dead = True
        if open_lease.released:
            return
        open_lease.released = True
        self.host.release(open_lease.lease)
        with suppress(StoreUnavailable):  # the sweep tells the store when it is back
            await self.host.presence.disconnect(open_lease.lease, lost)

    def fail(self, error: VoicememError) -> None:
        """Say what is wrong, and close with the code's close code."""
        if self.reading_stopped:
            return
        self.stop_reading()
        self.count_rejected(error.code)
        self.websocket.send_nowait(error_frame(Problem(None, error.code, error.detail)))
        self.websocket.set_reading(True)  # else the client's answer to the close is not heard
        self.run_in_background(self.websocket.close(CODES[error.code].close or 1011, error.code))

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def flush(self) -> None:
        """Wait until everything that was received is answered."""
        if self.frame_task is not None and self.frame_task is not asyncio.current_task():
            await self.frame_task
        while self.in_flight:
            self.all_answered.clear()
            await self.all_answered.wait()

    # Frames in

    def on_message(self, message: bytes, binary: bool) -> None:
        """One message of the client's; what must wait for the store is left to a task, and all after it too."""
        if self.reading_stopped:
            return
        try:
            if binary:
                raise InvalidFrame("binary_frame")
            if self.frame_task is not None or self.throttle.held:
                self.unanswered += len(message)
                self.backlog.append(message)
            elif not self.enqueue_ordinary(message):
                self.process_frame(message)
        except VoicememError as error:
            self.fail(error)
        if self.unanswered > WINDOW_BYTES:
            self.websocket.set_reading(False)

    def enqueue_ordinary(self, message: bytes) -> bool:
        """Take a message that is one ordinary event of an open line; False when there is more to it."""
        event = decode_fast(message)
        if event is None:
            return False
        leases = self.leases
        open_lease = leases.only if event.session_id is None and event.producer is None else leases.find(event)
        if open_lease is None or open_lease.dead:
            return False
        batch = open_lease.batch
        if batch is None or batch.committing:
            batch = self.begin_batch(open_lease)
        batch.add_ordinary(event, message)
        batch.size += len(message)
        self.unanswered += len(message)
        throttle = self.throttle
        throttle.allowance -= 1
        if throttle.allowance < 0:
            throttle.charge_taken()
        return True

    def process_frame(self, message: bytes) -> None:
        pieces = split_frame(message)
        if not pieces:
            self.count_unstored()
        size = len(message) // max(1, len(pieces))
        self.throttle.count(len(pieces))
        arrivals = map(decode_event, map(bytes, pieces))
        if self.grant is None or len(pieces) > SLICE:
            self.frame_task = asyncio.create_task(self.process_rest(arrivals, size))
            return
        for arrival in arrivals:
            if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, NEEDS_STORE):
                self.frame_task = asyncio.create_task(self.process_rest(chain([arrival], arrivals), size))
                return
            self.enqueue(arrival, size)

    async def process_rest(self, arrivals: Iterator[DecodedEvent | RejectedEvent], size: int) -> None:
        """Take what remains of a message, and the messages that came meanwhile."""
        try:
            await self.process_events(arrivals, size)
            while self.backlog and not self.throttle.held:
                message = self.backlog.popleft()
                self.unanswered -= len(message)
                pieces = split_frame(message)
                self.throttle.count(len(pieces))
                await self.process_events(map(decode_event, map(bytes, pieces)), len(message) // max(1, len(pieces)))
        except VoicememError as error:
            self.fail(error)
        finally:
            self.frame_task = None
            self.resume_if_room()

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
                self.enqueue(arrival, size)
            if count % SLICE == 0:
                await asyncio.sleep(0)

    async def authenticate(self, token: str | None) -> None:
        """Take a key, or go without one where none is needed. Raises `InvalidFrame` to close the connection."""
        try:
            grant = await self.host.grant(token)
        except Refused as refused:
            raise InvalidFrame(refused.code, refused.detail) from None
        if self.grant is not None and not grant.includes(self.grant):
            raise InvalidFrame("forbidden", "A later key or token must allow all that the one before it allowed.")
        self.accept(grant)

    def accept(self, grant: Grant) -> None:
        """From now on this grant holds, and its events are charged to its rate."""
        self.grant = grant
        self.throttle.meter(self.host.event_bucket(grant))

    # The rate of a key

    def throttle_reading(self, tell: bool) -> None:
        if tell:
            self.websocket.send_nowait(error_frame(Problem(None, "rate_limited", OVER_RATE)))
        self.websocket.set_reading(False)

    def resume(self) -> None:
        """Take the messages that had to wait, as far as the rate goes, then read on."""
        try:
            while self.backlog and self.frame_task is None and not self.throttle.held and not self.reading_stopped:
                message = self.backlog.popleft()
                self.unanswered -= len(message)
                if not self.enqueue_ordinary(message):
                    self.process_frame(message)
        except VoicememError as error:
            self.fail(error)
        self.resume_if_room()

    def process_backlog(self) -> None:
        """Take what had to wait for the rate: it has come, and the connection is over. It is charged all the same."""
        self.throttle.release()
        self.resume()

    # Events to lines

    def enqueue(self, arrival: DecodedEvent | RejectedEvent, size: int) -> None:
        """Put one event to its line. Raises `InvalidFrame` for a flood."""
        event = arrival.event if isinstance(arrival, DecodedEvent) else arrival
        open_lease = self.leases.find(event)
        if open_lease is None:
            if isinstance(arrival, DecodedEvent):
                refused = Refused(self.leases.code_for_misplaced(arrival.event))
            else:
                refused = Refused(arrival.code, arrival.detail)
            self.refuse(refused, event.session_id, event.producer, event.seq)
            return
        if open_lease.dead:
            return
        if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionUpdate):
            arrival = self.host.recorder.vet(open_lease.lease, arrival)
        batch = open_lease.batch
        if batch is None or batch.committing:
            batch = self.begin_batch(open_lease)
        batch.add(arrival)
        batch.size += size
        self.unanswered += size

    def begin_batch(self, open_lease: OpenLease) -> PendingBatch:
        batch = open_lease.batch = PendingBatch(
            open_lease.lease, lambda batch, answer: self.on_result(open_lease, batch, answer), "websocket", self.origin
        )
        self.host.recorder.take(batch)
        self.in_flight += 1
        return batch

    def refuse(self, refused: Refused, session_id: str | None, producer: str | None, seq: int | None = None) -> None:
        """An error frame for what stored nothing; too many of them in a row are a flood."""
        self.websocket.send_nowait(error_frame(Problem(seq, refused.code, refused.detail), session_id, producer))
        self.host.metrics.refused(refused.code)
        self.count_unstored()

    def count_unstored(self) -> None:
        self.unstored_in_a_row += 1
        if self.unstored_in_a_row > FLOOD:
            raise InvalidFrame("flood")

    # Lines

    async def open(self, frame: SessionOpen) -> None:
        """Open a line, in the order of the frames: what was sent before is stored before."""
        assert self.grant is not None
        await self.flush()
        grant, presence, sessions = self.grant, self.host.presence, self.host.presence.sessions
        project, may_call_out = grant.project, grant.allows("admin")
        session_id = frame.session_id or grant.session_id or sessions.new_id()
        producer = frame.producer or DEFAULT_PRODUCER
        presence.connect(project, session_id, producer)
        try:
            grant.require("ingest", session_id)
            if grant.session_id is not None:
                await sessions.get(project, session_id)  # a token makes no session
            opened, next_turn = await self.host.recorder.open(project, session_id, frame, may_call_out, grant.key_id)
        except VoicememError as error:
            await presence.abandon(project, session_id, producer)
            if not isinstance(error, Refused):
                raise
            self.refuse(error, frame.session_id, frame.producer)
            return
        if opened.created or opened.reopened:
            sessions.notices_due.set()
        lease = ProducerLease(
            opened.stream, producer, opened.epoch, may_call_out, grant.session_id is None, grant.key_id
        )
        before = self.leases.put(lease)
        if before is not None:
            await self.release(before)
        self.websocket.send_nowait(ready_frame(opened, producer, next_turn, self.host.incarnation, WINDOW_BYTES))
        await self.host.claim(self, lease)

    async def supersede(self, lease: ProducerLease) -> None:
        """A newer connection has opened this producer: say so, once, and pass over what still comes."""
        open_lease = self.leases.current(lease)
        if open_lease is None or open_lease.dead:
            return
        open_lease.dead = True
        problem = Problem(None, "superseded", CODES["superseded"].sentence)
        self.websocket.send_nowait(error_frame(problem, lease.session_id, lease.producer))
        await self.release(open_lease)

    # Answers

    def on_result(self, open_lease: OpenLease, batch: PendingBatch, answer: BatchResult | VoicememError) -> None:
        """Tell the client what became of a batch, after its commit."""
        self.in_flight -= 1
        self.unanswered -= batch.size
        if open_lease.batch is batch:
            open_lease.batch = None  # its events are in the journal, and would stay until the next
        if isinstance(answer, VoicememError):
            open_lease.dead = True
            self.fail(answer)
        elif any(problem.code == "superseded" for problem in answer.problems):
            self.run_in_background(self.supersede(open_lease.lease))
        elif not open_lease.dead:
            try:
                self.report_result(open_lease, answer)
            except InvalidFrame as flood:
                self.fail(flood)
        if not self.in_flight:
            self.all_answered.set()
        self.resume_if_room()

    def report_result(self, open_lease: OpenLease, recorded: BatchResult) -> None:
        """The errors of a batch, then its ack. Raises `InvalidFrame` for a flood."""
        lease = open_lease.lease
        if recorded.taken:
            self.unstored_in_a_row = 0
        for problem in recorded.problems:
            self.websocket.send_nowait(error_frame(problem, lease.session_id, lease.producer))
            if not recorded.taken and problem.code != "seq_gap":
                self.count_unstored()
        if recorded.acked is not None:
            self.websocket.send_nowait(b"%b%d}" % (open_lease.ack_prefix, recorded.acked))
        if recorded.ended:
            self.run_in_background(self.close_when_ended(lease))

    async def close_when_ended(self, lease: ProducerLease) -> None:
        with suppress(StoreUnavailable):  # the sweep closes what has ended
            await self.host.presence.close_when_ended(lease)

    def resume_if_room(self) -> None:
        if self.unanswered <= WINDOW_BYTES and not (self.throttle.held and not self.reading_stopped):
            self.websocket.set_reading(True)
