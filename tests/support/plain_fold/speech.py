"""What users said (rule 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .rows import Event
from .text import is_spaceless

LATE_PARTIAL_MS = 500
ABANDONED_MS = 5_000
SegmentKey = tuple[str | None, int] | None


@dataclass
class Segment:
    """One segment of speech in a turn, while its events are read one after the other."""

    place: int
    key: SegmentKey
    user: str | None = None
    events: list[Event] = field(default_factory=list)
    taken: list[Event] = field(default_factory=list)
    """All events, also those of before it was withdrawn."""
    final: Event | None = None
    partial: Event | None = None

    @property
    def is_open(self) -> bool:
        """Rule 1: without item and segment, a final closes its segment."""
        return self.key is not None or self.final is None

    def shown(self, closed: bool, unfinished: bool) -> str:
        """Rules 1 and 8: the final; a partial where partials show; at the close also one longer than its final."""
        partial = self.partial.text if self.partial else ""
        if self.final is None:
            return partial if closed or unfinished else ""
        return partial if closed and len(partial) > len(self.final.text) else self.final.text

    def is_partial(self, closed: bool) -> bool:
        """Rule 8: whether what the close shows of it was never final."""
        return closed and (self.final is None or self.shown(True, False) != self.final.text)


def segments_of(events: Sequence[Event], turn: int) -> list[Segment]:
    """Rule 1: the segments of a turn in the order in which they were opened."""
    segments: list[Segment] = []
    for event in events:
        if event.type == "asr" and event.turn == turn and not is_late_partial(segments, event):
            update(segment_for(segments, event), event)
    return segments


def key_of(event: Event) -> SegmentKey:
    """Rule 1: segments are keyed by item and segment; the segment is 0 when only the item is given."""
    if event.item is None and "segment" not in event.fields:
        return None
    return event.item, event.fields.get("segment", 0)


def is_late_partial(segments: Sequence[Segment], event: Event) -> bool:
    """Rule 1: without a key, a partial that begins the last final and comes less than 500 ms after it is dropped."""
    if key_of(event) is not None or event.fields.get("final"):
        return False
    user = event.fields.get("user")
    finals = [one for one in segments if one.key is None and one.final and (user is None or one.user in (None, user))]
    last = max((one.final for one in finals if one.final), key=lambda final: final.position, default=None)
    return last is not None and last.text.startswith(event.text) and event.ts - last.ts < LATE_PARTIAL_MS


def continued(events: Sequence[Event], event: Event) -> Segment | None:
    """Rule 1: in another turn, the segment without a final that an event without turn and item continues."""
    if not event.unnamed or any(takes(one, event) for one in segments_of(events, event.turn or 0)):
        return None
    turns = {one.turn for one in events if one.type == "asr" and one.turn is not None}
    known = [one for turn in turns for one in segments_of(events, turn)]
    known = sorted((one for one in known if one.events and not one.final), key=lambda one: one.place)
    return next((one for one in reversed(known) if takes(one, event)), None)


def takes(segment: Segment, event: Event) -> bool:
    """Rule 1: whether a segment can be the one of an event."""
    user = event.fields.get("user")
    return segment.key == key_of(event) and segment.is_open and (user is None or segment.user in (None, user))


def segment_for(segments: list[Segment], event: Event) -> Segment:
    """Rule 1: an event without a user updates its segment whoever spoke; with one, that user's or no one's yet."""
    key, user = key_of(event), event.fields.get("user")
    same = [one for one in segments if one.key == key and one.is_open]
    if user is not None:
        same = [one for one in same if one.user is None] + [one for one in same if one.user == user]
    if same:
        return same[-1]
    segments.append(Segment(event.position, key))
    return segments[-1]


def update(segment: Segment, event: Event) -> None:
    """Rule 1: a partial replaces the partial, a final what the segment said, and a final `""` withdraws it."""
    segment.taken.append(event)
    if event.again:
        segment.events, segment.partial = [], None
    if event.fields.get("final") and not event.text:
        segment.user, segment.events, segment.final, segment.partial = None, [], None, None
        return
    segment.user = segment.user or event.fields.get("user")
    segment.events.append(event)
    if event.fields.get("final"):
        segment.final, segment.partial = event, None
    else:
        segment.partial = event


def has_final(events: Sequence[Event], turn: int) -> bool:
    """Events: whether the user speech of a turn has a final; a typed message is one."""
    typed = any(one.type == "message" and one.fields["role"] == "user" and one.turn == turn for one in events)
    return typed or any(one.final for one in segments_of(events, turn))


def joined(texts: Sequence[str]) -> str:
    """Rule 1: segments are joined by one space, none between CJK characters."""
    whole = texts[0]
    for text in texts[1:]:
        left, right = whole.rstrip(), text.lstrip()
        whole = left + ("" if is_spaceless(left[-1]) and is_spaceless(right[0]) else " ") + right
    return whole


def in_order(segments: Sequence[Segment]) -> list[Segment]:
    """Rule 1: items in the order in which they were opened, and in an item by the number of the segment."""
    first: dict[str | None, int] = {}
    for one in segments:
        if one.key is not None:
            first.setdefault(one.key[0], one.place)
    return sorted(segments, key=lambda one: (first[one.key[0]], one.key[1]) if one.key else (one.place, 0))
