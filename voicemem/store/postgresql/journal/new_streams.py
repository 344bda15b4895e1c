"""Creates streams: empty sessions, sessions restored with a journal, and users."""

from __future__ import annotations

from hashlib import sha256

from voicemem.config.secrets import SessionPatch
from voicemem.errors import Refused
from voicemem.store.outbox import enqueue_start
from voicemem.store.postgresql.journal.quotas import check_quotas, note_key
from voicemem.store.postgresql.journal.rows import Conflict, Rows
from voicemem.store.postgresql.retention_plans import schedule_retention
from voicemem.store.postgresql.statements import PostgresqlConnection
from voicemem.store.records import RestoredSession
from voicemem.store.runs import group_runs
from voicemem.store.stream_changes import new_session, new_stream, restored_session, source_of_secrets
from voicemem.store.streams import NAME_TAKEN, USER_KIND, Stream

COPY_SECRETS = """
    insert into secrets select $1, name, value from secrets where stream = $2
"""
SELECT_NAME_RUNS = """
    select 1 from streams where project = $1 and md5(name) = md5($2) and state = 'running' and name is not null
    and kind = 'session' limit 1
"""
TAKE_NAME = "insert into names values ($1, $2, $3) on conflict do nothing"
SELECT_NAME_HOLDER = "select stream from names where project = $1 and digest = $2"


def create_user_stream(rows: Rows, project: str, user_id: str, now_ms: int) -> Stream:
    stream = new_stream(project, USER_KIND, user_id, {}, now_ms)
    rows.add_stream(stream)
    return stream


def create_stream(
    rows: Rows,
    project: str,
    session_id: str,
    session_patch: SessionPatch,
    now_ms: int,
    key_id: str | None,
    takes_name: bool = False,
) -> Stream:
    stream = new_session(project, session_id, session_patch, now_ms)
    name = stream.config.get("name") if takes_name else None
    if name is not None:
        refuse_taken_name(rows, project, name)
    is_counted = check_quotas(rows, project, key_id, now_ms)
    rows.add_stream(stream)
    if name is not None and not rows.session.change(TAKE_NAME, (project, digest(name), stream.key)):
        raise Conflict  # taken by a transaction that has committed since
    if is_counted:
        note_key(rows.session, stream.key, key_id)
    rows.save_secrets(stream, session_patch, now_ms)
    enqueue_start(PostgresqlConnection(rows.session, rows), stream, now_ms)
    return stream


def refuse_taken_name(rows: Rows, project: str, name: str) -> None:
    """Raise `Refused` if a running session has this name."""
    values = (project, digest(name))
    if rows.session.row(SELECT_NAME_RUNS, values) or rows.session.row(SELECT_NAME_HOLDER, values):
        raise Refused("session_exists", NAME_TAKEN)


def digest(name: str) -> bytes:
    return sha256(name.encode()).digest()


def restore_stream(
    rows: Rows,
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
    source = source_of_secrets(rows, restored)
    is_counted = check_quotas(rows, project, key_id, now_ms)
    stream = restored_session(project, session_id, session_patch, restored, now_ms)
    rows.add_stream(stream)
    if is_counted:
        note_key(rows.session, stream.key, key_id)
    if source is not None:
        rows.session.execute(COPY_SECRETS, (stream.key, source.key))
    rows.save_secrets(stream, session_patch, now_ms)
    for run in group_runs(stream.key, restored.rows):
        rows.add_run(run)
    for producer in restored.producers:
        rows.save_producer(stream.key, producer)
    if stream.state == "ended":
        schedule_retention(rows.session, stream)
    else:
        enqueue_start(PostgresqlConnection(rows.session, rows), stream, now_ms)
    return stream
