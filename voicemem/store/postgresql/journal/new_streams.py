"""Creates streams: empty sessions, sessions restored with a journal, and users."""

from __future__ import annotations

from hashlib import sha256

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject
from voicemem.store.postgresql.enqueue import enqueue_start
from voicemem.store.postgresql.journal.quotas import check_quotas, note_key
from voicemem.store.postgresql.journal.rows import Conflict, Rows
from voicemem.store.postgresql.retention_plans import schedule_retention
from voicemem.store.records import RestoredSession
from voicemem.store.runs import group_runs
from voicemem.store.streams import NAME_TAKEN, SESSION_KIND, USER_KIND, Stream

COPY_SECRETS = """
    insert into secrets select $1 % 64, $1, name, value from secrets where bucket = $2 % 64 and stream = $2
"""
SELECT_NAME_RUNS = """
    select 1 from streams where project = $1 and sha256(name) = $2 and state = 'running' and name is not null
    and kind = 'session' limit 1
"""
TAKE_NAME = "insert into names values ($1, $2, $3) on conflict do nothing"
SELECT_NAME_HOLDER = "select stream from names where project = $1 and digest = $2"
RELEASE_NAME = "delete from names where stream = $1"


def make_stream(project: str, kind: str, name: str, config: JsonObject, now_ms: int) -> Stream:
    """A stream that starts now; it gets its key when it is added."""
    return Stream(
        key=0,
        project=project,
        kind=kind,
        id=name,
        state="running",
        position=0,
        started_ms=now_ms,
        ended_ms=None,
        reason=None,
        config=config,
        silent_since_ms=now_ms if kind == SESSION_KIND else None,
        ending_ms=None,
        ending_ts=None,
        ending_reason=None,
    )


def create_user_stream(rows: Rows, project: str, user_id: str, now_ms: int) -> Stream:
    stream = make_stream(project, USER_KIND, user_id, {}, now_ms)
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
    stream = make_stream(project, SESSION_KIND, session_id, apply_patch({}, session_patch.public), now_ms)
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
    enqueue_start(rows.session, rows.shared.keys, stream, now_ms)
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
    source = None if restored.secrets_of is None else rows.stream(restored.secrets_of)
    if restored.secrets_of is not None and (source is None or source.state == "erased"):
        raise Refused("unknown_session")
    is_counted = check_quotas(rows, project, key_id, now_ms)
    stream = make_stream(project, SESSION_KIND, session_id, apply_patch({}, session_patch.public), now_ms)
    stream.started_ms, stream.position = restored.started_ms, len(restored.rows)
    if restored.ended_ms is not None:
        stream.state, stream.silent_since_ms = "ended", None
        stream.ended_ms, stream.reason, stream.provisional = restored.ended_ms, restored.reason, restored.provisional
    elif restored.ending is not None:
        stream.ending_ms, (stream.ending_ts, stream.ending_reason, _) = now_ms, restored.ending
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
        enqueue_start(rows.session, rows.shared.keys, stream, now_ms)
    return stream
