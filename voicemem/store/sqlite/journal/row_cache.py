"""The writer's view of streams, producers and journals: a cache of rows that follows its transaction.

A stream's `position` and a producer's `next_seq` follow from where the journal ends, so an ordinary append writes the
journal only; their own rows are written when anything else about them changes. Committed rows stay cached, so an append
reads nothing; that is safe because one process at a time writes a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from voicemem.errors import StoreUnavailable
from voicemem.store.keys import KeySource
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.records import Quotas
from voicemem.store.runs import JournalRun, Waypoints, server_run
from voicemem.store.sqlite.journal.committed_rows import CommittedRows
from voicemem.store.sqlite.journal.runs import find_last_seq, insert_runs
from voicemem.store.streams import IN_OVERVIEW, SESSION_KIND, ProducerState, Stream, close_due_ms, overview_values

STORED_COLUMNS = ", ".join(Stream.__struct_fields__)
"""The columns of `streams`; `position` is that of the last time the row was saved."""
POSITION = (
    "max(position, ifnull((select j.position + j.count - 1 from journal j where j.stream = streams.key"
    " order by j.position desc limit 1), 0))"
)
"""Where the journal ends."""
STREAM_COLUMNS = STORED_COLUMNS.replace("position", POSITION)
"""The same, but with the position at which the journal ends."""
SELECT_STREAM_BY_KEY = f"select {STREAM_COLUMNS} from streams where key = ?"
SELECT_STREAM_BY_NAME = f"select {STREAM_COLUMNS} from streams where project = ? and kind = ? and id = ?"
SELECT_STREAM_KEY = "select key from streams where project = ? and kind = ? and id = ?"
INSERT_STREAM = """
    insert into streams (project, kind, id, state, position, started_ms, config, name, silent_since_ms, due_ms)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
UPDATE_STREAM = """
    update streams set state = ?, position = ?, ended_ms = ?, reason = ?, config = ?, name = ?, silent_since_ms = ?,
    ending_ms = ?, ending_ts = ?, ending_reason = ?, provisional = ?, due_ms = ? where key = ?
"""
SAVE_OVERVIEW = """
    insert into overviews (stream, name, user_id, labels) values (?, ?, ?, ?)
    on conflict (stream) do update set name = excluded.name, user_id = excluded.user_id, labels = excluded.labels
"""
SAVE_USER = "update streams set user_id = ? where key = ?"
SELECT_PRODUCER = """
    select epoch, next_seq, unsequenced, ended, node, expected_until_ms from producers where stream = ? and name = ?
"""

SELECT_PRODUCER_NAMES = "select name from producers where stream = ?"
SAVE_PRODUCER = "insert or replace into producers values (?, ?, ?, ?, ?, ?, ?, ?)"
CONFIG_INDEX = Stream.__struct_fields__.index("config")


class RowCache:
    """Streams and producers as the transaction sees them, and the runs that it adds to journals.

    There are three layers: what the current job changed (`job_…`), what the jobs before it in the transaction changed
    (`changed_…`), and what was committed. A job that raises loses its own layer only (`drop_job`).

    `stream` and `producer` return copies that belong to the job, which may change them. A committed object is never
    changed again, so other threads may read it.
    """

    def __init__(
        self, connection: apsw.Connection, keeps_committed: bool, budget: MemoryBudget, keys: KeySource
    ) -> None:
        self.connection = connection
        self.keys = keys
        self.quotas = Quotas()
        """Checked by those who add a session or events."""
        self.count_quota_refusal: Callable[[str], None] = lambda quota: None
        """Called with the name of a quota, on the writer's thread, for each session or event that it refuses."""
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
        """The stream of a key, for the job to change; None when there is none."""
        stream = self.job_streams.get(key)
        if stream is None:
            known = self.changed_streams.get(key) or self.committed.find(key)
            stream = msgspec.structs.replace(known) if known is not None else self.load(key)
            if stream is not None:
                self.job_streams[key] = stream
        return stream

    def session(self, project: str, session_id: str) -> Stream | None:
        return self.find_by_name(project, SESSION_KIND, session_id)

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        known = self.committed.find_by_name(project, kind, name)
        if known is not None:
            return self.stream(known.key)
        row = self.connection.execute(SELECT_STREAM_KEY, (project, kind, name)).fetchone()
        return None if row is None else self.stream(row[0])

    def load(self, key: int) -> Stream | None:
        self.flush()
        return load_stream(self.connection, SELECT_STREAM_BY_KEY, (key,))

    def add_stream(self, stream: Stream) -> None:
        """Insert a new stream, which gets its key."""
        self.connection.execute(
            INSERT_STREAM,
            (
                stream.project,
                stream.kind,
                stream.id,
                stream.state,
                stream.position,
                stream.started_ms,
                msgspec.json.encode(stream.config),
                stream.config.get("name"),
                stream.silent_since_ms,
                close_due_ms(stream),
            ),
        )
        stream.key = self.connection.last_insert_rowid()
        self.job_streams[stream.key] = stream
        if stream.kind == SESSION_KIND and not IN_OVERVIEW.isdisjoint(stream.config):
            self.save_overview(stream)

    def save_overview(self, stream: Stream) -> None:
        """Repeat what the slim row of a session shows of its configuration, and the user by whom it is found."""
        values = overview_values(stream.config)
        self.connection.execute(SAVE_OVERVIEW, (stream.key, *values))
        self.connection.execute(SAVE_USER, (values.user_id, stream.key))

    def save_stream(self, stream: Stream) -> None:
        self.connection.execute(
            UPDATE_STREAM,
            (
                stream.state,
                stream.position,
                stream.ended_ms,
                stream.reason,
                msgspec.json.encode(stream.config),
                stream.config.get("name"),
                stream.silent_since_ms,
                stream.ending_ms,
                stream.ending_ts,
                stream.ending_reason,
                stream.provisional,
                close_due_ms(stream),
                stream.key,
            ),
        )

    # Producers

    def producer(self, key: int, name: str) -> ProducerState:
        """A session's producer, for the job to change; a new one when it is unknown."""
        producer = self.job_producers.get((key, name))
        if producer is None:
            known = self.changed_producers.get((key, name)) or self.committed.find_producer(key, name)
            producer = msgspec.structs.replace(known) if known is not None else self.load_producer(key, name)
            self.job_producers[key, name] = producer
        return producer

    def load_producer(self, key: int, name: str) -> ProducerState:
        self.flush()
        journaled = find_last_seq(self.connection, key, name) + 1
        row = self.connection.execute(SELECT_PRODUCER, (key, name)).fetchone()
        if row is None:
            return ProducerState(name, next_seq=journaled)
        epoch, next_seq, unsequenced, ended, node, until = row
        return ProducerState(name, epoch, max(next_seq, journaled), bool(unsequenced), bool(ended), node, until)

    def save_producer(self, key: int, producer: ProducerState) -> None:
        self.connection.execute(SAVE_PRODUCER, (key, *astuple(producer)))

    def save_producers(self, key: int) -> None:
        """Write the `next_seq` of a journal's producers into their own rows, which stay when its rows are archived."""
        rows = self.connection.execute(SELECT_PRODUCER_NAMES, (key,)).fetchall()
        for name in [str(name) for (name,) in rows]:
            self.save_producer(key, self.producer(key, name))

    # Journals

    def add_run(self, run: JournalRun) -> None:
        self.runs.append(run)

    def append_server_event(self, stream: Stream, now_ms: int, event: dict[str, Any] | bytes) -> None:
        """Journal an event of the server's own. The caller saves the stream's row."""
        self.add_run(server_run(stream, now_ms, event))

    def flush(self) -> None:
        """Insert the runs that were added: before each query that must see them, and before the commit."""
        insert_runs(self.connection, [(run, self.waypoints.mark(run)) for run in self.runs])
        self.runs.clear()
        self.job_start = 0


def to_stream(row: tuple[Any, ...]) -> Stream:
    """The stream of a row of `COLUMNS`. Raises `StoreUnavailable` for a damaged one."""
    values: list[Any] = list(row)
    try:
        values[CONFIG_INDEX] = msgspec.json.decode(values[CONFIG_INDEX], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreUnavailable("The configuration of the session is damaged in the store.") from None
    values[-1] = bool(values[-1])
    return Stream(*values)


def load_stream(connection: apsw.Connection, query: str, values: tuple[Any, ...]) -> Stream | None:
    """The stream that a query of `COLUMNS` finds; None when it finds none. Raises `StoreUnavailable`."""
    row = connection.execute(query, values).fetchone()
    return None if row is None else to_stream(row)


def fetch_one(connection: apsw.Connection, query: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The single row of a query that always has one."""
    row: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    assert row is not None
    return row
