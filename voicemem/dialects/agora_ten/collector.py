"""What TEN's message collector tells clients: texts without turns, numbers or interruptions.

The text of a reply is all of it so far. TEN stops to generate as soon as the user says something, so a reply that is
not final by then was interrupted. Notes: `users` and `agents` (how many there were).
"""

from __future__ import annotations

from voicemem.dialects.dialect import Frame, Known, Made, MalformedFrame
from voicemem.dialects.reading import Record, kept
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone
from voicemem.protocol.types import JsonObject

TRANSCRIBE = "transcribe"
UNIX_MS = 10**12
"""Times below are none of Unix, in ms."""


class Collected(Record):
    data_type: str
    role: str
    text: str
    is_final: bool = False
    text_ts: int | None = None


def is_collected(frame: JsonObject) -> bool:
    """Whether a message is the collector's own, and none of Agora's."""
    return "data_type" in frame and "role" in frame and "object" not in frame


def reduced_text(frame: JsonObject) -> Frame | None:
    """What is kept of a message. Raises `MalformedFrame`."""
    content = kept(Collected, frame)
    if content["data_type"] != TRANSCRIBE:  # what the LLM thinks, and what apps send
        return None
    if content["role"] not in ("user", "assistant"):
        raise MalformedFrame("A text is the user's or the assistant's.")
    ts = content.get("text_ts")
    return Frame(content, ts=ts if ts is not None and ts >= UNIX_MS else None, side="vendor")


def collected_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one text."""
    return (user_text if frame["role"] == "user" else agent_text)(frame["text"], frame.get("is_final", False), known)


def user_text(text: str, final: bool, known: Known) -> Made:
    number = known.notes.get("users", 0)
    segment = known.segment(f"~u{number}")
    if segment is None or segment.final:
        if not text:
            return
        number += 1
        known.note("users", number)
    item = f"~u{number}"
    reply = known.reply(f"~a{known.notes.get('agents', 0)}")
    if text and reply is not None and not reply.complete and reply.cut == "no":
        yield Interrupt(item=reply.item)
    turn = None if known.turn_of(item) is not None else utterance_turn(known)
    yield Asr(item=item, text=text, final=final, turn_id=turn)


def utterance_turn(known: Known) -> int:
    """The turn of a new utterance: the same while nobody has answered."""
    return known.here if known.here and not known.is_answered(known.here) else known.next_turn


def agent_text(text: str, final: bool, known: Known) -> Made:
    number = known.notes.get("agents", 0)
    reply = known.reply(f"~a{number}")
    if reply is None or (reply.complete and text != reply.text) or (reply.cut != "no" and is_other(text, reply.text)):
        if not text:
            return
        number, reply = number + 1, None
        known.note("agents", number)
    elif reply.complete:
        return
    item = f"~a{number}"
    turn = known.here if reply is None else None
    if text:
        yield LlmDelta(item=item, text=text, whole=True, turn_id=turn)
    if final:
        yield LlmDone(item=item)


def is_other(text: str, before: str) -> bool:
    """Whether a text is not all of a reply so far."""
    return not text.startswith(before) and not before.startswith(text)
