"""Turns the journal's outcomes of a batch into its result: the answers to its sender, what is folded, the counts."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.protocol.codec import DecodedEvent, RejectedEvent
from voicemem.protocol.events import RefusalMarker, SessionEnd
from voicemem.sessions.config_update import ConfigUpdate
from voicemem.sessions.frames import ReducedFrame
from voicemem.sessions.recording.batches import (
    BatchResult,
    EventProblem,
    FoldEntry,
    PendingBatch,
    ProducerLease,
    is_offered,
)
from voicemem.store.admission import Outcome, outcome_sentence
from voicemem.store.records import AppendResult

REFUSED = RefusalMarker(code="")
"""Stands for any refused event in the fold, where it takes a position and changes nothing."""


def result_of(batch: PendingBatch, appended: AppendResult) -> BatchResult:
    """The result of a batch. Most batches are of ordinary events in order, and are stored whole."""
    if appended.position is None:
        return result_by_event(batch, appended)
    batch.lease.reported_gap = None
    count = len(batch.events)
    size = sum(map(len, batch.payloads))
    next_seq, stream = appended.next_seq, appended.stream
    return BatchResult(batch.next_seq - 1, (), next_seq, stream, count, count, appended.position, size)


def result_by_event(batch: PendingBatch, appended: AppendResult) -> BatchResult:
    """The result of a batch whose events were stored, known or refused one by one. An error counts as an ack."""
    if appended.position_taken:
        return BatchResult(None, (), appended.next_seq, appended.stream, 0, 0, position_taken=True)
    acked, problems, entries, updates, stored, repeated, size, ended = None, [], [], [], 0, 0, 0, False
    for arrival, outcome in outcomes_of(batch, appended):
        problem = problem_of(batch.lease, arrival, outcome)
        if problem is not None:
            problems.append(problem)
        if outcome is None:
            continue
        if outcome.position is not None:
            kept = arrival if isinstance(arrival, DecodedEvent) and outcome.code is None else None
            entries.append(FoldEntry(outcome.position, REFUSED if kept is None else kept.event))
            size += 0 if kept is None else len(kept.payload)
        if outcome.code is not None:
            continue
        stored, repeated = stored + (not outcome.duplicate), repeated + outcome.duplicate
        seq = seq_of(arrival)
        acked = max(acked or 0, seq) if seq is not None else acked
        ended = ended or ends_session(arrival)
        if isinstance(arrival, ConfigUpdate) and not outcome.duplicate:
            updates.append(arrival)
    offered, next_seq, stream = len(appended.outcomes), appended.next_seq, appended.stream
    return BatchResult(
        *(acked, problems, next_seq, stream, offered, stored, None, size, repeated, ended, entries, updates),
        reopened=appended.reopened,
    )


def ends_session(arrival: DecodedEvent | RejectedEvent) -> bool:
    """Whether an event is its producer's end: a `session.end`, or what another stack has for it."""
    if isinstance(arrival, ReducedFrame):
        return arrival.reduced is not None and arrival.reduced.end is not None
    return isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionEnd)


def outcomes_of(
    batch: PendingBatch, appended: AppendResult
) -> Iterator[tuple[DecodedEvent | RejectedEvent, Outcome | None]]:
    """Each event with its outcome, which is None for an event that was not offered."""
    arrivals = batch.arrivals if batch.arrivals is not None else map(DecodedEvent, batch.events, batch.payloads)
    offered = iter(appended.outcomes)
    for arrival in arrivals:
        yield arrival, next(offered) if is_offered(arrival) else None


def seq_of(arrival: DecodedEvent | RejectedEvent) -> int | None:
    return arrival.event.seq if isinstance(arrival, DecodedEvent) else arrival.seq


def problem_of(
    lease: ProducerLease, arrival: DecodedEvent | RejectedEvent, outcome: Outcome | None
) -> EventProblem | None:
    """The error to report for one event; None when there is none, or when its gap was reported before.

    A producer that sends on after a gap would get an error for each event. So one error names the seq that is expected,
    and the lease remembers it until an event is stored again.
    """
    if outcome is not None and outcome.position is not None:
        lease.reported_gap = None
    if isinstance(arrival, RejectedEvent) and (outcome is None or outcome.code == arrival.code):
        return EventProblem(arrival.seq, arrival.code, arrival.detail)
    if outcome is None or outcome.code is None:
        return None
    if outcome.code == "seq_gap":
        if lease.reported_gap == outcome.expected:
            return None
        lease.reported_gap = outcome.expected
    return EventProblem(seq_of(arrival), outcome.code, outcome_sentence(outcome), outcome.expected)
