"""The rows of one transaction: streams and producers under the lock of their stream's head, and the runs that it adds.

A stream's `position` and a producer's `next_seq` follow from where the journal ends, so an ordinary append writes the
journal only. Whoever changes anything else of a stream holds the stream's lock, and raises its `version`: then no
append that was decided by older rows comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import StoreUnavailable
from voicemem.store.batch_append import Originals, originals_around
from voicemem.store.endpoints import save_session_endpoint
from voicemem.store.keys import KeySource
from voicemem.store.outbox import enqueue_close, enqueue_start
from voicemem.store.postgresql.database.connection import NodeRetired, Row, Session
from voicemem.store.postgresql.journal.guesses import Guesses
from voicemem.store.postgresql.journal.runs import (
    INSERT_RUNS,
    RunColumns,
    find_archived,
    find_last_seq,
    find_run,
    next_stored_seq,
)
from voicemem.store.postgresql.journal.stored_bytes import StoredBytes, is_full
from voicemem.store.postgresql.retention_plans import schedule_retention
from voicemem.store.postgresql.statements import PostgresqlConnection
from voicemem.store.records import Quotas
from voicemem.store.runs import JournalRun, server_run
from voicemem.store.stream_changes import reopen
from voicemem.store.streams import IN_OVERVIEW, SESSION_KIND, ProducerState, Stream, close_due_ms, overview_values

STORED_COLUMNS = ", ".join(f"s.{name}" for name in Stream.__struct_fields__)
"""The columns of `streams` s; `position` is that of the last time the row was saved."""
POSITION = """greatest(s.position, (
    select j.position + j.count - 1 from journal j where j.stream = s.key
    order by j.position desc limit 1
))"""
"""Where the journal ends."""
STREAM_COLUMNS = STORED_COLUMNS.replace("s.position", POSITION)
SELECT_STREAM = f"select {STREAM_COLUMNS} from streams s where s.key = $1"
SELECT_PROJECT = "select project from streams where key = $1"
HOLD_NODE = "select 1 from nodes where token = $1 for share"
SELECT_STREAM_KEY = "select stream from stream_ids where project = $1 and kind = $2 and id = $3"
LOCK_HEAD = "select version from stream_locks where stream = $1 for no key update"
RAISE_GEN = "update stream_locks set version = version + 1 where stream = $1 returning version"
INSERT_ID = "insert into stream_ids values ($1, $2, $3, $4) on conflict do nothing"
INSERT_HEAD = "insert into stream_locks values ($1, 1)"
INSERT_STREAM = """
    insert into streams (key, project, kind, id, state, position, started_ms, ended_ms, reason, config,
    silent_since_ms, ending_ms, ending_ts, ending_reason, provisional, due_ms, name, user_id, channel)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
"""
UPDATE_STREAM = """
    update streams set state = $2, position = $3, started_ms = $4, ended_ms = $5, reason = $6, config = $7,
    silent_since_ms = $8, ending_ms = $9, ending_ts = $10, ending_reason = $11, provisional = $12, due_ms = $13,
    name = $14, user_id = $15, channel = $16 where key = $1
"""
DELETE_LABELS = "delete from labels where stream = $1"
INSERT_LABELS = "insert into labels select $1, unnest($2::bytea[])"
SAVE_OVERVIEW = """
    insert into overviews (stream, name, user_id, labels) values ($1, $2, $3, $4)
    on conflict (stream) do update
    set name = excluded.name, user_id = excluded.user_id, labels = excluded.labels
"""
PRODUCER_COLUMNS = "epoch, next_seq, unsequenced, ended, node, expected_until_ms"
SELECT_PRODUCER = f"select {PRODUCER_COLUMNS} from producers where stream = $1 and name = $2"
SELECT_PRODUCER_NAMES = "select name from producers where stream = $1"
SELECT_IS_CONNECTED = """
    select 1 from producers where stream = $1 and node is not null limit 1
"""
SELECT_PRODUCERS_NOT_ENDED = "select name from producers where stream = $1 and not ended"
SAVE_PRODUCER = """
    insert into producers values ($1, $2, $3, $4, $5, $6, $7, $8)
    on conflict (stream, name) do update set epoch = excluded.epoch, next_seq = excluded.next_seq,
    unsequenced = excluded.unsequenced, ended = excluded.ended, node = excluded.node,
    expected_until_ms = excluded.expected_until_ms
"""
DELETE_FROM_SECRETS = "delete from secrets where stream = $1 and name = $2"
INSERT_INTO_SECRETS = "insert into secrets values ($1, $2, $3)"
RELEASE_NAME = "delete from names where stream = $1"
DELETE_RETENTION = "delete from retention where stream = $1"


class Conflict(Exception):
    """Another transaction took a name or key meanwhile: this one is to be run again."""


class Shared(Protocol):
    """What all transactions of a store share."""

    keys: KeySource
    node: str | None
    quotas: Quotas
    stored_bytes: StoredBytes
    count_quota_refusal: Callable[[str], None]
    guesses: Guesses


class Rows:
    """Streams, producers and journals as one transaction sees and changes them; the job may change what it gets."""

    def __init__(self, session: Session, shared: Shared) -> None:
        self.session = session
        self.shared = shared
        self.streams: dict[int, Stream] = {}
        self.producers: dict[tuple[int, str], ProducerState] = {}
        self.gens: dict[int, int] = {}
        """Of the streams that are locked."""
        self.runs: list[JournalRun] = []
        self.changed: set[int] = set()
        """Streams of which more than the journal was changed."""
        self.stored: Counter[int] = Counter()
        """Bytes that were added to journals and archives, less those that were deleted, by stream."""
        self.stored_of_projects: Counter[str] = Counter()

    def hold_node(self, token: str) -> None:
        """Keep a node for which something is written from being retired meanwhile. Raises `NodeRetired` if it was.

        Whoever retires the node that this process is waits for this transaction anyway. But the process may have begun
        again under another token since the job was made, and nobody would free what is held under the old one.
        """
        if token not in ("", self.shared.node) and self.session.row(HOLD_NODE, (token,)) is None:
            raise NodeRetired

    # Streams

    def stream(self, key: int) -> Stream | None:
        """The stream of a key, locked until the end of the transaction; None when there is none."""
        stream = self.streams.get(key)
        if stream is None:
            head = self.session.row(LOCK_HEAD, (key,))
            if head is None:
                return None
            self.flush()
            stream = load_stream(self.session, SELECT_STREAM, (key,))  # only a later statement sees the journal's end
            if stream is not None:
                self.streams[key], self.gens[key] = stream, head[0]
        return stream

    def session_of(self, project: str, session_id: str) -> Stream | None:
        return self.find_by_name(project, SESSION_KIND, session_id)

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        row = self.session.row(SELECT_STREAM_KEY, (project, kind, name))
        return None if row is None else self.stream(row[0])

    def add_stream(self, stream: Stream) -> None:
        """Insert a new stream, which gets its key. Raises `Conflict` when another has just taken its id."""
        stream.key = self.shared.keys.draw()
        if not self.session.change(INSERT_ID, (stream.project, stream.kind, stream.id, stream.key)):
            raise Conflict
        self.session.execute(INSERT_HEAD, (stream.key,))
        config = stream.config
        values = stream_values(stream)
        self.session.execute(INSERT_STREAM, (stream.key, stream.project, stream.kind, stream.id, *values))
        self.streams[stream.key], self.gens[stream.key] = stream, 1
        if stream.kind == SESSION_KIND and not IN_OVERVIEW.isdisjoint(config):
            self.save_overview(stream)

    def save_stream(self, stream: Stream) -> None:
        self.session.execute(UPDATE_STREAM, (stream.key, *stream_values(stream)))
        self.changed.add(stream.key)

    def save_overview(self, stream: Stream) -> None:
        """Repeat what lists show and look for of a session's configuration."""
        self.session.execute(SAVE_OVERVIEW, (stream.key, *overview_values(stream.config)))
        self.session.execute(DELETE_LABELS, (stream.key,))
        if labels := stream.config.get("labels"):
            self.session.execute(INSERT_LABELS, (stream.key, [label_digest(*label) for label in labels.items()]))

    # Producers

    def producer(self, key: int, name: str) -> ProducerState:
        """A session's producer; a new one when it is unknown. Its stream must be locked."""
        producer = self.producers.get((key, name))
        if producer is None:
            self.flush()
            journaled = find_last_seq(self.session, key, name) + 1
            row = self.session.row(SELECT_PRODUCER, (key, name))
            if row is None:
                producer = ProducerState(name, next_seq=journaled)
            else:
                epoch, next_seq, unsequenced, ended, node, expected_until_ms = row
                next_seq = max(next_seq, journaled)
                producer = ProducerState(name, epoch, next_seq, unsequenced, ended, node, expected_until_ms)
            self.producers[key, name] = producer
        return producer

    def save_producer(self, key: int, producer: ProducerState) -> None:
        node = None if producer.node is None else producer.node
        values = (producer.epoch, producer.next_seq, producer.unsequenced, producer.ended, node)
        self.session.execute(SAVE_PRODUCER, (key, producer.name, *values, producer.expected_until_ms))
        self.changed.add(key)

    def save_producers(self, key: int) -> None:
        """Write the `next_seq` of a journal's producers into their own rows, which stay when its rows are archived."""
        for (name,) in self.session.rows(SELECT_PRODUCER_NAMES, (key,)):
            self.save_producer(key, self.producer(key, name))

    def is_connected(self, key: int) -> bool:
        """See `voicemem.store.stream_changes.StreamRows`."""
        return self.session.row(SELECT_IS_CONNECTED, (key,)) is not None

    def names_not_ended(self, key: int) -> list[str]:
        """See `voicemem.store.stream_changes.StreamRows`."""
        return [name for (name,) in self.session.rows(SELECT_PRODUCERS_NOT_ENDED, (key,))]

    # Journals

    def add_run(self, run: JournalRun) -> None:
        self.runs.append(run)

    def append_server_event(self, stream: Stream, now_ms: int, event: dict[str, Any] | bytes) -> None:
        """Journal an event of the server's own. The caller saves the stream's row."""
        self.add_run(server_run(stream, now_ms, event))

    def load_originals(self, key: int, producer: ProducerState, seq: int) -> Originals:
        """See `voicemem.store.batch_append.AppendRows`."""
        self.flush()
        archived = find_archived(self.session, key, producer.name, seq)
        if archived.payloads:
            return Originals(archived.payloads, archived.seqs, range(0))
        return originals_around(
            archived,
            find_run(self.session, key, producer.name, seq),
            seq,
            lambda: next_stored_seq(self.session, key, producer.name, seq) or producer.next_seq,
        )

    def flush(self) -> None:
        """Insert the runs that were added: before each query that must see them, and at the end."""
        if self.runs:
            columns = RunColumns()
            for run in self.runs:
                columns.add(run, waypoint=run.seq is not None)
                self.stored[run.stream] += run.size
            self.session.execute(INSERT_RUNS, columns.values)
            self.runs.clear()

    # What changes with a stream

    def reopen(self, stream: Stream, now_ms: int) -> None:
        """See `voicemem.store.batch_append.AppendRows`."""
        reopen(self, stream, now_ms)
        self.session.execute(DELETE_RETENTION, (stream.key,))
        enqueue_start(PostgresqlConnection(self.session, self), stream, now_ms)

    def finish_close(self, stream: Stream, notice_id: str, now_ms: int) -> None:
        """See `voicemem.store.stream_changes.StreamRows`."""
        self.save_producers(stream.key)
        self.session.execute(RELEASE_NAME, (stream.key,))
        schedule_retention(self.session, stream)
        enqueue_close(PostgresqlConnection(self.session, self), stream, notice_id, now_ms)

    def apply_patch(self, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
        """See `voicemem.store.batch_append.AppendRows`."""
        stream.config = apply_patch(stream.config, session_patch.public)
        if not IN_OVERVIEW.isdisjoint(session_patch.public):
            self.save_overview(stream)
        self.save_secrets(stream, session_patch, now_ms)

    def save_secrets(self, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
        """Store the secrets of a patch, and bring the session's own endpoint in line with its configuration."""
        for name, value in session_patch.secrets.items():
            self.session.execute(DELETE_FROM_SECRETS, (stream.key, name))
            if value is not None:
                self.session.execute(INSERT_INTO_SECRETS, (stream.key, name, value))
        if "webhook" in session_patch.public or "webhook.secret" in session_patch.secrets:
            save_session_endpoint(PostgresqlConnection(self.session, self), stream, now_ms)

    def is_full(self, project: str) -> bool:
        """Whether a project has used up its bytes."""
        return is_full(self.session, self.shared.stored_bytes, project, self.shared.quotas.stored_bytes)

    def count_refusal(self, quota: str) -> None:
        """See `voicemem.store.batch_append.AppendRows`."""
        self.shared.count_quota_refusal(quota)

    # The end of the transaction

    def finish(self) -> None:
        """Write what was added, and raise the version of what was changed: the last thing before the commit."""
        self.flush()
        for key, size in self.stored.items():
            self.stored_of_projects[self.project_of(key)] += size
        for key in sorted(self.changed & self.gens.keys()):
            (self.gens[key],) = self.session.one(RAISE_GEN, (key,))

    def project_of(self, key: int) -> str:
        stream = self.streams.get(key)
        return self.session.one(SELECT_PROJECT, (key,))[0] if stream is None else stream.project

    def after_commit(self) -> None:
        """What was committed counts, and is what the next append of these streams is decided by."""
        for project, size in self.stored_of_projects.items():
            self.shared.stored_bytes.add(project, size)
        for key, stream in self.streams.items():
            known = {name: producer for (stream_key, name), producer in self.producers.items() if stream_key == key}
            self.shared.guesses.put(stream, self.gens[key], known)


def stream_values(stream: Stream) -> Sequence[Any]:
    """The values of the columns of `streams` that change."""
    config = stream.config
    return (
        stream.state,
        stream.position,
        stream.started_ms,
        stream.ended_ms,
        stream.reason,
        msgspec.json.encode(config),
        stream.silent_since_ms,
        stream.ending_ms,
        stream.ending_ts,
        stream.ending_reason,
        stream.provisional,
        close_due_ms(stream),
        config.get("name"),
        config.get("user_id"),
        config.get("channel"),
    )


def label_digest(name: str, value: str) -> bytes:
    """What finds the sessions with a label."""
    return sha256(msgspec.json.encode([name, value])).digest()


def to_stream(row: Row) -> Stream:
    """The stream of a row of `STREAM_COLUMNS`. Raises `StoreUnavailable` for a damaged one."""
    key, project, kind, stream_id, state, position, started_ms, ended_ms, reason, config, *rest = row
    silent_since_ms, ending_ms, ending_ts, ending_reason, provisional = rest
    try:
        decoded = msgspec.json.decode(config, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreUnavailable("The configuration of the session is damaged in the store.") from None
    return Stream(
        key,
        project,
        kind,
        stream_id,
        state,
        position,
        started_ms,
        ended_ms,
        reason,
        decoded,
        silent_since_ms,
        ending_ms,
        ending_ts,
        ending_reason,
        provisional,
    )


def load_stream(session: Session, query: str, values: Sequence[Any]) -> Stream | None:
    """The stream that a query of `STREAM_COLUMNS` finds; None when it finds none. Raises `StoreUnavailable`."""
    row = session.row(query, values)
    return None if row is None else to_stream(row)
