"""A connection to SQLite (`voicemem.store.database`), and the rows that the writer's connection caches.

Committed rows of streams and producers stay cached, so an append reads nothing; that is safe because one process at a
time writes a file. As many are kept as their share of the memory budget holds.

The bytes of each project's journals are counted only while a quota bounds them. The counts are in the file, so that a
restart reads nothing else.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec.structs import replace

from voicemem.errors import CannotStart, Refused
from voicemem.protocol.types import JsonObject
from voicemem.runtime import MemoryBudget
from voicemem.store.append_rules import AppendResult, Batch, JournalRun, admits_all
from voicemem.store.database import Connection, KeySource, Row
from voicemem.store.records import Quotas
from voicemem.store.runs import JOURNAL_COLUMNS, WAYPOINT_STRIDE
from voicemem.store.stream_changes import COUNT_ALL_STORED, BatchAppend, StreamRows
from voicemem.store.streams import ERASED_USER_KIND, ProducerState, Stream

LIST_PARAMETER = re.compile(r"\bin :(\w+)")
IN_LIST = r"in (select value from json_each(:\1))"
LOCKS = re.compile(r"\s+for (?:no key )?(?:update|share)\b(?: of \w+)?(?: skip locked)?")
FUNCTIONS = (("greatest(", "max("), ("least(", "min("), ("strpos(", "instr("), ("md5(", "("))


class Statement(NamedTuple):
    text: str
    lists: tuple[str, ...]
    """The names of its parameters that are lists, which SQLite gets as JSON."""

    def values(self, values: dict[str, Any]) -> dict[str, Any]:
        return values | {name: json.dumps(list(values[name])) for name in self.lists} if self.lists else values


@lru_cache(4096)
def to_sqlite(text: str) -> Statement:
    """Translate a text for both engines into SQLite's dialect."""
    for common, own in FUNCTIONS:
        text = text.replace(common, own)
    return Statement(LOCKS.sub("", LIST_PARAMETER.sub(IN_LIST, text)), tuple(LIST_PARAMETER.findall(text)))


class SqliteConnection(Connection):
    __slots__ = ("raw", "streams")

    def __init__(self, raw: apsw.Connection, streams: Any = None) -> None:
        self.raw = raw
        self.streams = streams

    def fence(self, token: str | None) -> None:
        self.streams.invalidate()

    def send(self, query: str, values: dict[str, Any]) -> apsw.Cursor:
        if self.streams is not None:
            self.streams.begin()
        statement = to_sqlite(query)
        return self.raw.execute(statement.text, statement.values(values))

    def execute(self, statement: str, **values: Any) -> int:
        before = self.raw.total_changes()
        self.send(statement, values).fetchall()
        return self.raw.total_changes() - before

    def many(self, statement: str, values: Iterable[dict[str, Any]]) -> None:
        if self.streams is not None:
            self.streams.begin()
        prepared = to_sqlite(statement)
        self.raw.executemany(prepared.text, map(prepared.values, values))


BEGIN, COMMIT, ROLLBACK = "begin immediate", "commit", "rollback"


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """A transaction of a connection that is not the only writer: it locks the file from its beginning."""
    connection.execute(BEGIN)
    try:
        yield
        connection.execute(COMMIT)
    finally:
        if connection.in_transaction:
            connection.execute(ROLLBACK)


COUNT_STORED = """
    insert into stored_bytes select project, :size from streams where key = :key
    on conflict (project) do update set bytes = bytes + excluded.bytes
"""
SELECT_IS_FULL = "select 1 from stored_bytes where project = ? and bytes >= ?"


def count_bytes(connection: apsw.Connection, counts: bool) -> None:
    """Count from now on, or drop the counts, which would become stale. Raises `CannotStart`.

    If nothing was counted before, the whole store is read once.
    """
    try:
        is_counted = connection.execute("select exists (select 1 from stored_bytes)").get
        if not counts:
            if is_counted:
                connection.execute("delete from stored_bytes")
            return
        if not is_counted:
            with transaction(connection):
                connection.execute(COUNT_ALL_STORED)
    except apsw.Error as error:
        what = "The stored bytes cannot be counted" if counts else "The counts of stored bytes cannot be dropped"
        raise CannotStart(f"{what}: {error}.") from None


ROW_BYTES, PRODUCER_BYTES = 1_500, 600
"""About how many bytes a stream without its configuration takes, and a producer, with their places in dicts."""
COMMA_BYTES, COLON_BYTES, LIST_BYTES, OBJECT_BYTES = 56, 60, 72, 200
"""About how many bytes the values that these characters indicate take, beyond their text."""


class CommittedRow:
    """A stream's row with its producers'. The rows themselves are never changed, so other threads may read them."""

    __slots__ = ("config_weight", "producers", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.config_weight = weigh_config(stream.config)
        self.producers: dict[str, ProducerState] = {}

    @property
    def weight(self) -> int:
        return ROW_BYTES + self.config_weight + PRODUCER_BYTES * len(self.producers)


class CommittedRows:
    """Rows by key and by name, the least recently committed first. Ended sessions are evicted before running ones.

    Only the writer's thread changes it; other threads may call `find_by_name`.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.running: OrderedDict[int, CommittedRow] = OrderedDict()
        self.ended: OrderedDict[int, CommittedRow] = OrderedDict()
        self.by_name: dict[tuple[str, str, str], CommittedRow] = {}

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        row = self.by_name.get((project, kind, name))
        return None if row is None else row.stream

    def row(self, key: int) -> CommittedRow | None:
        return self.running.get(key) or self.ended.get(key)

    def update(self, streams: Mapping[int, Stream], producers: Mapping[tuple[int, str], ProducerState]) -> None:
        for key, stream in streams.items():
            self.put(key, stream)
        for (key, name), producer in producers.items():
            row = self.running.get(key) or self.ended.get(key)
            if row is not None:
                if name not in row.producers:
                    self.budget.rows += PRODUCER_BYTES
                row.producers[name] = producer

    def put(self, key: int, stream: Stream) -> None:
        row = self.running.get(key)
        if row is not None and stream.config is row.stream.config and stream.state == "running":
            row.stream = stream  # as after nearly every append: it weighs what it did
            self.running.move_to_end(key)
            return
        row = self.running.pop(key, None) or self.ended.pop(key, None)
        if row is None:
            row = CommittedRow(stream)
            self.budget.rows += row.weight
            if stream.kind != ERASED_USER_KIND:
                self.by_name[stream.project, stream.kind, stream.id] = row
        else:
            self.budget.rows -= row.weight
            if stream.config is not row.stream.config:  # it is weighed only if it changed
                row.config_weight = weigh_config(stream.config)
            row.stream = stream
            self.budget.rows += row.weight
        (self.running if stream.state == "running" else self.ended)[key] = row

    def evict(self) -> list[tuple[int, str]]:
        """Drop rows beyond the budget; return the streams and names of their producers."""
        gone: list[tuple[int, str]] = []
        while self.budget.rows > self.budget.room_for_rows and (rows := self.ended or self.running):
            key, row = rows.popitem(last=False)
            self.forget_name(row.stream)
            self.budget.rows -= row.weight
            self.budget.evicted_rows += 1
            gone += [(key, name) for name in row.producers]
        return gone

    def forget_name(self, stream: Stream) -> None:
        self.by_name.pop((stream.project, stream.kind, stream.id), None)

    def clear(self) -> None:
        self.running, self.ended, self.by_name = OrderedDict(), OrderedDict(), {}
        self.budget.rows = 0


def weigh_config(config: JsonObject) -> int:
    """Return about how many bytes a configuration takes in memory, by its JSON, since counting characters is fast.

    Commas and the like inside texts are counted too, so that the estimate is rather too high than too low.
    """
    text = msgspec.json.encode(config)
    return (
        len(text)
        + COMMA_BYTES * text.count(b",")
        + COLON_BYTES * text.count(b":")
        + LIST_BYTES * text.count(b"[")
        + OBJECT_BYTES * text.count(b"{")
    )


SELECT_NEW_KEY = "select ifnull(max(key), 0) + 1 from streams"
TOGETHER = 64
"""The most rows in one statement: there is one for each number of rows, and all of them stay prepared."""
INSERT_RUNS = f"insert or rollback into journal ({JOURNAL_COLUMNS}) values "
"""`or rollback` spares SQLite a copy of every page that the statement touches; a row that cannot be inserted ends the
transaction anyway."""
RUN_VALUES = "(?,?,?,?,?,?,?,?,?)"


class RowCache(StreamRows):
    """Streams and producers as the transaction sees them, and the runs that it adds to journals.

    There are three layers: changes of the current job (`job_…`), changes of earlier jobs in the transaction
    (`changed_…`), and committed rows. A job that raises loses its own layer only (`drop_job`).

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
        self.waypoints: dict[tuple[int, str | None], int] = {}
        """The position of the newest waypoint of each producer, if this writer knows it."""
        self.runs: list[JournalRun] = []
        self.job_start = 0
        """How many of `runs` belong to the jobs before the current one."""
        self.job_streams: dict[int, Stream] = {}
        self.job_producers: dict[tuple[int, str], ProducerState] = {}

    # The transaction

    def begin(self) -> None:
        """Begin the transaction, if it has not begun: a single statement needs none."""
        if not self.raw.in_transaction:
            self.raw.execute(BEGIN)

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
        """Cache the changes of a transaction that is on disk."""
        if self.keeps_committed:
            self.committed.update(self.changed_streams, self.changed_producers)
            for producer in self.committed.evict():
                self.waypoints.pop(producer, None)
        else:
            self.invalidate()
        self.changed_streams, self.changed_producers = {}, {}

    def after_rollback(self) -> None:
        """Drop the caches: the transaction failed, or its outcome is unknown."""
        self.invalidate()
        self.runs.clear()
        self.reset_job()
        self.changed_streams, self.changed_producers = {}, {}

    def invalidate(self) -> None:
        self.committed.clear()
        self.waypoints = {}

    # Streams

    def stream(self, key: int) -> Stream | None:
        stream = self.job_streams.get(key)
        if stream is None:
            known = self.changed_streams.get(key)
            if known is None and (row := self.committed.row(key)) is not None:
                known = row.stream
            stream = replace(known) if known is not None else self.load_stream(key)
            if stream is not None:
                self.job_streams[key] = stream
        return stream

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        known = self.committed.find_by_name(project, kind, name)
        return super().find_by_name(project, kind, name) if known is None else self.stream(known.key)

    def new_stream_key(self) -> int:
        return int(self.connection.one(SELECT_NEW_KEY)[0])

    def add_stream(self, stream: Stream, key_id: str | None = None) -> None:
        super().add_stream(stream, key_id)
        self.job_streams[stream.key] = stream

    def forget_name(self, stream: Stream) -> None:
        self.committed.forget_name(stream)

    def is_full(self, project: str) -> bool:
        quota = self.quotas.stored_bytes
        return quota > 0 and self.raw.execute(SELECT_IS_FULL, (project, quota)).fetchone() is not None

    def count_stored(self, key: int, size: int) -> None:
        if self.counts_stored:
            self.connection.execute(COUNT_STORED, key=key, size=size)

    # Producers

    def producer(self, key: int, name: str) -> ProducerState:
        named = key, name
        producer = self.job_producers.get(named)
        if producer is None:
            known = self.changed_producers.get(named)
            if known is None and (row := self.committed.row(key)) is not None:
                known = row.producers.get(name)
            producer = replace(known) if known is not None else self.load_producer(key, name)
            self.job_producers[named] = producer
        return producer

    # Journals

    def append(self, batch: Batch, now_ms: int) -> AppendResult:
        """Add a batch to its journal. Raises `Refused` (`unknown_session`).

        This is the hot path: plain events in order of a known, connected producer are not examined one by one.
        """
        stream = self.stream(batch.key)
        if stream is None:
            raise Refused("unknown_session")
        producer = self.producer(batch.key, batch.producer)
        known = producer.epoch > 0 or producer.next_seq > 1
        full = self.is_full(stream.project)
        if full or not (known and stream.silent_since_ms is None and admits_all(stream, producer, batch)):
            return BatchAppend(self, stream, producer, batch, now_ms, full).run()
        first, count = stream.position + 1, batch.count
        self.runs.append(batch.run(first))
        stream.position += count
        producer.next_seq += count
        return AppendResult(stream, producer.next_seq, first)

    def add_run(self, run: JournalRun) -> None:
        self.runs.append(run)

    def flush(self, is_last: bool = False) -> None:
        """See `StreamRows.flush`. Nearly every commit writes nothing but runs, in one statement."""
        rows = [run.columns(self.marks_way(run)) for run in self.runs]
        if len(rows) > TOGETHER or self.counts_stored or not is_last:
            self.begin()
        insert_runs(self.raw, rows)
        if self.counts_stored:
            for row in rows:
                self.count_stored(row[0], len(row[-1]))
        self.runs.clear()
        self.job_start = 0

    def marks_way(self, run: JournalRun) -> bool:
        """Return whether a run that is about to be inserted is a waypoint.

        After a start no waypoint is known, so a producer's first run is one: a waypoint too many costs a page, and one
        too few would hide a seq.
        """
        named = run.stream, run.producer
        is_far = run.position - self.waypoints.get(named, -WAYPOINT_STRIDE) >= WAYPOINT_STRIDE
        if run.seq is not None and is_far:
            self.waypoints[named] = run.position
        return run.seq is not None and is_far


def insert_runs(connection: apsw.Connection, runs: Sequence[Row]) -> None:
    """Insert the columns of runs; those of many at once, since Python may switch threads in between."""
    for first in range(0, len(runs), TOGETHER):
        some = runs[first : first + TOGETHER]
        statement = INSERT_RUNS + ",".join([RUN_VALUES] * len(some))
        connection.execute(statement, [value for run in some for value in run])
