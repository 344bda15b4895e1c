"""A true call made by hand: two replies, the second cut in the middle of a word."""

from __future__ import annotations

from voicemem.cli.truth import (
    FalseAlarm,
    PlayedPart,
    Speaker,
    Synthesis,
    TrueCall,
    TrueDelta,
    TrueReply,
    TrueUtterance,
    TrueWord,
)

BEGAN = 1_767_225_600_000
VOICE = Speaker("en-us", 150, 50)


def words(text: str, each_ms: int = 400, gap_ms: int = 100) -> list[TrueWord]:
    """Each word sounds for as long, with as long a gap behind it."""
    found, place = [], 0
    for number, word in enumerate(text.split(" ")):
        start = number * (each_ms + gap_ms)
        found.append(TrueWord(place, place + len(word), start, start + each_ms))
        place += len(word) + 1
    return found


def reply(
    text: str,
    item: str = "a1",
    at_ms: int = 2000,
    cut: int | None = None,
    alarms: list[FalseAlarm] | None = None,
    played: list[PlayedPart] | None = None,
) -> TrueReply:
    """A reply that is generated in 100 ms and played 500 ms after its first text, until `cut` (a position)."""
    total = len(text.split(" ")) * 500
    begin, until = at_ms + 500, total if cut is None else cut
    return TrueReply(
        1,
        item,
        text,
        [TrueDelta(at_ms, 4), TrueDelta(at_ms + 100, len(text))],
        at_ms + 110,
        words(text),
        [Synthesis(at_ms + 700, len(text), total)],
        played or [PlayedPart(begin, begin + until, 0)],
        alarms or [],
        None if cut is None else begin + until if played is None else played[-1].until_ms,
    )


def call(*replies: TrueReply, end_ms: int = 60_000) -> TrueCall:
    asked = TrueUtterance(1, "u1", "What is up today", 100, words("What is up today"), 1900)
    return TrueCall("by_hand", VOICE, VOICE, BEGAN, end_ms, [asked], list(replies), [])
