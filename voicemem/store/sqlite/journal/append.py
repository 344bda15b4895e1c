"""The append: producers' events into their journals, in the writer's transaction (docs/ingest.md)."""

from __future__ import annotations

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import Refused
from voicemem.store.admission import Batch, admits_all
from voicemem.store.batch_append import BatchAppend, Originals, originals_around
from voicemem.store.endpoints import save_session_endpoint
from voicemem.store.outbox import enqueue_close, enqueue_start
from voicemem.store.records import AppendResult
from voicemem.store.runs import JournalRun
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.journal.archive import find_archived
from voicemem.store.sqlite.journal.row_cache import RowCache
from voicemem.store.sqlite.journal.runs import find_run, next_stored_seq
from voicemem.store.sqlite.journal.stored_bytes import is_full
from voicemem.store.sqlite.retention import cancel_retention, schedule_retention
from voicemem.store.stream_changes import reopen
from voicemem.store.streams import IN_OVERVIEW, ProducerState, Stream

SELECT_IS_CONNECTED = "select 1 from producers where stream = ? and node is not null limit 1"
SELECT_PRODUCERS_NOT_ENDED = "select name from producers where stream = ? and not ended"
DELETE_FROM_SECRETS = "delete from secrets where stream = ? and name = ?"
INSERT_INTO_SECRETS = "insert into secrets values (?, ?, ?)"


def append(rows: RowCache, batch: Batch, now_ms: int) -> AppendResult:
    """Add a batch to its journal, and return what became of it. Raises `Refused` (`unknown_session`).

    This is the hot path. A batch of plain events in order, of a producer that is known, over a connection, needs no
    look at each event and no row but the run itself. All else goes through `BatchAppend`.
    """
    stream = rows.stream(batch.key)
    if stream is None:
        raise Refused("unknown_session")
    producer = rows.producer(batch.key, batch.producer)
    known = producer.epoch > 0 or producer.next_seq > 1
    quota = rows.quotas.stored_bytes
    full = quota > 0 and is_full(rows.connection, stream.project, quota)
    if full or not (known and stream.silent_since_ms is None and admits_all(stream, producer, batch)):
        return BatchAppend(StreamView(rows), stream, producer, batch, now_ms, full).run()
    first, count = stream.position + 1, len(batch.payloads)
    rows.add_run(JournalRun(stream.key, first, producer.name, batch.first_seq, batch.received_ms, batch.payloads))
    stream.position += count
    producer.next_seq += count
    return AppendResult(stream, producer.next_seq, first)


class StreamView:
    """The rows of a transaction as changes of streams need them (`StreamRows`)."""

    def __init__(self, rows: RowCache) -> None:
        self.rows = rows
        self.stream = rows.stream
        self.producer = rows.producer
        self.add_run = rows.add_run
        self.append_server_event = rows.append_server_event
        self.save_stream = rows.save_stream
        self.save_producer = rows.save_producer
        self.count_refusal = rows.count_quota_refusal

    def reopen(self, stream: Stream, now_ms: int) -> None:
        reopen(self.rows, stream, now_ms)
        cancel_retention(self.rows.connection, stream)
        enqueue_start(SqliteConnection(self.rows.connection, self.rows), stream, now_ms)

    def apply_patch(self, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
        stream.config = apply_patch(stream.config, session_patch.public)
        if not IN_OVERVIEW.isdisjoint(session_patch.public):
            self.rows.save_overview(stream)
        save_secrets(self.rows, stream, session_patch, now_ms)

    def is_connected(self, key: int) -> bool:
        return self.rows.connection.execute(SELECT_IS_CONNECTED, (key,)).fetchone() is not None

    def names_not_ended(self, key: int) -> list[str]:
        return [str(name) for (name,) in self.rows.connection.execute(SELECT_PRODUCERS_NOT_ENDED, (key,))]

    def finish_close(self, stream: Stream, notice_id: str, now_ms: int) -> None:
        self.rows.save_producers(stream.key)
        schedule_retention(self.rows.connection, stream)
        enqueue_close(SqliteConnection(self.rows.connection, self.rows), stream, notice_id, now_ms)

    def load_originals(self, key: int, producer: ProducerState, seq: int) -> Originals:
        self.rows.flush()
        archived = find_archived(self.rows.connection, key, producer.name, seq)
        if archived.payloads:
            return Originals(archived.payloads, archived.seqs, range(0))
        return originals_around(
            archived,
            find_run(self.rows.connection, key, producer.name, seq),
            seq,
            lambda: next_stored_seq(self.rows.connection, key, producer.name, seq) or producer.next_seq,
        )


def save_secrets(rows: RowCache, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
    """Store the secrets of a patch, and bring the session's own endpoint in line with its configuration."""
    for name, value in session_patch.secrets.items():
        rows.connection.execute(DELETE_FROM_SECRETS, (stream.key, name))
        if value is not None:
            rows.connection.execute(INSERT_INTO_SECRETS, (stream.key, name, value))
    if "webhook" in session_patch.public or "webhook.secret" in session_patch.secrets:
        save_session_endpoint(SqliteConnection(rows.connection, rows), stream, now_ms)
