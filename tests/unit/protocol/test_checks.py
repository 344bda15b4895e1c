"""Checks of a decoded event: names, ids, sizes, reserved metadata."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.support.rows import every_row
from tests.support.samples.frames import GOOD, MIB, TAKEN, verdict
from voicemem.protocol.types import JsonObject

# Limits


@every_row("character", ["a", "é", "好", "😀"])
@every_row("field", ["text", "heard_text", "reason"])
def test_texts_may_have_256_kib_of_utf_8(field: str, character: str) -> None:
    """Bytes are counted, not characters: exactly 256 KiB are taken, and one character more is not."""
    fields = {"text": {"type": "asr", "turn_id": 1}, "heard_text": {"type": "tts", "turn_id": 1}}
    event = fields.get(field, {"type": "session.end"})
    size = 256 * 1024 // len(character.encode())
    filled = character * size + "a" * (256 * 1024 - size * len(character.encode()))
    assert verdict(msgspec.json.encode(event | {field: filled})) == [TAKEN]
    assert verdict(msgspec.json.encode(event | {field: filled + "a"})) == ["text_too_long"]


def test_frame_may_have_1_mib() -> None:
    """Exactly 1 MiB is decoded, and one byte more is not."""
    frame = GOOD + b" " * (MIB - len(GOOD))
    assert verdict(frame) == [TAKEN]
    assert verdict(frame + b" ") == "too_big"


@pytest.mark.parametrize("field", ["id", "item", "producer", "user"])
def test_names_have_1_to_128_characters(field: str) -> None:
    """Other ids than the session's are any text, counted in characters."""
    codes = [verdict(msgspec.json.encode(json.loads(GOOD) | {field: "好" * length}))[0] for length in (0, 1, 128, 129)]
    assert codes == ["invalid_field", TAKEN, TAKEN, "invalid_field"]


@pytest.mark.parametrize(
    ("session_id", "code"), [("a.B-9_:z", TAKEN), ("a b", "invalid_field"), ("a\n", "invalid_field")]
)
def test_session_ids_are_checked(session_id: str, code: str) -> None:
    """An event that names an impossible session is refused."""
    assert verdict(msgspec.json.encode(json.loads(GOOD) | {"session_id": session_id})) == [code]


# What the types cannot say

VALID: list[JsonObject] = [
    {"type": "asr", "text": "Hi."},
    {"type": "llm.delta", "text": "Hi."},
    {"type": "llm.done"},
    {"type": "llm.error", "code": 429},
    {"type": "llm.error", "code": "rate_limit"},
    {"type": "tts", "done": False},
    {"type": "tts", "words": []},
    {"type": "tts", "heard_text": "", "audio_ms": 0, "done": True, "words": [], "total_audio_ms": 0},
    {"type": "interrupt", "cause": "vad"},
    {"type": "interrupt", "heard_text": ""},
    {"type": "resume"},
    {"type": "message", "role": "user", "source": "command", "text": "Hi."},
    {"type": "message", "role": "assistant", "source": "command", "text": "Hi."},
    {"type": "tool.call", "turn_id": 1, "call_id": "c", "name": "f", "arguments": None},
    {"type": "tool.result", "call_id": "c", "result": 1},
    {"type": "metric", "name": "e2e", "latency_ms": 1},
    {"type": "interrupt", "heard_text": "", "heard_chars": 0, "audio_end_ms": 0, "more": True},
    {"type": "llm.cancel", "item": "a"},
    {"type": "llm.cancel", "turn_id": 1},
    {"type": "tool.result", "turn_id": 1, "call_id": "c", "result": [1]},
    {"type": "metric", "turn_id": 1, "name": "e2e", "latency_ms": 1.5},
    {"type": "session.update"},
    {"type": "session.update", "labels": {"a": "b"}},
    {"type": "session.end"},
    {"type": "session.end", "seq": 5, "last_seq": 4},
    {"type": "session.end", "seq": 1, "last_seq": 0},
    {"type": "session.open"},
    {"type": "session.open", "session_id": "s", "session": {"name": "n"}, "from_seq": 1},
    {"type": "auth", "token": "t"},
]


@every_row("event", VALID, ids=str)
def test_events_that_are_taken(event: JsonObject) -> None:
    """Each type is taken with what it must have."""
    assert verdict(msgspec.json.encode(event)) == [TAKEN]


INVALID: list[tuple[JsonObject, str]] = [
    ({"type": "asr"}, "missing_field"),
    ({"type": "asr", "text": None}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "final": "yes"}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "turn_id": -1}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "words": [{"text": "Hi."}]}, "missing_field"),
    ({"type": "asr", "text": "Hi.", "words": [{"text": "Hi.", "start_ms": -1, "end_ms": 0}]}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "metadata": []}, "invalid_field"),
    ({"type": "llm.delta"}, "missing_field"),
    ({"type": "llm.error", "code": 1.5}, "invalid_field"),
    ({"type": "tts"}, "missing_field"),
    ({"type": "tts", "turn_id": 1, "estimated": True}, "missing_field"),
    ({"type": "tts", "audio_ms": -1}, "invalid_field"),
    ({"type": "llm.cancel"}, "missing_field"),
    ({"type": "message", "role": "system", "source": "command", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "user", "source": "llm", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "assistant", "source": "asr", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "assistant", "source": "rumour", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "user", "text": "Hi."}, "missing_field"),
    ({"type": "tool.call", "call_id": "c", "name": "f"}, "missing_field"),
    ({"type": "tool.result", "turn_id": 1, "call_id": "c"}, "missing_field"),
    ({"type": "metric", "turn_id": 1, "name": "e2e", "latency_ms": -0.5}, "invalid_field"),
    ({"type": "session.end", "last_seq": 4}, "last_seq_mismatch"),
    ({"type": "session.end", "seq": 5, "last_seq": 5}, "last_seq_mismatch"),
    ({"type": "session.end", "seq": 5, "last_seq": 3}, "last_seq_mismatch"),
    ({"type": "session.end", "last_seq": -1}, "invalid_field"),
    ({"type": "auth"}, "missing_field"),
    ({"type": "session.closed", "reason": "mine"}, "unknown_type"),
    ({"type": "session.reopened"}, "unknown_type"),
    ({"type": "session.gap", "from_seq": 1, "to_seq": 2}, "unknown_type"),
    ({"type": "refused", "code": "invalid_field"}, "unknown_type"),
]


@every_row(("event", "code"), INVALID, ids=[str(event)[:60] for event, _ in INVALID])
def test_events_that_are_refused(event: JsonObject, code: str) -> None:
    """Each refusal has its code."""
    assert verdict(msgspec.json.encode(event)) == [code]


RESERVED = ["interrupted", "interrupt_timestamp", "original", "source", "user", "heard", "partial"]


@every_row("key", RESERVED)
@every_row("event", [event for event in VALID if event["type"] != "message"], ids=str)
def test_reserved_metadata_is_refused(event: JsonObject, key: str) -> None:
    """Keys that voicemem writes itself are refused in every event but a whole message."""
    assert verdict(msgspec.json.encode(event | {"metadata": {"fine": 1, key: "x"}})) == ["reserved_metadata"]


def test_whole_message_may_carry_reserved_metadata() -> None:
    """That is how a memory is restored."""
    carried = {"interrupted": True, "interrupt_timestamp": 5, "original": "One two.", "heard": "aligned", "user": "u"}
    event = {"type": "message", "role": "assistant", "source": "llm", "text": "One ", "metadata": carried}
    assert verdict(msgspec.json.encode(event)) == [TAKEN]


@pytest.mark.parametrize(
    "metadata",
    [{"interrupted": 1}, {"interrupted": True, "original": 5}, {"interrupt_timestamp": 5}, {"original": "One two."}],
    ids=str,
)
def test_reserved_metadata_of_a_message_is_checked(metadata: JsonObject) -> None:
    """Reserved keys have their types, and those of an interruption stand only beside it."""
    event = {"type": "message", "role": "assistant", "source": "llm", "text": "One ", "metadata": metadata}
    assert verdict(msgspec.json.encode(event)) == ["invalid_field"]
