"""Interruptions: which message of the history `user-interrupted` is about, and what of it was heard.

Notes: `cuts`, the newest few: when, by which turn of the LLM, and the item once it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voicemem.dialects.dialect import Known, MadeEvent
from voicemem.dialects.vapi.speaking import (
    SETTLE_MS,
    Voice,
    began_before,
    heard_text,
    is_spoken_out,
    keep_voices,
    voice_of,
    voices_of,
)
from voicemem.dialects.vapi.wording import first_words
from voicemem.dialects.wording import begins
from voicemem.protocol.events import Interrupt
from voicemem.protocol.types import JsonObject

MAX_CUTS = 4
EARLY_MS = 500
"""An interruption may come so long before the time that a message is said to begin at."""
Cut = dict[str, Any]
NotedMessage = dict[str, Any]
"""What is noted of a message of the history."""


def note_cut(frame: JsonObject, ts: int, known: Known) -> Cut:
    """Keep an interruption; the voice that it cut is over. `waits`, if that is known: the history does not have it."""
    cut: Cut = {"ts": frame.get("timestamp"), "llm": frame.get("turnId"), "number": known.notes.get("cut_count", 0)}
    cut["when"] = frame.get("timestamp", ts if known.has_clock else None)
    known.note("cut_count", cut["number"] + 1)
    voices = voices_of(known)
    attach(cut, cut_voice(cut, voices))
    keep_voices(voices, known)
    known.note("cuts", [*known.notes.get("cuts", ()), cut][-MAX_CUTS:])
    return cut


def attach(cut: Cut, voice: Voice | None) -> None:
    """Note on both sides that an interruption cut a reply."""
    if voice is not None:
        voice["over"], voice["cut"], voice["by"] = True, cut["ts"], cut["number"]
        cut["waits"] = not voice.get("recorded")


def attach_late(known: Known) -> None:
    """Whether an interruption that came first cut the newest reply, of which something has come now."""
    voices, cuts = voices_of(known), [dict(one) for one in known.notes.get("cuts", ())]
    free = [one for one in cuts if "waits" not in one and one.get("item") is None]
    voice = voices[-1] if voices else None
    if voice is None or voice.get("over") or "by" in voice:
        return
    cut = next((one for one in free if is_cut_by(voice, one)), None)
    if cut is not None:
        attach(cut, voice)
        keep_voices(voices, known)
        known.note("cuts", cuts)


def is_cut_by(voice: Voice, cut: Cut) -> bool:
    """Whether an interruption names the turn of a reply, or came after it had begun."""
    if None not in (cut["llm"], voice.get("llm")):
        return bool(cut["llm"] == voice["llm"])
    return None not in (cut["ts"], voice.get("first")) and bool(voice["first"] <= cut["ts"])


def cut_voice(cut: Cut, voices: list[Voice]) -> Voice | None:
    """The reply that was being spoken: that of the turn which the interruption names, else the newest of its time."""
    named = (one for one in voices if cut["llm"] is not None and one.get("llm") == cut["llm"])
    return next(named, None) or next((one for one in reversed(voices) if was_spoken(one, cut["ts"])), None)


def was_spoken(voice: Voice, at: int | None) -> bool:
    """Whether a reply was not over at a time, or ended by what the user said then: interruptions may come late."""
    if not voice.get("over"):
        return began_before(voice, at)
    until = voice.get("until")
    return None not in (at, until) and "by" not in voice and began_before(voice, at) and at <= until + EARLY_MS  # type: ignore[operator]


def cut_of(noted: NotedMessage, text: str, known: Known) -> Cut | None:
    """The interruption of a message of the history: of the reply that it is about, else the one at about its end."""
    for cut in reversed(known.notes.get("cuts", ())):
        if is_about(cut, noted, text, known):
            return dict(cut)
    return None


def is_about(cut: Cut, noted: NotedMessage, text: str, known: Known) -> bool:
    at, start, end = cut["ts"], noted.get("time"), noted.get("end")
    if cut.get("item") is not None:
        return bool(cut["item"] == noted["item"]) and (at is None or end is None or end <= at + SETTLE_MS)
    voice = voice_of(text, voices_of(known))
    if voice is not None and voice.get("by") == cut["number"] and (at is None or start is None or start <= at):
        return True
    if at is None or start is None:
        bots = known.notes.get("bots") or ()
        return not cut.get("waits") and (not bots or bots[-1]["item"] == noted["item"])
    if at < start - EARLY_MS:
        return False
    if end is not None:
        return bool(abs(at - end) <= SETTLE_MS)
    return all(not start < one.get("time", start) <= at for one in known.notes.get("bots", ()))


def mark_cut(cut: Cut, noted: NotedMessage, full: str, known: Known) -> Iterator[MadeEvent]:
    """The interruption of a message, with what of it was heard: what the history has, or the words that were spoken."""
    spoken = full[: noted["spoken"]]
    voice = voice_of(spoken, voices_of(known))
    words = None if voice is None else heard_text(voice)
    if noted["spoken"] < len(full) or words is None:
        yield Interrupt(item=noted["item"], heard_text=spoken, more=True, ts=cut["when"])
    elif voice is not None and not is_spoken_out(voice):
        heard = words if begins(full, words) else first_words(full, len(words.split()))
        yield Interrupt(item=noted["item"], heard_text=heard, estimated=True, more=True, ts=cut["when"])
    known.note("cuts", [found(one, cut, noted) for one in known.notes.get("cuts", ())])


def found(one: Cut, cut: Cut, noted: NotedMessage) -> Cut:
    return one | {"item": noted["item"]} if one["number"] == cut["number"] else one
