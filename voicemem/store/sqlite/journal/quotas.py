"""Quotas of projects and keys, checked in the transaction of what they bound: two callers cannot both get the last."""

from __future__ import annotations

import apsw

from voicemem.errors import QuotaExceeded
from voicemem.store.records import Quotas
from voicemem.store.sqlite.journal.row_cache import RowCache
from voicemem.store.sqlite.journal.stored_bytes import is_full

DAY_MS = 86_400_000
IS_OWN = "project = ? and kind = 'session'"
COUNT_OPEN = f"select count(*) from (select 1 from streams where {IS_OWN} and state = 'running' limit ?)"
COUNT_SINCE = f"select count(*) from (select 1 from streams where {IS_OWN} and started_ms >= ? limit ?)"
IS_OF_KEY = "key_id = ? and key_id is not null"
COUNT_OPEN_OF_KEY = f"select count(*) from (select 1 from streams where {IS_OF_KEY} and state = 'running' limit ?)"
COUNT_SINCE_OF_KEY = f"select count(*) from (select 1 from streams where {IS_OF_KEY} and started_ms >= ? limit ?)"
"""All read an index only, and no more of it than the quota."""
SELECT_QUOTAS_OF_KEY = "select open_sessions, sessions_per_day from keys where id = ?"
SAVE_KEY_ID = "update streams set key_id = ? where key = ?"


def check_quotas(rows: RowCache, project: str, key_id: str | None, now_ms: int) -> bool:
    """As `check_all`, and a refusal is counted."""
    try:
        return check_all(rows.connection, rows.quotas, project, key_id, now_ms)
    except QuotaExceeded as exceeded:
        rows.count_quota_refusal(exceeded.quota)
        raise


def check_all(connection: apsw.Connection, quotas: Quotas, project: str, key_id: str | None, now_ms: int) -> bool:
    """Raise `QuotaExceeded` if the project, or the key, may not begin another session now.

    Returns whether the session counts for the key, so that `note_key` is to be called.
    """
    if quotas.stored_bytes and is_full(connection, project, quotas.stored_bytes):
        raise QuotaExceeded(
            "stored_bytes",
            f"The project may store {quotas.stored_bytes} bytes (stored_bytes); erase sessions, or let them expire.",
        )
    check_sessions(connection, quotas, "project", project, COUNT_OPEN, COUNT_SINCE, now_ms)
    own = None if key_id is None else connection.execute(SELECT_QUOTAS_OF_KEY, (key_id,)).fetchone()
    if own is None or not any(own):
        return False
    check_sessions(connection, Quotas(*own), "key", str(key_id), COUNT_OPEN_OF_KEY, COUNT_SINCE_OF_KEY, now_ms)
    return True


def note_key(connection: apsw.Connection, stream: int, key_id: str | None) -> None:
    """Count a new session for the key that began it."""
    connection.execute(SAVE_KEY_ID, (key_id, stream))


def check_sessions(
    connection: apsw.Connection,
    quotas: Quotas,
    whose: str,
    name: str,
    count_open: str,
    count_since: str,
    now_ms: int,
) -> None:
    if quotas.open and count(connection, count_open, name, quotas.open) >= quotas.open:
        raise QuotaExceeded(
            "open_sessions", f"The {whose} may have {quotas.open} open sessions (open_sessions); end one first."
        )
    midnight_ms = now_ms - now_ms % DAY_MS
    if quotas.per_day and count(connection, count_since, name, midnight_ms, quotas.per_day) >= quotas.per_day:
        raise QuotaExceeded(
            "sessions_per_day",
            f"The {whose} may begin {quotas.per_day} sessions a day (sessions_per_day), from midnight UTC on.",
            (midnight_ms + DAY_MS - now_ms) / 1000,
        )


def count(connection: apsw.Connection, query: str, *values: str | int) -> int:
    ((number,),) = connection.execute(query, values)
    return int(number)
