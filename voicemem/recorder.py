"""The recorder: what producers send goes to the journal, then into the fold, then is acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from voicemem import admission
from voicemem.admission import Ending, Offer, Outcome, Stream, sentence
from voicemem.config import Settled, settle, settled_calls_out
from voicemem.errors import Refused, VoicememError
from voicemem.events import Auth, Incoming, Ordinary, RefusedEvent, SessionEnd, SessionOpen
from voicemem.memories import Memories
from voicemem.store.base import Appended, Journal, Opened
from voicemem.wire import Arrived, Rejected

LOG = logging.getLogger("voicemem")
DEFAULT_PRODUCER = "main"
NEEDS_ADMIN = "Settings that make the server call out need the scope admin."
DEFAULT_REASON = "ended"
"""The reason of a `session.end` that gives none."""
REFUSED = RefusedEvent(code="")
"""Stands in for any refused event: none of them changes a memory."""
FLOOD = 1_000
"""Events in a row that could not be stored, after which their sender is not listened to any more."""
SLICE = 500
"""Events of one frame or body that are taken at a time, before others have their turn."""
MOST_BATCHES = 1_000
"""In one commit: a bound on how long it can take."""


class Problem(NamedTuple):
    """One event that was not taken, as its sender is told."""

    seq: int | None
    code: str
    detail: str
    expected: int | None = None


class Recorded(NamedTuple):
    """What became of a batch: `acked` is the highest seq that is on disk, `problems` go out before it."""

    acked: int | None
    problems: list[Problem]
    next_seq: int
    stream: Stream
    stored: bool
    """Whether anything of the batch was taken."""
    ended: bool
    """Whether the batch held the producer's end."""


class Line:
    """A producer's line into a session: an epoch of it on a connection, or one HTTP request (no epoch)."""

    def __init__(self, stream: Stream, producer: str, epoch: int | None, may_call_out: bool) -> None:
        self.key = stream.key
        self.project = stream.project
        self.session_id = stream.id
        self.producer = producer
        self.epoch = epoch
        self.may_call_out = may_call_out
        """Whether its updates may set what makes the server call out (scope `admin`)."""
        self.waiting_for: int | None = None
        """The seq that a reported gap waits for; what is higher is passed over in silence."""


Answer = Callable[["Batch", Recorded | VoicememError], None]


class Batch:
    """Events of one line that wait for the next commit, and who is to be told what became of them."""

    def __init__(self, line: Line, answer: Answer) -> None:
        self.line = line
        self.answer = answer
        self.size = 0
        """Bytes, for whoever counts them."""
        self.events: list[Incoming] = []
        self.payloads: list[bytes] = []
        self.first_seq = 0
        self.next_seq = 0
        self.arrivals: list[Arrived | Rejected] | None = None
        """All events, once one was not ordinary, or its seq was not the next; until then there are only the above."""
        self.committing = False
        """Whether it is too late to add to it."""

    def add_ordinary(self, event: Ordinary, payload: bytes) -> None:
        """Add an event that does nothing but stand in the journal."""
        seq = event.seq
        if self.arrivals is None and seq is not None and (seq == self.next_seq or not self.events):
            if not self.events:
                self.first_seq = seq
            self.next_seq = seq + 1
            self.events.append(event)
            self.payloads.append(payload)
        else:
            self.add_other(Arrived(event, payload))

    def add(self, arrival: Arrived | Rejected) -> None:
        if isinstance(arrival, Arrived) and isinstance(arrival.event, Ordinary):
            self.add_ordinary(arrival.event, arrival.payload)
        else:
            self.add_other(arrival)

    def add_other(self, arrival: Arrived | Rejected) -> None:
        if self.arrivals is None:
            self.arrivals = [*map(Arrived, self.events, self.payloads)]
        self.arrivals.append(arrival)

    def offered(self, now_ms: int) -> admission.Batch:
        """As the journal takes it, with nothing more to come."""
        line, self.committing = self.line, True
        if self.arrivals is None:
            return admission.Batch(line.key, line.producer, line.epoch, now_ms, self.payloads, self.first_seq)
        offers = [offer(arrival, now_ms) for arrival in self.arrivals if is_offered(arrival)]
        return admission.Batch(line.key, line.producer, line.epoch, now_ms, offers=offers)


class Recorder:
    """Takes events of many lines, and commits whatever waits together.

    `clock` gives Unix ms; `check_settings` raises `Refused` for settings that may not be set.
    """

    def __init__(
        self,
        journal: Journal,
        memories: Memories,
        clock: Callable[[], int],
        check_settings: Callable[[Settled], None],
    ) -> None:
        self.journal = journal
        self.memories = memories
        self.clock = clock
        self.check_settings = check_settings
        self.waiting: list[Batch] = []
        self.committing: asyncio.Task[None] | None = None

    async def open(self, project: str, session_id: str, frame: SessionOpen, may_call_out: bool) -> tuple[Opened, int]:
        """A producer's new epoch on a session, and the turn that comes next in it. Raises `Refused`.

        The frame's configuration is for a session that does not exist yet; on one that does it is not even looked at.
        """
        known = await self.journal.stream(project, session_id)
        settled = settle({} if known is not None else frame.session or {})
        if settled_calls_out(settled) and not may_call_out:
            raise Refused("forbidden", NEEDS_ADMIN)
        self.check_settings(settled)
        producer = frame.producer or DEFAULT_PRODUCER
        opened = await self.journal.open(project, session_id, producer, settled, frame.from_seq, self.clock())
        memory = await self.memories.at(opened.stream)
        return opened, memory.state.newest_turn + 1

    async def record(self, line: Line, arrivals: Iterable[Arrived | Rejected]) -> Recorded:
        """Journal events together, and say what to answer. Raises `StoreUnavailable`, `Refused`."""
        answered: asyncio.Future[Recorded | VoicememError] = asyncio.get_running_loop().create_future()
        batch = Batch(line, lambda _, answer: None if answered.done() else answered.set_result(answer))
        for arrival in arrivals:
            batch.add(self.vet(line, arrival))
        self.take(batch)
        recorded = await answered
        if isinstance(recorded, VoicememError):
            raise recorded
        return recorded

    def vet(self, line: Line, arrival: Arrived | Rejected) -> Arrived | Rejected:
        """The event, or why this line may not carry it."""
        if isinstance(arrival, Rejected):
            return arrival
        try:
            check_line(line, arrival)
            if arrival.update is not None:
                self.check_settings(arrival.update)
        except Refused as refused:
            event = arrival.event
            return Rejected(refused.code, refused.detail, event.session_id, event.producer, event.seq)
        return arrival

    def take(self, batch: Batch) -> None:
        """Commit a batch with whatever else waits; it may grow until then. Its answer tells what became of it."""
        self.waiting.append(batch)
        if self.committing is None:
            self.committing = asyncio.create_task(self.commit_waiting())

    async def commit_waiting(self) -> None:
        """One commit at a time; what comes meanwhile is the next one's."""
        try:
            while self.waiting:
                batches, self.waiting = self.waiting[:MOST_BATCHES], self.waiting[MOST_BATCHES:]
                await self.commit(batches)
        finally:
            self.committing = None

    async def commit(self, batches: list[Batch]) -> None:
        """Journal, answer, then fold: nobody reads in between."""
        now = self.clock()
        try:
            appended = await self.journal.append([batch.offered(now) for batch in batches], now)
        except Exception as error:  # the outermost edge: nothing is acknowledged, and the operator hears why
            self.memories.forget_all()
            if not isinstance(error, VoicememError):
                LOG.error("A commit failed", exc_info=error)
            for batch in batches:
                batch.answer(batch, error if isinstance(error, VoicememError) else VoicememError("internal"))
        else:
            for batch, result in zip(batches, appended, strict=True):
                batch.answer(batch, answer(batch, result))
            for batch, result in zip(batches, appended, strict=True):
                self.fold(batch, result, now)

    def fold(self, batch: Batch, appended: Appended, received_ms: int) -> None:
        """Fold what was stored; refused events change nothing in a memory."""
        key = batch.line.key
        if appended.position is not None:
            self.memories.note(key, appended.position, received_ms, batch.events, sum(map(len, batch.payloads)))
            return
        for arrival, outcome in outcomes_of(batch, appended):
            if outcome is not None and outcome.position is not None:
                event = arrival.event if isinstance(arrival, Arrived) and outcome.code is None else REFUSED
                self.memories.note(key, outcome.position, received_ms, [event])


def check_line(line: Line, arrival: Arrived) -> None:
    """Raise `Refused` for an event that this line may not carry."""
    event = arrival.event
    if isinstance(event, (SessionOpen, Auth)):
        raise Refused("unknown_type", "session.open and auth are frames of a websocket.")
    if event.session_id not in (None, line.session_id) or event.producer not in (None, line.producer):
        raise Refused("invalid_field", "The event names another session or producer than the request.")
    if arrival.update is not None and settled_calls_out(arrival.update) and not line.may_call_out:
        raise Refused("forbidden", NEEDS_ADMIN)


def is_offered(arrival: Arrived | Rejected) -> bool:
    """An event whose seq cannot be read consumes nothing when it cannot be taken."""
    return isinstance(arrival, Arrived) or arrival.seq is not None


def offer(arrival: Arrived | Rejected, now_ms: int) -> Offer:
    if isinstance(arrival, Rejected):
        return Offer(arrival.seq, now_ms, b"", refusal=arrival.code)
    event = arrival.event
    ending = None
    if isinstance(event, SessionEnd):
        ending = Ending(now_ms if event.ts is None else event.ts, event.reason or DEFAULT_REASON)
    return Offer(event.seq, now_ms, arrival.payload, update=arrival.update, ending=ending)


def outcomes_of(batch: Batch, appended: Appended) -> list[tuple[Arrived | Rejected, Outcome | None]]:
    """Each event with its outcome; None for what was not offered."""
    arrivals = batch.arrivals if batch.arrivals is not None else [*map(Arrived, batch.events, batch.payloads)]
    offered = iter(appended.outcomes)
    return [(arrival, next(offered) if is_offered(arrival) else None) for arrival in arrivals]


def answer(batch: Batch, appended: Appended) -> Recorded:
    """What the line's sender is told; an error counts as the ack of its event."""
    if appended.position is not None:
        batch.line.waiting_for = None
        return Recorded(batch.next_seq - 1, [], appended.next_seq, appended.stream, stored=True, ended=False)
    acked, problems, stored, ended = None, [], False, False
    for arrival, outcome in outcomes_of(batch, appended):
        problem = problem_of(batch.line, arrival, outcome)
        if problem is not None:
            problems.append(problem)
        if outcome is None or outcome.code is not None:
            continue
        stored = True
        seq = arrival.event.seq if isinstance(arrival, Arrived) else arrival.seq
        acked = max(acked or 0, seq) if seq is not None else acked
        ended = ended or (isinstance(arrival, Arrived) and isinstance(arrival.event, SessionEnd))
    return Recorded(acked, problems, appended.next_seq, appended.stream, stored, ended)


def problem_of(line: Line, arrival: Arrived | Rejected, outcome: Outcome | None) -> Problem | None:
    """What to tell the sender of one event; None when all is well, or when a gap was told already."""
    if outcome is not None and outcome.position is not None:
        line.waiting_for = None
    if isinstance(arrival, Rejected) and (outcome is None or outcome.code == arrival.code):
        return Problem(arrival.seq, arrival.code, arrival.detail)
    if outcome is None or outcome.code is None:
        return None
    seq = arrival.event.seq if isinstance(arrival, Arrived) else arrival.seq
    if outcome.code == "seq_gap":
        if line.waiting_for == outcome.expected:
            return None
        line.waiting_for = outcome.expected
    return Problem(seq, outcome.code, sentence(outcome), outcome.expected)
