"""The recorder: what producers send goes to the journal, then into the fold, then is acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from voicemem.admission import Ending, Offer, Outcome, Stream, sentence
from voicemem.config import Settled, settle, settled_calls_out
from voicemem.errors import Refused, StoreUnavailable
from voicemem.events import Auth, SessionEnd, SessionOpen
from voicemem.fold import Entry
from voicemem.memories import Memories
from voicemem.store.base import Appended, Journal, Opened
from voicemem.wire import Arrived, Rejected

DEFAULT_PRODUCER = "main"
NEEDS_ADMIN = "Settings that make the server call out need the scope admin."
DEFAULT_REASON = "ended"
"""The reason of a `session.end` that gives none."""


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


class Recorder:
    """Takes batches of events of one line at a time.

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

    async def record(self, line: Line, arrivals: Sequence[Arrived | Rejected]) -> Recorded:
        """Journal a batch, fold what was stored, and say what to answer. Raises `StoreUnavailable`, `Refused`."""
        now = self.clock()
        arrivals = [self.vet(line, arrival) for arrival in arrivals]
        offers = [offer(arrival, now) for arrival in arrivals if is_offered(arrival)]
        try:
            appended = await self.journal.append(line.key, line.producer, line.epoch, offers, now)
        except StoreUnavailable:
            self.memories.forget_all()
            raise
        offered = iter(appended.outcomes)
        outcomes = [next(offered) if is_offered(arrival) else None for arrival in arrivals]
        self.memories.note(line.key, entries(arrivals, outcomes, now))
        return answer(line, arrivals, outcomes, appended)

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


def entries(
    arrivals: Sequence[Arrived | Rejected], outcomes: Sequence[Outcome | None], received_ms: int
) -> list[Entry]:
    """The journal entries that a batch has become, for the fold; refused ones change nothing in it."""
    return [
        Entry(outcome.position, received_ms, arrival.event)
        for arrival, outcome in zip(arrivals, outcomes, strict=True)
        if outcome is not None
        and outcome.position is not None
        and outcome.code is None
        and isinstance(arrival, Arrived)
        and not isinstance(arrival.event, (SessionOpen, Auth))
    ]


def answer(
    line: Line, arrivals: Sequence[Arrived | Rejected], outcomes: Sequence[Outcome | None], appended: Appended
) -> Recorded:
    """What the line's sender is told; an error counts as the ack of its event."""
    acked, problems, ended = None, [], False
    for arrival, outcome in zip(arrivals, outcomes, strict=True):
        problem = problem_of(line, arrival, outcome)
        if problem is not None:
            problems.append(problem)
        if outcome is None or outcome.code is not None:
            continue
        seq = arrival.event.seq if isinstance(arrival, Arrived) else arrival.seq
        acked = max(acked or 0, seq) if seq is not None else acked
        ended = ended or (isinstance(arrival, Arrived) and isinstance(arrival.event, SessionEnd))
    stored = any(outcome is not None and outcome.code is None for outcome in outcomes)
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
