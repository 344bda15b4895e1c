"""Values over time, for queries such as "the last value before a time", and the merged metadata of several events.

Times are Unix ms and may arrive in any order; of two values with the same time, the later arrival is the newer one.
Entries are kept in blocks of bounded length, so that a time far back costs no more than any other.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from voicemem.protocol.codec import METADATA_ORDER, RESERVED_METADATA

BEFORE_ALL = -(2**63)
"""A time before those of all events."""
AFTER_ALL = 2**63
"""A time after those of all events."""
WIDTH = 3
"""The numbers of an entry."""
pack_entry = struct.Struct(f"={WIDTH}i").pack
NEWEST_TS = -WIDTH
"""The index of the time of a block's newest entry."""
FULL = 1_024 * WIDTH
"""The numbers of a full block; one that late entries make twice as long is split."""
if TYPE_CHECKING:
    Column = array[int]
else:
    Column = array


NO_NUMBERS: Column = array("i")
"""The shared empty column, which is never modified: the first entry makes a new one."""


def column_of(*numbers: int) -> Column:
    """Return a column of numbers of 4 bytes each, or of 8 if one of them needs that."""
    try:
        return array("i", numbers)
    except OverflowError:
        return array("q", numbers)


class Block(Struct, array_like=True, gc=False):
    """Consecutive entries of a timeline: times, journal positions and values, interleaved.

    One column takes less memory than three, and many timelines have only one entry.
    """

    base: int = 0
    """The time of the entry that arrived first; all times are kept as ms after it."""
    numbers: Column = field(default_factory=lambda: NO_NUMBERS)
    peak: int = 2
    """The index of the highest value, since small numbers take no memory of their own."""

    @property
    def first_ts(self) -> int:
        return self.base + self.numbers[0]

    @property
    def highest(self) -> int:
        return self.numbers[self.peak]

    def __len__(self) -> int:
        return len(self.numbers) // WIDTH

    def ts(self, index: int) -> int:
        return self.base + self.numbers[index * WIDTH]

    def values(self, begin: int, end: int) -> Column:
        return self.numbers[begin * WIDTH + 2 : end * WIDTH : WIDTH]

    def entry(self, index: int) -> Entry:
        numbers, at = self.numbers, index * WIDTH
        return Entry(self.base + numbers[at], numbers[at + 1], numbers[at + 2])

    def count_before(self, ts: int) -> int:
        """Return how many entries come before a time."""
        if not self.numbers or ts > self.base + self.numbers[NEWEST_TS]:
            return len(self)
        return bisect_left(range(len(self)), ts, key=self.ts)

    def put(self, at: int, ts: int, order: int, value: int) -> None:
        """Put an entry at an index of the numbers."""
        entry = ts - self.base, order, value
        try:
            self.numbers[at:at] = array(self.numbers.typecode, entry)
        except OverflowError:
            self.numbers = array("q", self.numbers)
            self.numbers[at:at] = array("q", entry)
        self.peak += WIDTH * (at <= self.peak)
        if value >= self.highest:
            self.peak = at + 2

    def split(self) -> Block:
        """Move the later half of the entries into a new block, and return it."""
        later = Block(self.base, self.numbers[FULL:])
        self.numbers = self.numbers[:FULL]
        for block in self, later:
            values = block.numbers[2::WIDTH]
            block.peak = 2 + WIDTH * values.index(max(values))
        return later


FIRST_TS = attrgetter("first_ts")


class Entry(NamedTuple):
    """One value, with its time and the journal position where it arrived."""

    ts: int
    order: int
    value: int


class Timeline(Block):
    """Numbers by time. It is its own first block, since few timelines need another."""

    later: list[Block] | None = None

    def add(self, ts: int, order: int, value: int) -> None:
        block = self if self.later is None else self.later[-1]
        numbers = block.numbers
        if not numbers:
            block.base, block.numbers = ts, column_of(0, order, value)
        elif (after := ts - block.base) < numbers[NEWEST_TS]:
            self.insert(ts, order, value)
        elif len(numbers) < FULL:
            try:
                numbers.frombytes(pack_entry(after, order, value))
            except (struct.error, ValueError):  # this entry or an earlier one needs 8 bytes
                block.put(len(numbers), ts, order, value)
            else:
                if value >= numbers[block.peak]:
                    block.peak = len(numbers) - 1
        else:
            self.later = self.later or []
            self.later.append(Block(ts, column_of(0, order, value)))

    def insert(self, ts: int, order: int, value: int) -> None:
        """Insert a late entry after those of its time."""
        later = self.later or []
        place = bisect_right(later, ts, key=FIRST_TS)
        block = later[place - 1] if place else self
        block.put(bisect_right(range(len(block)), ts, key=block.ts) * WIDTH, ts, order, value)
        if len(block.numbers) >= 2 * FULL:
            later.insert(place, block.split())
            self.later = later

    def blocks_from(self, place: int) -> Iterator[Block]:
        """Yield the blocks from a place on; the first one has the place 0."""
        if place == 0:
            yield self
        if self.later is not None:
            for index in range(max(place, 1), len(self.later) + 1):
                yield self.later[index - 1]

    def place_before(self, ts: int) -> int:
        """Return the place of the last block that begins before a time, or 0."""
        return 0 if self.later is None else bisect_left(self.later, ts, key=FIRST_TS)

    def last(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """Return the newest entry from `since` to before `until`."""
        if until == AFTER_ALL and since == BEFORE_ALL and self.later is None:  # almost every query
            numbers = self.numbers
            return Entry(self.base + numbers[-3], numbers[-2], numbers[-1]) if numbers else None
        place = self.place_before(until)
        block = self.later[place - 1] if place and self.later is not None else self
        index = block.count_before(until)
        return None if not index or block.ts(index - 1) < since else block.entry(index - 1)

    def first(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """Return the oldest entry from `since` to before `until`."""
        if until == AFTER_ALL and since == BEFORE_ALL:
            return self.entry(0) if self.numbers else None
        return next(self.entries(until, since), None)

    def entries(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Iterator[Entry]:
        """Yield the entries from `since` to before `until`, in order."""
        for block, begin, end in self.slices(until, since):
            for index in range(begin, end):
                yield block.entry(index)

    def backwards(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Iterator[Entry]:
        """Yield the entries from `since` to before `until`, the newest first."""
        for place in range(self.place_before(until), -1, -1):
            block = next(self.blocks_from(place))
            for index in range(block.count_before(until) - 1, -1, -1):
                if block.ts(index) < since:
                    return
                yield block.entry(index)

    def slices(self, until: int, since: int) -> Iterator[tuple[Block, int, int]]:
        """Yield the blocks with entries from `since` to before `until`, each with the range of these entries."""
        for block in self.blocks_from(self.place_before(since)):
            if not block.numbers or block.first_ts >= until:
                return
            begin = block.count_before(since) if block.first_ts < since else 0
            end = block.count_before(until)
            if begin < end:
                yield block, begin, end

    def highest_entry(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """Return the newest of the entries with the highest value."""
        newest = self.last(until, since)
        if newest is None or (self.later is None and newest.value >= self.numbers[self.peak]):  # most series grow
            return newest
        best: tuple[int, Block, int, int] | None = None
        for block, begin, end in self.slices(until, since):
            is_whole = end - begin == len(block)
            value = block.highest if is_whole else max(block.values(begin, end))
            if best is None or value >= best[0]:
                best = value, block, begin, end
        if best is None:
            return None
        value, block, begin, end = best
        return block.entry(end - 1 - block.values(begin, end)[::-1].index(value))

    def first_at_least(self, value: int, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Entry | None:
        """Return the first entry with at least this value."""
        for block, begin, end in self.slices(until, since):
            if block.highest >= value:
                for index, known in enumerate(block.values(begin, end), begin):
                    if known >= value:
                        return block.entry(index)
        return None


class TimedText(NamedTuple):
    """One text of a timeline, with its time and the journal position where it arrived."""

    ts: int
    order: int
    text: str


class PrefixCompressedTexts(Struct, array_like=True, gc=False):
    """Texts that are mostly prefixes of one, which is stored once; prefixes are kept as their lengths."""

    longest: str = ""
    others: list[str] | None = None
    """Texts that are not a prefix of the longest; the one at index i has the number -1 - i."""

    def add(self, text: str) -> int:
        """Add a text, and return its number."""
        if text.startswith(self.longest):
            self.longest = text
        elif not self.longest.startswith(text):
            self.others = self.others or []
            self.others.append(text)
            return -len(self.others)
        return len(text)

    def text(self, length: int) -> str:
        return self.longest[:length] if length >= 0 or self.others is None else self.others[-1 - length]


class TextTimeline(Struct, array_like=True, gc=False):
    """Texts by time, most of which extend the previous one."""

    lengths: Timeline
    texts: PrefixCompressedTexts = field(default_factory=PrefixCompressedTexts)
    other_times: dict[str, list[int]] | None = None
    """The times of texts that are no prefixes, by these texts with single spaces."""

    def add(self, ts: int, order: int, text: str) -> None:
        length = self.texts.add(text)
        if length < 0:
            self.other_times = self.other_times or {}
            insort(self.other_times.setdefault(" ".join(text.split()), []), ts)
        self.lengths.add(ts, order, length)

    def last(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> TimedText | None:
        """Return the newest text from `since` to before `until`."""
        entry = self.lengths.last(until, since)
        return None if entry is None else TimedText(entry.ts, entry.order, self.texts.text(entry.value))

    def backwards(self, until: int = AFTER_ALL, since: int = BEFORE_ALL) -> Iterator[TimedText]:
        """Yield the texts from `since` to before `until`, the newest first."""
        for entry in self.lengths.backwards(until, since):
            yield TimedText(entry.ts, entry.order, self.texts.text(entry.value))


# The metadata of several events that make one message


MergedMetadata = dict[str, tuple[int, int, Any]]
"""By key: its place among all keys, and the position and value of the last event that has it.

The place is that of the first arrival: the position of the event, times `PLACES`, plus the key's place in the event.
"""
PLACES = 2**20


def merge_metadata(known: MergedMetadata | None, order: int, metadata: dict[str, Any]) -> MergedMetadata:
    """Add the metadata of one more event to `known`, and return it."""
    merged = known if known is not None else {}
    for place, (name, value) in enumerate(metadata.items(), order * PLACES):
        merged[name] = (merged[name][0] if name in merged else place), order, value
    return merged


def latest_metadata(several: Iterable[MergedMetadata]) -> MergedMetadata:
    """Merge several by arrival: each key has the value that came last."""
    filled = [one for one in several if one]
    if len(filled) <= 1:
        return filled[0] if filled else {}
    latest: MergedMetadata = {}
    for one in filled:
        for name, (first, last, value) in one.items():
            known = latest.get(name)
            if known is None or last > known[1]:
                latest[name] = first if known is None else min(first, known[0]), last, value
            elif first < known[0]:
                latest[name] = first, *known[1:]
    return latest


def layered_metadata(*layers: MergedMetadata) -> dict[str, Any]:
    """Return the values of the last layer that has each key, with the keys in the order of arrival."""
    filled = [one for one in layers if one]
    if len(filled) <= 1:
        return {
            name: value for one in filled for name, (_, _, value) in sorted(one.items(), key=lambda item: item[1][0])
        }
    values: dict[str, Any] = {}
    first: dict[str, int] = {}
    for one in filled:
        for name, (place, _, value) in one.items():
            values[name] = value
            first[name] = min(place, first.get(name, place))
    return {name: values[name] for name in sorted(values, key=first.__getitem__)}


KEPT_NAMES = 1_024
"""The most names, and metadata of messages, whose equal values share one object in all calls."""


@lru_cache(KEPT_NAMES)
def shared_name(name: Any) -> Any:
    """Return a name as one object shared by all calls, since they mostly have the same names."""
    return name


@lru_cache(KEPT_NAMES)
def shared_metadata(source: str, user: str | None) -> dict[str, Any]:
    return {"source": source} if user is None else {"source": source, "user": user}


def common_metadata(values: dict[str, Any]) -> dict[str, Any] | None:
    """Return metadata as one object shared by all calls, if they are only a source and a user, as most are."""
    source, user = values.get("source"), values.get("user")
    if not isinstance(source, str) or len(values) != 1 + isinstance(user, str):
        return None
    return shared_metadata(source, user)


def order_metadata(values: dict[str, Any]) -> dict[str, Any]:
    """Return metadata with the keys that voicemem writes first, in their documented order."""
    if (common := common_metadata(values)) is not None:
        return common
    own = {key: values[key] for key in METADATA_ORDER if key in values}
    return own | {key: value for key, value in values.items() if key not in RESERVED_METADATA}


# Heard texts, compared with runs of white space as one space


class Prefixes:
    """The prefixes of a growing text that have exactly the words of another growing text, as a range of lengths."""

    __slots__ = ("at", "before", "longest", "spaced", "times", "words")

    def __init__(self) -> None:
        self.words = 0
        """The number of words found so far."""
        self.at = 0
        """The end of the found words, or the beginning of the next one."""
        self.spaced = True
        """True if there is white space between them and the next word."""
        self.before = (0, 0, True)
        """The three values before the last found word, which may still grow."""
        self.longest = 0
        """The length including the white space after the last word."""
        self.times: dict[int, tuple[tuple[int, int], list[int]]] = {}
        """By block of the timeline: its version when it was searched, and the times of lengths in the range."""

    def step_back(self, word: int) -> None:
        """Forget a word that has changed."""
        if self.words > word:
            self.words, self.at, self.spaced = self.before
        self.longest, self.times = 0, {}

    def find(self, text: str, words: list[str]) -> bool:
        """Continue the search for the words where `text` has grown. Return whether it has all of them."""
        while self.words < len(words):
            begin = skip_white_space(text, self.at)
            self.spaced |= begin > self.at
            self.at, word = begin, words[self.words]
            if begin + len(word) > len(text) or not self.spaced or not text.startswith(word, begin):
                return False
            self.before = self.words, begin, True
            self.words, self.at, self.spaced = self.words + 1, begin + len(word), False
        reach = skip_white_space(text, max(self.at, self.longest))
        if reach != self.longest:
            self.longest, self.times = reach, {}
        return True

    def times_in(self, block: Block) -> list[int]:
        """Return the sorted times of the entries of a block whose lengths are in the range."""
        # Entries are only added or split off, so the length and the last entry identify the version of a block.
        version = len(block), block.numbers[-2]
        known, times = self.times.get(id(block), (None, []))
        if known != version:
            values = block.numbers[2::WIDTH]
            times = [block.ts(i) for i, value in enumerate(values) if self.at <= value <= self.longest]
            self.times[id(block)] = version, times
        return times


class WholeText:
    """The whole text of a reply, prepared for the search among heard texts.

    Only the part that has grown is searched, so an event costs no more if a reply is long, or was often reported.
    """

    __slots__ = ("events", "known", "letters", "text", "together", "words")

    def __init__(self) -> None:
        self.events = -1
        """The number of events that the text was made from."""
        self.text = ""
        self.words: list[str] = []
        self.letters = 0
        """The number of characters in the words."""
        self.together: str | None = None
        self.known: dict[int, Prefixes] = {}
        """By timeline of heard texts."""

    def update(self, events: int, text: str) -> None:
        """Set the current text, which has mostly grown."""
        if text.startswith(self.text) and self.words:
            self.extend(text)
        elif text != self.text or events < 0:
            self.known.clear()
            self.words = text.split()
            self.letters = sum(map(len, self.words))
        self.events, self.text, self.together = events, text, None

    def extend(self, text: str) -> None:
        if len(text) == len(self.text):
            return
        last = self.words.pop() if not self.text[-1].isspace() else ""
        for prefixes in self.known.values():
            prefixes.step_back(len(self.words))
        more = (last + text[len(self.text) :]).split()
        self.words += more
        self.letters += sum(map(len, more)) - len(last)

    def joined(self) -> str:
        if self.together is None:
            self.together = " ".join(self.words)
        return self.together

    def first_equal(self, series: TextTimeline, until: int, since: int) -> int | None:
        """Return when a heard text first equalled this one, from `since` to before `until`."""
        times = series.other_times.get(self.joined(), []) if series.other_times else []
        first = first_between(times, until, since)
        if len(series.texts.longest) < self.letters:
            return first
        prefixes = self.known.setdefault(id(series), Prefixes())
        if not prefixes.find(series.texts.longest, self.words):
            return first
        for block, _, _ in series.lengths.slices(until, since):
            if block.highest >= prefixes.at:
                ts = first_between(prefixes.times_in(block), until, since)
                if ts is not None:
                    return ts if first is None else min(first, ts)
        return first


def first_between(times: list[int], until: int, since: int) -> int | None:
    place = bisect_left(times, since)
    return times[place] if place < len(times) and times[place] < until else None


def skip_white_space(text: str, index: int) -> int:
    while index < len(text) and text[index].isspace():
        index += 1
    return index
