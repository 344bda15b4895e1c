"""Creates streams in the writer's transaction: empty sessions, sessions restored with a journal, and users."""

from __future__ import annotations

from voicemem.config.secrets import SessionPatch
from voicemem.errors import Refused
from voicemem.store.outbox import enqueue_start
from voicemem.store.records import RestoredSession
from voicemem.store.runs import group_runs
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.journal.append import StreamView, save_secrets
from voicemem.store.sqlite.journal.quotas import check_quotas, note_key
from voicemem.store.sqlite.journal.row_cache import RowCache
from voicemem.store.sqlite.retention import schedule_retention
from voicemem.store.stream_changes import new_session, new_stream, restored_session, source_of_secrets
from voicemem.store.streams import NAME_TAKEN, SESSION_KIND, USER_KIND, Stream

SELECT_IS_NAME_TAKEN = f"""
    select 1 from streams indexed by streams_by_name
    where project = ? and name = ? and state = 'running' and kind = '{SESSION_KIND}'
"""
COPY_SECRETS = "insert into secrets select ?, name, value from secrets where stream = ?"


def create_user_stream(rows: RowCache, project: str, user_id: str, now_ms: int) -> Stream:
    stream = new_stream(project, USER_KIND, user_id, {}, now_ms)
    rows.add_stream(stream)
    return stream


def refuse_taken_name(rows: RowCache, project: str, session_patch: SessionPatch) -> None:
    """Raise `Refused` (`session_exists`) when a running session has the name of this configuration."""
    name = session_patch.public.get("name")
    if name is not None and rows.connection.execute(SELECT_IS_NAME_TAKEN, (project, name)).fetchone() is not None:
        raise Refused("session_exists", NAME_TAKEN)


def create_stream(
    rows: RowCache, project: str, session_id: str, session_patch: SessionPatch, now_ms: int, key_id: str | None
) -> Stream:
    is_counted = check_quotas(rows, project, key_id, now_ms)
    stream = new_session(project, session_id, session_patch, now_ms)
    rows.add_stream(stream)
    if is_counted:
        note_key(rows.connection, stream.key, key_id)
    save_secrets(rows, stream, session_patch, now_ms)
    enqueue_start(SqliteConnection(rows.connection, rows), stream, now_ms)
    return stream


def restore_stream(
    rows: RowCache,
    project: str,
    session_id: str,
    session_patch: SessionPatch,
    restored: RestoredSession,
    now_ms: int,
    key_id: str | None,
) -> Stream:
    """Create a session with its whole journal. A start is announced to webhooks, unless the session has ended.

    Raises `Refused` (`unknown_session`, of the one that has the secrets), and `QuotaExceeded`, before anything
    is written.
    """
    source = source_of_secrets(StreamView(rows), restored)
    is_counted = check_quotas(rows, project, key_id, now_ms)
    stream = restored_session(project, session_id, session_patch, restored, now_ms)
    rows.add_stream(stream)
    rows.save_stream(stream)
    if is_counted:
        note_key(rows.connection, stream.key, key_id)
    if source is not None:
        rows.connection.execute(COPY_SECRETS, (stream.key, source.key))
    save_secrets(rows, stream, session_patch, now_ms)
    for run in group_runs(stream.key, restored.rows):
        rows.add_run(run)
    for producer in restored.producers:
        rows.save_producer(stream.key, producer)
    if stream.state == "ended":
        schedule_retention(rows.connection, stream)
    else:
        enqueue_start(SqliteConnection(rows.connection, rows), stream, now_ms)
    return stream
