"""The rows of one transaction on PostgreSQL: streams under their locks, and the runs that it adds.

Whoever changes anything else of a stream than its journal holds the stream's lock, and raises its `version`: then no
append that was decided by older rows comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from voicemem.store.keys import KeySource
from voicemem.store.postgresql.database.connection import NodeRetired, Session
from voicemem.store.postgresql.journal.cached_versions import CachedVersions
from voicemem.store.postgresql.journal.stored_bytes import StoredBytes, is_full
from voicemem.store.postgresql.statements import PostgresqlConnection
from voicemem.store.records import Quotas
from voicemem.store.runs import JournalRun, checksum
from voicemem.store.stream_rows import StreamRows, label_digest
from voicemem.store.streams import ProducerState, Stream

RUN_ARRAYS = """
    unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::boolean[], $9::bytea[]) as r (stream, position, producer, seq, received_ms, count, checksum, waypoint, payload)
"""
INSERT_RUNS = f"""
    insert into journal (stream, position, producer, seq, received_ms, count, checksum, waypoint, payload)
    select r.* from {RUN_ARRAYS}
"""
HOLD_NODE = "select 1 from nodes where token = $1 for share"
SELECT_PROJECT = "select project from streams where key = $1"
LOCK_STREAM = "select version from stream_locks where stream = $1 for no key update"
INSERT_LOCK = "insert into stream_locks values ($1, 1)"
RAISE_VERSION = "update stream_locks set version = version + 1 where stream = $1 returning version"
DELETE_LABELS = "delete from labels where stream = $1"
INSERT_LABELS = "insert into labels select $1, unnest($2::bytea[])"


class Shared(Protocol):
    """What all transactions of a store share."""

    keys: KeySource
    node: str | None
    quotas: Quotas
    stored_bytes: StoredBytes
    count_quota_refusal: Callable[[str], None]
    cached_versions: CachedVersions


class Rows(StreamRows):
    """Streams, producers and journals as one transaction sees and changes them."""

    def __init__(self, session: Session, shared: Shared) -> None:
        self.session = session
        self.connection = PostgresqlConnection(session, self)
        self.shared = shared
        self.quotas = shared.quotas
        self.count_quota_refusal = shared.count_quota_refusal
        self.streams: dict[int, Stream] = {}
        self.producers: dict[tuple[int, str], ProducerState] = {}
        self.versions: dict[int, int] = {}
        """Of the streams that are locked."""
        self.runs: list[JournalRun] = []
        self.changed: set[int] = set()
        """Streams of which more than the journal was changed."""
        self.stored: Counter[int] = Counter()
        """Bytes that were added to journals and archives, less those that were deleted, by stream."""
        self.stored_of_projects: Counter[str] = Counter()

    def hold_node(self, token: str) -> None:
        """Keep a node for which something is written from being retired before the commit. Raises `NodeRetired`.

        Whoever retires the node that this process is waits for this transaction anyway. But the process may have begun
        again under another token since the job was made, and no one would free what is held under the old one.
        """
        if token not in ("", self.shared.node) and self.session.row(HOLD_NODE, (token,)) is None:
            raise NodeRetired

    # Streams

    def stream(self, key: int) -> Stream | None:
        """The stream of a key, locked until the end of the transaction; None when there is none."""
        stream = self.streams.get(key)
        if stream is None:
            lock = self.session.row(LOCK_STREAM, (key,))
            stream = None if lock is None else self.load_stream(key)  # only a later statement sees the journal's end
            if stream is not None and lock is not None:
                self.streams[key], self.versions[key] = stream, lock[0]
        return stream

    def new_stream_key(self) -> int:
        return self.shared.keys.draw()

    def add_stream(self, stream: Stream) -> None:
        super().add_stream(stream)
        self.session.execute(INSERT_LOCK, (stream.key,))
        self.streams[stream.key], self.versions[stream.key] = stream, 1

    def save_stream(self, stream: Stream) -> None:
        super().save_stream(stream)
        self.changed.add(stream.key)

    def save_overview(self, stream: Stream) -> None:
        super().save_overview(stream)
        self.session.execute(DELETE_LABELS, (stream.key,))
        if labels := stream.config.get("labels"):
            self.session.execute(INSERT_LABELS, (stream.key, [label_digest(*label) for label in labels.items()]))

    def is_full(self, project: str) -> bool:
        return is_full(self.session, self.shared.stored_bytes, project, self.quotas.stored_bytes)

    def count_stored(self, key: int, size: int) -> None:
        self.stored[key] += size

    # Producers

    def producer(self, key: int, name: str) -> ProducerState:
        """A session's producer; a new one when it is unknown. Its stream must be locked."""
        producer = self.producers.get((key, name))
        if producer is None:
            producer = self.producers[key, name] = self.load_producer(key, name)
        return producer

    def save_producer(self, key: int, producer: ProducerState) -> None:
        super().save_producer(key, producer)
        self.changed.add(key)

    # Journals

    def add_run(self, run: JournalRun) -> None:
        self.runs.append(run)

    def flush(self) -> None:
        if self.runs:
            columns = RunColumns()
            for run in self.runs:
                columns.add(run, waypoint=run.seq is not None)
                self.stored[run.stream] += run.size
            self.session.execute(INSERT_RUNS, columns.values)
            self.runs.clear()

    # The end of the transaction

    def finish(self) -> None:
        """Write what was added, and raise the version of what was changed: the last thing before the commit."""
        self.flush()
        for key, size in self.stored.items():
            self.stored_of_projects[self.project_of(key)] += size
        for key in sorted(self.changed & self.versions.keys()):
            (self.versions[key],) = self.session.one(RAISE_VERSION, (key,))

    def project_of(self, key: int) -> str:
        stream = self.streams.get(key)
        return str(self.session.one(SELECT_PROJECT, (key,))[0]) if stream is None else stream.project

    def after_commit(self) -> None:
        """What was committed counts, and is what the next append of these streams is decided by."""
        for project, size in self.stored_of_projects.items():
            self.shared.stored_bytes.add(project, size)
        for key, stream in self.streams.items():
            known = {name: producer for (stream_key, name), producer in self.producers.items() if stream_key == key}
            self.shared.cached_versions.put(stream, self.versions[key], known)


class RunColumns:
    """Runs as the arrays of `RUN_ARRAYS`; the payloads of several events become one JSON array."""

    def __init__(self) -> None:
        self.values: list[list[Any]] = [[] for _ in range(9)]

    def add(self, run: JournalRun, waypoint: bool) -> None:
        payload = run.encoded
        checked = checksum(run.stream, run.position, payload)
        row = (
            run.stream,
            run.position,
            run.producer,
            run.seq,
            run.received_ms,
            len(run.payloads),
            checked,
            waypoint,
            payload,
        )
        for column, value in zip(self.values, row, strict=True):
            column.append(value)
