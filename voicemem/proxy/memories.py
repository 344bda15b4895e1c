"""The memories of the proxy's calls, and a memory client for each key in use."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from voicemem.client import Client, ClientError, Options
from voicemem.client.options import Room
from voicemem.dialects.dialect import Dialect, Frame
from voicemem.dialects.registry import DIALECTS
from voicemem.integrations.tee.memory import CallMemory, CopiedMessage, FrameQueue, ReducedMessage, Times
from voicemem.proxy.requests import OUR_CREDENTIAL, CallRequest
from voicemem.proxy.settings import Settings
from voicemem.redaction.texts import redact_value, rules_of

LOG = logging.getLogger("voicemem.proxy")
VENDOR_CALLS = frozenset({"conversation-relay", "retell", "ultravox"})
"""Dialects whose vendor connects to the app, so that the app is the upstream."""
LAST_S = 10.0
"""How long a stopping proxy still delivers the memories of calls that are over."""


class CredentialStrippingQueue(FrameQueue):
    """Takes the messages of a call, and forwards them without the caller's credentials."""

    def __init__(
        self,
        credentials: Iterable[str],
        dialect: Dialect,
        keep_typed: bool,
        forward: Callable[[ReducedMessage], object],
    ) -> None:
        super().__init__(dialect, keep_typed, forward)
        longest_first = sorted(credentials, key=len, reverse=True)
        secret = re.compile("|".join((*map(re.escape, longest_first), OUR_CREDENTIAL.pattern)))
        self.rules = rules_of((), [lambda text: (match.span() for match in secret.finditer(text))])

    def reduce(self, message: CopiedMessage) -> Frame | None:
        frame = super().reduce(message)
        return None if frame is None else frame._replace(content=redact_value(frame.content, self.rules))


@dataclass
class SharedClient:
    """A client, and how many calls use it."""

    client: Client
    key: str | None
    users: int = 0


class Memories:
    """Creates the memory of each call, and releases it once it is delivered."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.room = Room(settings.buffer_bytes)
        self.options = Options(max_events=1_000_000, max_bytes=settings.buffer_bytes, room=self.room, leaves_gaps=True)
        self.clients: dict[str | None, SharedClient] = {}
        self.memories: set[CallMemory] = set()
        """The memories of running calls, and of calls that are not delivered yet."""
        self.gone: Counter[str] = Counter()
        """The frame counts of calls that are over, by result."""
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, request: CallRequest, key: str | None) -> CallMemory:
        """Create the memory of a new call. Raises `ValueError` for a malformed key."""
        dialect = request.upstream.dialect
        shared = self.clients.get(key)
        if shared is None or shared.client.error is not None:  # a key that was refused may be valid again
            client = Client(self.settings.ingest_url, self.settings.rest_url, key, options=self.options)
            shared = self.clients[key] = SharedClient(client, key)
        memory = CallMemory(
            shared.client,
            False,
            DIALECTS[dialect],
            request.session_id,
            side="vendor" if dialect in VENDOR_CALLS else "app",
            producer=dialect,
            config=None if request.user_id is None else {"user_id": request.user_id},
            queue_kind=partial(CredentialStrippingQueue, request.credentials),
            times=Times(linger_s=86_400.0),  # a memory may be away for a day
        )
        memory.on_left = partial(self.release, memory, shared)
        shared.users += 1
        self.memories.add(memory)
        return memory

    def release(self, memory: CallMemory, shared: SharedClient) -> None:
        """Forget a call whose delivery is over; close its client if no other call uses it."""
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
            LOG.warning("A call was not stored completely.")

    def counts(self) -> Counter[str]:
        """Return the counts of all frames so far by result: taken, ignored, unknown, malformed, dropped."""
        return sum((counts_of(memory) for memory in self.memories), start=+self.gone)

    async def close(self) -> None:
        """Deliver the rest, for a while. The sessions of running calls are not ended: they may continue."""
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
    return Counter({**memory.counts, "dropped": memory.dropped})
