"""The kinds of evidence about what was heard: which playback events an engine sends, and what its interrupts state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from voicemem.cli.truth.calls import TrueReply
from voicemem.protocol.types import JsonObject

PROGRESS_MS = 500
"""How often an engine that reports its progress does so."""


class Kind(NamedTuple):
    """One kind of evidence."""

    name: str
    says: str
    """What the events say, for the help and the tables."""
    at_cut: Callable[[TrueReply, int], JsonObject] = lambda reply, at_ms: {}
    """What an interrupt at a time states."""
    start: bool = True
    """Whether playback events tell its start and its end."""
    words: bool = False
    totals: Literal["", "after", "before", "running"] = ""
    """When `total_audio_ms` is known: when playback ended; after each sentence that was synthesised, with its text or
    without it."""
    sentence_dones: bool = False
    """Whether there is a `done` wherever a sentence ends."""
    progress: Literal["", "text", "position"] = ""
    hang_up: Literal["", "tts", "interrupt"] = "tts"
    """What carries the evidence when the caller hangs up: nothing, the last progress, or an interrupt."""


def heard_text(reply: TrueReply, at_ms: int) -> JsonObject:
    return {"heard_text": reply.heard_until(at_ms)}


def generated_text(reply: TrueReply, at_ms: int) -> JsonObject:
    return {"heard_text": reply.generated_until(at_ms)}


def heard_chars(reply: TrueReply, at_ms: int) -> JsonObject:
    """A character counts once it was spoken, also in the middle of a word."""
    position = reply.position_at(at_ms)
    count = 0
    for word in reply.words:
        if position >= word.start_ms:
            share = min(1.0, (position - word.start_ms) / (word.end_ms - word.start_ms))
            count = word.begin + int(share * (word.end - word.begin))
    return {"heard_chars": count}


def position(reply: TrueReply, at_ms: int) -> JsonObject:
    return {"audio_end_ms": reply.position_at(at_ms)}


def position_by_clock(reply: TrueReply, at_ms: int) -> JsonObject:
    """How long playback has been going on, less the false alarms; that a TTS was late is not known."""
    paused = sum(max(0, min(alarm.until_ms, at_ms) - alarm.at_ms) for alarm in reply.alarms)
    return {"audio_end_ms": max(0, at_ms - reply.played[0].from_ms - paused), "estimated": True}


KINDS = {
    kind.name: kind
    for kind in (
        Kind("heard_text", "the interrupt's `heard_text`", heard_text, start=False),
        Kind("heard_chars", "the interrupt's `heard_chars`", heard_chars, start=False, hang_up="interrupt"),
        Kind("words", "a position, and `words`", position, words=True),
        Kind("progress_text", "`tts.heard_text` after each word", progress="text", hang_up=""),
        Kind("total_after", "a position; `total_audio_ms` after the cut", position, totals="after"),
        Kind("total_before", "a position; `total_audio_ms` with each sentence", position, totals="before"),
        Kind("total_running", "the same totals without `synthesised_text`", position, totals="running"),
        Kind(
            "done_before",
            "`done` after each sentence, then a position and a total",
            position,
            totals="after",
            sentence_dones=True,
        ),
        Kind("progress", "`audio_ms` every 500 ms, and a total", totals="before", progress="position", hang_up=""),
        Kind("position", "a position only", position),
        Kind(
            "clock_position",
            "the time since playback began as an estimated position; totals with text",
            position_by_clock,
            totals="before",
        ),
        Kind("clock_totals", "when playback began; totals without text", totals="running", hang_up=""),
        Kind("clock_audio", "when playback began", hang_up=""),
        Kind("clock_text", "no playback events", start=False, hang_up="interrupt"),
        Kind("generated", "everything generated, as if it was heard", generated_text, start=False),
    )
}
"""The kinds by name, the best first; the last is what a memory without playback keeps."""
