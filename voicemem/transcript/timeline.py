"""Values over time, for questions such as "what was the last value up to then?".

Times are Unix ms and may arrive in any order; of two values with the same time, the later arrival is the newer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from msgspec import Struct, field

BEFORE_ALL = -(2**63)
"""Before every time of an event."""
AFTER_ALL = 2**63
"""After every time of an event."""
if TYPE_CHECKING:
    Column = array[int]
else:
    Column = array
EMPTY_COLUMN: Column = array("q")
"""Shared by all empty columns, which are most of them. Never to be changed: `add` puts new columns in its place."""


class TimedValue(Struct, frozen=True, gc=False):
    """One value of a timeline, with its time, and whether it was marked as an estimate."""

    ts: int
    value: int
    estimated: bool


class Timeline(Struct, array_like=True, gc=False):
    """Numbers by time, in two columns of 8 bytes an entry, because a call has many of them."""

    times: Column = field(default_factory=lambda: EMPTY_COLUMN)
    values: Column = field(default_factory=lambda: EMPTY_COLUMN)
    """Twice the number, plus one if it is an estimate."""

    def add(self, ts: int, value: int, estimated: bool = False) -> None:
        times = self.times
        if not times:
            self.times, self.values = array("q", (ts,)), array("q", (value * 2 + estimated,))
        elif ts >= times[-1]:
            times.append(ts)
            self.values.append(value * 2 + estimated)
        else:
            index = bisect_right(times, ts)
            times.insert(index, ts)
            self.values.insert(index, value * 2 + estimated)

    def last(self, until: int, since: int = BEFORE_ALL) -> TimedValue | None:
        """The newest value from `since` up to `until`, both included."""
        index = bisect_right(self.times, until) - 1
        if index < 0 or self.times[index] < since:
            return None
        value = self.values[index]
        return TimedValue(self.times[index], value >> 1, bool(value & 1))

    def entries(self, until: int, since: int = BEFORE_ALL) -> list[TimedValue]:
        """All values from `since` up to `until`, both included, in the order of their times."""
        first, stop = bisect_left(self.times, since), bisect_right(self.times, until)
        return [
            TimedValue(ts, value >> 1, bool(value & 1))
            for ts, value in zip(self.times[first:stop], self.values[first:stop], strict=True)
        ]

    def largest(self, until: int, since: int = BEFORE_ALL) -> int | None:
        """The largest value from `since` up to `until`, both included."""
        values = self.values[bisect_left(self.times, since) : bisect_right(self.times, until)]
        return max(values) >> 1 if values else None


class TimedText(Struct, frozen=True, gc=False):
    """One text of a timeline, with its time, and whether it was marked as an estimate."""

    ts: int
    text: str
    estimated: bool


class TextTimeline(Struct, array_like=True, gc=False):
    """Texts by time. Most extend the one before, so lengths of the longest are stored in place of copies."""

    entries: Timeline = field(default_factory=Timeline)
    longest: str = ""
    others: tuple[str, ...] = ()
    """Texts that are not a prefix of the longest; the entry of the one at index i is -1 - i."""

    def add(self, ts: int, text: str, estimated: bool = False) -> None:
        if text.startswith(self.longest):
            self.longest = text
        if self.longest.startswith(text):
            self.entries.add(ts, len(text), estimated)
        else:
            self.others += (text,)
            self.entries.add(ts, -len(self.others), estimated)

    def extend(self, ts: int, more: str) -> None:
        """Add the longest text, continued by `more`.

        Of two deltas the later arrival continues the earlier (rule 3), so it never gets an earlier time.
        """
        text = self.longest = self.longest + more
        times = self.entries.times
        if times:
            last = times[-1]
            times.append(ts if ts > last else last)
            self.entries.values.append(len(text) * 2)
        else:
            self.entries.add(ts, len(text))

    def last(self, until: int, since: int = BEFORE_ALL) -> TimedText | None:
        """The newest text from `since` up to `until`, both included."""
        entry = self.entries.last(until, since)
        if entry is None:
            return None
        text = self.longest[: entry.value] if entry.value >= 0 else self.others[-1 - entry.value]
        return TimedText(entry.ts, text, entry.estimated)
