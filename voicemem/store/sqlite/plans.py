"""What is to become of a session after its end: the rows of `retention`, inside the writer's transaction."""

from __future__ import annotations

import apsw

from voicemem import config
from voicemem.admission import Stream


def plan(connection: apsw.Connection, stream: Stream) -> None:
    """When the journal of a session that has just ended is compacted, and when the session is erased."""
    settings = config.read(stream.config)
    ended = stream.ended_ms or 0
    expires = None if settings.ttl_seconds is None else ended + int(settings.ttl_seconds * 1000)
    connection.execute(
        "insert or replace into retention (stream, compact_ms, expires_ms) values (?, ?, ?)",
        (stream.key, ended + int(settings.reopen_window * 1000), expires),
    )


def call_off(connection: apsw.Connection, stream: Stream) -> None:
    """It runs again."""
    connection.execute("delete from retention where stream = ?", (stream.key,))


def is_erased(connection: apsw.Connection, key: int) -> bool:
    """Whether nothing of a session may be read, whatever is still there."""
    return bool(connection.execute("select 1 from streams where key = ? and state = 'erased'", (key,)).fetchall())
