"""Calls that put everything into one turn, one reply, or nothing at all: each shape gives its events step by step."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.events import delta, done, event, failed, final, interrupt, message, partial, resume, tts, word
from voicemem.protocol.types import JsonObject

Shape = Callable[[int], list[JsonObject]]
LONG = "one two three four. " * 500
MANY_WORDS = [word(f"w{number}", number * 10, number * 10 + 9) for number in range(500)]
FAR = 10**6
"""A time after all others."""


def first(step: int, *events: JsonObject) -> list[JsonObject]:
    """Events of the first step only."""
    return list(events) if step == 0 else []


SHAPES: dict[str, Shape] = {
    "finals without a key": lambda n: [final(1, f"w{n}", n * 1000)],
    "finals of items": lambda n: [final(1, f"w{n}", n, item=f"i{n}")],
    "finals of segments": lambda n: [final(1, f"w{n}", n, segment=n)],
    "users": lambda n: [final(1, f"w{n}", n, user=f"u{n}")],
    "segments named late": lambda n: [partial(1, "w", n, segment=n), final(1, "w", n, segment=n, user="ann")],
    "slots": lambda n: [partial(1, "", n, item=f"i{n}")],
    "replies, interrupts and resumes": lambda n: [
        delta(1, "a b c d", n * 10, item=f"i{n}"),
        interrupt(1, n * 10 + 5),
        resume(1, n * 10 + 7),
    ],
    "interrupts before their replies": lambda n: [interrupt(1, FAR + n), delta(1, "a b", n, item=f"i{n}")],
    "cuts of one reply": lambda n: [*first(n, delta(1, LONG, 1)), interrupt(1, n * 10 + 5, audio_end_ms=n)],
    "cuts with heard text": lambda n: [*first(n, delta(1, LONG, 1)), interrupt(1, n + 5, heard_text=f"one {n}")],
    "cuts and resumes of one reply": lambda n: [
        *first(n, delta(1, LONG, 1)),
        interrupt(1, 2 * n),
        resume(1, 2 * n + 1),
    ],
    "words times cuts": lambda n: [
        *first(n, delta(1, " ".join(one["text"] for one in MANY_WORDS), 1), tts(1, 1, words=MANY_WORDS)),
        interrupt(1, n * 10 + 5, audio_end_ms=n),
    ],
    "unnamed interrupts without a final": lambda n: [delta(n, "abc", n), done(n, n), interrupt(ts=n)],
    "unnamed resumes of nothing": lambda n: [delta(n, "abc", n), resume(ts=n)],
    "unnamed playback of many replies": lambda n: [
        delta(1, "abc", n, item=f"i{n}"),
        done(None, n, item=f"i{n}"),
        tts(ts=n, audio_ms=n + 1),
    ],
    "unnamed playback of a long reply": lambda n: [
        *first(n, delta(1, LONG, 1), done(1, 2)),
        tts(ts=n, audio_ms=n + 1),
    ],
    "everything unnamed": lambda n: [
        final(None, "hi", n),
        delta(None, "abc def", n),
        tts(ts=n, audio_ms=5),
        interrupt(ts=n),
        resume(ts=n),
        done(None, n),
    ],
    "tool results": lambda n: [event("tool.result", 1, call_id=f"c{n}", result=1)],
    "tool calls": lambda n: [event("tool.call", 1, call_id=f"c{n}", name="x", arguments={})],
    "metrics of one turn": lambda n: [event("metric", 1, name="x", latency_ms=1)],
    "metrics of many turns": lambda n: [event("metric", n, name="x", latency_ms=1)],
    "replies of one turn": lambda n: [delta(1, "abc", n, item=f"i{n}")],
    "replies without a turn": lambda n: [delta(None, "abc", n), done(None, n)],
    "deltas": lambda n: [delta(1, "x" * 200, n)],
    "whole texts that differ": lambda n: [delta(1, f"{n} a", n, whole=True)],
    "deltas back in time": lambda n: [delta(1, "x", FAR - n)],
    "playback back in time": lambda n: [*first(n, delta(1, "abc", 1)), tts(1, FAR - n, audio_ms=FAR - n)],
    "errors of one item": lambda n: [failed(1, n, text="sorry", item="x")],
    "unnamed errors": lambda n: [delta(None, "a", n), failed(ts=n, text="sorry")],
    "cancels by turn": lambda n: [delta(1, "abc", n, item=f"i{n}"), event("llm.cancel", 1, n)],
    "cancels by item": lambda n: [delta(1, "abc", n, item=f"i{n}"), event("llm.cancel", None, n, item=f"i{n}")],
    "playback that waits for replies": lambda n: [tts(1, FAR + n, audio_ms=n + 1), delta(1, "abc", n, item=f"i{n}")],
    "dones that are taken back": lambda n: [
        *first(n, delta(1, LONG, 1), done(1, 1), tts(1, 1, total_audio_ms=10**7)),
        tts(1, n * 2, done=True),
        tts(1, n * 2 + 1, audio_ms=n + 1),
    ],
    "metadata of playback": lambda n: [*first(n, delta(1, "abc", 1)), tts(1, n, audio_ms=1, metadata={"a": n})],
    "heard texts of nothing": lambda n: [interrupt(1, n, heard_text="x y", more=True)],
    "messages": lambda n: [message(1, "abc", n)],
}
"""By name: the events of each step."""
