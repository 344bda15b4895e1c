"""Rows of streams, producers and journals, as one transaction sees and changes them.

A stream's `position` and a producer's `next_seq` follow from where the journal ends, so an ordinary append writes the
journal only; their own rows are written when anything else about them changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from voicemem.errors import StoreUnavailable
from voicemem.store.database import Connection, Row
from voicemem.store.records import Quotas
from voicemem.store.runs import find_last_seq, load_originals
from voicemem.store.streams import (
    IN_OVERVIEW,
    SESSION_KIND,
    JournalRun,
    ProducerState,
    Stream,
    close_due_ms,
    overview_values,
)

STORED_COLUMNS = ", ".join(f"s.{name}" for name in Stream.__struct_fields__)
"""The columns of `streams` s; `position` is that of the last time the row was saved."""
POSITION = """greatest(s.position, coalesce((
    select j.position + j.count - 1 from journal j where j.stream = s.key order by j.position desc limit 1
), 0))"""
"""The end of the journal."""
STREAM_COLUMNS = STORED_COLUMNS.replace("s.position", POSITION)
"""The same, but with the position at which the journal ends."""
CONFIG_INDEX = Stream.__struct_fields__.index("config")
SELECT_READABLE_STREAMS = (
    f"select {STREAM_COLUMNS} from streams s where key in :keys and state <> 'erased' order by key"
)
SELECT_STREAM = f"select {STREAM_COLUMNS} from streams s where s.key = :key"
SELECT_STREAM_KEY = "select key from streams where project = :project and kind = :kind and id = :id"
CHANGING = (
    *("state", "position", "started_ms", "ended_ms", "reason", "config", "silent_since_ms", "ending_ms", "ending_ts"),
    *("ending_reason", "provisional", "due_ms", "name", "user_id", "channel"),
)
"""The columns of a stream that change; the last four are derived from the others."""
INSERTED = ("key", "project", "kind", "id", *CHANGING)
INSERT_STREAM = f"""
    insert into streams ({", ".join(INSERTED)}) values ({", ".join(f":{name}" for name in INSERTED)})
    on conflict do nothing
"""
UPDATE_STREAM = f"update streams set {', '.join(f'{name} = :{name}' for name in CHANGING)} where key = :key"
SAVE_OVERVIEW = """
    insert into overviews (stream, name, user_id, labels) values (:stream, :name, :user_id, :labels)
    on conflict (stream) do update set name = excluded.name, user_id = excluded.user_id, labels = excluded.labels
"""
PRODUCER_COLUMNS = "name, epoch, next_seq, unsequenced, ended, node, expected_until_ms"
SELECT_PRODUCER = f"select {PRODUCER_COLUMNS} from producers where stream = :stream and name = :name"
SAVE_PRODUCER = f"""
    insert into producers (stream, {PRODUCER_COLUMNS})
    values (:stream, :name, :epoch, :next_seq, :unsequenced, :ended, :node, :expected_until_ms)
    on conflict (stream, name) do update set epoch = excluded.epoch, next_seq = excluded.next_seq,
    unsequenced = excluded.unsequenced, ended = excluded.ended, node = excluded.node,
    expected_until_ms = excluded.expected_until_ms
"""


class Conflict(Exception):
    """Another transaction took a name or a key in between: this one is to be run again."""


class StreamRows(ABC):
    """Streams, producers and journals of one transaction; the job may change what it gets.

    Each engine has its own way to keep rows at hand, to lock streams and to insert runs.
    """

    connection: Connection
    quotas: Quotas
    """Checked by those who add a session or events."""
    count_quota_refusal: Callable[[str], None]
    """Called with the name of a quota, on any thread, for each session or event that it refuses."""

    @abstractmethod
    def stream(self, key: int) -> Stream | None:
        """Return the stream of a key, for the job to change; None when there is none."""

    @abstractmethod
    def producer(self, key: int, name: str) -> ProducerState:
        """Return a session's producer, for the job to change; a new one when it is unknown."""

    @abstractmethod
    def add_run(self, run: JournalRun) -> None:
        """Journal a run, which may grow until the rows are written."""

    @abstractmethod
    def flush(self) -> None:
        """Insert the runs that were added: before each query that must see them, and before the commit."""

    @abstractmethod
    def new_stream_key(self) -> int:
        """Return the key of a new stream."""

    @abstractmethod
    def is_full(self, project: str) -> bool:
        """Return whether a project has used up its bytes, where they are bounded."""

    def count_stored(self, key: int, size: int) -> None:
        """Count bytes that were added to the archives of a stream, or below zero, deleted."""
        return

    # Streams

    def session_of(self, project: str, session_id: str) -> Stream | None:
        return self.find_by_name(project, SESSION_KIND, session_id)

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        row = self.connection.row(SELECT_STREAM_KEY, project=project, kind=kind, id=name)
        return None if row is None else self.stream(row[0])

    def load_stream(self, key: int) -> Stream | None:
        """Read a stream's row, after the runs that were added."""
        self.flush()
        row = self.connection.row(SELECT_STREAM, key=key)
        return None if row is None else to_stream(row)

    def add_stream(self, stream: Stream) -> None:
        """Insert a new stream, which gets its key. Raises `Conflict` when another has just taken its id."""
        stream.key = self.new_stream_key()
        if not self.connection.execute(INSERT_STREAM, **stream_values(stream)):
            raise Conflict
        if stream.kind == SESSION_KIND and not IN_OVERVIEW.isdisjoint(stream.config):
            self.save_overview(stream)

    def save_stream(self, stream: Stream) -> None:
        """Write a stream's row."""
        self.connection.execute(UPDATE_STREAM, **stream_values(stream))

    def save_overview(self, stream: Stream) -> None:
        """Repeat what lists show of a session's configuration."""
        self.connection.execute(SAVE_OVERVIEW, stream=stream.key, **overview_values(stream.config)._asdict())

    def forget_name(self, stream: Stream) -> None:
        """Forget the name of a stream that is about to get another."""
        return

    # Producers

    def load_producer(self, key: int, name: str) -> ProducerState:
        """Read a producer's row, and where its seqs end in the journal."""
        self.flush()
        next_seq = find_last_seq(self.connection, key, name) + 1
        row = self.connection.row(SELECT_PRODUCER, stream=key, name=name)
        if row is None:
            return ProducerState(name, next_seq=next_seq)
        _, epoch, saved_seq, unsequenced, ended, node, until = row
        return ProducerState(name, epoch, max(saved_seq, next_seq), bool(unsequenced), bool(ended), node, until)

    def save_producer(self, key: int, producer: ProducerState) -> None:
        """Write a producer's row."""
        self.connection.execute(SAVE_PRODUCER, stream=key, **msgspec.structs.asdict(producer))

    # Journals

    def append_server_event(self, stream: Stream, now_ms: int, event: dict[str, Any] | bytes) -> None:
        """Journal an event of the server's own. The caller saves the stream's row."""
        stream.position += 1
        payload = event if isinstance(event, bytes) else msgspec.json.encode(event)
        self.add_run(JournalRun(stream.key, stream.position, None, None, now_ms, [payload]))

    def load_originals(self, key: int, producer: ProducerState, seq: int) -> tuple[dict[int, bytes], range]:
        """See `runs.load_originals`; runs that were just added are written for it, and cannot grow any more."""
        self.flush()
        return load_originals(self.connection, key, producer.name, seq, producer.next_seq)


def stream_values(stream: Stream) -> dict[str, Any]:
    """The values of `INSERTED`."""
    config, values = stream.config, msgspec.structs.asdict(stream)
    values |= {"config": msgspec.json.encode(config), "due_ms": close_due_ms(stream)}
    return values | {"name": config.get("name"), "user_id": config.get("user_id"), "channel": config.get("channel")}


def to_stream(row: Row) -> Stream:
    """The stream of a row of `STREAM_COLUMNS`. Raises `StoreUnavailable` for a damaged one."""
    values: list[Any] = list(row)
    try:
        values[CONFIG_INDEX] = msgspec.json.decode(values[CONFIG_INDEX], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreUnavailable("The configuration of the session is damaged in the store.") from None
    values[-1] = bool(values[-1])
    return Stream(*values)


def label_digest(name: str, value: str) -> bytes:
    """Return a digest that finds the sessions with a label, in place of both, which are too long for an index."""
    return sha256(msgspec.json.encode([name, value])).digest()
