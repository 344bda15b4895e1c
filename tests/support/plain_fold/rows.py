"""Rows of a journal, and the events that are read from them (docs/ingest.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Json = dict[str, Any]
Key = tuple[str, object]
"""The identity of a reply: how its events belong together, and the item, turn or position that they share."""

GENERATION = ("llm.delta", "llm.done", "llm.error")
ABOUT_A_REPLY = ("tts", "interrupt", "resume")
TRACES = ("tool.call", "tool.result", "metric")
REGISTERING = ("asr", "message", "tool.call", "tool.result", *GENERATION)
"""Events that fix the turn of their item."""


class PlainRow(NamedTuple):
    """One row of a journal; the event is its JSON object."""

    position: int
    received_ms: int
    producer: str | None
    event: Json


@dataclass(frozen=True)
class Event:
    """An event with all that was known at its arrival: its time, its turn, and for some the reply that it means."""

    position: int
    producer: str | None
    type: str
    ts: int
    stated: bool
    fields: Json
    turn: int | None = None
    reply: Key | None = None
    """The reply that an `llm.*` makes, or that an event naming neither turn nor item was found to be about."""
    metadata: Json = field(default_factory=dict)
    arrived_turn: int | None = None
    """The turn at its arrival; speech moves to the turn of its newest text."""
    utterance: int | None = None
    """The turn of the newest utterance after it."""
    again: bool = False
    """Whether it is speech that began its segment again."""

    @property
    def item(self) -> str | None:
        """The engine's id of the utterance or reply."""
        return self.fields.get("item")

    @property
    def text(self) -> str:
        """Its text, empty when it has none."""
        text: str = self.fields.get("text", "")
        return text

    @property
    def unnamed(self) -> bool:
        """Whether it names neither a turn nor an item."""
        return "turn_id" not in self.fields and self.item is None

    @property
    def estimated(self) -> bool:
        """Whether the producer marks what it states as a guess."""
        return bool(self.fields.get("estimated", False))

    @property
    def order(self) -> tuple[int, int]:
        """Later `ts`, then later arrival."""
        return self.ts, self.position


def read_event(row: PlainRow, before: Sequence[Event]) -> Event:
    """Events: null fields are as if left out, and an event without `ts` happened when it was received."""
    fields = {name: value for name, value in row.event.items() if value is not None}
    stated = "ts" in fields
    ts = fields.get("ts", row.received_ms)
    if not stated and fields["type"] == "interrupt":
        ts = newest_stated(before, row.producer, row.received_ms)
    metadata = fields.get("metadata", {}) | ({"agent": fields["agent"]} if "agent" in fields else {})
    return Event(row.position, row.producer, fields["type"], ts, stated, fields, metadata=metadata)


def newest_stated(before: Sequence[Event], producer: str | None, otherwise: int) -> int:
    """Rule 4: the newest `ts` that a producer has stated; only where there is none, another time."""
    return max((one.ts for one in before if one.stated and one.producer == producer), default=otherwise)


def without_repeats(rows: Sequence[PlainRow]) -> list[PlainRow]:
    """Events: an event whose `id` was seen before changes nothing."""
    seen: set[object] = set()
    first = []
    for row in rows:
        own = row.event.get("id")
        if own is None or own not in seen:
            first.append(row)
        seen.add(own)
    return first
