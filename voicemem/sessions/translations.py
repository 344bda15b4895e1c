"""A journal in events of `voicemem.v1` alone: what the frames of other stacks were translated to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from voicemem.errors import SessionQuarantined
from voicemem.protocol.codec import ENCODER
from voicemem.protocol.events import Event, FrameEvent
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.off_loop import BudgetExhausted
from voicemem.sessions.read_models.read_model import decode_rows
from voicemem.store.records import JournalRow
from voicemem.store.streams import Stream
from voicemem.transcript.fold import fold_event
from voicemem.transcript.state import State

PAGE = 1_000


async def native_rows(
    read_models: ReadModelCache, stream: Stream, after: int
) -> AsyncGenerator[list[JournalRow], None]:
    """The rows above a position, a page at a time, in which events stand for frames, at the positions of these.

    What a frame means depends on all before it, so the whole journal is folded again. Raises `SessionQuarantined`,
    `StoreUnavailable`.
    """
    state, position = State(), 0
    while rows := await read_models.journal.read_rows(stream.key, position, PAGE):
        position = rows[-1].position

        def work(rows: Sequence[JournalRow] = rows) -> list[JournalRow]:
            return translated(state, rows)

        try:
            page = await read_models.off_loop.run(work)
        except BudgetExhausted:
            raise SessionQuarantined from None
        yield [row for row in page if row.position > after]


def translated(state: State, rows: Sequence[JournalRow]) -> list[JournalRow]:
    """Fold rows, and return what they were folded as."""
    found: list[JournalRow] = []
    for row, entry in zip(rows, decode_rows(rows), strict=True):
        made: list[Event] = []
        state.memo.made = made
        fold_event(state, *entry)
        found += [row._replace(payload=ENCODER.encode(one)) for one in made]
        if not isinstance(entry.event, FrameEvent):
            found.append(row)
    return found
