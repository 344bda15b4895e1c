"""What became of a batch in the journal: what its sender is answered, what goes into the fold, what is counted."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.protocol.codec import DecodedEvent, RejectedEvent
from voicemem.protocol.events import RefusalMarker, SessionEnd
from voicemem.sessions.batches import BatchResult, FoldEntry, PendingBatch, Problem, ProducerLease, is_offered
from voicemem.sessions.config_update import ConfigUpdate
from voicemem.store.admission import Outcome, sentence
from voicemem.store.records import Appended

REFUSED = RefusalMarker(code="")
"""Stands in for any refused event: none of them changes a memory."""


def result_of(batch: PendingBatch, appended: Appended) -> BatchResult:
    """What became of a batch. Most are of ordinary events in order, which are stored whole."""
    if appended.position is None:
        return result_by_event(batch, appended)
    batch.line.waiting_for = None
    count = len(batch.events)
    entry = FoldEntry(appended.position, batch.events, sum(map(len, batch.payloads)))
    return BatchResult(batch.next_seq - 1, [], appended.next_seq, appended.stream, count, count, entries=(entry,))


def result_by_event(batch: PendingBatch, appended: Appended) -> BatchResult:
    """What became of a batch whose events the journal took, knew or refused one by one; an error counts as an ack."""
    acked, problems, entries, updates, stored, repeated, ended = None, [], [], [], 0, 0, False
    for arrival, outcome in outcomes_of(batch, appended):
        problem = problem_of(batch.line, arrival, outcome)
        if problem is not None:
            problems.append(problem)
        if outcome is None:
            continue
        if outcome.position is not None:
            entries.append(entry_of(arrival, outcome, outcome.position))
        if outcome.code is not None:
            continue
        stored, repeated = stored + (not outcome.duplicate), repeated + outcome.duplicate
        seq = seq_of(arrival)
        acked = max(acked or 0, seq) if seq is not None else acked
        ended = ended or (isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionEnd))
        if isinstance(arrival, ConfigUpdate) and not outcome.duplicate:
            updates.append(arrival)
    offered, next_seq, stream = len(appended.outcomes), appended.next_seq, appended.stream
    return BatchResult(acked, problems, next_seq, stream, offered, stored, repeated, ended, entries, updates)


def outcomes_of(
    batch: PendingBatch, appended: Appended
) -> Iterator[tuple[DecodedEvent | RejectedEvent, Outcome | None]]:
    """Each event with its outcome; None for what was not offered."""
    arrivals = batch.arrivals if batch.arrivals is not None else map(DecodedEvent, batch.events, batch.payloads)
    offered = iter(appended.outcomes)
    for arrival in arrivals:
        yield arrival, next(offered) if is_offered(arrival) else None


def entry_of(arrival: DecodedEvent | RejectedEvent, outcome: Outcome, position: int) -> FoldEntry:
    """What the fold takes of an event that the journal has: of a refused one, only that it has a position."""
    if isinstance(arrival, DecodedEvent) and outcome.code is None:
        return FoldEntry(position, [arrival.event], len(arrival.payload))
    return FoldEntry(position, [REFUSED], 0)


def seq_of(arrival: DecodedEvent | RejectedEvent) -> int | None:
    return arrival.event.seq if isinstance(arrival, DecodedEvent) else arrival.seq


def problem_of(line: ProducerLease, arrival: DecodedEvent | RejectedEvent, outcome: Outcome | None) -> Problem | None:
    """What to answer for one event; None when all is well, or when the gap was reported before."""
    if outcome is not None and outcome.position is not None:
        line.waiting_for = None
    if isinstance(arrival, RejectedEvent) and (outcome is None or outcome.code == arrival.code):
        return Problem(arrival.seq, arrival.code, arrival.detail)
    if outcome is None or outcome.code is None:
        return None
    if outcome.code == "seq_gap":
        if line.waiting_for == outcome.expected:
            return None
        line.waiting_for = outcome.expected
    return Problem(seq_of(arrival), outcome.code, sentence(outcome), outcome.expected)
