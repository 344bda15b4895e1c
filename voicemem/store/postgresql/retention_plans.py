"""When ended sessions are compacted and expire, as rows of the table `retention`."""

from __future__ import annotations

from voicemem.store.postgresql.database.connection import Session
from voicemem.store.streams import Stream, retention_times

PLAN_RETENTION = """
    insert into retention (stream, compact_ms, expires_ms) values ($1, $2, $3)
    on conflict (stream) do update set compact_ms = excluded.compact_ms, expires_ms = excluded.expires_ms,
    erased_ms = null, node = null, leased_until_ms = 0
"""


def schedule_retention(session: Session, stream: Stream) -> None:
    """Note when the journal of a session that has just ended is to be compacted, and when the session expires."""
    session.execute(PLAN_RETENTION, (stream.key, *retention_times(stream)))
