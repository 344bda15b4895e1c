"""The rows of one transaction on PostgreSQL: locked streams, the runs that it adds, and the caches of both.

A transaction that changes more of a stream than its journal holds the stream's lock, and raises its `version`: so no
append that was decided by older rows is stored.

A cached version is a stream as this process last saw it, exact as of one moment. The position moves with every entry of
the journal, and `version` with everything else that decides about an append; so if both are unchanged at the append,
the cached version is valid.

An append updates nothing, so the bytes of projects are added up here, and written to the database with each heartbeat
of the node. So all nodes know of a byte a second later, and a node that is killed loses a second's count.
"""

import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from voicemem.runtime import MemoryBudget
from voicemem.store.append_rules import JournalRun
from voicemem.store.database import KeySource, NodeRetired
from voicemem.store.postgresql.connection import PostgresqlConnection
from voicemem.store.records import Quotas
from voicemem.store.runs import JOURNAL_COLUMNS
from voicemem.store.session_filters import label_digest
from voicemem.store.stream_changes import StreamRows
from voicemem.store.streams import ProducerState, Stream

VERSION_BYTES, PRODUCER_BYTES = 1_500, 700
"""About how many bytes a stream without its configuration takes, and a producer."""
CONFIG_FACTOR = 8


class CachedVersion(NamedTuple):
    """A stream and its known producers, as of one moment. It is never changed."""

    stream: Stream
    version: int
    producers: Mapping[str, ProducerState]
    waypoints: Mapping[str, int]
    """The position of each producer's newest waypoint, if it is known."""
    weight: int
    """About how many bytes it takes."""


class CachedVersions:
    """Cached versions by key, the least recently used first; safe for threads."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.by_key: OrderedDict[int, CachedVersion] = OrderedDict()
        self.lock = threading.Lock()

    def find(self, key: int) -> CachedVersion | None:
        return self.by_key.get(key)

    def newest_positions(self, at_most: int | None) -> list[tuple[int, int]]:
        """Return keys and positions of the streams that were used last, as this process has seen them committed."""
        with self.lock:
            return [(key, self.by_key[key].stream.position) for key in islice(reversed(self.by_key), at_most)]

    def put(self, stream: Stream, version: int, producers: Mapping[str, ProducerState]) -> None:
        """Cache a stream as a transaction has just committed it. Only running streams are cached."""
        if stream.state != "running":
            self.forget(stream.key)
            return
        kept = msgspec.structs.replace(stream)
        known = {name: msgspec.structs.replace(producer) for name, producer in producers.items()}
        config_bytes = len(msgspec.json.encode(stream.config))
        weight = VERSION_BYTES + CONFIG_FACTOR * config_bytes + PRODUCER_BYTES * len(known)
        self.replace(CachedVersion(kept, version, known, {}, weight))

    def replace(self, cached: CachedVersion) -> None:
        with self.lock:
            before = self.by_key.pop(cached.stream.key, None)
            self.by_key[cached.stream.key] = cached
            self.budget.rows += cached.weight - (before.weight if before is not None else 0)
            while self.budget.rows > self.budget.room_for_rows and len(self.by_key) > 1:
                _, gone = self.by_key.popitem(last=False)
                self.budget.rows -= gone.weight
                self.budget.evicted_rows += 1

    def forget(self, key: int) -> None:
        with self.lock:
            gone = self.by_key.pop(key, None)
            if gone is not None:
                self.budget.rows -= gone.weight

    def clear(self) -> None:
        with self.lock:
            for cached in self.by_key.values():
                self.budget.rows -= cached.weight
            self.by_key.clear()


SELECT_BYTES = "select bytes from stored_bytes where project = :project"
ADD_BYTES = """
    insert into stored_bytes select * from unnest(:projects::text[], :sizes::bigint[]) as r (project, bytes)
    order by project
    on conflict (project) do update set bytes = stored_bytes.bytes + excluded.bytes returning project, bytes
"""
"""Rows are always locked in the same order, so that no two nodes wait for each other."""


class StoredBytes:
    """Bytes by project; safe for threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pending: Counter[str] = Counter()
        """Bytes that were stored here, less those deleted, since the database last counted them."""
        self.known: dict[str, int] = {}
        """The last answer of the database, for the projects that were active here."""

    def add(self, project: str, size: int) -> None:
        with self.lock:
            self.pending[project] += size

    def is_full(self, project: str, quota: int) -> bool:
        """Return whether a project has used up its bytes, as far as this node knows."""
        return self.known.get(project, 0) + self.pending[project] >= quota

    def take(self) -> Counter[str]:
        """Return the bytes to be added in the database; `give_back` them when that fails."""
        with self.lock:
            taken, self.pending = self.pending, Counter()
        return Counter({project: size for project, size in taken.items() if size})

    def give_back(self, taken: Counter[str]) -> None:
        with self.lock:
            self.pending.update(taken)


COLUMNS = JOURNAL_COLUMNS.split(", ")
TYPES = ["bigint", "bigint", "text", "bigint", "bigint", "bigint", "bigint", "boolean", "bytea"]
RUN_ARRAYS = f"""
    unnest({", ".join(f":{name}::{type}[]" for name, type in zip(COLUMNS, TYPES, strict=True))})
    as r ({JOURNAL_COLUMNS})
"""
INSERT_RUNS = f"insert into journal ({JOURNAL_COLUMNS}) select r.* from {RUN_ARRAYS}"
HOLD_NODE = "select 1 from nodes where token = :node for share"
SELECT_PROJECT = "select project from streams where key = :key"
LOCK_STREAM = "select version from stream_locks where stream = :key for no key update"
INSERT_LOCK = "insert into stream_locks values (:key, 1)"
RAISE_VERSION = "update stream_locks set version = version + 1 where stream = :key returning version"
DELETE_LABELS = "delete from labels where stream = :key"
INSERT_LABELS = "insert into labels select :key, unnest(:digests::bytea[])"


class Shared(Protocol):
    keys: KeySource
    node: str | None
    quotas: Quotas
    stored_bytes: StoredBytes
    count_quota_refusal: Callable[[str], None]
    cached_versions: CachedVersions


class Rows(StreamRows):
    """Streams, producers and journals as one transaction sees and changes them."""

    connection: PostgresqlConnection

    def __init__(self, connection: PostgresqlConnection, shared: Shared) -> None:
        self.connection = connection
        self.shared = shared
        self.keys = shared.keys
        self.quotas = shared.quotas
        self.count_quota_refusal = shared.count_quota_refusal
        self.streams: dict[int, Stream] = {}
        self.producers: dict[tuple[int, str], ProducerState] = {}
        self.versions: dict[int, int] = {}
        self.runs: list[JournalRun] = []
        self.changed: set[int] = set()
        """Streams of which more than the journal was changed."""
        self.stored: Counter[int] = Counter()
        """Bytes that were added to journals and archives, less those that were deleted, by stream."""
        self.stored_of_projects: Counter[str] = Counter()

    def hold_node(self, token: str) -> None:
        """Keep a node from being retired before the commit, unless its end waits for it anyway. Raises `NodeRetired`.

        This process may have begun again under another token since the job was made.
        """
        if token not in ("", self.shared.node) and self.connection.row(HOLD_NODE, node=token) is None:
            raise NodeRetired

    # Streams

    def stream(self, key: int) -> Stream | None:
        """Return the stream of a key, locked until the end of the transaction; None when there is none."""
        stream = self.streams.get(key)
        if stream is None:
            lock = self.connection.row(LOCK_STREAM, key=key)
            stream = None if lock is None else self.load_stream(key)  # only a later statement sees the journal's end
            if stream is not None and lock is not None:
                self.streams[key], self.versions[key] = stream, lock[0]
        return stream

    def new_stream_key(self) -> int:
        return self.keys.draw()

    def add_stream(self, stream: Stream, key_id: str | None = None) -> None:
        super().add_stream(stream, key_id)
        self.connection.execute(INSERT_LOCK, key=stream.key)
        self.streams[stream.key], self.versions[stream.key] = stream, 1

    def note_changed(self, keys: Iterable[int]) -> None:
        self.changed.update(keys)

    def save_overview(self, stream: Stream) -> None:
        super().save_overview(stream)
        self.connection.execute(DELETE_LABELS, key=stream.key)
        if labels := stream.config.get("labels"):
            digests = [label_digest(*label) for label in labels.items()]
            self.connection.execute(INSERT_LABELS, key=stream.key, digests=digests)

    def is_full(self, project: str) -> bool:
        quota, stored_bytes = self.quotas.stored_bytes, self.shared.stored_bytes
        if not quota:
            return False
        row = self.connection.row(SELECT_BYTES, project=project)
        stored_bytes.known[project] = 0 if row is None else row[0]
        return stored_bytes.is_full(project, quota)

    counts_stored = True

    def count_stored(self, key: int, size: int) -> None:
        self.stored[key] += size

    # Producers

    def producer(self, key: int, name: str) -> ProducerState:
        """Return a session's producer; a new one when it is unknown. Its stream must be locked."""
        producer = self.producers.get((key, name))
        if producer is None:
            producer = self.producers[key, name] = self.load_producer(key, name)
        return producer

    # Journals

    def add_run(self, run: JournalRun) -> None:
        self.runs.append(run)

    def flush(self) -> None:
        if self.runs:
            rows = [run.columns(run.seq is not None) for run in self.runs]
            for row in rows:
                self.stored[row[0]] += len(row[-1])
            self.connection.execute(INSERT_RUNS, **by_column(rows))
            self.runs.clear()

    # The end of the transaction

    def finish(self) -> None:
        """Write the added runs, and raise the versions of changed streams: the last step before the commit."""
        self.flush()
        for key, size in self.stored.items():
            self.stored_of_projects[self.project_of(key)] += size
        for key in sorted(self.changed & self.versions.keys()):
            (self.versions[key],) = self.connection.one(RAISE_VERSION, key=key)

    def project_of(self, key: int) -> str:
        stream = self.streams.get(key)
        return str(self.connection.one(SELECT_PROJECT, key=key)[0]) if stream is None else stream.project

    def after_commit(self) -> None:
        """Count the committed bytes, and cache the streams for their next appends."""
        for project, size in self.stored_of_projects.items():
            self.shared.stored_bytes.add(project, size)
        for key, stream in self.streams.items():
            known = {name: producer for (stream_key, name), producer in self.producers.items() if stream_key == key}
            self.shared.cached_versions.put(stream, self.versions[key], known)


def by_column(rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the columns of these rows as they are sent: numbers as one array."""
    columns = zip(COLUMNS, TYPES, zip(*rows, strict=True), strict=True)
    return {
        name: array("q", values) if kind == "bigint" and None not in values else list(values)
        for name, kind, values in columns
    }
