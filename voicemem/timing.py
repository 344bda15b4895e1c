"""When what was said could be heard, as Agora's history has it: `speech_start_ms` and `speech_end_ms`.

A user's times are those that the recogniser gave (`start_ms`, `end_ms` of `asr`), unscaled. A reply's are Unix ms: its
playback began `audio_ms` before the event that reported that position, and ended with `done` or the last such event.
A producer that knows better says so in the metadata, under the same names.
"""

from __future__ import annotations

from typing import Any

from voicemem.history import Told, turn_entries
from voicemem.messages import Message
from voicemem.state import State, Turn, Utterance

NAMES = ("speech_start_ms", "speech_end_ms", "speech_algorithmic_delay")
Times = dict[str, Any]
"""By name, in ms; only what was given."""


def turn_times(state: State, turn: Turn) -> list[Times]:
    """The times of a turn's messages, in their order."""
    return [times_of(entry.message, entry.about) for entry in turn_entries(state, turn)]


def times_of(message: Message, about: Utterance | Told | None) -> Times:
    match about:
        case Utterance():
            found = utterance_times(about)
        case Told():
            found = reply_times(about)
        case _:
            found = {}
    said = {name: message.metadata[name] for name in NAMES if is_number(message.metadata.get(name))}
    known = {name: value for name, value in found.items() if value is not None} | said
    return {name: known[name] for name in NAMES if name in known}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def utterance_times(utterance: Utterance) -> Times:
    segments = [segment for segment in utterance.segments if segment.text.strip()]
    starts = [segment.start_ms for segment in segments if segment.start_ms is not None]
    ends = [segment.end_ms for segment in segments if segment.end_ms is not None]
    return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}


def reply_times(told: Told) -> Times:
    starts: list[int] = []
    ends: list[int] = []
    for track in told.spoken.tracks:
        positions = track.playback.audio.marks(track.until, track.since)
        starts += [mark.ts - mark.value for mark in positions]
        ends += [mark.ts for mark in (*positions, *track.playback.ends.marks(track.until, track.since))]
    return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}
