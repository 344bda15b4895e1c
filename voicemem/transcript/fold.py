"""The fold: it turns a journal, event by event, into the state of a call (docs/memory.md).

`fold(state, entry)` changes the state and returns it; a caller that needs the old one keeps a snapshot. Whatever a
producer sends, it does not raise, and an event does not cost more the longer the call has become.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from voicemem.documents.document import Document, apply_operation, form_of
from voicemem.protocol.events import (
    Asr,
    Event,
    FrameEvent,
    IncomingEvent,
    Interrupt,
    JournaledEvent,
    LlmCancel,
    LlmDelta,
    LlmDone,
    LlmError,
    MemoriesExtracted,
    MemoryCarried,
    MemoryData,
    MemoryDocument,
    MemoryForgotten,
    MemorySummary,
    MessageEvent,
    Metric,
    Resume,
    SessionClosed,
    SessionEnd,
    SessionForked,
    SessionReopened,
    ToolCall,
    ToolResult,
    Tts,
)
from voicemem.protocol.strict_json import merge_patch
from voicemem.transcript.frames import events_at_close, events_of
from voicemem.transcript.messages import Extracted, Forgotten, Summary
from voicemem.transcript.replies.llm_events import fold_delta, fold_done, fold_error, fold_message
from voicemem.transcript.replies.playback_events import (
    fold_cancel,
    fold_close,
    fold_end,
    fold_interrupt,
    fold_reopen,
    fold_resume,
    fold_tts,
    remake_all,
)
from voicemem.transcript.replies.playing import forget_playing
from voicemem.transcript.speech import fold_asr
from voicemem.transcript.state import MAX_EVENT_IDS, State, Turn
from voicemem.transcript.traces import fold_metric, fold_tool_call, fold_tool_result


class DecodedRow(NamedTuple):
    """One row of a journal, decoded. `received_ms` (Unix ms) stands in where the event has no `ts`.

    The server's own events have no producer.
    """

    position: int
    received_ms: int
    event: JournaledEvent
    producer: str | None = None


def fold(state: State, entry: DecodedRow) -> State:
    """The state after one more entry of its journal."""
    fold_event(state, *entry)
    return state


def fold_all(state: State, entries: Iterable[DecodedRow]) -> State:
    """The state after all of these entries."""
    for position, received_ms, event, producer in entries:
        fold_event(state, position, received_ms, event, producer)
    return state


def fold_event(
    state: State,
    position: int,
    received_ms: int,
    event: JournaledEvent | IncomingEvent,
    producer: str | None = None,
) -> None:
    """Apply the event at a position to the state.

    A second event of the same id, and one about an item that a fork has left behind, change nothing: the journal keeps
    what arrived, and a producer that repeats itself does no harm.
    """
    state.position = position
    if producer is not state.producer:
        state.change_producer(producer)
    if event.id is not None and is_repeated(state, event.id if type(event) is not FrameEvent else frame_id(event)):
        return
    rule = FOLD_RULES.get(type(event))
    stated = event.ts
    if rule is not None and (event.item is None or event.item not in state.forgotten_items):
        turn = rule(state, event, received_ms if stated is None else stated)
        if turn is not None:
            state.dirty_turns.add(turn.number)
            if state.closed_ts is not None:
                remake_all(state)
    if stated is not None and stated > state.clock:
        state.clock = stated


def frame_id(event: FrameEvent) -> str:
    """The id of a frame among those of events: dialects do not know each other's."""
    return f"{event.dialect}/{event.id}"


def digest_of(id: str) -> int:
    """The hash of an event's id, which takes a third of the memory."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "big", signed=True)


def is_repeated(state: State, id: str) -> bool:
    """Whether an event of this id has come before; of very many ids the newest are remembered."""
    known, digest = state.event_ids, digest_of(id)
    if digest in known:
        return True
    if len(known) >= MAX_EVENT_IDS:
        del known[next(iter(known))]
    known[digest] = None
    return False


# Other stacks' frames


def fold_frame(state: State, event: FrameEvent, ts: int) -> None:
    """Apply what a frame says; all of it stands at the frame's position."""
    for made in events_of(state, event, ts):
        fold_made(state, made, ts)


def fold_made(state: State, made: Event, ts: int) -> None:
    """Apply one event that a dialect made; without a `ts` it is of the frame's time."""
    if state.memo.made is not None:
        state.memo.made.append(made)
    if made.id is not None and is_repeated(state, made.id):
        return
    if made.item is not None and made.item in state.forgotten_items:
        return
    turn = FOLD_RULES[type(made)](state, made, ts if made.ts is None else made.ts)
    if turn is not None:
        state.dirty_turns.add(turn.number)
        if state.closed_ts is not None:
            remake_all(state)


def fold_close_with_frames(state: State, event: SessionClosed, ts: int) -> None:
    """Ask the dialects what was heard by the close, then close."""
    if state.closed_ts is None and state.notes:
        for made in events_at_close(state, event, ts):
            fold_made(state, made, ts)
    fold_close(state, event, ts)


# Events of the server


def fold_summary(state: State, event: MemorySummary, _ts: int) -> None:
    state.memory_positions.append(state.position)
    state.summary = Summary(event.through_turn, event.text, event.messages, event.model)


def fold_forgotten(state: State, event: MemoryForgotten, _ts: int) -> None:
    """Add to what is forgotten.

    What was forgotten before stays so: the later event may name an earlier turn, or keep messages that are already
    forgotten. "All before `turn`" is "through `turn - 1`". The summary goes, as it may repeat what is now forgotten.
    """
    state.memory_positions.append(state.position)
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
    state.memory_positions.append(state.position)
    if state.carried is None:
        state.carried = event.sessions


def fold_forked(state: State, event: SessionForked, _ts: int) -> None:
    """End what was copied from the other session: nothing of it still plays, and the call goes on in the next turn."""
    state.newest_turn = max(state.newest_turn, event.at_turn)
    state.final_turn = max(state.final_turn, event.at_turn + 1)
    forget_playing(state)
    state.carried = state.carried or ()
    state.extracted = Extracted(state.position)
    state.forgotten_items |= set(event.forgotten_items)


def fold_extracted(state: State, event: MemoriesExtracted, _ts: int) -> None:
    before = state.extracted or Extracted()
    state.extracted = Extracted(max(before.through, event.through), before.calls + 1)


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
    LlmDone: fold_done,
    LlmError: fold_error,
    LlmCancel: fold_cancel,
    Tts: fold_tts,
    Interrupt: fold_interrupt,
    Resume: fold_resume,
    MessageEvent: fold_message,
    ToolCall: fold_tool_call,
    ToolResult: fold_tool_result,
    Metric: fold_metric,
    FrameEvent: fold_frame,
    SessionEnd: fold_end,
    SessionClosed: fold_close_with_frames,
    SessionReopened: fold_reopen,
    MemorySummary: fold_summary,
    MemoryDocument: fold_document,
    MemoryData: fold_data,
    MemoryForgotten: fold_forgotten,
    MemoryCarried: fold_carried,
    MemoriesExtracted: fold_extracted,
    SessionForked: fold_forked,
}
"""By the type of the event: a function that changes the state and returns the turn that changed, if any.

Events of other types do not change the state.
"""
