"""Changes to sessions, over the rows of a transaction (`StreamRows`), so that all engines decide alike.

Appends of events are in `batch_append`; the rules that need no rows are in `streams`.
"""

from hashlib import sha256

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import QuotaExceeded, Refused
from voicemem.protocol.types import JsonObject
from voicemem.store.endpoints import save_session_endpoint
from voicemem.store.outbox import enqueue_close, enqueue_start
from voicemem.store.records import Quotas, RestoredSession
from voicemem.store.runs import group_runs
from voicemem.store.stream_rows import StreamRows
from voicemem.store.streams import (
    IN_OVERVIEW,
    NAME_TAKEN,
    SESSION_KIND,
    ProducerState,
    SessionEnding,
    Stream,
    is_expected,
    retention_times,
)

DAY_MS = 86_400_000
SELECT_PRODUCER_NAMES = "select name from producers where stream = :stream"
SELECT_PRODUCERS_NOT_ENDED = f"{SELECT_PRODUCER_NAMES} and not ended"
COUNT_SESSIONS = "select count(*) from ( select 1 from streams where {whose} and {which} limit :most ) c"
"""Reads an index only, and no more of it than the quota."""
IS_OWN, IS_OF_KEY = "project = :name and kind = 'session'", "key_id = :name and key_id is not null"
SELECT_QUOTAS_OF_KEY = "select open_sessions, sessions_per_day from keys where id = :id"
SAVE_KEY_ID = "update streams set key_id = :key_id where key = :key"
SELECT_IS_NAME_TAKEN = f"""
    select 1 from streams where project = :project and md5(name) = md5(:name) and state = 'running'
    and name is not null and kind = '{SESSION_KIND}' limit 1
"""
COPY_SECRETS = "insert into secrets select cast(:key as bigint), name, value from secrets where stream = :source"
DELETE_FROM_SECRETS = "delete from secrets where stream = :stream and name = :name"
INSERT_INTO_SECRETS = "insert into secrets (stream, name, value) values (:stream, :name, :value)"
PLAN_RETENTION = """
    insert into retention (stream, compact_ms, expires_ms) values (:stream, :compact_ms, :expires_ms)
    on conflict (stream) do update set compact_ms = excluded.compact_ms, expires_ms = excluded.expires_ms,
    erased_ms = null, node = null, leased_until_ms = 0
"""
DELETE_PLAN = "delete from retention where stream = :stream"


def new_stream(project: str, kind: str, name: str, config: JsonObject, now_ms: int) -> Stream:
    """A stream that starts now; it gets its key when it is added."""
    silent_since_ms = now_ms if kind == SESSION_KIND else None
    return Stream(0, project, kind, name, "running", 0, now_ms, None, None, config, silent_since_ms, None, None, None)


def create_session(
    rows: StreamRows,
    project: str,
    session_id: str,
    session_patch: SessionPatch,
    now_ms: int,
    key_id: str | None,
    takes_name: bool = False,
) -> Stream:
    """Create an empty session. Raises `Refused` (`session_exists`) if its name is taken, and `QuotaExceeded`."""
    stream = new_stream(project, SESSION_KIND, session_id, apply_patch({}, session_patch.public), now_ms)
    if takes_name:
        refuse_taken_name(rows, stream)
    is_counted = check_quotas(rows, project, key_id, now_ms)
    rows.add_stream(stream)
    if is_counted:
        rows.connection.execute(SAVE_KEY_ID, key_id=key_id, key=stream.key)
    save_secrets(rows, stream, session_patch, now_ms)
    enqueue_start(rows.connection, stream, now_ms)
    return stream


def refuse_taken_name(rows: StreamRows, stream: Stream) -> None:
    """Raise `Refused` if a running session of the project has the name of this one."""
    project, name = stream.project, stream.config.get("name")
    if name is not None:
        rows.connection.lock(f"name {sha256(name.encode()).hexdigest()} {project}")
        if rows.connection.row(SELECT_IS_NAME_TAKEN, project=project, name=name) is not None:
            raise Refused("session_exists", NAME_TAKEN)


def restore_session(
    rows: StreamRows,
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
    source = None if restored.secrets_of is None else find(rows, restored.secrets_of)
    is_counted = check_quotas(rows, project, key_id, now_ms)
    stream = new_stream(project, SESSION_KIND, session_id, apply_patch({}, session_patch.public), now_ms)
    stream.started_ms, stream.position = restored.started_ms, len(restored.rows)
    if restored.ended_ms is not None:
        stream.state, stream.silent_since_ms = "ended", None
        stream.ended_ms, stream.reason, stream.provisional = restored.ended_ms, restored.reason, restored.provisional
    elif restored.ending is not None:
        stream.ending_ms, (stream.ending_ts, stream.ending_reason, _) = now_ms, restored.ending
    rows.add_stream(stream)
    if is_counted:
        rows.connection.execute(SAVE_KEY_ID, key_id=key_id, key=stream.key)
    if source is not None:
        rows.connection.execute(COPY_SECRETS, key=stream.key, source=source.key)
    save_secrets(rows, stream, session_patch, now_ms)
    for run in group_runs(stream.key, restored.rows):
        rows.add_run(run)
    for producer in restored.producers:
        rows.save_producer(stream.key, producer)
    if stream.state == "ended":
        plan_retention(rows, stream)
    else:
        enqueue_start(rows.connection, stream, now_ms)
    return stream


def check_quotas(rows: StreamRows, project: str, key_id: str | None, now_ms: int) -> bool:
    """Raise `QuotaExceeded` if the project, or the key, may not begin another session now; a refusal is counted.

    Checked in the transaction of what they bound: two callers cannot both get the last. Returns whether the session
    counts for the key.
    """
    quotas = rows.quotas
    try:
        if quotas.stored_bytes and rows.is_full(project):
            raise QuotaExceeded(
                "stored_bytes",
                f"The project may store {quotas.stored_bytes} bytes (stored_bytes); erase sessions, or let them"
                " expire.",
            )
        check_sessions(rows, quotas, "project", project, now_ms)
        own = None if key_id is None else rows.connection.row(SELECT_QUOTAS_OF_KEY, id=key_id)
        if own is None or not any(own):
            return False
        check_sessions(rows, Quotas(*own), "key", str(key_id), now_ms)
    except QuotaExceeded as exceeded:
        rows.count_quota_refusal(exceeded.quota)
        raise
    return True


def check_sessions(rows: StreamRows, quotas: Quotas, whose: str, name: str, now_ms: int) -> None:
    """Raise `QuotaExceeded` if a project or a key may not begin another session now."""
    midnight_ms = now_ms - now_ms % DAY_MS

    def has(which: str, most: int) -> bool:
        query = COUNT_SESSIONS.format(whose=IS_OWN if whose == "project" else IS_OF_KEY, which=which)
        return bool(rows.connection.one(query, name=name, most=most, since=midnight_ms)[0] >= most)

    if quotas.open or quotas.per_day:
        rows.connection.lock(f"sessions of {whose} {name}")
    if quotas.open and has("state = 'running'", quotas.open):
        raise QuotaExceeded(
            "open_sessions", f"The {whose} may have {quotas.open} open sessions (open_sessions); end one first."
        )
    if quotas.per_day and has("started_ms >= :since", quotas.per_day):
        raise QuotaExceeded(
            "sessions_per_day",
            f"The {whose} may begin {quotas.per_day} sessions a day (sessions_per_day), from midnight UTC on.",
            (midnight_ms + DAY_MS - now_ms) / 1000,
        )


def save_secrets(rows: StreamRows, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
    """Store the secrets of a patch, and bring the session's own endpoint in line with its configuration."""
    for name, value in session_patch.secrets.items():
        rows.connection.execute(DELETE_FROM_SECRETS, stream=stream.key, name=name)
        if value is not None:
            rows.connection.execute(INSERT_INTO_SECRETS, stream=stream.key, name=name, value=value)
    if "webhook" in session_patch.public or "webhook.secret" in session_patch.secrets:
        save_session_endpoint(rows.connection, stream, now_ms)


def plan_retention(rows: StreamRows, stream: Stream) -> None:
    """Note when the journal of a session that has just ended is to be compacted, and when the session expires."""
    compact_ms, expires_ms = retention_times(stream)
    rows.connection.execute(PLAN_RETENTION, stream=stream.key, compact_ms=compact_ms, expires_ms=expires_ms)


# Sessions that are there


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def find(rows: StreamRows, key: int) -> Stream:
    """A stream that is not erased. Raises `Refused` (`unknown_session`)."""
    stream = rows.stream(key)
    if stream is None or stream.state == "erased":
        raise Refused("unknown_session")
    return stream


def apply_session_patch(rows: StreamRows, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
    """Merge a patch into the configuration. Raises `Refused`, before anything is written."""
    stream.config = apply_patch(stream.config, session_patch.public)
    if not IN_OVERVIEW.isdisjoint(session_patch.public):
        rows.save_overview(stream)
    save_secrets(rows, stream, session_patch, now_ms)


def declare_gap(rows: StreamRows, stream: Stream, producer: ProducerState, from_seq: int, now_ms: int) -> None:
    """Journal which seqs a producer can no longer send. The caller saves both rows."""
    gap = {"type": "session.gap", "producer": producer.name, "from_seq": producer.next_seq, "to_seq": from_seq - 1}
    rows.append_server_event(stream, now_ms, gap)
    producer.next_seq = from_seq


def reopen(rows: StreamRows, stream: Stream, now_ms: int) -> None:
    """Undo an idle close. The caller saves the stream's row."""
    rows.append_server_event(stream, now_ms, {"type": "session.reopened", "ts": now_ms})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "running", None, None, False
    stream.silent_since_ms = now_ms
    rows.connection.execute(DELETE_PLAN, stream=stream.key)
    enqueue_start(rows.connection, stream, now_ms)


def close(
    rows: StreamRows, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool = False
) -> Stream | None:
    """Close a running session with an ending, or else with the committed one if nothing more is expected."""
    stream = rows.stream(key)
    if stream is None or stream.state != "running" or (if_silent and stream.silent_since_ms is None):
        return None
    if ending is None:
        ending = stream.ending
        names = () if ending is None else rows.connection.rows(SELECT_PRODUCERS_NOT_ENDED, stream=key)
        if ending is None or any(is_expected(rows.producer(key, name), now_ms) for (name,) in names):
            return None
    event = {"type": "session.closed", "ts": ending.ts, "reason": ending.reason}
    rows.append_server_event(stream, now_ms, event)
    stream.state, stream.ended_ms = "ended", now_ms
    stream.reason, stream.provisional = ending.reason, ending.provisional
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    rows.save_stream(stream)
    for (name,) in rows.connection.rows(SELECT_PRODUCER_NAMES, stream=key):  # the journal is archived later
        rows.save_producer(key, rows.producer(key, name))
    plan_retention(rows, stream)
    enqueue_close(rows.connection, stream, notice_id, now_ms)
    return stream
