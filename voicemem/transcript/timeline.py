"""Values over time, for questions of the form "what was the last of it up to then?".

Times are Unix ms in any order of arrival; of two values at one time the later arrival is the newer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from msgspec import Struct, field

BEFORE_ALL = -(2**63)
"""Before every time that an event can have."""
AFTER_ALL = 2**63
"""After every time that an event can have."""
if TYPE_CHECKING:
    Column = array[int]
else:
    Column = array
EMPTY_COLUMN: Column = array("q")
"""Stands for every column that nothing was put into: most of them."""


class TimedValue(Struct, frozen=True, gc=False):
    """One value of a series: when it was said, and whether it was marked as an estimate."""

    ts: int
    value: int
    estimated: bool


class Timeline(Struct, gc=False):
    """Numbers by time, in columns of 8 bytes an entry, since a call has many of them."""

    times: Column = field(default_factory=lambda: EMPTY_COLUMN)
    values: Column = field(default_factory=lambda: EMPTY_COLUMN)
    """Twice the number, and one more for an estimate."""

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
        """The newest value of those said from `since` up to `until`, both included."""
        index = bisect_right(self.times, until) - 1
        if index < 0 or self.times[index] < since:
            return None
        value = self.values[index]
        return TimedValue(self.times[index], value >> 1, bool(value & 1))

    def entries(self, until: int, since: int = BEFORE_ALL) -> list[TimedValue]:
        """All values said from `since` up to `until`, both included, in the order of their times."""
        first, stop = bisect_left(self.times, since), bisect_right(self.times, until)
        return [
            TimedValue(ts, value >> 1, bool(value & 1))
            for ts, value in zip(self.times[first:stop], self.values[first:stop], strict=True)
        ]

    def largest(self, until: int, since: int = BEFORE_ALL) -> int | None:
        """The largest value said from `since` up to `until`, both included."""
        said = self.values[bisect_left(self.times, since) : bisect_right(self.times, until)]
        return max(said) >> 1 if said else None


class TimedText(Struct, frozen=True, gc=False):
    """One text of a series: when it was said, and whether it was marked as an estimate."""

    ts: int
    text: str
    estimated: bool


class TextTimeline(Struct, gc=False):
    """Whole texts by time. Most extend the one before, so lengths into the longest are kept, not copies."""

    entries: Timeline = field(default_factory=Timeline)
    longest: str = ""
    others: tuple[str, ...] = ()
    """Texts that are no prefix of the longest; their mark is -1 - their index here."""

    def add(self, ts: int, text: str, estimated: bool = False) -> None:
        if text.startswith(self.longest):
            self.longest = text
        if self.longest.startswith(text):
            self.entries.add(ts, len(text), estimated)
        else:
            self.others += (text,)
            self.entries.add(ts, -len(self.others), estimated)

    def extend(self, ts: int, more: str) -> None:
        """Add the longest text with something more behind it, which cannot have been said before it."""
        text = self.longest = self.longest + more
        times = self.entries.times
        if times:
            last = times[-1]
            times.append(ts if ts > last else last)
            self.entries.values.append(len(text) * 2)
        else:
            self.entries.add(ts, len(text))

    def last(self, until: int, since: int = BEFORE_ALL) -> TimedText | None:
        """The newest text of those said from `since` up to `until`, both included."""
        mark = self.entries.last(until, since)
        if mark is None:
            return None
        text = self.longest[: mark.value] if mark.value >= 0 else self.others[-1 - mark.value]
        return TimedText(mark.ts, text, mark.estimated)
