"""The fold of tool calls and latencies, which are no chat messages (docs/memory.md, rule 10)."""

from __future__ import annotations

from voicemem.protocol.events import Metric, ToolCall, ToolResult
from voicemem.transcript.replies.sources import standing_keys
from voicemem.transcript.state import BOUND, Latency, State, ToolCallRecord, Turn, append_item


def fold_tool_call(state: State, event: ToolCall, ts: int) -> Turn | None:
    """Store a tool call, in the record of a result that waits for it, if there is one."""
    turn = state.turn(turn_number(state, event))
    known = state.tool_calls.get(event.call_id)
    waiting = None if known is None else state.tool_record(known)
    record = waiting
    if known is None or waiting is None or waiting.name is not None or known[0] != turn.number:
        record = add_call(state, turn, event.call_id)
    if record is None:
        return None
    if waiting is not None and waiting is not record and waiting.name is None:  # it waits in another turn
        record.result, record.answered, record.answered_ts = waiting.result, waiting.answered, waiting.answered_ts
        waiting.result, waiting.answered, waiting.answered_ts = None, False, None
    record.order, record.ts = state.position, ts
    record.name, record.arguments = event.name, event.arguments
    return turn


def fold_tool_result(state: State, event: ToolResult, ts: int) -> Turn | None:
    """Store the result of a tool call, in the call's turn; one that arrives before its tool call waits for it."""
    number = turn_number(state, event)
    known = state.tool_calls.get(event.call_id)
    if known is not None and state.tool_record(known).name is not None:
        number = known[0]
    turn = state.turn(number)
    record = known_call(state, event.call_id, number) or add_call(state, turn, event.call_id)
    if record is None:
        return None
    if record.name is None:
        record.ts = ts
    record.result, record.answered, record.answered_ts = event.result, True, ts
    return turn


def fold_metric(state: State, event: Metric, ts: int) -> Turn | None:
    turn = state.turn(turn_number(state, event))
    if len(turn.latencies or ()) >= BOUND:
        state.ignore("traces")
        return None
    turn.latencies = append_item(turn.latencies, Latency(event.name, event.latency_ms, ts))
    return turn


def turn_number(state: State, event: ToolCall | ToolResult | Metric) -> int:
    """The turn of a trace: that of its item, its own, else that of the newest reply."""
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    if number is None:
        keys = standing_keys(state)
        number = keys[-1][0] if keys else state.utterance_turn
    if event.item is not None and not isinstance(event, Metric):
        state.items.setdefault(event.item, number)
    state.newest_turn = max(state.newest_turn, number)
    return number


def known_call(state: State, call_id: str, number: int) -> ToolCallRecord | None:
    """The newest record of a call id in a turn."""
    known = state.tool_calls.get(call_id)
    return None if known is None or known[0] != number else state.tool_record(known)


def add_call(state: State, turn: Turn, call_id: str) -> ToolCallRecord | None:
    if len(turn.tool_calls or ()) >= BOUND:
        state.ignore("traces")
        return None
    record = ToolCallRecord(state.position, 0, call_id)
    turn.tool_calls = append_item(turn.tool_calls, record)
    state.tool_calls[call_id] = turn.number, len(turn.tool_calls) - 1
    return record
