"""One websocket connection: it opens lines, sends their events to the recorder, and answers in their order."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from voicemem.access import Grant
from voicemem.errors import CODES, InvalidFrame, Refused, StoreUnavailable, VoicememError
from voicemem.events import Auth, SessionOpen
from voicemem.recorder import DEFAULT_PRODUCER, Line, Problem, Recorder
from voicemem.server.frames import GOAWAY, ack_frame, error_frame, ready_frame
from voicemem.sessions import Sessions
from voicemem.wire import Arrived, Rejected, decode_frame

LOG = logging.getLogger("voicemem")
WINDOW_BYTES = 1024 * 1024
"""Received and not yet answered; over it the connection is not read, and TCP holds the sender back."""
FLOOD = 1_000
"""Events in a row that could not be stored, after which the connection is closed."""
AUTH_TIMEOUT_S = 10.0


class Host(Protocol):
    """The server that a connection is part of."""

    recorder: Recorder
    sessions: Sessions
    incarnation: str

    async def grant(self, token: str | None) -> Grant: ...

    async def hold(self, connection: Connection, line: Line) -> None: ...

    def release(self, line: Line) -> None: ...


class Queue:
    """A line, what waits for its next commit, and the task that commits it."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.waiting: list[tuple[Arrived | Rejected, int]] = []
        self.task: asyncio.Task[None] | None = None
        self.dead = False
        """Superseded or failed: what still comes for it is passed over."""
        self.released = False
        """Whether the session knows that this connection is gone from it."""


class Connection:
    """Reads frames until the client goes, the server drains, or something is wrong beyond an error frame."""

    def __init__(self, websocket: ServerConnection, host: Host, grant: Grant | None) -> None:
        self.websocket = websocket
        self.host = host
        self.granted = grant
        self.queues: dict[str, dict[str, Queue]] = {}
        """By session id and producer."""
        self.unanswered = 0
        """Bytes received and not yet answered."""
        self.room = asyncio.Event()
        self.fruitless = 0
        """Events in a row that stored nothing."""
        self.telling: set[asyncio.Task[None]] = set()
        self.reader: asyncio.Task[None] | None = None

    # The life of a connection

    async def run(self) -> None:
        self.reader = asyncio.current_task()
        try:
            if self.granted is None:
                await self.first_frame()
            async for frame in self.websocket:
                await self.receive(frame)
                await self.wait_for_room()
        except asyncio.CancelledError:
            if not self.draining():
                raise
        except VoicememError as error:
            await self.fail(error)

    async def first_frame(self) -> None:
        """Where a key is needed and none came with the handshake, the first frame must bring it, soon."""
        deadline = asyncio.get_running_loop().time() + AUTH_TIMEOUT_S
        while self.granted is None:  # an empty array is a frame too
            try:
                async with asyncio.timeout_at(deadline):
                    frame = await self.websocket.recv()
            except TimeoutError:
                raise InvalidFrame("unauthorized", "No key came in time.") from None
            await self.receive(frame)

    def draining(self) -> bool:
        return self.reader is None

    async def drain(self) -> None:
        """Stop reading, answer what came, close with 1012."""
        reader, self.reader = self.reader, None
        await self.send(GOAWAY)
        if reader is not None:
            reader.cancel()
        await self.flush()
        await self.websocket.close(1012, "draining")

    async def leave(self) -> None:
        """After the connection: store what it had sent, and let go of its lines."""
        await self.flush()
        for queue in self.all_queues():
            await self.let_go(queue)

    async def let_go(self, queue: Queue) -> None:
        queue.dead = True
        if queue.released:
            return
        queue.released = True
        self.host.release(queue.line)
        with suppress(StoreUnavailable):  # the sweep tells the store when it is back
            await self.host.sessions.disconnect(queue.line)

    async def fail(self, error: VoicememError) -> None:
        """Say what is wrong, and close with the code's close code."""
        await self.send(error_frame(Problem(None, error.code, error.detail)))
        await self.websocket.close(CODES[error.code].close or 1011, error.code)

    async def send(self, frame: dict[str, Any]) -> None:
        with suppress(ConnectionClosed):  # what was stored is stored; the client asks again when it is back
            await self.websocket.send(msgspec.json.encode(frame), text=True)

    # Frames in

    async def receive(self, frame: str | bytes) -> None:
        """One frame. Raises `InvalidFrame` for what closes the connection."""
        if isinstance(frame, bytes):
            raise InvalidFrame("binary_frame")
        text = frame.encode()
        arrivals = decode_frame(text)
        size = len(text) // max(1, len(arrivals))
        for arrival in arrivals:
            if isinstance(arrival, Arrived) and isinstance(arrival.event, Auth):
                await self.authenticate(arrival.event.token)
            else:
                if self.granted is None:
                    await self.authenticate(None)
                await self.take(arrival, size)

    async def authenticate(self, token: str | None) -> None:
        """Take a key, or go without one where none is needed. Raises `InvalidFrame` to close the connection."""
        try:
            self.granted = await self.host.grant(token)
        except Refused as refused:
            raise InvalidFrame(refused.code, refused.detail) from None

    async def take(self, arrival: Arrived | Rejected, size: int) -> None:
        if isinstance(arrival, Arrived) and isinstance(arrival.event, SessionOpen):
            try:
                await self.open(arrival.event)
            except Refused as refused:
                await self.refuse(refused, arrival.event.session_id, arrival.event.producer)
            return
        try:
            queue = self.find_queue(arrival)
        except Refused as refused:
            event = arrival.event if isinstance(arrival, Arrived) else arrival
            await self.refuse(refused, event.session_id, event.producer, event.seq)
            return
        if queue is None:
            assert isinstance(arrival, Rejected)
            await self.refuse(Refused(arrival.code, arrival.detail), arrival.session_id, arrival.producer, arrival.seq)
        elif not queue.dead:
            self.unanswered += size
            queue.waiting.append((arrival, size))
            if queue.task is None:
                queue.task = asyncio.create_task(self.commit(queue))

    def find_queue(self, arrival: Arrived | Rejected) -> Queue | None:
        """The line that an event is for; None for a refused event that no line can be found for. Raises `Refused`."""
        event = arrival.event if isinstance(arrival, Arrived) else arrival
        if event.session_id is not None:
            of_session = self.queues.get(event.session_id, {})
        else:
            of_session = next(iter(self.queues.values())) if len(self.queues) == 1 else {}
        if event.producer is not None and event.producer in of_session:
            return of_session[event.producer]
        if event.producer is None and len(of_session) == 1:
            return next(iter(of_session.values()))
        if isinstance(arrival, Rejected):
            return None
        ambiguous = (of_session and event.producer is None) or (not of_session and event.session_id is None)
        ambiguous = ambiguous and bool(self.queues)
        raise Refused("session_required" if ambiguous else "not_open")

    async def refuse(
        self, refused: Refused, session_id: str | None, producer: str | None, seq: int | None = None
    ) -> None:
        """An error frame for what stored nothing; too many of them in a row are a flood."""
        problem = Problem(seq, refused.code, refused.detail)
        await self.send(error_frame(problem, session_id, producer))
        self.count_fruitless()

    def count_fruitless(self) -> None:
        self.fruitless += 1
        if self.fruitless > FLOOD:
            raise InvalidFrame("flood")

    # Lines

    def all_queues(self) -> list[Queue]:
        return [queue for of_session in self.queues.values() for queue in of_session.values()]

    async def open(self, frame: SessionOpen) -> None:
        """Open a line, in the order of the frames: what was sent before is stored before. Raises `Refused`."""
        assert self.granted is not None
        await self.flush()
        may_call_out = self.granted.allows("admin")
        project, sessions = self.granted.project, self.host.sessions
        session_id, producer = frame.session_id or sessions.new_id(), frame.producer or DEFAULT_PRODUCER
        sessions.connect(project, session_id, producer)
        try:
            opened, next_turn = await self.host.recorder.open(project, session_id, frame, may_call_out)
        except VoicememError:
            await sessions.abandon(project, session_id, producer)
            raise
        line = Line(opened.stream, producer, opened.epoch, may_call_out)
        await self.replace(line)
        await self.host.hold(self, line)
        await self.send(ready_frame(opened, producer, next_turn, self.host.incarnation, WINDOW_BYTES))

    async def replace(self, line: Line) -> None:
        """Take a new line, and let go of the one that this connection had for the same producer."""
        of_session = self.queues.setdefault(line.session_id, {})
        before = of_session.get(line.producer)
        of_session[line.producer] = Queue(line)
        if before is not None:
            await self.let_go(before)

    async def supersede(self, line: Line) -> None:
        """A newer connection has opened this producer: say so, once, and pass over what still comes."""
        queue = self.queues.get(line.session_id, {}).get(line.producer)
        if queue is None or queue.line is not line or queue.dead:
            return
        await self.let_go(queue)
        problem = Problem(None, "superseded", CODES["superseded"].sentence)
        # Whoever opens the producer anew must not wait for a peer that reads nothing.
        telling = asyncio.create_task(self.send(error_frame(problem, line.session_id, line.producer)))
        self.telling.add(telling)
        telling.add_done_callback(self.telling.discard)

    # Commits and answers

    async def commit(self, queue: Queue) -> None:
        """Commit what waits for a line, batch by batch, and answer each after its commit."""
        try:
            while queue.waiting:
                batch, queue.waiting = queue.waiting, []
                try:
                    if not queue.dead:
                        await self.record(queue, [arrival for arrival, _ in batch])
                finally:
                    self.unanswered -= sum(size for _, size in batch)
                    self.room.set()
        except VoicememError as error:
            queue.dead = True
            await self.fail(error)
        except Exception as error:  # the outermost edge: nothing more is acknowledged, and the operator hears why
            LOG.error("A commit failed", exc_info=error)
            queue.dead = True
            await self.fail(VoicememError("internal"))
        finally:
            queue.task = None
            self.unanswered -= sum(size for _, size in queue.waiting)  # of a line that died, nothing is answered
            queue.waiting.clear()
            self.room.set()

    async def record(self, queue: Queue, arrivals: list[Arrived | Rejected]) -> None:
        line = queue.line
        recorded = await self.host.recorder.record(line, arrivals)
        if any(problem.code == "superseded" for problem in recorded.problems):
            await self.supersede(line)
            return
        if recorded.stored:
            self.fruitless = 0
        for problem in recorded.problems:
            await self.send(error_frame(problem, line.session_id, line.producer))
            if not recorded.stored and problem.code != "seq_gap":
                self.count_fruitless()
        if recorded.acked is not None:
            await self.send(ack_frame(line, recorded.acked))
        if recorded.ended:
            await self.host.sessions.close_when_ended(line)

    async def flush(self) -> None:
        """Wait until everything that was received is answered."""
        while tasks := [queue.task for queue in self.all_queues() if queue.task is not None]:
            await asyncio.wait(tasks)

    async def wait_for_room(self) -> None:
        while self.unanswered > WINDOW_BYTES:
            self.room.clear()
            await self.room.wait()
