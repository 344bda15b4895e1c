"""The writer's view of streams, producers and journals: a cache of rows that follows its transaction.

Committed rows stay cached, so an append reads nothing; that is safe because one process at a time writes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw
import msgspec

from voicemem.errors import Refused
from voicemem.store.admission import AppendResult, Batch, admits_all
from voicemem.store.batch_append import BatchAppend
from voicemem.store.keys import KeySource
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.records import Quotas
from voicemem.store.runs import JournalRun, Waypoints, checksum
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.journal.committed_rows import CommittedRows
from voicemem.store.sqlite.journal.stored_bytes import is_full
from voicemem.store.stream_rows import StreamRows
from voicemem.store.streams import ProducerState, Stream

SELECT_NEW_KEY = "select ifnull(max(key), 0) + 1 from streams"
MAX_ROWS = 1_000
"""Rows in one statement: SQLite takes at most 32,766 values."""
INSERT_RUNS = (
    "insert or rollback into journal"
    " (stream, position, producer, seq, received_ms, count, payload, checksum, waypoint) values "
)
"""`or rollback` spares SQLite a copy of every page that the statement touches; a row that cannot be inserted ends the
transaction anyway."""
RUN_VALUES = "(?,?,?,?,?,?,?,?,?)"


class RowCache(StreamRows):
    """Streams and producers as the transaction sees them, and the runs that it adds to journals.

    There are three layers: what the current job changed (`job_…`), what the jobs before it in the transaction changed
    (`changed_…`), and what was committed. A job that raises loses its own layer only (`drop_job`).

    `stream` and `producer` return copies that belong to the job, which may change them. A committed object is never
    changed again, so other threads may read it.
    """

    def __init__(
        self, connection: apsw.Connection, keeps_committed: bool, budget: MemoryBudget, keys: KeySource
    ) -> None:
        self.raw = connection
        self.connection: SqliteConnection = SqliteConnection(connection, self)
        self.keys = keys
        self.quotas = Quotas()
        self.count_quota_refusal: Callable[[str], None] = lambda quota: None
        self.keeps_committed = keeps_committed
        self.committed = CommittedRows(budget)
        self.changed_streams: dict[int, Stream] = {}
        self.changed_producers: dict[tuple[int, str], ProducerState] = {}
        self.waypoints = Waypoints()
        self.runs: list[JournalRun] = []
        self.job_start = 0
        """How many of `runs` belong to the jobs before the current one."""
        self.job_streams: dict[int, Stream] = {}
        self.job_producers: dict[tuple[int, str], ProducerState] = {}

    # The transaction

    def accept_job(self) -> None:
        self.changed_streams.update(self.job_streams)
        self.changed_producers.update(self.job_producers)
        self.reset_job()

    def drop_job(self) -> None:
        del self.runs[self.job_start :]
        self.reset_job()

    def reset_job(self) -> None:
        self.job_streams, self.job_producers, self.job_start = {}, {}, len(self.runs)

    def after_commit(self) -> None:
        """The transaction is on disk: what it changed becomes what is cached."""
        if self.keeps_committed:
            self.committed.update(self.changed_streams, self.changed_producers)
            for producer in self.committed.evict():
                self.waypoints.newest.pop(producer, None)
        else:
            self.invalidate()
        self.changed_streams, self.changed_producers = {}, {}

    def after_rollback(self) -> None:
        """The transaction failed, or its outcome is unknown: nothing cached is trusted."""
        self.invalidate()
        self.runs.clear()
        self.reset_job()
        self.changed_streams, self.changed_producers = {}, {}

    def invalidate(self) -> None:
        self.committed.clear()
        self.waypoints = Waypoints()

    # Streams

    def stream(self, key: int) -> Stream | None:
        stream = self.job_streams.get(key)
        if stream is None:
            known = self.changed_streams.get(key) or self.committed.find(key)
            stream = msgspec.structs.replace(known) if known is not None else self.load_stream(key)
            if stream is not None:
                self.job_streams[key] = stream
        return stream

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        known = self.committed.find_by_name(project, kind, name)
        return super().find_by_name(project, kind, name) if known is None else self.stream(known.key)

    def new_stream_key(self) -> int:
        return int(self.raw.execute(SELECT_NEW_KEY).get)

    def add_stream(self, stream: Stream) -> None:
        super().add_stream(stream)
        self.job_streams[stream.key] = stream

    def forget_name(self, stream: Stream) -> None:
        self.committed.forget_name(stream)

    def is_full(self, project: str) -> bool:
        quota = self.quotas.stored_bytes
        return quota > 0 and is_full(self.raw, project, quota)

    # Producers

    def producer(self, key: int, name: str) -> ProducerState:
        producer = self.job_producers.get((key, name))
        if producer is None:
            known = self.changed_producers.get((key, name)) or self.committed.find_producer(key, name)
            producer = msgspec.structs.replace(known) if known is not None else self.load_producer(key, name)
            self.job_producers[key, name] = producer
        return producer

    # Journals

    def append(self, batch: Batch, now_ms: int) -> AppendResult:
        """Add a batch to its journal, and return what became of it. Raises `Refused` (`unknown_session`).

        This is the hot path. A batch of plain events in order, of a producer that is known, over a connection, needs no
        look at each event and no row but the run itself. All else goes through `BatchAppend`.
        """
        stream = self.stream(batch.key)
        if stream is None:
            raise Refused("unknown_session")
        producer = self.producer(batch.key, batch.producer)
        known = producer.epoch > 0 or producer.next_seq > 1
        full = self.is_full(stream.project)
        if full or not (known and stream.silent_since_ms is None and admits_all(stream, producer, batch)):
            return BatchAppend(self, stream, producer, batch, now_ms, full).run()
        first, count = stream.position + 1, len(batch.payloads)
        self.runs.append(
            JournalRun(stream.key, first, producer.name, batch.first_seq, batch.received_ms, batch.payloads)
        )
        stream.position += count
        producer.next_seq += count
        return AppendResult(stream, producer.next_seq, first)

    def add_run(self, run: JournalRun) -> None:
        self.runs.append(run)

    def flush(self) -> None:
        insert_runs(self.raw, [(run, self.waypoints.mark(run)) for run in self.runs])
        self.runs.clear()
        self.job_start = 0


def insert_runs(connection: apsw.Connection, runs: Sequence[tuple[JournalRun, bool]]) -> None:
    """Insert runs, each with whether it is a waypoint.

    Many go into one statement: between two statements Python may switch to another thread, and the whole transaction
    would wait for it.
    """
    for first in range(0, len(runs), MAX_ROWS):
        some = runs[first : first + MAX_ROWS]
        marks = ",".join([RUN_VALUES] * len(some))
        connection.execute(
            INSERT_RUNS + marks, [value for run, waypoint in some for value in columns_of(run, waypoint)]
        )


def columns_of(run: JournalRun, waypoint: bool) -> tuple[str | bytes | int | None, ...]:
    """The values of a row, in the order of `INSERT_RUNS`; the payloads of several events become one JSON array."""
    stream, position, producer, seq, received_ms, payloads = run
    payload = run.encoded
    checked = checksum(stream, position, payload)
    return stream, position, producer, seq, received_ms, len(payloads), payload, checked, waypoint


def fetch_one(connection: apsw.Connection, query: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The single row of a query that always has one."""
    row: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    assert row is not None
    return row
