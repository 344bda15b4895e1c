"""What the agent is saying, as live messages tell it, until the history has it.

Notes: `voices`, the newest few. Each is one reply: what the LLM generated (`full`, as the voice is given it; `tokens`,
by the LLM's output), what was `spoken` by its transcripts, how many `words` or `characters` of it were spoken, when it
was first and last heard of, and whether it is `over`, or `told` by the history.
"""

from __future__ import annotations

from typing import Any

from voicemem.dialects.dialect import Known
from voicemem.dialects.vapi.wording import first_words, word_count
from voicemem.dialects.wording import begins, newest_noted, plain
from voicemem.protocol.types import JsonObject

MAX_VOICES = 3
MAX_TEXT = 3_500
"""Bytes of a reply that are looked at: notes are small."""
SETTLE_MS = 1_500
"""What the agent said may be reported so long after it was interrupted, or ended."""
Voice = dict[str, Any]


def voices_of(known: Known) -> list[Voice]:
    """The replies that live messages tell, the oldest first; a copy."""
    return [dict(one) for one in known.notes.get("voices", ())]


def keep_voices(voices: list[Voice], known: Known) -> None:
    known.note("voices", newest_noted(voices, MAX_VOICES) or None)


def voice_for(voices: list[Voice], field: str, name: Any, ts: int | None) -> Voice:
    """The reply that a live message is about: that of its turn, else the newest that is not over, else a new one."""
    if name is not None:
        for voice in reversed(voices):
            if voice.get(field) == name:
                return voice
    newest = voices[-1] if voices else {"over": True}
    goes_on = not newest.get("over") or (name is None and is_late(newest, ts))
    if goes_on and newest.get(field) in (None, name):
        return newest
    voices.append({})
    return voices[-1]


def is_late(voice: Voice, ts: int | None) -> bool:
    """Whether a message without the name of a turn may still be about a reply that was cut."""
    cut = voice.get("cut")
    return cut is not None and ts is not None and ts <= cut + SETTLE_MS


def hear(voice: Voice, ts: int | None) -> None:
    if ts is not None:
        voice["first"] = min(ts, voice.get("first", ts))
        voice["last"] = max(ts, voice.get("last", ts))


def note_speech(frame: JsonObject, known: Known) -> None:
    voices, ts = voices_of(known), frame.get("timestamp")
    voice = voice_for(voices, "turn", frame.get("turn"), ts)
    hear(voice, ts)
    if "turn" in frame:
        voice["turn"] = frame["turn"]
    if len(frame["text"]) >= len(voice.get("full", "")):
        voice["full"] = bounded(frame["text"])
    for field in ("words", "characters"):
        if field in frame:
            before = voice.get(field, 0)
            voice[field] = max(before, frame[field]) if field == "words" else before + frame[field]
    keep_voices(voices, known)


def note_output(frame: JsonObject, known: Known) -> None:
    voices = voices_of(known)
    voice = voice_for(voices, "llm", frame.get("turnId"), frame.get("timestamp"))
    hear(voice, frame.get("timestamp"))
    if "turnId" in frame:
        voice["llm"] = frame["turnId"]
    voice["tokens"] = bounded(voice.get("tokens", "") + frame["output"])
    keep_voices(voices, known)


def note_transcript(frame: JsonObject, known: Known) -> None:
    """What the agent says by its transcript; a partial is taken back by the next."""
    text, ts = frame["transcript"].strip(), frame.get("timestamp")
    voices = voices_of(known)
    last = voices[-1] if voices else None
    if not text or (last is not None and last.get("told") and begins(full_text(last), text)):
        return
    voice = voice_for(voices, "", None, ts)
    hear(voice, ts)
    is_final = frame.get("transcriptType", "final") == "final"
    voice["partial"] = "" if is_final else bounded(text)
    if is_final:
        voice["spoken"] = bounded(f"{voice.get('spoken', '')} {text}".strip())
    keep_voices(voices, known)


def bounded(text: str) -> str:
    return text.encode()[:MAX_TEXT].decode(errors="ignore")


def generated(voice: Voice) -> str:
    """What the LLM said, as far as anybody tells."""
    full: str = voice.get("full", "").strip()
    tokens: str = voice.get("tokens", "").strip()
    return tokens if not full or (begins(tokens, full) and len(tokens) > len(full)) else full


def spoken(voice: Voice) -> str:
    """What the agent said by its transcripts."""
    return f"{voice.get('spoken', '')} {voice.get('partial') or ''}".strip()


def full_text(voice: Voice) -> str:
    """All of a reply: what was generated, else what was spoken."""
    return generated(voice) or spoken(voice)


def heard_text(voice: Voice) -> str | None:
    """How much of a reply had been spoken, as its beginning; None where nothing says."""
    text = generated(voice)
    if text and "words" in voice:
        return first_words(text, int(voice["words"]))
    if text and "characters" in voice:
        return text[: int(voice["characters"])].rstrip()
    said = spoken(voice)
    return text[: len(said)] if text and said and begins(text, said) and plain(text) == text else said or None


def is_spoken_out(voice: Voice) -> bool:
    """Whether the words that were spoken are all."""
    heard = heard_text(voice)
    return heard is not None and word_count(heard) >= word_count(full_text(voice))


def voice_of(text: str, voices: list[Voice]) -> Voice | None:
    """The reply that a message of the history tells: one that begins as it does, the newest first."""
    for voice in reversed(voices):
        told = full_text(voice)
        if told and (begins(told, text) or begins(text, told)):
            return voice
    return None
