"""Forks: a new session that remembers another one up to a turn."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from voicemem import config
from voicemem.admission import Stream
from voicemem.config import Settled
from voicemem.documents import Document, Form
from voicemem.errors import Refused
from voicemem.events import (
    MAX_INTEGER,
    Event,
    Fields,
    MemoryCarried,
    MemoryData,
    MemoryDocument,
    MemoryForgotten,
    MemorySummary,
    Metric,
    SessionForked,
    ToolCall,
    ToolResult,
    Whole,
)
from voicemem.history import turn_entries
from voicemem.memories import Memories
from voicemem.messages import Forgotten, Message
from voicemem.sessions import Sessions
from voicemem.state import State, Turn
from voicemem.store.base import Restored, Row


async def fork(
    sessions: Sessions, memories: Memories, stream: Stream, at_turn: int, session_id: str | None, patch: Fields
) -> Stream:
    """A new running session with everything up to a turn, and the configuration with a merge patch applied.

    Raises `Refused` (`unknown_turn`, `session_exists`, `session_erased`, `invalid_field`).
    """
    memory = await memories.at(stream)
    if at_turn not in memory.state.turns or at_turn > MAX_INTEGER:
        raise Refused("unknown_turn")
    given = config.settle(patch)
    settled = Settled(config.merged(stream.config, given.public), given.secrets)
    now = sessions.clock()
    payloads = map(msgspec.json.encode, events_of(memory.state, stream.id, at_turn))
    rows = [Row(position, None, None, now, payload) for position, payload in enumerate(payloads, 1)]
    restored = Restored(rows=rows, started_ms=now, secrets_of=stream.key)
    return await sessions.restore(stream.project, session_id, settled, restored)


def events_of(state: State, session_id: str, at_turn: int) -> Iterator[Event]:
    """What makes the memory of a session up to a turn: each message whole, as the history shows it.

    What a call does not show any more, such as its deltas, is left behind.
    """
    forgotten, position = state.forgotten or Forgotten(), 0
    kept: list[int] = []
    for number in state.numbers:
        if number > at_turn:
            break
        for event, order in turn_events(state, state.turns[number]):
            position += 1
            if number == forgotten.turn and not forgotten.covers(number, order):
                kept.append(position)
            yield event
    if state.forgotten is not None:
        through = min(forgotten.through_turn, at_turn)
        turn = forgotten.turn if (forgotten.turn or 0) <= at_turn else None
        yield MemoryForgotten(through_turn=None if through < 0 else through, turn=turn, kept=tuple(kept))
    if state.summary is not None and state.summary.through_turn <= at_turn:
        known = state.summary
        yield MemorySummary(
            through_turn=known.through_turn, text=known.text, messages=known.messages, model=known.model
        )
    if state.document is not None:
        yield document_event(state.document)
    if state.data:
        yield MemoryData(operation="replace", content=state.data)
    if state.carried:
        yield MemoryCarried(sessions=state.carried)
    yield SessionForked(from_session=session_id, at_turn=at_turn)


def document_event(document: Document) -> MemoryDocument:
    """The working memory as it is now, which has no turns."""
    form = document.form or Form("text")
    return MemoryDocument(
        ts=document.updated_ms,
        operation="clear" if document.content is None else "replace",
        content=document.content,
        format=None if document.form is None else form.format,
        template=form.template,
        schema=form.schema,
    )


def turn_events(state: State, turn: Turn) -> Iterator[tuple[Event, int]]:
    """The events of a turn, each with where in the journal began what it stands for."""
    for entry in turn_entries(state, turn):
        yield whole(entry.message), entry.order
    for trace in turn.traces or ():
        if trace.name is not None:
            yield (
                ToolCall(
                    turn_id=turn.number,
                    ts=trace.ts,
                    call_id=trace.call_id,
                    name=trace.name,
                    arguments=trace.arguments,
                ),
                trace.order,
            )
        if trace.answered:
            yield ToolResult(turn_id=turn.number, call_id=trace.call_id, result=trace.result), trace.order
    for latency in turn.latencies or ():
        yield Metric(turn_id=turn.number, ts=latency.ts, name=latency.name, latency_ms=latency.latency_ms), 0


def whole(message: Message) -> Whole:
    """The event that makes a message again."""
    metadata = dict(message.metadata)
    return Whole(
        role=message.role,
        text=message.content,
        source=metadata.pop("source"),
        turn_id=message.turn_id,
        ts=message.timestamp,
        metadata=metadata or None,
    )
