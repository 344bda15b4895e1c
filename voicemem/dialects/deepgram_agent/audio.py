"""How long the audio of Deepgram's replies is, and where it stands by the clock.

Deepgram sends audio faster than it plays, and names no reply: it is that of the newest. A reply that waits for a
function is silent meanwhile, so its audio comes in parts.
"""

from __future__ import annotations

from voicemem.dialects.clock import Playing, playing_at, spoken_ms
from voicemem.dialects.deepgram_agent.replies import begin, is_newest, reply_item
from voicemem.dialects.dialect import AUDIO_BYTES, Known, KnownReply, Made
from voicemem.protocol.events import Tts
from voicemem.protocol.types import MAX_INTEGER, JsonObject

USUAL = 48_000
"""Bytes a second of the usual format: 16 bits at 24 kHz."""
RATES = {"linear16": 24_000, "mulaw": 8_000, "alaw": 8_000}
"""Samples a second of formats that are not compressed, where the settings say nothing else."""
BIT_RATES = {"mp3": 48_000, "aac": 48_000, "opus": 12_000}
"""Bits a second of those that are, likewise."""
GAP_MS = 500
"""Audio that comes so long after all before it was played follows a silence."""


def note_format(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note how many bytes of audio are a second: 0 where that is not known."""
    output = (frame.get("audio") or {}).get("output") or {}
    encoding = output.get("encoding") or "linear16"
    if encoding in RATES:
        rate = (output.get("sample_rate") or RATES[encoding]) * (2 if encoding == "linear16" else 1)
    else:
        rate = (output.get("bitrate") or BIT_RATES.get(encoding, 0)) // 8
    known.note("rate", max(0, rate))
    return ()


def count_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    """Count the audio of the newest reply."""
    rate = known.notes.get("rate", USUAL)
    if not rate:
        return
    begin(known)
    count = known.notes.get("bytes", 0)
    if known.has_clock:
        note_times(ts, frame[AUDIO_BYTES] * 1000 // rate, is_first=not count, known=known)
    known.note("bytes", min(count + frame[AUDIO_BYTES], MAX_INTEGER))
    known.note("unvoiced", None)
    yield total_of(known)


def note_times(ts: int, length_ms: int, is_first: bool, known: Known) -> None:
    """Note until when all audio plays, and how long the reply has been silent between parts of it."""
    if is_first and "since" not in known.notes:
        known.note("since", ts)
    until = known.notes.get("until", ts)
    if ts - until > GAP_MS and not is_first:
        known.note("silent", known.notes.get("silent", 0) + ts - until)
    known.note("until", length_ms + (ts if is_first or ts - until > GAP_MS else until))


def total_of(known: Known) -> Tts:
    """How long the audio of the newest reply is by now."""
    rate = known.notes.get("rate") or USUAL
    return Tts(item=reply_item(known), total_audio_ms=min(known.notes["bytes"] * 1000 // rate, MAX_INTEGER))


def note_unvoiced(text: str, ts: int, is_first: bool, known: Known) -> None:
    """Note how long it takes to say a text whose audio is still to come, and when the first one came."""
    if is_first and known.notes.get("bytes"):
        known.note("audio_first", True)
    if not known.notes.get("audio_first"):
        known.note("unvoiced", known.notes.get("unvoiced", 0) + spoken_ms(text))
    if known.has_clock and "since" not in known.notes:
        known.note("since", ts)


def position_ms(ts: int, known: Known) -> int:
    """How much of the audio under way was played by a time, where its words have not come yet."""
    until: int = known.notes.get("until", ts)
    return max(0, (total_of(known).total_audio_ms or 0) - max(0, until - ts))


def playing(known: Known, reply: KnownReply, ts: int) -> Playing | None:
    """Where the audio of a reply stood at a time; where none has come, by the length of its text."""
    if not is_newest(reply, known):
        return playing_at(reply, ts)
    silent_ms, unvoiced_ms = known.notes.get("silent", 0), known.notes.get("unvoiced", 0)
    found = playing_at(reply, ts - silent_ms)
    if found is not None:
        return Playing(found.began + silent_ms, found.position_ms, found.total_ms + unvoiced_ms)
    since = known.notes.get("since")
    if since is None or not unvoiced_ms:
        return None
    return Playing(since, max(0, min(ts - since, unvoiced_ms)), unvoiced_ms)
