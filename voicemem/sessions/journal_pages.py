"""Journals by pages, forwards and backwards, with the entries of some types or of one turn alone."""

from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from voicemem.errors import SessionQuarantined
from voicemem.protocol.codec import ENCODER, MALFORMED, decode_stored
from voicemem.protocol.events import Event, FrameEvent, JournaledEvent
from voicemem.runtime import Reader
from voicemem.sessions.off_loop import PIECE_BYTES, BudgetExhausted, check_budget
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import decode_rows
from voicemem.store.journal import Journal
from voicemem.store.records import JournalRow
from voicemem.store.streams import Stream
from voicemem.transcript.fold import fold_event
from voicemem.transcript.history import begun_items, begun_positions
from voicemem.transcript.state import State

PAGE = 1000
LARGE_PAGE_BYTES = 1024 * 1024
"""Bytes of entries that a reader need not wait for."""


class EventHead(Struct, frozen=True):
    """The fields of an event that say its type and what it is about."""

    type: Any = None
    turn_id: Any = None
    item: Any = None
    call_id: Any = None


HEAD_DECODER = msgspec.json.Decoder(EventHead)


async def events_at(
    journal: Journal, key: int, positions: Sequence[int]
) -> AsyncIterator[tuple[JournalRow, JournaledEvent]]:
    """Yield the events at these ascending positions of a journal, with their rows.

    The events of a page are read together, since each read of an archive decompresses all of it. Raises `DamagedEntry`,
    `StoreUnavailable`.
    """
    begin = 0
    while begin < len(positions):
        after, end = positions[begin] - 1, bisect_right(positions, positions[begin] + PAGE - 1, begin)
        rows = await journal.read_rows(key, after, positions[end - 1] - after)
        if not rows:
            return  # the session has been erased
        together = set(positions[begin:end])
        for row in rows:
            if row.position in together:
                yield row, decode_stored(row.payload)
        begin = bisect_right(positions, rows[-1].position, begin)


class TurnParts(NamedTuple):
    """The parts of a turn that identify its entries: number, items, tool calls, and the positions where these began."""

    number: int
    items: Collection[str] = ()
    calls: Collection[str] = ()
    positions: Collection[int] = ()

    def has(self, row: JournalRow, head: EventHead) -> bool:
        """Return whether an entry names the turn or a part of it, or names nothing and is where a part began."""
        if head.turn_id is not None:
            return bool(head.turn_id == self.number)
        return head.item in self.items or head.call_id in self.calls or row.position in self.positions


def parts_of(state: State, number: int) -> TurnParts:
    turn = state.turns.get(number)
    if turn is None:
        return TurnParts(number)
    tools = turn.tool_calls or ()
    items = {item for _, items in begun_items(state, turn) for item in items}
    positions = begun_positions(state, turn) | {tool.order for tool in tools}
    return TurnParts(number, items, {tool.call_id for tool in tools}, positions)


class JournalFilter(NamedTuple):
    """Selects entries by type, where `memory.*` means all types with this prefix, and by turn."""

    types: tuple[str, ...] = ()
    turn: TurnParts | None = None

    def matching(self, rows: Iterable[JournalRow]) -> list[JournalRow]:
        if not self.types and self.turn is None:
            return list(rows)
        return [row for row in rows if self.wants(row)]

    def wants(self, row: JournalRow) -> bool:
        try:
            head = HEAD_DECODER.decode(row.payload)
        except MALFORMED:
            head = EventHead()
        if self.types and not any(matches(head.type, name) for name in self.types):
            return False
        return self.turn is None or self.turn.has(row, head)


def matches(type: Any, name: str) -> bool:
    return isinstance(type, str) and (type.startswith(name[:-1]) if name.endswith("*") else type == name)


async def read_page(
    journal: Journal, key: int, after: int, limit: int, reader: Reader, held: int = 0
) -> list[JournalRow]:
    """Read a page of rows; if it is large, the reader holds its bytes, besides those already `held`."""

    async def read() -> tuple[list[JournalRow], int]:
        rows = await journal.read_rows(key, after, limit)
        size = held + sum(len(row.payload) for row in rows)
        return rows, size if size > LARGE_PAGE_BYTES else 0

    return await reader.make(read)


async def pages_after(
    journal: Journal, key: int, after: int, journal_filter: JournalFilter, limit: int, reader: Reader
) -> AsyncIterator[list[JournalRow]]:
    """Yield pages of the selected entries above a position, at most `limit` entries in all.

    Raises `StoreUnavailable`, `DamagedEntry`.
    """
    left = limit
    while left:
        rows = await read_page(journal, key, after, PAGE if journal_filter != EVERYTHING else min(PAGE, left), reader)
        if not rows:
            return
        matching = journal_filter.matching(rows)[:left]
        yield matching
        after, left = rows[-1].position, left - len(matching)


async def pages_before(
    journal: Journal, key: int, bounds: tuple[int, int], journal_filter: JournalFilter, limit: int, reader: Reader
) -> AsyncIterator[list[JournalRow]]:
    """Yield pages of the selected entries between two positions, the newest first, at most `limit` entries in all.

    `before` must not lie beyond the end of the journal by more than one. A page of large entries comes short: its
    rest is then read first, so that one page is in memory at a time.
    """
    (after, before), left = bounds, limit
    ranges: list[tuple[int, int]] = []
    while left and (ranges or before - 1 > after):
        if not ranges:
            ranges.append((max(after, before - 1 - PAGE), before - 1))
            before = ranges[-1][0] + 1
        first, last = ranges.pop()
        rows = await read_page(journal, key, first, last - first, reader)
        if not rows:
            return  # the session has been erased
        if rows[-1].position < last:
            ranges += [(first, rows[-1].position), (rows[-1].position, last)]
            continue
        matching = journal_filter.matching(reversed(rows))[:left]
        yield matching
        left -= len(matching)


EVERYTHING = JournalFilter()


async def native_rows(
    read_models: ReadModelCache, stream: Stream, after: int, reader: Reader
) -> AsyncGenerator[list[JournalRow], None]:
    """Yield the rows above a position, some at a time, with each frame replaced by the events that it means.

    The meaning of a frame depends on all before it, so the whole journal is folded again, and held. Raises
    `SessionQuarantined`, `StoreUnavailable`.
    """
    state, position, folded = State(), 0, 0
    while rows := await read_page(read_models.store.journal, stream.key, position, PAGE, reader, folded):
        position, folded = rows[-1].position, folded + sum(len(row.payload) for row in rows)
        while rows:
            try:
                work = partial(translated, state, rows, after)
                native, rows = await read_models.off_loop.run(work, owner=stream.project)
            except BudgetExhausted:
                raise SessionQuarantined from None
            yield native


def translated(state: State, rows: list[JournalRow], after: int) -> tuple[list[JournalRow], list[JournalRow]]:
    """Fold rows; return the events of those above a position, until these are large, and the rows not folded yet."""
    native: list[JournalRow] = []
    size = 0
    for place, row in enumerate(rows):
        if size >= PIECE_BYTES:
            return native, rows[place:]
        check_budget()
        (entry,) = decode_rows((row,))
        made: list[Event] = []
        state.memo.made = made
        fold_event(state, *entry)
        if row.position > after:
            meant = [row._replace(payload=ENCODER.encode(one)) for one in made]
            meant += () if isinstance(entry.event, FrameEvent) else (row,)
            size += sum(len(one.payload) for one in meant)
            native += meant
    return native, []
