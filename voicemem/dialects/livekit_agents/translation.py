"""What frames of LiveKit Agents say, in events of `voicemem.v1`.

Notes: `pending` (turn, first and last number of the items `~pN` that no item has replaced), `pieces` (their count),
`turns` (when the newest turns began), `last` (the newest reply).
"""

from __future__ import annotations

from voicemem.dialects.dialect import Known, Made, Translate
from voicemem.dialects.livekit_agents.times import ms
from voicemem.protocol.events import (
    Asr,
    Interrupt,
    LlmDelta,
    LlmDone,
    Resume,
    SessionEnd,
    ToolCall,
    ToolResult,
)
from voicemem.protocol.types import JsonObject

MAX_PENDING = 40
"""Items of one turn that wait for LiveKit's; what is said after that grows the last one."""
MAX_TURNS = 50
"""Turns of which the begin is known."""
MAX_CALLS = 30
"""Calls of tools that one frame may report."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    if "topic" in frame:
        return show_text(frame, known)
    return RULES[frame["type"]](frame, ts, known)


def open_utterance(frame: JsonObject, ts: int, known: Known) -> Made:
    """Reserve the turn of what the user says: with a realtime model its text comes after the reply has."""
    pending: list[int] | None = known.notes.get("pending")
    if pending is not None:
        segment = known.segment(f"~p{pending[2]}")
        is_empty = pending[1] == pending[2] and (segment is None or not segment.text)
        if not is_empty or not known.is_answered(pending[0]):
            return
    number, turn = known.notes.get("pieces", 0) + 1, known.next_turn
    known.note("pending", [turn, number, number])
    known.note("pieces", number)
    note_turn(turn, time_of(frame, ts), known)
    yield Asr(item=f"~p{number}", text="", turn_id=turn)


def grow_utterance(frame: JsonObject, ts: int, known: Known) -> Made:
    """What the recogniser hears, until LiveKit's own item of the turn takes its place."""
    pending: list[int] | None = known.notes.get("pending")
    text, final = frame["transcript"], frame["is_final"]
    if pending is None:
        if not text:
            return
        number = known.notes.get("pieces", 0) + 1
        pending = [known.next_turn, number, number]
        note_turn(pending[0], time_of(frame, ts), known)
    turn, first, last = pending
    segment = known.segment(f"~p{last}")
    if segment is not None and segment.final and segment.text:
        if last - first < MAX_PENDING - 1:
            last += 1
        else:
            text, final = f"{segment.text} {text}", True
    known.note("pending", [turn, first, last])
    known.note("pieces", last)
    yield Asr(item=f"~p{last}", text=text, final=final, turn_id=turn)


def add_item(frame: JsonObject, ts: int, known: Known) -> Made:
    """An item of the history, once it is whole: an utterance, or a reply that was played."""
    item = frame.get("item", frame)
    at = time_of(item, ts)
    if item["type"] != "message":
        return call_item(item, at, known)
    text = "\n".join(item.get("content") or ())
    if item["role"] == "user":
        return finish_utterance(item, text, at, known)
    return finish_reply(item, text, at, time_of(frame, ts), known)


def finish_utterance(item: JsonObject, text: str, at: int, known: Known) -> Made:
    pending: list[int] | None = known.notes.get("pending")
    turn = known.turn_of(item["id"])
    if turn is None:
        began = spoken_ms(item, "started_speaking_at")
        begin = at if began is None else min(at, began)
        if pending is not None and at < begin_of(pending[0], known):  # the user has begun to speak again since
            pending = None
        turn = turn_of_utterance(begin, known) if pending is None else pending[0]
        note_turn(turn, begin, known)
    if pending is not None:
        for number in range(pending[1], pending[2] + 1):
            yield Asr(item=f"~p{number}", text="", final=True, turn_id=pending[0])
        known.note("pending", None)
    yield Asr(item=item["id"], text=text, final=True, turn_id=turn, ts=at)


def finish_reply(item: JsonObject, text: str, at: int, added: int, known: Known) -> Made:
    turn = turn_at(at, known)
    yield LlmDone(item=item["id"], text=text, turn_id=turn, ts=at)
    known.note("last", item["id"])
    if item.get("interrupted"):
        stopped = spoken_ms(item, "stopped_speaking_at")
        end = added if stopped is None else stopped
        yield Interrupt(item=item["id"], heard_text=text, estimated=True, more=True, ts=end)


def time_of(frame: JsonObject, ts: int) -> int:
    """When LiveKit says it was: by its own clock, as the times of items are."""
    stated = ms(frame.get("created_at"))
    return ts if stated is None else stated


def spoken_ms(item: JsonObject, which: str) -> int | None:
    return ms(item.get("metrics", {}).get(which))


def call_item(item: JsonObject, at: int, known: Known) -> Made:
    if item.get("call_id") and item["type"] == "function_call":
        yield from tool_call(item, at, known)
    elif item.get("call_id"):
        yield from tool_result(item, at, known)


def execute_tools(frame: JsonObject, ts: int, known: Known) -> Made:
    for call in frame["function_calls"][:MAX_CALLS]:
        yield from tool_call(call, time_of(frame, ts), known)
    for output in frame["function_call_outputs"][:MAX_CALLS]:
        yield from tool_result(output, time_of(frame, ts), known)


def start_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    call = frame["update"].get("function_call")
    return () if call is None else tool_call(call, time_of(frame, ts), known)


def tool_call(call: JsonObject, at: int, known: Known) -> Made:
    """A call, once: by the event that it started, the one that it ended, or its item."""
    if call.get("name"):
        id, arguments = call["call_id"], call.get("arguments") or ""
        turn = turn_at(at, known)
        yield ToolCall(id=f"call:{id}", call_id=id, name=call["name"], arguments=arguments, turn_id=turn)


def tool_result(output: JsonObject, at: int, known: Known) -> Made:
    id = output["call_id"]
    yield ToolResult(id=f"result:{id}", call_id=id, result=output.get("output") or "", turn_id=turn_at(at, known))


def resume(frame: JsonObject, ts: int, known: Known) -> Made:
    """LiveKit went on with a reply. Mostly it has not added that one yet, and an older one must stay interrupted."""
    last = known.notes.get("last")
    reply = None if last is None else known.reply(last)
    if frame["resumed"] and reply is not None and reply.cut != "no" and reply.turn == known.here:
        yield Resume(item=last)


def end_session(frame: JsonObject, ts: int, known: Known) -> Made:
    yield SessionEnd(reason=frame["reason"])


def show_text(frame: JsonObject, known: Known) -> Made:
    """A text as a client of the room shows it: of the user the whole segment, of the agent what comes next."""
    segment, text, final = frame["segment"], frame["text"], frame.get("final", False)
    if frame["role"] == "agent":
        if text:
            yield LlmDelta(item=segment, text=text, turn_id=None if known.turn_of(segment) is not None else known.here)
        if final:
            yield LlmDone(item=segment)
        return
    turn = known.turn_of(segment)
    if turn is None:
        turn = known.here if known.here and not known.is_answered(known.here) else known.next_turn
    yield Asr(item=segment, text=text, final=final, turn_id=turn)


# Turns


def note_turn(turn: int, begin: int, known: Known) -> None:
    """Note when a turn began, by the earliest that says so."""
    turns = {noted: since for since, noted in known.notes.get("turns", ())}
    turns[turn] = min(begin, turns.get(turn, begin))
    known.note("turns", sorted([since, noted] for noted, since in turns.items())[-MAX_TURNS:])


def begin_of(turn: int, known: Known) -> int:
    """When a turn began; 0 if that is not known any more."""
    return next((since for since, noted in known.notes.get("turns", ()) if noted == turn), 0)


def turn_at(at: int, known: Known) -> int:
    """The turn whose utterance began last before a time; 0 before any."""
    turns: list[list[int]] = known.notes.get("turns", [])
    before = [turn for since, turn in turns if since <= at]
    if before:
        return before[-1]
    return 0 if len(turns) < MAX_TURNS else turns[0][1]


def turn_of_utterance(begin: int, known: Known) -> int:
    """A turn of its own; but what comes after a later utterance stands before it."""
    turns: list[list[int]] = known.notes.get("turns", [])
    return turn_at(begin, known) or known.next_turn if turns and begin < turns[-1][0] else known.next_turn


RULES: dict[str, Translate] = {
    "user_state_changed": open_utterance,
    "user_input_transcribed": grow_utterance,
    "conversation_item_added": add_item,
    "message": add_item,
    "function_call": add_item,
    "function_call_output": add_item,
    "function_tools_executed": execute_tools,
    "tool_execution_updated": start_tool,
    "agent_false_interruption": resume,
    "close": end_session,
}
