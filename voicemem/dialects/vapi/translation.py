"""What Vapi's messages say, in events of `voicemem.v1`.

What is remembered is the history (`history`). Until it has come, live messages stand in for it: what the user says is
`~uTURN`, withdrawn when the history has it; what the agent says waits in the notes (`speaking`) until the user speaks
or the call ends, and is `~aTURN` then. Notes of this module: `live` (turn, finals and newest time of what the user
says), `final` (the report has come).
"""

from __future__ import annotations

from typing import Any

from voicemem.dialects.dialect import Known, Made, MadeEvent, Translate
from voicemem.dialects.vapi.cuts import Cut, attach_late, cut_of, mark_cut, note_cut
from voicemem.dialects.vapi.frames import ENDED, HISTORY, MESSAGE, REPORT
from voicemem.dialects.vapi.history import complete_newest_reply, record, say, tool_call, tool_result
from voicemem.dialects.vapi.speaking import (
    SETTLE_MS,
    began_before,
    end_voices,
    full_text,
    generated,
    heard_text,
    in_order,
    is_spoken_out,
    joined,
    note_output,
    note_speech,
    note_transcript,
    voice_of,
    voices_of,
)
from voicemem.dialects.vapi.turns import MAX_LIVE, live_reply, live_text, live_turn, live_utterance
from voicemem.dialects.wording import plain
from voicemem.protocol.events import Asr, Interrupt, LlmCancel, SessionEnd
from voicemem.protocol.types import JsonObject

MAX_CALLS = 60
"""Calls of tools that one message may report."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    return RULES[frame["type"]](frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    """What of the last reply was spoken when the caller hung up."""
    if not known.notes.get("final"):
        yield from stop_voices(known, ts)
    yield from stop_last(known, ts)


# The history


def read_history(frame: JsonObject, ts: int, known: Known) -> Made:
    return record(frame["messages"], frame.get("timestamp"), False, known)


def read_message(frame: JsonObject, ts: int, known: Known) -> Made:
    reported = frame.get("reported", False)
    if reported:
        known.note("final", True)
    return record([frame["item"]], frame.get("timestamp"), reported, known)


def end_call(frame: JsonObject, ts: int, known: Known) -> Made:
    """The report has all messages; what else live messages said is not part of the call."""
    messages = frame.get("messages") or []
    if messages:
        known.note("final", True)
        yield from record(messages, frame.get("timestamp"), True, known)
    if known.notes.get("final"):
        yield from withdraw_live(known)
    ended = frame.get("endedAt", frame.get("timestamp"))
    yield SessionEnd(reason=frame.get("endedReason", ENDED), ts=ended)


def withdraw_live(known: Known) -> Made:
    """Take back what live messages said, but for replies of which nothing was heard: no history has these."""
    taken_over = {item for key, item in known.notes.items() if key.startswith("=")}
    for turn in range(max(0, known.next_turn - MAX_LIVE), known.next_turn):
        item = live_reply(turn)
        reply = known.reply(item)
        if live_text(turn, known):
            yield Asr(item=live_utterance(turn), text="", final=True)
        is_recorded = item in taken_over or known.notes.get(f"-{turn}")
        if reply is not None and reply.cut != "exact" and not is_recorded:
            yield LlmCancel(item=item)


# What is said now


def hear_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    text = frame["transcript"].strip()
    kind = "users" if frame["role"] == "user" else "bots"
    if not text or known.notes.get("final") or is_in_history(kind, frame, known):
        return
    if frame["role"] != "user":
        note_transcript(frame, known)
        attach_late(known)
        return
    at = frame.get("timestamp")
    end_voices(known, at)
    said = say_voices(known, at)
    yield from said
    yield from grow_utterance(frame, text, known.next_turn if said else live_turn(known), known)


def grow_utterance(frame: JsonObject, text: str, turn: int, known: Known) -> Made:
    """Put a text among the finals of its turn; a partial that comes after its final is one of the past."""
    live: dict[str, Any] = known.notes.get("live") or {}
    at = frame.get("timestamp")
    finals: list[Any] = live["finals"] if live.get("turn") == turn else []
    before = joined(finals, " ")
    if frame.get("transcriptType", "final") == "final":
        finals = in_order(finals, text, at, " ")
        known.note("live", {"turn": turn, "finals": finals, "ts": finals[-1][0] or None})
        yield Asr(item=live_utterance(turn), text=joined(finals, " "), final=True, turn_id=turn, ts=at)
    elif not (before and (is_before(at, live.get("ts")) or before.endswith(text))):
        yield Asr(item=live_utterance(turn), text=f"{before} {text}".strip(), turn_id=turn, ts=at)


def is_before(at: int | None, other: int | None) -> bool:
    return at is not None and other is not None and at <= other


def is_in_history(kind: str, frame: JsonObject, known: Known) -> bool:
    """Whether the newest message of the history has a transcript that comes after it."""
    newest, at = (known.notes.get(kind) or [None])[-1], frame.get("timestamp")
    if newest is None or (at is not None and "end" in newest and at > newest["end"] + SETTLE_MS):
        return False
    segment, reply = known.segment(newest["item"]), known.reply(newest["item"])
    text = segment.text if segment is not None else reply.text if reply is not None else ""
    return plain(frame["transcript"]) in plain(text)


def hear_speech(frame: JsonObject, ts: int, known: Known) -> Made:
    note_speech(frame, known)
    attach_late(known)
    return complete_newest_reply(known)


def hear_output(frame: JsonObject, ts: int, known: Known) -> Made:
    note_output(frame, known)
    attach_late(known)
    return complete_newest_reply(known)


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    """The user cut the agent short: what the history says about it, now or later."""
    cut = note_cut(frame, ts, known)
    for noted in reversed(known.notes.get("bots", ())):
        reply = known.reply(noted["item"])
        if reply is not None and cut_of(noted, reply.text[: noted["spoken"]], known) == cut:
            return mark_cut(cut, noted, reply.text, known)
    return cut_live(cut, known)


def cut_live(cut: Cut, known: Known) -> list[MadeEvent]:
    """An interruption that comes after the words of the user's: of a reply that no history has."""
    voices = voices_of(known)
    voice = next((one for one in voices if one.get("by") == cut["number"] and "until" in one), None)
    if voice is None:
        return []
    if not voice.get("recorded"):
        return say([voice], voice["in"], voices, known) if generated(voice) else []
    item, full, words = voice.get("item"), full_text(voice), heard_text(voice) or ""
    reply = None if item is None else known.reply(item)
    if reply is None or not reply.text.endswith(full):
        return []
    heard = reply.text[: len(reply.text) - len(full)] + words
    return [Interrupt(item=item, heard_text=heard.strip(), estimated=bool(words), more=True, ts=cut["when"])]


# What the history does not have yet


def say_voices(known: Known, ts: int | None = None) -> list[MadeEvent]:
    """What the agent has said, as one reply, now that the user answers, or has at a time."""
    voices = voices_of(known)
    waiting = [one for one in voices if not one.get("recorded") and full_text(one) and began_before(one, ts)]
    return say(waiting, known.here, voices, known) if waiting else []


def stop_voices(known: Known, ts: int) -> Made:
    """What the agent was saying when the caller hung up, and how much of it was spoken."""
    voices = voices_of(known)
    newest = voices[-1] if voices else None
    if newest is None or newest.get("recorded"):
        return
    heard = heard_text(newest)
    yield from say_voices(known)
    if heard is not None and "cut" not in newest and not is_spoken_out(newest):
        yield Interrupt(item=live_reply(known.here), heard_text=heard, estimated=True, ts=ts)


def stop_last(known: Known, ts: int) -> Made:
    """What was heard of the last reply of the history: what that has of it, or the words that were spoken by then."""
    noted = (known.notes.get("bots") or [None])[-1]
    reply = None if noted is None else known.reply(noted["item"])
    if noted is None or reply is None or reply.cut != "no":
        return
    voice = voice_of(reply.text, voices_of(known))
    words = None if voice is None or not generated(voice) or is_spoken_out(voice) else heard_text(voice)
    if noted["spoken"] < len(reply.text):
        yield Interrupt(item=noted["item"], heard_text=reply.text[: noted["spoken"]], ts=ts)
    elif words is not None and noted.get("end", ts) >= ts - SETTLE_MS:
        yield Interrupt(item=noted["item"], heard_text=words, estimated=True, ts=ts)


def call_tools(frame: JsonObject, ts: int, known: Known) -> Made:
    return [tool_call(call, known.here, frame.get("timestamp")) for call in frame["toolCallList"][:MAX_CALLS]]


def end_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    return [tool_result(frame, known.here, frame.get("timestamp"))]


RULES: dict[str, Translate] = {
    HISTORY: read_history,
    MESSAGE: read_message,
    REPORT: end_call,
    "transcript": hear_transcript,
    "assistant.speechStarted": hear_speech,
    "model-output": hear_output,
    "user-interrupted": interrupt,
    "tool-calls": call_tools,
    "tool-calls-result": end_tool,
}
