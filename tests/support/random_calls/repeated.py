"""Calls of a few events that are repeated with rising numbers: the calls whose cost could grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.support.events import word
from voicemem.protocol.codec import DecodedEvent, decode_event
from voicemem.protocol.events import IncomingEvent
from voicemem.protocol.types import JsonObject

Maker = Callable[[int], JsonObject]
TEXT = "one two three four five six seven eight nine ten "
LONG = TEXT * 200
BEGIN_MS = 1_000_000
KINDS: dict[str, Maker] = {
    "final": lambda n: {"type": "asr", "text": f"w{n}", "final": True},
    "final of a segment": lambda n: {"type": "asr", "text": f"w{n}", "final": True, "segment": n},
    "final of a user": lambda n: {"type": "asr", "text": f"w{n}", "final": True, "user": f"u{n}"},
    "withdrawn": lambda n: {"type": "asr", "text": "", "final": True},
    "partial": lambda n: {"type": "asr", "text": f"w{n}"},
    "partial of a segment": lambda n: {"type": "asr", "text": f"w{n}", "segment": n % 5},
    "delta": lambda n: {"type": "llm.delta", "text": f" word{n}"},
    "whole": lambda n: {"type": "llm.delta", "text": f"{TEXT}{n}", "whole": True},
    "done": lambda n: {"type": "llm.done"},
    "done with text": lambda n: {"type": "llm.done", "text": TEXT},
    "long reply": lambda n: {"type": "llm.done", "text": LONG} if n == 0 else {"type": "llm.done"},
    "error": lambda n: {"type": "llm.error", "text": f"oops {n}"},
    "cancel": lambda n: {"type": "llm.cancel"},
    "position": lambda n: {"type": "tts", "audio_ms": 10 * n},
    "falling position": lambda n: {"type": "tts", "audio_ms": 100_000 - 10 * n},
    "estimated position": lambda n: {"type": "tts", "audio_ms": 10 * n, "estimated": True},
    "begin": lambda n: {"type": "tts", "audio_ms": 0},
    "heard": lambda n: {"type": "tts", "heard_text": LONG[:n]},
    "heard to the end": lambda n: {"type": "tts", "heard_text": LONG} if n == 0 else {"type": "tts", "audio_ms": n},
    "heard by estimate": lambda n: {"type": "tts", "heard_text": TEXT[:n], "estimated": True},
    "heard otherwise": lambda n: {"type": "tts", "heard_text": f"other {n}"},
    "played": lambda n: {"type": "tts", "done": True},
    "total": lambda n: {"type": "tts", "total_audio_ms": 1_000 + n},
    "total of a text": lambda n: {"type": "tts", "total_audio_ms": 1_000 + n, "synthesised_text": TEXT[:n]},
    "words": lambda n: {"type": "tts", "words": [word("two", n, n + 9), word("four", n + 50, n + 90)]},
    "playback with metadata": lambda n: {"type": "tts", "audio_ms": n + 1, "metadata": {f"k{n % 50}": n}},
    "cut": lambda n: {"type": "interrupt"},
    "cut by text": lambda n: {"type": "interrupt", "heard_text": TEXT[:n]},
    "cut by characters": lambda n: {"type": "interrupt", "heard_chars": n},
    "cut by position": lambda n: {"type": "interrupt", "audio_end_ms": n * 7},
    "cut with more": lambda n: {"type": "interrupt", "heard_text": f"more {n}", "more": True},
    "resume": lambda n: {"type": "resume"},
    "typed": lambda n: {"type": "message", "role": "user", "text": f"t{n}", "source": "message"},
    "greeting": lambda n: {"type": "message", "role": "assistant", "text": f"t{n}", "source": "greeting"},
    "tool call": lambda n: {"type": "tool.call", "call_id": f"c{n}", "name": "x", "arguments": {}},
    "tool result": lambda n: {"type": "tool.result", "call_id": f"c{n // 2}", "result": 1},
    "latency": lambda n: {"type": "metric", "name": "e2e", "latency_ms": n},
}
NAMES: dict[str, Maker] = {
    "unnamed": lambda n: {},
    "one turn": lambda n: {"turn_id": 1},
    "seven turns": lambda n: {"turn_id": n % 7},
    "a turn each": lambda n: {"turn_id": n},
    "one item": lambda n: {"item": "i"},
    "an item each": lambda n: {"item": f"i{n}"},
    "one item of one turn": lambda n: {"turn_id": 1, "item": "i"},
    "an item each of one turn": lambda n: {"turn_id": 1, "item": f"i{n}"},
}
TIMES: dict[str, Maker] = {
    "rising": lambda n: {"ts": BEGIN_MS + 10 * n},
    "falling": lambda n: {"ts": BEGIN_MS - 10 * n},
    "the same": lambda n: {"ts": BEGIN_MS},
    "to and fro": lambda n: {"ts": BEGIN_MS + (10 * n if n % 2 else -10 * n)},
    "none": lambda n: {},
}
Part = tuple[str, str, str]
PARTS = st.tuples(st.sampled_from([*KINDS]), st.sampled_from([*NAMES]), st.sampled_from([*TIMES]))
CALLS = st.lists(PARTS, min_size=1, max_size=4)
"""The parts of each step of a call: kind, name and time of an event."""


def step_of(parts: list[Part], number: int) -> list[IncomingEvent]:
    """The events of one step; parts that no service would take are left out."""
    texts = [KINDS[kind](number) | NAMES[name](number) | TIMES[time](number) for kind, name, time in parts]
    decoded: list[Any] = [decode_event(msgspec.json.encode(one)) for one in texts]
    return [one.event for one in decoded if isinstance(one, DecodedEvent)]
