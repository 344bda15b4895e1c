"""The clients of the memory service: one for each key, for as long as calls use it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial

from voicemem.client import Client, ClientError, Options
from voicemem.client.room import Room
from voicemem.dialects.registry import DIALECTS
from voicemem.integrations.tee.memory import CallMemory
from voicemem.proxy.settings import Settings

LOG = logging.getLogger("voicemem.proxy")
VENDOR_CALLS = frozenset({"conversation-relay", "retell", "ultravox"})
"""Dialects whose vendor connects to the app: there the upstream is the app."""
MAX_FRAMES = 1_000_000
"""Of one call, that wait for the memory; their bytes are bounded for all calls."""
LINGER_S = 86_400.0
"""How long a call that is over waits for a memory that is away."""
LAST_S = 10.0
"""How long the memories of calls that are over may still be delivered when the proxy ends."""


class SharedClient:
    """A client, and how many calls use it."""

    def __init__(self, client: Client, key: str | None) -> None:
        self.client = client
        self.key = key
        self.users = 0


class Memories:
    """Makes the memory of each call, and lets it go once all of it is delivered."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.room = Room(settings.buffer_bytes)
        """For all calls together."""
        self.options = Options(max_events=MAX_FRAMES, max_bytes=settings.buffer_bytes, room=self.room, leaves_gaps=True)
        self.clients: dict[str | None, SharedClient] = {}
        self.memories: set[CallMemory] = set()
        """Those of calls that last, and of calls that are not delivered yet."""
        self.gone: Counter[str] = Counter()
        """What became of the frames of the calls that are over."""
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, dialect: str, session_id: str | None, key: str | None) -> CallMemory:
        """The memory of a new call. Raises `ValueError` for a key that cannot be one."""
        shared = self.shared_client(key)
        memory = CallMemory(
            shared.client,
            False,
            DIALECTS[dialect],
            session_id,
            side="vendor" if dialect in VENDOR_CALLS else "app",
            producer=dialect,
            config=None,
            keep_typed=True,
            ends=True,
        )
        memory.linger_s = LINGER_S
        memory.on_left = partial(self.let_go, memory, shared)
        shared.users += 1
        self.memories.add(memory)
        return memory

    def shared_client(self, key: str | None) -> SharedClient:
        shared = self.clients.get(key)
        if shared is None or shared.client.error is not None:  # one that was refused may be welcome again
            client = Client(self.settings.ingest_url, self.settings.rest_url, key, options=self.options)
            shared = self.clients[key] = SharedClient(client, key)
        return shared

    def let_go(self, memory: CallMemory, shared: SharedClient) -> None:
        """A call was delivered, as far as it will be; close a client that nobody uses."""
        self.memories.discard(memory)
        self.gone += counts_of(memory)
        shared.users -= 1
        if not shared.users:
            if self.clients.get(shared.key) is shared:
                del self.clients[shared.key]
            task = asyncio.ensure_future(shared.client.close(0))
            self.tasks.add(task)
            task.add_done_callback(self.closed)

    def closed(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), ClientError):
            LOG.warning("Not everything of a call is stored.")

    def counts(self) -> Counter[str]:
        """What became of all frames so far: taken, ignored, unknown, malformed, dropped."""
        return sum((counts_of(memory) for memory in self.memories), start=+self.gone)

    @property
    def buffered_bytes(self) -> int:
        """What the memory has not acknowledged."""
        return self.room.used

    async def close(self) -> None:
        """Deliver what is left, for a while. Sessions of calls that still last are not ended: they may go on."""
        over = [memory for memory in self.memories if memory.left_at is not None]
        cut = [memory for memory in self.memories if memory.left_at is None]
        for memory in cut:
            memory.queue.finish()
        await asyncio.gather(
            *(memory.aclose(timeout=LAST_S) for memory in over), *(memory.leave(LAST_S) for memory in cut)
        )
        if self.tasks:
            await asyncio.wait(self.tasks)


def counts_of(memory: CallMemory) -> Counter[str]:
    """What became of the frames of a call."""
    return Counter({**memory.counts, "dropped": memory.dropped})
