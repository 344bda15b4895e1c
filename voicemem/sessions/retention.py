"""Retention: erases expired sessions, deletes the content of erased ones, compacts ended journals (docs/storage.md).

All of it happens while calls are running, so it is done in small steps with pauses between them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from voicemem.runtime import NodeIdentity
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.port import Store
from voicemem.store.session_filters import SessionFilter

LOG = logging.getLogger("voicemem")
T = TypeVar("T")
SESSIONS_PER_ROUND = 50
LEASE_MS = 60_000
"""How long a claim lasts. Work that takes longer may be done twice, which does no harm."""
IDLE_PAUSE_S = 0.5
MIN_PAUSE_S = 0.01
MAX_PAUSE_S = 5.0
MAX_TABLES_S = 20.0
"""How long tables are cleared, while more sessions are being erased, before the file is cleared for all of them."""
PAUSE_FACTOR = 2
"""A pause is this many times as long as the step before it, so that the writer has most of its time for calls."""


@dataclass(eq=False)
class RetentionWorker:
    """Erases and compacts. `clock` returns Unix ms.

    `keep_memories` is called with the key of a session and the time before it is erased at the end of its
    `ttl_seconds`: it moves the memories to keep, and returns their number.
    """

    store: Store
    read_models: ReadModelCache
    clock: Callable[[], int]
    node: NodeIdentity = field(default_factory=NodeIdentity)
    keep_memories: Callable[[int, int], Awaitable[int]] | None = None

    async def expire(self) -> int:
        """Erase sessions whose `ttl_seconds` are over; return how many. Raises `StoreUnavailable`."""
        now = self.clock()
        keys = await self.store.retention.claim_expired(self.node.token, now, LEASE_MS, SESSIONS_PER_ROUND)
        count = kept = 0
        for key in keys:
            kept += await self.keep_memories(key, now) if self.keep_memories is not None else 0
            count += await run_paced(self.store.retention.expire(key, now))
        if count:
            LOG.info("%d sessions were erased at the end of their ttl_seconds", count)
        if kept:
            LOG.info("%d memories of theirs stay with their users", kept)
        return count

    async def purge_erased(self) -> int:
        """Purge erased sessions, then their traces in the file; return how many. Raises `StoreUnavailable`."""
        time, claim = asyncio.get_running_loop().time, self.store.retention.claim_erased
        count, latest = 0, time() + MAX_TABLES_S
        while time() < latest and (keys := await claim(self.node.token, self.clock(), LEASE_MS, SESSIONS_PER_ROUND)):
            for key in keys:
                self.read_models.discard(key)
            left: Sequence[int] = keys
            while left := await run_paced(self.store.retention.delete_erased(left)):
                pass
            count += len(keys)
        while not await run_paced(self.store.retention.finish_erased()):
            pass
        if count:
            LOG.info("The content of %d erased sessions was deleted", count)
        return count

    async def erase_all(self) -> None:
        """Erase expired sessions, and delete the content of erased ones, until none is left."""
        while await self.expire() + await self.purge_erased():
            pass

    async def compact_all(self) -> None:
        while await self.compact():
            pass

    async def compact(self) -> int:
        """Compact the journals of ended sessions; return how many. Raises `StoreUnavailable`."""
        count, now = 0, self.clock()
        for key in await self.store.compaction.claim_compactable(self.node.token, now, LEASE_MS, SESSIONS_PER_ROUND):
            steps = 0
            while await run_paced(self.store.compaction.compact(key)):
                steps += 1
            count += bool(steps)
        if count:
            LOG.info("%d journals were compacted", count)
        return count


async def run_paced(step: Awaitable[T]) -> T:
    """Run a step, pause in proportion to its time, and return its result."""
    time = asyncio.get_running_loop().time
    begun = time()
    answer = await step
    await asyncio.sleep(min(MAX_PAUSE_S, max(MIN_PAUSE_S, PAUSE_FACTOR * (time() - begun))))
    return answer


ERASE_PAGE = 20
"""Sessions listed at a time: each may have a configuration of 256 KiB."""


async def erase_user(
    store: Store, read_models: ReadModelCache, project: str, user_id: str, clock: Callable[[], int]
) -> int:
    """Erase a user's document, link, and all sessions with this `user_id`, and no other, in their configuration.

    Return the number of these sessions, once nothing of them can be read any more. Raises `StoreUnavailable`.
    """

    async def erase(key: int) -> None:
        await store.retention.erase(key, clock())
        read_models.discard(key)

    count = 0
    await store.users.mark_erased(project, user_id, clock())
    session_filter = SessionFilter(project=project, user_id=user_id, of_id_alone=True, limit=ERASE_PAGE)
    while sessions := await store.journal.list_sessions(session_filter):
        for session in sessions:
            await erase(session.key)
        count += len(sessions)
    stream = await store.journal.find_user(project, user_id)
    if stream is not None:
        await erase(stream.key)
    return count
