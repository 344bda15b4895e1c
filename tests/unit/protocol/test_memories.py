"""Events of memories: what they may hold, in the journal and in checkpoints."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.protocol.codec import check_event, decode_journaled
from voicemem.protocol.events import MemoryAdded, MemoryEdited
from voicemem.protocol.memories import time_ms
from voicemem.protocol.types import JsonObject

TEXT = "Ann is allergic to walnuts."
ADDED: JsonObject = {
    "type": "memory.added",
    "memory_id": "mem_1",
    "kind": "fact",
    "text_sha256": sha256(TEXT.encode()).hexdigest(),
}
EDITED: JsonObject = {"type": "memory.edited", "memory_id": "mem_1"}


def checked(event: JsonObject) -> str:
    """What is wrong with an event; "" when nothing is."""
    text = msgspec.json.encode(event)
    try:
        check_event(decode_journaled(text), len(text))
    except Refused as refused:
        return f"{refused.code} {refused.detail}"
    except msgspec.ValidationError as error:
        return f"invalid {error}"
    return ""


GOOD = [
    ADDED,
    ADDED | {"text": TEXT, "topics": ["food", "坚果"], "event_at": "2026-05-03", "metadata": {"source": 1}},
    ADDED | {"from": [{"session_id": "a", "first": 3, "last": 9, "turn_ids": [1, 2]}], "source": "extracted"},
    ADDED | {"event_at": "2024-02-29T23:59:59.5+02:00", "unknown": 1},
    EDITED | {"event_at": None, "topics": [], "pinned": True},
    {"type": "memory.removed", "memory_id": "mem_1", "reason": "forgotten"},
    {"type": "memory.extracted", "through": 9, "strategy": "discrete", "version": "1", "added": ["mem_1"]},
]
BAD = [
    (ADDED | {"kind": "message"}, "kind"),
    (ADDED | {"memory_id": "x" * 129}, "memory_id"),
    (ADDED | {"text": "Another text."}, "hash"),
    (ADDED | {"text": " "}, "not a space"),
    (ADDED | {"text": "a" * 1_001}, "1,000 bytes"),
    (EDITED | {"text": "a" * 300_000}, "too_long"),
    (ADDED | {"topics": ["a,b"]}, "topics"),
    (ADDED | {"topics": ["a\n"]}, "topics"),
    (ADDED | {"entities": ["x" * 65]}, "entities"),
    (ADDED | {"topics": ["a"] * 17}, "topics"),
    (ADDED | {"event_at": "2026-02-30"}, "no such day"),
    (ADDED | {"event_at": "2026-02-29T23:01"}, "no such day"),
    (EDITED | {"event_at": "tomorrow"}, "event_at"),
    (ADDED | {"confidence": 1.5}, "confidence"),
    ({"type": "memory.removed", "memory_id": "a", "reason": "why"}, "reason"),
]


@every_row("event", GOOD, ids=str)
def test_events_of_memories_are_taken(event: JsonObject) -> None:
    """What the service journals is read again, with fields that a later version adds."""
    assert "" == checked(event)


@every_row(("event", "what"), BAD, ids=[what for _, what in BAD])
def test_events_that_no_service_has_written_are_refused(event: JsonObject, what: str) -> None:
    """A checkpoint written by hand cannot bring in what would be refused at the doors."""
    assert what in checked(event)


def test_what_was_not_changed_is_not_written() -> None:
    """An edit says what changed, and null where something was taken away; an event is short without what it lacks."""
    edited = msgspec.json.decode(msgspec.json.encode(MemoryEdited(memory_id="m", event_at=None)))
    assert {"type": "memory.edited", "memory_id": "m", "event_at": None} == edited
    added = msgspec.json.decode(msgspec.json.encode(MemoryAdded(memory_id="m", kind="fact", text_sha256="0" * 64)))
    assert {"type", "memory_id", "kind", "text_sha256"} == added.keys()


def test_times_are_days_or_instants() -> None:
    """A day is its beginning, and without an offset it is UTC."""
    assert [0, 0, 3_600_000, 1_500, -7_200_000] == [
        time_ms("1970-01-01"),
        time_ms("1970-01-01 00:00"),
        time_ms("1970-01-01T01:00:00Z"),
        time_ms("1970-01-01T00:00:01.500"),
        time_ms("1970-01-01T00:00:00+02:00"),
    ]


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))
def test_times_are_those_of_the_calendar(time: datetime) -> None:
    """Every day and instant of the calendar is found, with its fraction of a second."""
    expected = (time - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
    assert expected == time_ms(time.isoformat())


@every_row("text", ["", "2026", "2026-13-01", "20260101", "0000-01-01", "2026-01-01T24:00:01Z", "٢٠٢٦-٠١-٠١"])
def test_times_that_do_not_exist(text: str) -> None:
    """Anything else is no time."""
    with pytest.raises(ValueError, match=r"no time|out of range|must be in"):
        time_ms(text)
