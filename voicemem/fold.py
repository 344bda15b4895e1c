"""The fold: a journal, event by event, becomes the state of a call (design, section 4).

`fold(state, entry)` takes the state over and returns it: a caller that needs the old one keeps a snapshot. Nothing
that a producer can send makes it raise, and no event costs more the longer the call has become.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, assert_never

from voicemem.events import (
    Asr,
    Interrupt,
    Journaled,
    LlmDelta,
    LlmDone,
    LlmError,
    Metric,
    RefusedEvent,
    Resume,
    SessionClosed,
    SessionEnd,
    SessionGap,
    SessionReopened,
    SessionUpdate,
    ToolCall,
    ToolResult,
    Tts,
    Whole,
)
from voicemem.playing import close, fold_interrupt, fold_resume, fold_tts, reopen
from voicemem.replies import fold_llm, fold_message
from voicemem.speech import fold_asr
from voicemem.state import Latency, State, Trace, Turn


class Entry(NamedTuple):
    """One row of a journal, decoded. `received_ms` (Unix ms) stands in where the event has no `ts`."""

    position: int
    received_ms: int
    event: Journaled


def fold(state: State, entry: Entry) -> State:
    """The state after one more entry of its journal."""
    state.position = entry.position
    event = entry.event
    if event.id is not None:
        if event.id in state.ids:
            return state
        state.ids.add(event.id)
    ts = entry.received_ms if event.ts is None else event.ts
    changed = change(state, event, ts)
    state.dirty.update(turn.number for turn in changed if turn is not None)
    return state


def fold_all(state: State, entries: Iterable[Entry]) -> State:
    """The state after all of these entries."""
    for entry in entries:
        fold(state, entry)
    return state


def change(state: State, event: Journaled, ts: int) -> Iterable[Turn | None]:
    """Let one event change the state; the turns that it changed."""
    match event:
        case Asr():
            return [fold_asr(state, event, ts)]
        case LlmDelta() | LlmDone() | LlmError():
            return [fold_llm(state, event, ts)]
        case Tts():
            return [fold_tts(state, event, ts)]
        case Interrupt():
            return [fold_interrupt(state, event, ts)]
        case Resume():
            return [fold_resume(state, event, ts)]
        case Whole():
            return [fold_message(state, event, ts)]
        case ToolCall() | ToolResult() | Metric():
            return [fold_trace(state, event, ts)]
        case SessionClosed():
            return close(state, ts, event.reason)
        case SessionReopened():
            return reopen(state)
        case SessionUpdate() | SessionEnd() | SessionGap() | RefusedEvent():
            return []
        case _:
            assert_never(event)


# What is no chat message (rule 10)


def fold_trace(state: State, event: ToolCall | ToolResult | Metric, ts: int) -> Turn:
    match event:
        case ToolCall():
            turn = state.turn(event.turn_id)
            call(state, turn, event, ts)
        case ToolResult():
            turn = state.turn(state.calls.get(event.call_id, event.turn_id))
            answer(state, turn, event, ts)
        case Metric():
            turn = state.turn(event.turn_id)
            turn.latencies.append(Latency(event.name, event.latency_ms, ts))
    return turn


def answer(state: State, turn: Turn, event: ToolResult, ts: int) -> None:
    """Put a result to its call; one that comes before its call waits for it."""
    trace = next((t for t in turn.traces if t.call_id == event.call_id), None)
    if trace is None:
        trace = Trace(state.position, ts, event.call_id)
        turn.traces.append(trace)
    trace.result = event.result
    trace.answered = True


def call(state: State, turn: Turn, event: ToolCall, ts: int) -> None:
    waiting = next((t for t in turn.traces if t.call_id == event.call_id and t.name is None), None)
    if waiting is None:
        waiting = Trace(state.position, ts, event.call_id)
        turn.traces.append(waiting)
    waiting.order, waiting.ts = state.position, ts
    waiting.name, waiting.arguments = event.name, event.arguments
    state.calls[event.call_id] = turn.number
