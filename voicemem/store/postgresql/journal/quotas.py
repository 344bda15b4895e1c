"""Quotas of projects and keys, checked in the transaction of what they bound.

Whoever begins a session that a quota counts waits for those of the same project, or key, that have begun one and not
committed it yet: so no two get the last, on whichever nodes. Without a quota nobody waits.
"""

from __future__ import annotations

from voicemem.errors import QuotaExceeded
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.turns import take_turn
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.journal.stored_bytes import refuse_full
from voicemem.store.records import Quotas

DAY_MS = 86_400_000
IS_OWN = "project = $1 and kind = 'session'"
COUNT_OPEN = f"select count(*) from (select 1 from streams where {IS_OWN} and state = 'running' limit $2) c"
COUNT_SINCE = f"select count(*) from (select 1 from streams where {IS_OWN} and started_ms >= $2 limit $3) c"
COUNT_OPEN_OF_KEY = "select count(*) from (select 1 from streams where key_id = $1 and state = 'running' limit $2) c"
COUNT_SINCE_OF_KEY = "select count(*) from (select 1 from streams where key_id = $1 and started_ms >= $2 limit $3) c"
"""All read an index only, and no more of it than the quota."""
SELECT_QUOTAS_OF_KEY = "select open_sessions, sessions_per_day from keys where id = $1"
SAVE_KEY_ID = "update streams set key_id = $1 where key = $2"


def check_quotas(rows: Rows, project: str, key_id: str | None, now_ms: int) -> bool:
    """Raise `QuotaExceeded` if the project, or the key, may not begin another session now; a refusal is counted.

    Returns whether the session counts for the key, so that `note_key` is to be called.
    """
    quotas = rows.shared.quotas
    try:
        refuse_full(rows.session, rows.shared.stored_bytes, project, quotas.stored_bytes)
        check_sessions(rows.session, quotas, "project", project, COUNT_OPEN, COUNT_SINCE, now_ms)
        own = None if key_id is None else rows.session.row(SELECT_QUOTAS_OF_KEY, (key_id,))
        if own is None or not any(own):
            return False
        counted = COUNT_OPEN_OF_KEY, COUNT_SINCE_OF_KEY
        check_sessions(rows.session, Quotas(*own), "key", str(key_id), *counted, now_ms)
    except QuotaExceeded as exceeded:
        rows.count_refusal(exceeded.quota)
        raise
    return True


def note_key(session: Session, stream: int, key_id: str | None) -> None:
    """Count a new session for the key that began it."""
    session.execute(SAVE_KEY_ID, (key_id, stream))


def check_sessions(
    session: Session, quotas: Quotas, whose: str, name: str, count_open: str, count_since: str, now_ms: int
) -> None:
    if quotas.open or quotas.per_day:
        take_turn(session, f"sessions of {whose} {name}")
    if quotas.open and session.one(count_open, (name, quotas.open)) >= (quotas.open,):
        raise QuotaExceeded(
            "open_sessions", f"The {whose} may have {quotas.open} open sessions (open_sessions); end one first."
        )
    midnight_ms = now_ms - now_ms % DAY_MS
    if quotas.per_day and session.one(count_since, (name, midnight_ms, quotas.per_day)) >= (quotas.per_day,):
        raise QuotaExceeded(
            "sessions_per_day",
            f"The {whose} may begin {quotas.per_day} sessions a day (sessions_per_day), from midnight UTC on.",
            (midnight_ms + DAY_MS - now_ms) / 1000,
        )
