"""The lines that one websocket connection has into sessions, and which of them an event is for."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.protocol.codec import RejectedEvent
from voicemem.protocol.events import IncomingEvent
from voicemem.server.ingest.answers import ack_prefix
from voicemem.sessions.batches import Line, PendingBatch


class Queue:
    """A line, and its events that wait for the next commit."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.batch: PendingBatch | None = None
        self.ack = ack_prefix(line)
        self.dead = False
        """Superseded or failed: what still comes for it is passed over."""
        self.released = False
        """Whether the session knows that this connection is gone from it."""


class Lines:
    """By session id and producer."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, Queue]] = {}
        self.only: Queue | None = None
        """The one line of this connection, if it has one."""

    def __iter__(self) -> Iterator[Queue]:
        return iter([queue for of_session in self.queues.values() for queue in of_session.values()])

    def put(self, line: Line) -> Queue | None:
        """Take a new line; the one that was there before for the same producer."""
        of_session = self.queues.setdefault(line.session_id, {})
        before = of_session.get(line.producer)
        queue = of_session[line.producer] = Queue(line)
        self.only = queue if len(self.queues) == 1 == len(of_session) else None
        return before

    def of(self, line: Line) -> Queue | None:
        """The queue of a line, unless a newer line has its place."""
        queue = self.queues.get(line.session_id, {}).get(line.producer)
        return queue if queue is not None and queue.line is line else None

    def find(self, event: IncomingEvent | RejectedEvent) -> Queue | None:
        """The line that an event is for, if that can be told."""
        if event.session_id is not None:
            of_session = self.queues.get(event.session_id, {})
        else:
            of_session = next(iter(self.queues.values())) if len(self.queues) == 1 else {}
        if event.producer is not None and event.producer in of_session:
            return of_session[event.producer]
        if event.producer is None and len(of_session) == 1:
            return next(iter(of_session.values()))
        return None

    def misplaced(self, event: IncomingEvent) -> str:
        """The code for an event whose line cannot be told."""
        named = self.queues.get(event.session_id) if event.session_id is not None else None
        if event.session_id is None and len(self.queues) == 1:
            named = next(iter(self.queues.values()))
        ambiguous = event.producer is None if named else event.session_id is None
        return "session_required" if ambiguous and self.queues else "not_open"
