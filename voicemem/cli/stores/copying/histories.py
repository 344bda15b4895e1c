"""Whether a copied store makes the same memories: sessions are folded from both ends, the copy's through its engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

from voicemem.errors import DamagedEntry
from voicemem.sessions.read_models.read_model import decode_rows
from voicemem.store.copied_tables import ARCHIVES, JOURNAL, KEY, LAST, RUNS, STATE, STREAMS
from voicemem.store.engines import open_store
from voicemem.store.port import Store
from voicemem.store.ports.copying import CopyEnd, Differs, Volume
from voicemem.store.records import JournalRow
from voicemem.store.runs import RunRow, decompress_runs, rows_of, verify_checksum
from voicemem.transcript.fold import fold_all
from voicemem.transcript.state import State, encode_state

HISTORIES, EVENTS = 100, 10_000
"""How many sessions are folded, spread over all of them, and how many events of each."""
PAGE = 1_000


async def compare_histories(source: CopyEnd, target: str, volume: Volume) -> int:
    """Fold some sessions from both ends; how many there were. Raises `Differs`.

    A session whose journal is damaged is left out: it has no history.
    """
    store = open_store(target, exclusive=False, unfinished=True)
    try:
        count = 0
        for key in sample(source, volume):
            try:
                ours = encode_state(fold(islice(stored_rows(source, key), EVENTS)))
            except DamagedEntry:
                continue
            theirs = State()
            async for page in read_pages(store, key):
                fold_all(theirs, decode_rows(page))
            if encode_state(theirs) != ours:
                raise Differs(f"The history of the session with the key {key} is another one. Do not serve the copy.")
            count += 1
        return count
    finally:
        await store.close_store()


def sample(source: CopyEnd, volume: Volume) -> list[int]:
    """Keys of sessions and users, spread evenly over all."""
    step = max(1, (volume.sessions + volume.users) // HISTORIES)
    keys = (row[KEY] for row in source.read(STREAMS) if row[STATE] != "erased")
    return list(islice(keys, 0, step * HISTORIES, step))


def fold(rows: Iterable[JournalRow]) -> State:
    return fold_all(State(), decode_rows(rows))


def stored_rows(end: CopyEnd, key: int) -> Iterator[JournalRow]:
    """The entries of a stream as its rows have them. Raises `DamagedEntry`."""
    last = 0
    for archive in end.read(ARCHIVES, stream=key):
        for run in decompress_runs(archive[RUNS]):
            yield from rows_of(run)
        last = archive[LAST]
    names = list(JOURNAL.columns)
    for row in end.read(JOURNAL, stream=key):
        values = dict(zip(names, row, strict=True))
        verify_checksum(key, values["position"], values["payload"], values["checksum"])
        producer = values["producer"]
        run = RunRow(
            values["position"],
            None if producer is None else producer.decode(),
            values["seq"],
            values["received_ms"],
            values["payload"],
            values["count"],
        )
        if run.last > last:
            yield from rows_of(run)


async def read_pages(store: Store, key: int) -> AsyncIterator[list[JournalRow]]:
    """The first `EVENTS` entries of a stream through the port, a page at a time."""
    position = 0
    while position < EVENTS and (page := await store.read_rows(key, position, min(PAGE, EVENTS - position))):
        yield page
        position = page[-1].position
