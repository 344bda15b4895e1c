"""What a producer may do next, as hypothesis draws it, and the event that it becomes where the producer stands."""

from __future__ import annotations

import json
from typing import NamedTuple

from hypothesis import strategies as st

from tests.support.model.reference_model import Producer
from tests.support.strategies import PRODUCER_EVENTS
from voicemem.protocol.types import JsonObject

PLAIN: list[JsonObject] = [
    {"type": "asr", "turn_id": 1, "text": "Tell me", "final": False},
    {"type": "asr", "turn_id": 1, "text": "Tell me a joke.", "final": True, "user": "ann"},
    {"type": "llm.delta", "turn_id": 1, "text": "Why did the scarecrow "},
    {"type": "llm.delta", "turn_id": 1, "text": "win? 你好 ", "metadata": {"model": "é", "n": [1, 2.5, None]}},
    {"type": "llm.done", "turn_id": 1, "text": "Why did the scarecrow win an award?"},
    {"type": "tts", "turn_id": 1, "heard_text": "Why did ", "ts": 1_700_000_000_000},
    {"type": "interrupt", "turn_id": 1, "heard_text": "Why "},
    {"type": "resume", "turn_id": 1},
    {"type": "asr", "turn_id": 2, "text": "Another.", "final": True, "id": "once"},
    {"type": "llm.delta", "turn_id": 2, "text": "Well, ", "id": "twice", "ts": 5},
    {"type": "message", "turn_id": 0, "role": "assistant", "source": "greeting", "text": "Hello."},
    {"type": "metric", "turn_id": 1, "name": "llm_ttft", "latency_ms": 12},
    {"type": "tool.call", "turn_id": 2, "call_id": "c", "name": "f", "arguments": {"a": 1}, "metadata": {"kept": True}},
]
UPDATES: list[JsonObject] = [
    {"name": "desk", "labels": {"a": "b"}},
    {"name": None, "channel": "two"},
    {"labels": {"a": None, "c": "d"}},
    {"idle_timeout": 30},
    {"idle_timeout": 0.5},
    {"idle_timeout": 0},
    {"reopen_window": 7},
    {"max_duration": 200},
    {"ttl_seconds": 60},
]
"""Merge patches of a configuration."""
PATCHING: list[JsonObject] = [{"type": "session.update", **patch} for patch in UPDATES]


@st.composite
def any_event(draw: st.DrawFn) -> JsonObject:
    """A valid event that ends nothing."""
    event = draw(st.sampled_from([*PLAIN, *PATCHING]))
    other = draw(PRODUCER_EVENTS) if draw(st.integers(0, 5)) == 5 else event
    return event if other["type"] == "session.end" else other


REFUSED: list[tuple[JsonObject, str]] = [
    ({"type": "no.such.type", "text": "x"}, "unknown_type"),
    ({"type": "asr", "turn_id": 1, "text": "x", "is_final": True}, "unknown_field"),
    ({"type": "asr", "turn_id": 1}, "missing_field"),
    ({"type": "asr", "turn_id": -1, "text": "x"}, "invalid_field"),
    ({"type": "asr", "turn_id": 1.0, "text": "x"}, "invalid_field"),
    ({"type": "llm.delta", "turn_id": 1, "text": 5}, "invalid_field"),
    ({"type": "llm.done", "turn_id": 1, "metadata": {"source": "me"}}, "reserved_metadata"),
    ({"type": "tts", "turn_id": 1}, "missing_field"),
    ({"type": "interrupt", "turn_id": 1, "heard_chars": -1}, "invalid_field"),
    ({"type": "metric", "turn_id": 1, "name": "m", "latency_ms": 2**53 + 1}, "invalid_field"),
    ({"type": "session.update", "idle_timeout": "long"}, "invalid_field"),
]
"""Events that cannot be taken, with the code that they get."""
UNREADABLE: list[object] = [0, -1, "1", 1.5, True, 2**53 + 1]
"""What is no seq."""
ENDS: list[JsonObject] = [{"reason": "hangup", "ts": 1_700_000_000_000}, {"reason": "done"}]


class Move(NamedTuple):
    """What a producer does: `next` sends something new, the other kinds are told in `resolved`."""

    kind: str
    event: JsonObject
    refused: tuple[JsonObject, str]
    back: int
    """How far back, or how far ahead."""


KINDS = [
    *["next"] * 4,
    *["refused", "same", "reordered", "different", "gap", "lost", "mixed", "unreadable", "unnumbered_refused"],
]
MOVES = st.builds(Move, st.sampled_from(KINDS), any_event(), st.sampled_from(REFUSED), st.integers(0, 3))
PLAIN_MOVES = st.builds(
    Move, st.sampled_from(KINDS), st.sampled_from(PLAIN), st.sampled_from(REFUSED), st.integers(0, 3)
)
"""Of these the order between producers does not matter."""


class Sent(NamedTuple):
    """An event as it goes out, and the code of its refusal when its content cannot be taken."""

    event: JsonObject
    refusal: str | None = None
    reordered: bool = False

    def text(self) -> str:
        """As JSON; reordered, it is another text of the same value."""
        if not self.reordered:
            return json.dumps(self.event)
        return json.dumps(dict(reversed(self.event.items())), ensure_ascii=False, indent=1)


def resolved(move: Move, producer: Producer, in_order: bool = False) -> Sent:
    """The event of a move, by a producer that has come so far; `in_order` allows no holes and no mixing."""
    kind, numbered = move.kind, not producer.unsequenced
    if in_order and kind in ("gap", "mixed"):
        kind = "next"
    if kind in ("same", "reordered", "different") and producer.stored:
        return again(move, producer)
    if kind == "lost" and numbered:
        lost = [seq for seq in range(1, producer.next_seq) if seq not in producer.stored]
        return Sent({**move.event, "seq": lost[0] if lost else producer.next_seq})
    if kind == "gap" and numbered:
        return Sent({**move.event, "seq": producer.next_seq + 1 + move.back})
    if kind == "unreadable":
        return Sent({**move.event, "seq": UNREADABLE[move.back]}, "invalid_field")
    if kind == "unnumbered_refused":
        return Sent(move.refused[0], move.refused[1])
    event, refusal = move.refused if kind == "refused" else (move.event, None)
    if numbered != (kind == "mixed"):
        return Sent({**event, "seq": producer.next_seq}, refusal)
    return Sent(event, refusal)


def again(move: Move, producer: Producer) -> Sent:
    """Something that was sent before: as it was, as another text, or not as it was."""
    seqs = sorted(producer.stored)
    seq = seqs[-1 - move.back % len(seqs)]
    stored = producer.stored[seq]
    if stored["type"] == "refused":
        return Sent({**move.refused[0], "seq": seq}, move.refused[1])
    if move.kind == "different":
        return Sent({**stored, "another": True})
    return Sent(stored, reordered=move.kind == "reordered")
