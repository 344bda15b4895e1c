"""Values over time, for questions such as "what was the last value up to then?".

Times are Unix ms and may arrive in any order; of two values with the same time, the later arrival is the newer. Entries
are kept in blocks of bounded length, so that a time that lies far back costs no more than any other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

BEFORE_ALL = -(2**63)
"""Before every time of an event."""
AFTER_ALL = 2**63
"""After every time of an event."""
WIDTH = 3
"""Numbers of an entry."""
BLOCK = 1_024
"""Entries of a block; one that late entries make twice as long is split."""
if TYPE_CHECKING:
    Column = array[int]
else:
    Column = array


class Block(Struct, array_like=True, gc=False):
    """Some entries of a timeline that follow each other: times, journal positions and values, 8 bytes each, in turns.

    One column takes less memory than three, and many timelines have one entry only.
    """

    numbers: Column
    highest: int

    @property
    def first_ts(self) -> int:
        return self.numbers[0]

    def __len__(self) -> int:
        return len(self.numbers) // WIDTH

    def ts(self, index: int) -> int:
        return self.numbers[index * WIDTH]

    def values(self, begin: int, end: int) -> Column:
        return self.numbers[begin * WIDTH + 2 : end * WIDTH : WIDTH]

    def entry(self, index: int) -> Entry:
        return Entry(*self.numbers[index * WIDTH : (index + 1) * WIDTH])


FIRST_TS = attrgetter("first_ts")


def make_block(ts: int, order: int, value: int) -> Block:
    return Block(array("q", (ts, order, value)), value)


class Entry(NamedTuple):
    """One value, with its time and the journal position where it arrived."""

    ts: int
    order: int
    value: int


class Timeline(Struct, array_like=True, gc=False):
    """Numbers by time."""

    blocks: list[Block] = []

    def add(self, ts: int, order: int, value: int) -> None:
        if not self.blocks:
            self.blocks.append(make_block(ts, order, value))
            return
        block = self.blocks[-1]
        numbers = block.numbers
        if ts < numbers[-WIDTH]:
            self.insert(ts, order, value)
        elif len(numbers) < BLOCK * WIDTH:
            numbers.extend((ts, order, value))
            if value > block.highest:
                block.highest = value
        else:
            self.blocks.append(make_block(ts, order, value))

    def insert(self, ts: int, order: int, value: int) -> None:
        """Put an entry that arrives late behind those of its time."""
        place = max(0, bisect_right(self.blocks, ts, key=FIRST_TS) - 1)
        block = self.blocks[place]
        index = bisect_right(range(len(block)), ts, key=block.ts) * WIDTH
        block.numbers[index:index] = array("q", (ts, order, value))
        block.highest = max(block.highest, value)
        if len(block) >= 2 * BLOCK:
            self.blocks[place : place + 1] = halves(block)

    def last(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """The newest entry from `since` to before `until`."""
        place = bisect_left(self.blocks, until, key=FIRST_TS) - 1
        if place < 0:
            return None
        block = self.blocks[place]
        index = len(block) if until > block.numbers[-WIDTH] else bisect_left(range(len(block)), until, key=block.ts)
        return None if block.ts(index - 1) < since else block.entry(index - 1)

    def first(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """The oldest entry from `since` to before `until`."""
        return next(self.entries(until, since), None)

    def entries(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Iterator[Entry]:
        """The entries from `since` to before `until`, in their order."""
        for block, begin, end in self.slices(until, since):
            for index in range(begin, end):
                yield block.entry(index)

    def backwards(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Iterator[Entry]:
        """The entries from `since` to before `until`, the newest first."""
        for place in range(bisect_left(self.blocks, until, key=FIRST_TS) - 1, -1, -1):
            block = self.blocks[place]
            for index in range(bisect_left(range(len(block)), until, key=block.ts) - 1, -1, -1):
                if block.ts(index) < since:
                    return
                yield block.entry(index)

    def slices(self, until: int, since: int) -> Iterator[tuple[Block, int, int]]:
        """The blocks with entries from `since` to before `until`, each with the indexes where these begin and end."""
        place = max(0, bisect_left(self.blocks, since, key=FIRST_TS) - 1)
        for index in range(place, len(self.blocks)):
            block = self.blocks[index]
            if block.first_ts >= until:
                return
            begin = bisect_left(range(len(block)), since, key=block.ts) if block.first_ts < since else 0
            end = len(block)
            if block.numbers[-WIDTH] >= until:
                end = bisect_left(range(len(block)), until, key=block.ts)
            if begin < end:
                yield block, begin, end

    def highest(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """The newest of the entries with the highest value."""
        found: Entry | None = None
        for block, begin, end in self.slices(until, since):
            if found is None or block.highest >= found.value:
                values = block.values(begin, end)
                value = max(values)
                if found is None or value >= found.value:
                    found = block.entry(end - 1 - values[::-1].index(value))
        return found

    def first_at_least(self, value: int, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """The first entry with at least this value."""
        for block, begin, end in self.slices(until, since):
            if block.highest >= value:
                for index, known in enumerate(block.values(begin, end), begin):
                    if known >= value:
                        return block.entry(index)
        return None


def halves(block: Block) -> list[Block]:
    return [
        Block(numbers, max(numbers[2::WIDTH]))
        for numbers in (block.numbers[: BLOCK * WIDTH], block.numbers[BLOCK * WIDTH :])
    ]


class TimedText(NamedTuple):
    """One text of a timeline, with its time and the journal position where it arrived."""

    ts: int
    order: int
    text: str


class TextTimeline(Struct, array_like=True, gc=False):
    """Texts by time. Most extend the one before, so lengths of the longest are stored in place of copies."""

    lengths: Timeline
    longest: str = ""
    others: list[str] = []
    """Texts that are not a prefix of the longest; the entry of the one at index i is -1 - i."""
    other_times: dict[str, list[int]] = {}
    """The times of these, by the texts with single spaces."""

    def add(self, ts: int, order: int, text: str) -> None:
        if text.startswith(self.longest):
            self.longest = text
            self.lengths.add(ts, order, len(text))
        elif self.longest.startswith(text):
            self.lengths.add(ts, order, len(text))
        else:
            self.others.append(text)
            insort(self.other_times.setdefault(" ".join(text.split()), []), ts)
            self.lengths.add(ts, order, -len(self.others))

    def last(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> TimedText | None:
        """The newest text from `since` to before `until`."""
        entry = self.lengths.last(until, since)
        return None if entry is None else TimedText(entry.ts, entry.order, self.text(entry.value))

    def backwards(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Iterator[TimedText]:
        """The texts from `since` to before `until`, the newest first."""
        for entry in self.lengths.backwards(until, since):
            yield TimedText(entry.ts, entry.order, self.text(entry.value))

    def text(self, length: int) -> str:
        return self.longest[:length] if length >= 0 else self.others[-1 - length]

    def first_equal(self, words: list[str], until: int = AFTER_ALL, since: int = BEFORE_ALL) -> int | None:
        """When a text of just these words was first reported, whatever white space is between them."""
        times = self.other_times.get(" ".join(words), [])
        place = bisect_left(times, since)
        found = times[place] if place < len(times) and times[place] < until else None
        shortest, longest = self.lengths_of(words)
        for block, begin, end in self.lengths.slices(until, since):
            if block.highest >= shortest:
                for index, length in enumerate(block.values(begin, end), begin):
                    if shortest <= length <= longest:
                        return block.ts(index) if found is None else min(found, block.ts(index))
        return found

    def lengths_of(self, words: list[str]) -> tuple[int, int]:
        """The shortest and the longest prefix of `longest` that has just these words; (1, 0) when none has."""
        text, end = self.longest, 0
        if len(text) < sum(map(len, words)):
            return 1, 0
        for index, word in enumerate(words):
            begin = skip_white_space(text, end)
            if not text.startswith(word, begin) or (index and begin == end):
                return 1, 0
            end = begin + len(word)
        return end, skip_white_space(text, end)


def skip_white_space(text: str, index: int) -> int:
    while index < len(text) and text[index].isspace():
        index += 1
    return index
