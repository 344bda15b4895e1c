"""Memories that are kept longer than their call (`memories_ttl_seconds`): when it expires, they go on with its user.

A memory leaves the journal of the session and stands in that of the user in one step, so it is always in one of them.
Where it comes from stays as it was, with a note that this can no longer be read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
from msgspec import structs

from voicemem.config.session import parse_config
from voicemem.errors import StoreUnavailable
from voicemem.memory.long_term.memory import added_event, changed_row, details_of
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.store.port import Store
from voicemem.store.ports.memories import MAX_ROWS, MemoryRow
from voicemem.store.streams import Stream


class MemoryKeeper:
    """Lets memories go on with their user, just before their session is erased because its `ttl_seconds` are over."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def keep(self, key: int, now_ms: int) -> int:
        """Move the memories of a session that are to be kept; how many. Raises `StoreUnavailable`.

        Those of a session without a user go with it: nobody could ask for their erasure.
        """
        count, after = 0, ""
        while rows := await self.store.list_memories_of(key, after, MAX_ROWS):
            session = await self.find_session(rows[0])
            expires_ms = None if session is None else keep_until(session)
            if session is None or expires_ms is None or expires_ms <= now_ms:
                break
            count += await self.move(session, rows, expires_ms, now_ms)
            after = rows[-1].id
        return count

    async def find_session(self, row: MemoryRow) -> Stream | None:
        """The session in whose journal a memory stands; None once it is erased."""
        found = await self.store.find_sessions(row.project, [row.key])
        return found[0] if found and found[0].state != "erased" else None

    async def move(self, session: Stream, rows: Sequence[MemoryRow], expires_ms: int, now_ms: int) -> int:
        """Move some of them, again if they change meanwhile; how many have moved."""
        ids, moved = {row.id for row in rows}, 0
        for _ in range(MAX_APPEND_ATTEMPTS):
            by_user: defaultdict[str, list[MemoryRow]] = defaultdict(list)
            for row in rows:
                user_id = row.user_id or parse_config(session.config).user_id
                if user_id is not None and row.id in ids:
                    by_user[user_id].append(outlived(row, session, user_id, expires_ms))
            for user_id, of_user in by_user.items():
                payloads = [msgspec.json.encode(added_event(row, None)) for row in of_user]
                if await self.store.move_memories(session.key, user_id, payloads, of_user, now_ms):
                    moved += len(of_user)
                    ids -= {row.id for row in of_user}
            if not ids or not by_user or await self.find_session(rows[0]) is None:
                return moved
            rows = await self.store.find_memories(session.project, sorted(ids))
            rows = [row for row in rows if row.key == session.key and row.removed_ms is None]
        raise StoreUnavailable("Memories change faster than they can go on without their session.")


def keep_until(session: Stream) -> int | None:
    """Until when memories of a session are kept without it, Unix ms; None if they are not."""
    ttl_s = parse_config(session.config).memories_ttl_seconds
    return None if ttl_s is None or session.ended_ms is None else session.ended_ms + int(ttl_s * 1000)


def outlived(row: MemoryRow, session: Stream, user_id: str, expires_ms: int) -> MemoryRow:
    """The row of a memory whose session is gone; it ends with its time at the latest, also when it is pinned."""
    evidence = tuple(
        structs.replace(one, evidence="expired") if one.session_id == session.id else one
        for one in details_of(row).evidence
    )
    ends = expires_ms if row.expires_ms is None else min(row.expires_ms, expires_ms)
    return structs.replace(changed_row(row, {"evidence": evidence}), user_id=user_id, expires_ms=ends)
