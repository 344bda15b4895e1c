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
from voicemem.server.ingest.leases import Lines, Queue
from voicemem.server.ingest.throttle import Throttle
from voicemem.server.ingest.websocket import EventSocket
from voicemem.sessions.batches import BatchResult, Line, PendingBatch, Problem
from voicemem.sessions.presence import Presence
from voicemem.sessions.recorder import DEFAULT_PRODUCER, FLOOD, SLICE, Recorder
from voicemem.telemetry.metrics import Metrics

WINDOW_BYTES = 1024 * 1024
"""Received and not yet answered; over it the connection is not read, and TCP holds the sender back."""
ASKS = SessionOpen, Auth
"""Frames for which the store must be asked before anything that follows is taken."""
AUTH_TIMEOUT_S = 10.0
GOODBYE = (1000, 1001)
"""Close codes of those who mean to go; any other connection is lost."""
LAST_ANSWERS_S = 0.3
"""For the answers to what came before a key was revoked; a store that does not answer holds up no closing."""
OVER_RATE = "Over the rate of the key; nothing is lost, and what comes is taken at this rate."


class Host(Protocol):
    """The server that a connection is part of."""

    recorder: Recorder
    presence: Presence
    metrics: Metrics
    incarnation: str

    async def grant(self, token: str | None) -> Grant: ...

    def event_bucket(self, grant: Grant) -> Bucket | None: ...

    async def hold(self, connection: Connection, line: Line) -> None: ...

    def release(self, line: Line) -> None: ...


class Connection:
    """Hears messages until the client goes, the server drains, or something is wrong beyond an error frame."""

    def __init__(self, websocket: EventSocket, host: Host, grant: Grant | None, origin: object = None) -> None:
        self.websocket = websocket
        self.host = host
        self.granted: Grant | None = None
        self.origin = origin
        """The trace that the client's handshake is part of."""
        self.lines = Lines()
        self.unanswered = 0
        """Bytes received and not yet answered."""
        self.in_flight = 0
        """Batches that were not answered yet."""
        self.quiet = asyncio.Event()
        self.fruitless = 0
        """Events in a row that stored nothing."""
        self.backlog: deque[bytes] = deque()
        """Messages that wait for what was asked before them."""
        self.work: asyncio.Task[None] | None = None
        """An open or a key that is under way."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.deaf = False
        """Whether nothing more is taken: it failed, or the server drains."""
        self.throttle = Throttle(host.presence.sessions.clock, self.hold_back, self.go_on)
        if grant is not None:
            self.accept(grant)

    # The life of a connection

    async def run(self) -> None:
        """Until the connection is closed."""
        if self.granted is None:
            asyncio.get_running_loop().call_later(AUTH_TIMEOUT_S, self.expect_key)
        self.websocket.listen(self.hear)
        await self.websocket.wait_closed()
        if not self.deaf and self.websocket.failed_with == CODES["too_big"].close:  # which the library sees first
            self.count_rejected("too_big")

    def count_rejected(self, code: str) -> None:
        self.host.metrics.connections_rejected.labels(code).inc()

    def expect_key(self) -> None:
        """Where a key is needed and none came with the handshake, the first frame must bring it, soon."""
        if self.granted is None and self.work is None:
            self.fail(InvalidFrame("unauthorized", "No key came in time."))

    def take_no_more(self) -> None:
        self.deaf = True
        self.throttle.stop()
        self.backlog.clear()

    async def drain(self) -> None:
        """Take nothing more, answer what came, close with 1012."""
        self.take_held()
        self.take_no_more()
        self.websocket.tell(GOAWAY)
        await self.flush()
        await self.websocket.close(1012, "draining")

    async def expel(self, error: VoicememError) -> None:
        """Take nothing more, answer what came, then say why it is over, and close with the code's close code."""
        if self.deaf:
            return
        self.take_held()
        self.take_no_more()
        self.count_rejected(error.code)
        self.websocket.read_on(True)  # else the client's answer to the close is not heard
        answered = asyncio.create_task(self.flush())
        await asyncio.wait([answered], timeout=LAST_ANSWERS_S)
        self.websocket.tell(error_frame(Problem(None, error.code, error.detail)))
        await self.websocket.close(CODES[error.code].close or 1008, error.code)
        await answered

    async def leave(self) -> None:
        """After the connection: store what it had sent, and let go of its lines."""
        self.take_held()
        await self.flush()
        self.deaf = True
        for queue in self.lines:
            await self.let_go(queue, lost=self.websocket.close_code not in GOODBYE)

    async def let_go(self, queue: Queue, lost: bool = False) -> None:
        queue.dead = True
        if queue.released:
            return
        queue.released = True
        self.host.release(queue.line)
        with suppress(StoreUnavailable):  # the sweep tells the store when it is back
            await self.host.presence.disconnect(queue.line, lost)

    def fail(self, error: VoicememError) -> None:
        """Say what is wrong, and close with the code's close code."""
        if self.deaf:
            return
        self.take_no_more()
        self.count_rejected(error.code)
        self.websocket.tell(error_frame(Problem(None, error.code, error.detail)))
        self.websocket.read_on(True)  # else the client's answer to the close is not heard
        self.start(self.websocket.close(CODES[error.code].close or 1011, error.code))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def flush(self) -> None:
        """Wait until everything that was received is answered."""
        if self.work is not None and self.work is not asyncio.current_task():
            await self.work
        while self.in_flight:
            self.quiet.clear()
            await self.quiet.wait()

    # Frames in

    def hear(self, message: bytes, binary: bool) -> None:
        """One message of the client's; what must wait for the store is left to a task, and all after it too."""
        if self.deaf:
            return
        try:
            if binary:
                raise InvalidFrame("binary_frame")
            if self.work is not None or self.throttle.held:
                self.unanswered += len(message)
                self.backlog.append(message)
            elif not self.take_ordinary(message):
                self.take_frame(message)
        except VoicememError as error:
            self.fail(error)
        if self.unanswered > WINDOW_BYTES:
            self.websocket.read_on(False)

    def take_ordinary(self, message: bytes) -> bool:
        """Take a message that is one ordinary event of an open line; False when there is more to it."""
        event = decode_fast(message)
        if event is None:
            return False
        lines = self.lines
        queue = lines.only if event.session_id is None and event.producer is None else lines.find(event)
        if queue is None or queue.dead:
            return False
        batch = queue.batch
        if batch is None or batch.committing:
            batch = self.begin_batch(queue)
        batch.add_ordinary(event, message)
        batch.size += len(message)
        self.unanswered += len(message)
        throttle = self.throttle
        throttle.allowance -= 1
        if throttle.allowance < 0:
            throttle.ask()
        return True

    def take_frame(self, message: bytes) -> None:
        pieces = split_frame(message)
        if not pieces:
            self.count_fruitless()
        size = len(message) // max(1, len(pieces))
        self.throttle.count(len(pieces))
        arrivals = map(decode_event, map(bytes, pieces))
        if self.granted is None or len(pieces) > SLICE:
            self.work = asyncio.create_task(self.proceed(arrivals, size))
            return
        for arrival in arrivals:
            if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, ASKS):
                self.work = asyncio.create_task(self.proceed(chain([arrival], arrivals), size))
                return
            self.take(arrival, size)

    async def proceed(self, arrivals: Iterator[DecodedEvent | RejectedEvent], size: int) -> None:
        """Take what remains of a message, and the messages that came meanwhile."""
        try:
            await self.take_slowly(arrivals, size)
            while self.backlog and not self.throttle.held:
                message = self.backlog.popleft()
                self.unanswered -= len(message)
                pieces = split_frame(message)
                self.throttle.count(len(pieces))
                await self.take_slowly(map(decode_event, map(bytes, pieces)), len(message) // max(1, len(pieces)))
        except VoicememError as error:
            self.fail(error)
        finally:
            self.work = None
            self.make_room()

    async def take_slowly(self, arrivals: Iterator[DecodedEvent | RejectedEvent], size: int) -> None:
        for count, arrival in enumerate(arrivals, 1):
            if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, Auth):
                await self.authenticate(arrival.event.token)
                continue
            if self.granted is None:
                await self.authenticate(None)
            if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionOpen):
                await self.open(arrival.event)
            else:
                self.take(arrival, size)
            if count % SLICE == 0:
                await asyncio.sleep(0)

    async def authenticate(self, token: str | None) -> None:
        """Take a key, or go without one where none is needed. Raises `InvalidFrame` to close the connection."""
        try:
            granted = await self.host.grant(token)
        except Refused as refused:
            raise InvalidFrame(refused.code, refused.detail) from None
        if self.granted is not None and not granted.includes(self.granted):
            raise InvalidFrame("forbidden", "A later key or token must allow all that the one before it allowed.")
        self.accept(granted)

    def accept(self, grant: Grant) -> None:
        """From now on this grant holds, and its events are charged to its rate."""
        self.granted = grant
        self.throttle.meter(self.host.event_bucket(grant))

    # The rate of a key

    def hold_back(self, tell: bool) -> None:
        if tell:
            self.websocket.tell(error_frame(Problem(None, "rate_limited", OVER_RATE)))
        self.websocket.read_on(False)

    def go_on(self) -> None:
        """Take the messages that had to wait, as far as the rate goes, then read on."""
        try:
            while self.backlog and self.work is None and not self.throttle.held and not self.deaf:
                message = self.backlog.popleft()
                self.unanswered -= len(message)
                if not self.take_ordinary(message):
                    self.take_frame(message)
        except VoicememError as error:
            self.fail(error)
        self.make_room()

    def take_held(self) -> None:
        """Take what had to wait for the rate: it has come, and the connection is over. It is charged all the same."""
        self.throttle.let_go()
        self.go_on()

    # Events to lines

    def take(self, arrival: DecodedEvent | RejectedEvent, size: int) -> None:
        """Put one event to its line. Raises `InvalidFrame` for a flood."""
        event = arrival.event if isinstance(arrival, DecodedEvent) else arrival
        queue = self.lines.find(event)
        if queue is None:
            if isinstance(arrival, DecodedEvent):
                refused = Refused(self.lines.misplaced(arrival.event))
            else:
                refused = Refused(arrival.code, arrival.detail)
            self.refuse(refused, event.session_id, event.producer, event.seq)
            return
        if queue.dead:
            return
        if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionUpdate):
            arrival = self.host.recorder.vet(queue.line, arrival)
        batch = queue.batch
        if batch is None or batch.committing:
            batch = self.begin_batch(queue)
        batch.add(arrival)
        batch.size += size
        self.unanswered += size

    def begin_batch(self, queue: Queue) -> PendingBatch:
        batch = queue.batch = PendingBatch(
            queue.line, lambda batch, answer: self.answered(queue, batch, answer), "websocket", self.origin
        )
        self.host.recorder.take(batch)
        self.in_flight += 1
        return batch

    def refuse(self, refused: Refused, session_id: str | None, producer: str | None, seq: int | None = None) -> None:
        """An error frame for what stored nothing; too many of them in a row are a flood."""
        self.websocket.tell(error_frame(Problem(seq, refused.code, refused.detail), session_id, producer))
        self.host.metrics.refused(refused.code)
        self.count_fruitless()

    def count_fruitless(self) -> None:
        self.fruitless += 1
        if self.fruitless > FLOOD:
            raise InvalidFrame("flood")

    # Lines

    async def open(self, frame: SessionOpen) -> None:
        """Open a line, in the order of the frames: what was sent before is stored before."""
        assert self.granted is not None
        await self.flush()
        granted, presence, sessions = self.granted, self.host.presence, self.host.presence.sessions
        project, may_call_out = granted.project, granted.allows("admin")
        session_id = frame.session_id or granted.session_id or sessions.new_id()
        producer = frame.producer or DEFAULT_PRODUCER
        presence.connect(project, session_id, producer)
        try:
            granted.require("ingest", session_id)
            if granted.session_id is not None:
                await sessions.get(project, session_id)  # a token makes no session
            opened, next_turn = await self.host.recorder.open(project, session_id, frame, may_call_out, granted.key_id)
        except VoicememError as error:
            await presence.abandon(project, session_id, producer)
            if not isinstance(error, Refused):
                raise
            self.refuse(error, frame.session_id, frame.producer)
            return
        if opened.created or opened.reopened:
            sessions.notices_due.set()
        line = Line(opened.stream, producer, opened.epoch, may_call_out, granted.session_id is None, granted.key_id)
        before = self.lines.put(line)
        if before is not None:
            await self.let_go(before)
        self.websocket.tell(ready_frame(opened, producer, next_turn, self.host.incarnation, WINDOW_BYTES))
        await self.host.hold(self, line)

    async def supersede(self, line: Line) -> None:
        """A newer connection has opened this producer: say so, once, and pass over what still comes."""
        queue = self.lines.of(line)
        if queue is None or queue.dead:
            return
        queue.dead = True
        problem = Problem(None, "superseded", CODES["superseded"].sentence)
        self.websocket.tell(error_frame(problem, line.session_id, line.producer))
        await self.let_go(queue)

    # Answers

    def answered(self, queue: Queue, batch: PendingBatch, answer: BatchResult | VoicememError) -> None:
        """Tell the client what became of a batch, after its commit."""
        self.in_flight -= 1
        self.unanswered -= batch.size
        if queue.batch is batch:
            queue.batch = None  # its events are in the journal, and would stay until the next
        if isinstance(answer, VoicememError):
            queue.dead = True
            self.fail(answer)
        elif any(problem.code == "superseded" for problem in answer.problems):
            self.start(self.supersede(queue.line))
        elif not queue.dead:
            try:
                self.acknowledge(queue, answer)
            except InvalidFrame as flood:
                self.fail(flood)
        if not self.in_flight:
            self.quiet.set()
        self.make_room()

    def acknowledge(self, queue: Queue, recorded: BatchResult) -> None:
        """The errors of a batch, then its ack. Raises `InvalidFrame` for a flood."""
        line = queue.line
        if recorded.taken:
            self.fruitless = 0
        for problem in recorded.problems:
            self.websocket.tell(error_frame(problem, line.session_id, line.producer))
            if not recorded.taken and problem.code != "seq_gap":
                self.count_fruitless()
        if recorded.acked is not None:
            self.websocket.tell(b"%b%d}" % (queue.ack, recorded.acked))
        if recorded.ended:
            self.start(self.close_when_ended(line))

    async def close_when_ended(self, line: Line) -> None:
        with suppress(StoreUnavailable):  # the sweep closes what has ended
            await self.host.presence.close_when_ended(line)

    def make_room(self) -> None:
        if self.unanswered <= WINDOW_BYTES and not (self.throttle.held and not self.deaf):
            self.websocket.read_on(True)
