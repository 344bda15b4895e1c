"""When ended sessions are compacted and expire, as rows of the table `retention`."""

from __future__ import annotations

from voicemem.config.session import parse_config
from voicemem.store.postgresql.connection import Session
from voicemem.store.streams import Stream

PLAN_RETENTION = """
    insert into retention (bucket, stream, compact_ms, expires_ms) values ($1 % 64, $1, $2, $3)
    on conflict (bucket, stream) do update set compact_ms = excluded.compact_ms, expires_ms = excluded.expires_ms,
    erased_ms = null, node = null, leased_until_ms = 0
"""


def schedule_retention(session: Session, stream: Stream) -> None:
    """Note when the journal of a session that has just ended is to be compacted, and when the session expires."""
    settings = parse_config(stream.config)
    ended = stream.ended_ms or 0
    expires = None if settings.ttl_seconds is None else ended + int(settings.ttl_seconds * 1000)
    session.execute(PLAN_RETENTION, (stream.key, ended + int(settings.reopen_window * 1000), expires))
