"""Users: who is gone is gone with all that was kept of them."""

from __future__ import annotations

from collections.abc import Callable

from voicemem.memories import Memories
from voicemem.store.base import Journal, StreamFilter

PAGE = 200
"""Sessions that are looked for at a time."""


async def erase_user(journal: Journal, memories: Memories, project: str, user_id: str, clock: Callable[[], int]) -> int:
    """Erase a user's document and all sessions that have this `user_id` in their configuration; how many these are.

    Returns when nothing of them can be read any more. Raises `StoreUnavailable`.
    """
    count = 0
    wanted = StreamFilter(project=project, user_id=user_id, limit=PAGE)
    while sessions := await journal.streams(wanted):
        for session in sessions:
            await journal.erase(session.key, clock())
            memories.forget(session.key)
        count += len(sessions)
    stream = await journal.user(project, user_id)
    if stream is not None:
        await journal.erase(stream.key, clock())
        memories.forget(stream.key)
    return count
