"""Values over time, for questions of the form "what was the last of it up to then?".

Times are Unix ms in any order of arrival; of two values at one time the later arrival is the newer.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct, field

ALWAYS = -(2**63)
"""Before every time that an event can have."""
NEVER = 2**63
"""After every time that an event can have."""


class Mark(Struct, frozen=True):
    """One value of a series: when it was said, and whether it was marked as an estimate."""

    ts: int
    value: int
    estimated: bool


class Series(Struct):
    """Numbers by time, in columns, since a call has many of them."""

    times: list[int] = []
    values: list[int] = []
    estimates: list[bool] = []

    def add(self, ts: int, value: int, estimated: bool = False) -> None:
        index = bisect_right(self.times, ts)
        self.times.insert(index, ts)
        self.values.insert(index, value)
        self.estimates.insert(index, estimated)

    def last(self, until: int, since: int = ALWAYS) -> Mark | None:
        """The newest value of those said from `since` up to `until`, both included."""
        index = bisect_right(self.times, until) - 1
        if index < 0 or self.times[index] < since:
            return None
        return Mark(self.times[index], self.values[index], self.estimates[index])

    def largest(self, until: int, since: int = ALWAYS) -> int | None:
        """The largest value said from `since` up to `until`, both included."""
        said = (value for ts, value in zip(self.times, self.values, strict=True) if since <= ts <= until)
        return max(said, default=None)


class Said(Struct, frozen=True):
    """One text of a series: when it was said, and whether it was marked as an estimate."""

    ts: int
    text: str
    estimated: bool


class TextSeries(Struct):
    """Whole texts by time. Most extend the one before, so lengths into the longest are kept, not copies."""

    marks: Series = field(default_factory=Series)
    longest: str = ""
    others: list[str] = []
    """Texts that are no prefix of the longest; their mark is -1 - their index here."""

    def add(self, ts: int, text: str, estimated: bool = False) -> None:
        if text.startswith(self.longest):
            self.longest = text
        if self.longest.startswith(text):
            self.marks.add(ts, len(text), estimated)
        else:
            self.others.append(text)
            self.marks.add(ts, -len(self.others), estimated)

    def last(self, until: int, since: int = ALWAYS) -> Said | None:
        """The newest text of those said from `since` up to `until`, both included."""
        mark = self.marks.last(until, since)
        if mark is None:
            return None
        text = self.longest[: mark.value] if mark.value >= 0 else self.others[-1 - mark.value]
        return Said(mark.ts, text, mark.estimated)
