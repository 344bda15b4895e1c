"""The fold: it turns a journal, event by event, into the state of a call (design, section 4).

`fold(state, entry)` changes the state and returns it; a caller that needs the old one keeps a snapshot. Whatever a
producer sends, it does not raise, and an event does not cost more the longer the call has become.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from voicemem.documents.document import Document, apply_operation, form_of
from voicemem.protocol.events import (
    Asr,
    IncomingEvent,
    Interrupt,
    JournaledEvent,
    LlmDelta,
    LlmDone,
    LlmError,
    MemoryCarried,
    MemoryData,
    MemoryDocument,
    MemoryForgotten,
    MemorySummary,
    MessageEvent,
    Metric,
    Resume,
    SessionClosed,
    SessionForked,
    SessionReopened,
    ToolCall,
    ToolResult,
    Tts,
)
from voicemem.protocol.strict_json import merge_patch
from voicemem.transcript.messages import Forgotten, Summary
from voicemem.transcript.playback import fold_close, fold_interrupt, fold_reopen, fold_resume, fold_tts
from voicemem.transcript.replies import fold_delta, fold_llm_end, fold_message
from voicemem.transcript.speech import fold_asr
from voicemem.transcript.state import Latency, State, ToolCallRecord, Turn, append_item


class DecodedRow(NamedTuple):
    """One row of a journal, decoded. `received_ms` (Unix ms) stands in where the event has no `ts`."""

    position: int
    received_ms: int
    event: JournaledEvent


def fold(state: State, entry: DecodedRow) -> State:
    """The state after one more entry of its journal."""
    fold_event(state, entry.position, entry.received_ms, entry.event)
    return state


def fold_all(state: State, entries: Iterable[DecodedRow]) -> State:
    """The state after all of these entries."""
    for position, received_ms, event in entries:
        fold_event(state, position, received_ms, event)
    return state


def fold_event(state: State, position: int, received_ms: int, event: JournaledEvent | IncomingEvent) -> None:
    """Apply the event at a position to the state.

    A second event of the same id, and one about an item that a fork has left behind, change nothing: the journal keeps
    what arrived, and a producer that repeats itself does no harm.
    """
    state.position = position
    if event.id is not None:
        if event.id in state.event_ids:
            return
        state.event_ids.add(event.id)
    rule = FOLD_RULES.get(type(event))
    if rule is not None and (event.item is None or event.item not in state.forgotten_items):
        turn = rule(state, event, received_ms if event.ts is None else event.ts)
        if turn is not None:
            state.dirty_turns.add(turn.number)


# Events that are not chat messages (rule 10)


def fold_tool_or_metric(state: State, event: ToolCall | ToolResult | Metric, ts: int) -> Turn:
    match event:
        case ToolCall():
            turn = state.turn(event.turn_id)
            record_call(state, turn, event, ts)
        case ToolResult():
            turn = state.turn(state.tool_call_turns.get(event.call_id, event.turn_id))
            record_result(state, turn, event, ts)
        case Metric():
            turn = state.turn(event.turn_id)
            turn.latencies = append_item(turn.latencies, Latency(event.name, event.latency_ms, ts))
    return turn


def record_result(state: State, turn: Turn, event: ToolResult, ts: int) -> None:
    """Store the result of a tool call; one that arrives before its tool call waits for it."""
    tool_call = next((t for t in turn.tool_calls or () if t.call_id == event.call_id), None)
    if tool_call is None:
        tool_call = ToolCallRecord(state.position, ts, event.call_id)
        turn.tool_calls = append_item(turn.tool_calls, tool_call)
    tool_call.result = event.result
    tool_call.answered = True


def record_call(state: State, turn: Turn, event: ToolCall, ts: int) -> None:
    """Store a tool call, in the record of a result that waits for it, if there is one."""
    record = next((t for t in turn.tool_calls or () if t.call_id == event.call_id and t.name is None), None)
    if record is None:
        record = ToolCallRecord(state.position, ts, event.call_id)
        turn.tool_calls = append_item(turn.tool_calls, record)
    record.order, record.ts = state.position, ts
    record.name, record.arguments = event.name, event.arguments
    state.tool_call_turns[event.call_id] = turn.number


# Events of the server


def fold_summary(state: State, event: MemorySummary, _ts: int) -> None:
    state.summary = Summary(event.through_turn, event.text, event.messages, event.model)


def fold_forgotten(state: State, event: MemoryForgotten, _ts: int) -> None:
    """Add to what is forgotten.

    What was forgotten before stays so: the later event may name an earlier turn, or keep messages that are already
    forgotten. "All before `turn`" is "through `turn - 1`". The summary goes, as it may repeat what is now forgotten.
    """
    if event.carried:
        state.carried = ()
    before = state.forgotten or Forgotten()
    through = -1 if event.through_turn is None else event.through_turn
    turn = -1 if event.turn is None else event.turn
    after = msgspec.structs.replace(before, through_turn=max(before.through_turn, through, turn - 1))
    if turn > after.through_turn:
        kept = tuple(order for order in event.kept if not before.covers(turn, order))
        after = Forgotten(after.through_turn, turn, state.position, kept)
    if after != before:
        state.forgotten, state.summary = after, None


def fold_carried(state: State, event: MemoryCarried, _ts: int) -> None:
    if state.carried is None:
        state.carried = event.sessions


def fold_forked(state: State, event: SessionForked, _ts: int) -> None:
    """End what was copied from the other session: nothing of it still plays, and the call goes on in the next turn."""
    state.newest_turn = max(state.newest_turn, event.at_turn)
    state.final_turn = max(state.final_turn, event.at_turn + 1)
    state.first_unheard_turn = max(state.first_unheard_turn, event.at_turn + 1)
    state.carried = state.carried or ()
    state.forgotten_items |= set(event.forgotten_items)


def fold_document(state: State, event: MemoryDocument, ts: int) -> None:
    document = state.document = state.document or Document()
    document.content = apply_operation(document.content, event.operation, event.content)
    document.form = form_of(event) or document.form
    document.updated_ms = ts
    if document.positions:
        document.positions.append(state.position)
    else:
        document.positions = array("q", (state.position,))


def fold_data(state: State, event: MemoryData, _ts: int) -> None:
    state.data = event.content if event.operation == "replace" else merge_patch(state.data, event.content)


FOLD_RULES: dict[type, Callable[[State, Any, int], Turn | None]] = {
    Asr: fold_asr,
    LlmDelta: fold_delta,
    LlmDone: fold_llm_end,
    LlmError: fold_llm_end,
    Tts: fold_tts,
    Interrupt: fold_interrupt,
    Resume: fold_resume,
    MessageEvent: fold_message,
    ToolCall: fold_tool_or_metric,
    ToolResult: fold_tool_or_metric,
    Metric: fold_tool_or_metric,
    SessionClosed: fold_close,
    SessionReopened: fold_reopen,
    MemorySummary: fold_summary,
    MemoryDocument: fold_document,
    MemoryData: fold_data,
    MemoryForgotten: fold_forgotten,
    MemoryCarried: fold_carried,
    SessionForked: fold_forked,
}
"""By the type of the event: a function that changes the state and returns the turn that changed, if any.

Events of other types do not change the state.
"""
