"""What events of OpenAI's Live API say, in events of `voicemem.v1`.

Notes: `session` (its id), `zero` (when its timeline began, Unix ms), `guessed` (that fragments say so), `in` and `out`
(what the user and the agent say or said last: its item, where it begins and ends on the timeline; of the agent's also
whether it is `done`, `cut`, or `asked` something in writing since), `items` (how many had a name that was taken),
`t:CALL` (the turn of a tool call).
"""

from __future__ import annotations

import re
from typing import Any

from voicemem.dialects.dialect import Known, Made, Translate
from voicemem.dialects.openai_live.frames import MESSAGE, OUTPUT, written
from voicemem.protocol.events import (
    Asr,
    Interrupt,
    LlmCancel,
    LlmDelta,
    LlmDone,
    MessageEvent,
    Resume,
    SessionEnd,
    ToolCall,
    ToolResult,
    Tts,
    Word,
)
from voicemem.protocol.types import JsonObject

PAUSE_MS = 1_000
"""After so long a pause, what a speaker says is something new."""
BREATH_MS = 250
"""In a pause that is longer than this one, the other may have spoken."""
AHEAD_MS = 5_000
"""Fragments do not come so long before their time: the timeline is older than we thought."""
KEPT_CALLS = 16
SENTENCE_END = re.compile(r"[.!?…。!?।؟][\"'”’»)\]]*\s*\Z")
Said = dict[str, Any]


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    rule = RULES.get(frame["type"])
    return () if rule is None else rule(frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    """What the agent said last, if nothing has shown yet how it ended."""
    out = said("out", known)
    reply = None if out is None or out.get("cut") else known.reply(out["item"])
    if out is None or reply is None or reply.has_playback:
        return
    now = timeline_at(ts, known)
    if now is not None and now < out["end"] - BREATH_MS:
        yield interruption(out, max(0, now - out["start"]), ts)
    elif out.get("done"):
        return
    elif ends_sentence(reply.text) or (now is not None and now >= out["end"] + PAUSE_MS) or is_cut_by_user(out, known):
        yield from settle(known)
    else:
        yield interruption(out, out["end"] - out["start"], ts)


def said(key: str, known: Known) -> Said | None:
    found: Said | None = known.notes.get(key)
    return found


# The session


def start_session(frame: JsonObject, ts: int, known: Known) -> Made:
    """A session begins, perhaps after another, whose timeline was another one."""
    id = frame["session"].get("id") or ""
    if id == known.notes.get("session"):
        return
    yield from settle(known)
    for key in ("in", "out", "zero", "guessed"):
        known.note(key, None)
    known.note("session", id)
    if known.has_clock:
        known.note("zero", ts)


def end_session(frame: JsonObject, ts: int, known: Known) -> Made:
    yield SessionEnd(reason=frame.get("reason", "closed"))


def timeline_at(ts: int, known: Known) -> int | None:
    """Where the session's timeline stood at a time; None where that is not known."""
    zero: int | None = known.notes.get("zero")
    return ts - zero if zero is not None and known.has_clock else None


def note_zero(frame: JsonObject, ts: int, known: Known) -> None:
    """A fragment comes when it was said, or later; a sideband may begin long after its session."""
    zero, guess = known.notes.get("zero"), ts - frame["end_ms"]
    if not known.has_clock:
        return
    if zero is None or guess < zero - AHEAD_MS or (known.notes.get("guessed") and guess < zero):
        known.note("zero", guess)
        known.note("guessed", True)


# Who goes on, and who begins


def goes_on(mine: Said | None, other: Said | None, start: int) -> bool:
    """Whether a fragment belongs to what its speaker said last: both may speak at once, for as long as they like."""
    if mine is None or start - mine["end"] >= PAUSE_MS:
        return False
    other_spoke = other is not None and other["start"] < start and other["end"] > mine["end"]
    return not ((other_spoke or mine.get("asked")) and start - mine["end"] > BREATH_MS)


def new_item(prefix: str, start: int, known: Known) -> str:
    item = f"~{prefix}:{start}"
    if known.turn_of(item) is None:
        return item
    number = known.notes.get("items", 0) + 1
    known.note("items", number)
    return f"{item}.{number}"


# The user


def hear(frame: JsonObject, ts: int, known: Known) -> Made:
    """The user says something. It is final: fragments are added to, and never taken back."""
    note_zero(frame, ts, known)
    mine, out = said("in", known), said("out", known)
    start, end, text = frame["start_ms"], frame["end_ms"], frame["delta"]
    if mine is not None and goes_on(mine, out, start):
        segment = known.segment(mine["item"])
        text = ("" if segment is None else segment.text) + text
        mine = mine | {"end": max(mine["end"], end)}
        yield Asr(item=mine["item"], text=text, final=True)
    else:
        mine = {"item": new_item("in", start, known), "start": start, "end": end}
        turn = known.here if known.here and not known.is_answered(known.here) else known.next_turn
        yield Asr(item=mine["item"], text=text.lstrip(), final=True, turn_id=turn)
        if out is not None and start < out["start"]:
            out = yield from move_reply(out, turn, known)
    known.note("in", mine)
    if out is None or out.get("done"):
        return
    if mine["start"] >= out["end"]:
        yield from finish(out, known)
    elif mine["end"] >= out["end"] + PAUSE_MS:
        yield from settle(known)


def move_reply(out: Said, turn: int, known: Known) -> Any:
    """What the user said before a reply began is known only now: the reply answers it, and belongs to its turn."""
    reply = known.reply(out["item"])
    if reply is None or reply.turn >= turn:
        return out
    item = new_item("out", out["start"], known)
    yield LlmDelta(item=item, text=reply.text, turn_id=turn, ts=reply.begun if known.has_clock else None)
    if reply.complete:
        yield LlmDone(item=item)
    yield LlmCancel(item=out["item"])
    moved = out | {"item": item}
    known.note("out", moved)
    return moved


def type_text(item: JsonObject, known: Known) -> Made:
    note_asked(known)
    yield MessageEvent(role="user", text=written(item), source="message")


def note_asked(known: Known) -> None:
    out = said("out", known)
    if out is not None:
        known.note("out", out | {"asked": True})


def press_key(frame: JsonObject, ts: int, known: Known) -> Made:
    note_asked(known)
    yield MessageEvent(role="user", text=frame["event"], source="message", metadata={"dtmf": True})


# The agent


def speak(frame: JsonObject, ts: int, known: Known) -> Made:
    note_zero(frame, ts, known)
    out = said("out", known)
    start, end, text = frame["start_ms"], frame["end_ms"], frame["delta"]
    if out is not None and goes_on(out, said("in", known), start):
        if out.get("cut"):
            yield Resume(item=out["item"])
        out = {"item": out["item"], "start": out["start"], "end": max(out["end"], end)}
        turn = None
    else:
        yield from settle(known)
        out, turn = {"item": new_item("out", start, known), "start": start, "end": end}, known.here
        text = text.lstrip()
    known.note("out", out)
    yield LlmDelta(item=out["item"], text=text, turn_id=turn)
    if text.strip():
        begin = max(0, start - out["start"])
        yield Tts(item=out["item"], words=(Word(text.strip(), begin, max(begin, end - out["start"])),))


def settle(known: Known) -> Made:
    """The agent has stopped: because it was interrupted, if the user spoke and its sentence had not ended."""
    out = said("out", known)
    if out is None or out.get("done") or out.get("cut"):
        return
    if is_cut_by_user(out, known):
        known.note("out", out | {"cut": True})
        zero = known.notes.get("zero") if known.has_clock else None
        yield interruption(out, out["end"] - out["start"], None if zero is None else zero + out["end"])
    else:
        yield from finish(out, known)


def is_cut_by_user(out: Said, known: Known) -> bool:
    """Whether the user spoke when the agent stopped amid a sentence."""
    mine, reply = said("in", known), known.reply(out["item"])
    by_user = mine is not None and mine["start"] < out["end"] < mine["end"]
    return by_user and reply is not None and not ends_sentence(reply.text)


def interruption(out: Said, position_ms: int, ts: int | None) -> Interrupt:
    """It marks the reply even if all that came of it was heard: more was to come."""
    return Interrupt(item=out["item"], audio_end_ms=position_ms, estimated=True, more=True, ts=ts)


def finish(out: Said, known: Known) -> Made:
    known.note("out", out | {"done": True})
    reply = known.reply(out["item"])
    if reply is not None and not reply.complete:
        yield LlmDone(item=out["item"])


def ends_sentence(text: str) -> bool:
    return SENTENCE_END.search(text) is not None


# Tools


def delegate(frame: JsonObject, ts: int, known: Known) -> Made:
    """Work for the app; what the Responses API does calls functions of its own."""
    delegation = frame["delegation"]
    if delegation.get("target") == "client":
        yield tool_call(delegation["id"], "delegation", {}, known)


def answer_delegation(frame: JsonObject, ts: int, known: Known) -> Made:
    yield tool_result(frame["delegation_id"], frame["content"], known)


def call_function(frame: JsonObject, ts: int, known: Known) -> Made:
    item = frame["event"]["item"]
    yield tool_call(item["call_id"], item["name"], item.get("arguments", ""), known)


def create_item(frame: JsonObject, ts: int, known: Known) -> Made:
    item = frame["item"]
    if item.get("type", MESSAGE) == OUTPUT:
        return (tool_result(item["call_id"], item.get("output"), known),)
    return type_text(item, known)


def tool_call(id: str, name: str, arguments: Any, known: Known) -> ToolCall:
    calls = [key for key in known.notes if key.startswith("t:")]
    for key in calls[: len(calls) + 1 - KEPT_CALLS]:
        known.note(key, None)
    known.note(f"t:{id}", known.here)
    return ToolCall(id=f"call:{id}", call_id=id, name=name, arguments=arguments, turn_id=known.here)


def tool_result(id: str, result: Any, known: Known) -> ToolResult:
    return ToolResult(call_id=id, result=result, turn_id=known.notes.get(f"t:{id}", known.here))


RULES: dict[str, Translate] = {
    "session.started": start_session,
    "session.input_transcript.delta": hear,
    "session.output_transcript.delta": speak,
    "session.delegation.created": delegate,
    "session.commentary.append": answer_delegation,
    "response.event": call_function,
    "response.item.create": create_item,
    "transport.dtmf.received": press_key,
    "session.closed": end_session,
}
