"""The fold: it turns a journal, event by event, into the state of a call (docs/memory.md).

`fold(state, entry)` changes the state and returns it; a caller that needs the old one keeps a snapshot. It never
raises, whatever a producer sends, and the cost of an event does not grow with the call.
"""

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, get_args

import msgspec

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.kinds import read
from voicemem.dialects.known import Known, MadeEvent
from voicemem.dialects.reading import has_words
from voicemem.dialects.registry import DIALECTS
from voicemem.documents.document import Document, apply_operation, form_of
from voicemem.errors import Refused
from voicemem.protocol import events
from voicemem.protocol.codec import check_event, merge_patch
from voicemem.protocol.types import MAX_TEXT_BYTES
from voicemem.transcript.gateway_matching import of_gateway
from voicemem.transcript.known import FoldKnown
from voicemem.transcript.messages import WANTED_BACK, Extracted, Forgotten, Summary
from voicemem.transcript.replies import events as replies
from voicemem.transcript.replies.playing import forget_playing, standing_keys
from voicemem.transcript.speech import fold_asr
from voicemem.transcript.state import (
    BOUND,
    MAX_EVENT_IDS,
    Latency,
    Notes,
    State,
    ToolCallRecord,
    Turn,
    digest_of,
)
from voicemem.transcript.timeline import BEFORE_ALL, shared_name

MAX_MADE = 64
"""The most events of one frame, or of one close for each dialect."""
CLOSED = "closed"
"""The reason of a close because another stack's connection was lost; its `ts` is the time of the loss."""
MADE_KINDS = frozenset(get_args(MadeEvent))


class DecodedRow(NamedTuple):
    """One row of a journal, decoded. `received_ms` (Unix ms) is used if the event has no `ts`.

    The server's own events have no producer.
    """

    position: int
    received_ms: int
    event: events.JournaledEvent
    producer: str | None = None


def fold(state: State, entry: DecodedRow) -> State:
    """Fold one more entry of the journal into the state, and return it."""
    fold_event(state, *entry)
    return state


def fold_all(state: State, entries: Iterable[DecodedRow]) -> State:
    """Fold all of these entries into the state, and return it."""
    for position, received_ms, event, producer in entries:
        fold_event(state, position, received_ms, event, producer)
    return state


def fold_event(
    state: State,
    position: int,
    received_ms: int,
    event: events.JournaledEvent | events.IncomingEvent,
    producer: str | None = None,
) -> None:
    """Apply the event at a position to the state.

    A repeated id, and an item that a fork has left behind, change nothing: the journal keeps every event that arrives,
    and repeats do no harm.
    """
    state.position = position
    if producer is not state.producer:
        state.change_producer(producer)
    if event.id is not None and is_repeated(state, digest_of(event)):
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


def is_repeated(state: State, digest: int) -> bool:
    """Return whether an event with this id has come before, among the newest `MAX_EVENT_IDS`."""
    known = state.event_ids
    if digest in known:
        return True
    if len(known) >= MAX_EVENT_IDS:  # many at once: the search for a dict's oldest key passes all deleted ones
        for oldest in [*islice(known, MAX_EVENT_IDS // 10)]:
            del known[oldest]
    known[digest] = None
    return False


# Other stacks' frames


def fold_made(state: State, made: MadeEvent, ts: int) -> None:
    """Apply one event that a dialect made; without a `ts` it has the frame's time."""
    if state.memo.made is not None:
        state.memo.made.append(made)
    if made.id is not None and is_repeated(state, digest_of(made)):
        return
    if made.item is not None and made.item in state.forgotten_items:
        return
    ts = ts if made.ts is None else made.ts
    state.memo.translates = True
    event = of_gateway(state, made, ts)
    turn = None if event is None else FOLD_RULES[type(event)](state, event, ts)
    state.memo.translates = False
    if turn is not None:
        state.dirty_turns.add(turn.number)
        if state.closed_ts is not None:
            remake_all(state)


def fold_frame(state: State, event: events.FrameEvent, ts: int) -> None:
    """Apply the events that a frame means, all at the frame's position; the state keeps the dialect's notes."""
    dialect = DIALECTS.get(event.dialect)
    if dialect is None or not isinstance(event.frame, dict):
        return
    if event.dialect not in state.notes:
        state.notes[event.dialect] = Notes()
    content = event.frame
    for made in made_by(state, dialect, event.ts, lambda known: dialect.translate(content, ts, known)):
        fold_made(state, made, ts)


def made_by(
    state: State, dialect: Dialect, stated_ts: int | None, make: Callable[[Known], Iterable[MadeEvent]]
) -> list[MadeEvent]:
    """Return the valid events that a dialect makes; none if it fails."""
    known = FoldKnown(state, dialect.name, stated_ts is not None)
    try:
        made = [*islice(make(known), MAX_MADE + 1)]
        known.keep_notes()
    except Exception:  # a bug in a dialect: the frame stays in the journal for a version that can read it
        state.ignore("frames")
        return []
    if len(made) > MAX_MADE:
        state.ignore("frames")
    return [event for one in made[:MAX_MADE] if (event := checked(state, one, stated_ts)) is not None]


def checked(state: State, made: MadeEvent, stated_ts: int | None) -> MadeEvent | None:
    """Return an event as a producer might have sent it, with the frame's `ts` if it has none; None if it is invalid.

    A transcript without a word is empty. Invalid optional fields, such as a speaker's name that is too long, are
    dropped, except the item.
    """
    try:
        kind = type(made)
        if kind not in MADE_KINDS:
            raise TypeError
        if isinstance(made, events.MessageEvent) and not made.text.strip():
            return None  # nothing was typed
        fields = msgspec.to_builtins(made)
        if stated_ts is not None:
            fields.setdefault("ts", stated_ts)
        event: MadeEvent = read(kind, fields)  # the union of all kinds would take thirty times longer
        if event.item != made.item:
            raise ValueError
        if event.ts is None and stated_ts is not None:
            event = msgspec.structs.replace(event, ts=stated_ts)
        if isinstance(event, events.Asr) and not has_words(event.text):
            event = msgspec.structs.replace(event, text="", words=None)
        check_event(event, MAX_TEXT_BYTES + 1)
    except (Refused, TypeError, ValueError):
        state.ignore("frames")
        return None
    return event


# The end of a call


def fold_end(state: State, event: events.SessionEnd, ts: int) -> None:
    if state.ended_ts is None:
        state.ended_ts = ts


def fold_close(state: State, event: events.SessionClosed, ts: int) -> None:
    """Ask the dialects what was heard by the close, and apply it.

    Reading cuts the replies that are still being generated or known to play (rule 8).
    """
    if state.closed_ts is not None:
        return
    if state.notes:
        # The close itself may come long after the caller left.
        clocks = state.clocks | {state.producer: state.clock}
        newest = max((clock for producer, clock in clocks.items() if producer is not None), default=BEFORE_ALL)
        at = ts if event.reason == CLOSED or newest == BEFORE_ALL else newest
        at = at if state.ended_ts is None else state.ended_ts
        dialects = [dialect for name in state.notes if (dialect := DIALECTS.get(name)) is not None]
        said = [made for dialect in dialects for made in made_by(state, dialect, at, partial(dialect.closed, at))]
        for made in said:
            fold_made(state, made, ts)
    state.closed_ts, state.close_reason = ts, event.reason
    remake_all(state)


def fold_reopen(state: State, event: events.SessionReopened, ts: int) -> None:
    """Undo the close."""
    state.closed_ts = state.close_reason = None
    remake_all(state)


def remake_all(state: State) -> None:
    state.memo.entries.clear()
    state.dirty_turns.update(state.turn_numbers)


# Events of the server


def fold_summary(state: State, event: events.MemorySummary, _ts: int) -> None:
    state.memory_positions.append(state.position)
    state.summary = Summary(event.through_turn, event.text, event.messages, event.model)


def fold_forgotten(state: State, event: events.MemoryForgotten, _ts: int) -> None:
    """Extend the forgotten range.

    Forgotten messages stay forgotten: a later event may name an earlier turn, or keep messages that are already
    forgotten. "All before `turn`" is "through `turn - 1`". The summary is dropped, since it may repeat them.
    """
    state.memory_positions.append(state.position)
    if event.carried:
        state.carried = ()
    before = state.forgotten or Forgotten()
    through = -1 if event.through_turn is None else event.through_turn
    turn = -1 if event.turn is None else event.turn
    after = msgspec.structs.replace(before, through_turn=max(before.through_turn, through, turn - 1))
    if turn > after.through_turn:
        kept = tuple(one for one in event.kept if not before.covers(turn, one))
        after = Forgotten(after.through_turn, turn, state.position, kept)
    if after != before:
        state.forgotten, state.summary = after, None


def fold_carried(state: State, event: events.MemoryCarried, _ts: int) -> None:
    state.memory_positions.append(state.position)
    if state.carried is None:
        state.carried = event.sessions


def fold_forked(state: State, event: events.SessionForked, _ts: int) -> None:
    """End the part copied from the other session: none of it still plays, and the next turn follows it."""
    state.newest_turn = max(state.newest_turn, event.at_turn)
    state.final_turn = max(state.final_turn, event.at_turn + 1)
    forget_playing(state)
    state.carried = state.carried or ()
    state.extracted, state.analysis = Extracted(state.position), {}
    state.forgotten_items |= frozenset(event.forgotten_items)


def fold_extracted(state: State, event: events.MemoriesExtracted, _ts: int) -> None:
    before = state.extracted or Extracted()
    state.extracted = Extracted(max(before.through, event.through), before.calls + 1)
    if event.analysis:
        state.analysis = state.analysis | event.analysis


def fold_document(state: State, event: events.MemoryDocument, ts: int) -> None:
    document = state.document = state.document or Document()
    document.content = apply_operation(document.content, event.operation, event.content)
    document.form = form_of(event) or document.form
    document.updated_ms = ts
    if document.positions:
        document.positions.append(state.position)
    else:
        document.positions = array("q", (state.position,))


def fold_data(state: State, event: events.MemoryData, _ts: int) -> None:
    state.data = event.content if event.operation == "replace" else merge_patch(state.data, event.content)


# Tool calls and latencies, which are not chat messages (rule 10)


def fold_tool_call(state: State, event: events.ToolCall, ts: int) -> Turn | None:
    turn = state.turn(turn_number(state, event))
    known = state.tool_calls.get(event.call_id)
    waiting = None if known is None else state.tool_record(known)
    record = waiting
    if known is None or waiting is None or waiting.name is not None or known[0] != turn.number:
        record = add_call(state, turn, event.call_id)
    if record is None:
        return None
    if waiting is not None and waiting is not record and waiting.name is None:  # the result waits in another turn
        record.result, record.answered, record.answered_ts = waiting.result, waiting.answered, waiting.answered_ts
        waiting.result, waiting.answered, waiting.answered_ts = b"null", False, None
    record.order, record.ts = state.position, ts
    record.name, record.arguments = event.name, msgspec.json.encode(event.arguments)
    fields = (event.metadata or {}).get(WANTED_BACK)
    record.wanted_back = fields if isinstance(fields, dict) else None
    return turn


def fold_tool_result(state: State, event: events.ToolResult, ts: int) -> Turn | None:
    """Store the result of a tool call in the call's turn; one that arrives before its call waits for it."""
    number = turn_number(state, event)
    known = state.tool_calls.get(event.call_id)
    if known is not None and state.tool_record(known).name is not None:
        number = known[0]
    turn = state.turn(number)
    known = None if known is None or known[0] != number else known
    record = add_call(state, turn, event.call_id) if known is None else state.tool_record(known)
    if record is None:
        return None
    if record.name is None:
        record.ts = ts
    record.result, record.answered, record.answered_ts = msgspec.json.encode(event.result), True, ts
    return turn


def fold_metric(state: State, event: events.Metric, ts: int) -> Turn | None:
    turn = state.turn(turn_number(state, event))
    if len(turn.latencies or ()) >= BOUND:
        state.ignore("traces")
        return None
    turn.latencies = state.append(turn.latencies, Latency(shared_name(event.name), event.latency_ms, ts))
    return turn


def turn_number(state: State, event: events.ToolCall | events.ToolResult | events.Metric) -> int:
    """Return the turn of a trace: its item's, its own, or else the newest reply's.

    A tool call after the user has spoken since then belongs to the turn of that speech.
    """
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    if number is None:
        keys, spoken = standing_keys(state), state.turns.get(state.utterance_turn)
        number = keys[-1][0] if keys else state.utterance_turn
        if spoken is not None and (spoken.finals or spoken.typed) and not isinstance(event, events.Metric):
            number = max(number, spoken.number)
    if event.item is not None and not isinstance(event, events.Metric):
        state.items.setdefault(event.item, number)
    state.newest_turn = max(state.newest_turn, number)
    return number


def add_call(state: State, turn: Turn, call_id: str) -> ToolCallRecord | None:
    if len(turn.tool_calls or ()) >= BOUND:
        state.ignore("traces")
        return None
    record = ToolCallRecord(state.position, 0, call_id)
    turn.tool_calls = state.append(turn.tool_calls, record)
    state.tool_calls[call_id] = turn.number, len(turn.tool_calls) - 1
    return record


FOLD_RULES: dict[type, Callable[[State, Any, int], Turn | None]] = {
    events.Asr: fold_asr,
    events.LlmDelta: replies.fold_delta,
    events.LlmDone: replies.fold_done,
    events.LlmError: replies.fold_error,
    events.LlmCancel: replies.fold_cancel,
    events.Tts: replies.fold_tts,
    events.Interrupt: replies.fold_interrupt,
    events.Resume: replies.fold_resume,
    events.MessageEvent: replies.fold_message,
    events.ToolCall: fold_tool_call,
    events.ToolResult: fold_tool_result,
    events.Metric: fold_metric,
    events.FrameEvent: fold_frame,
    events.SessionEnd: fold_end,
    events.SessionClosed: fold_close,
    events.SessionReopened: fold_reopen,
    events.MemorySummary: fold_summary,
    events.MemoryDocument: fold_document,
    events.MemoryData: fold_data,
    events.MemoryForgotten: fold_forgotten,
    events.MemoryCarried: fold_carried,
    events.MemoriesExtracted: fold_extracted,
    events.SessionForked: fold_forked,
}
"""By type of event: a function that changes the state and returns the changed turn, if any.

Events of other types do not change the state.
"""
