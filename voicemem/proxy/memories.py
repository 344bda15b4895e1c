"""The memory service as the proxy uses it: which keys of callers are good, and a client for each key in use."""

import asyncio
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import partial

from msgspec import Struct, ValidationError, convert

from voicemem.client import Client, ClientError, Options, RequestRefused
from voicemem.client.options import Room
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.dialects.registry import DIALECTS
from voicemem.errors import Refused
from voicemem.integrations.tee.memory import CallMemory, Times
from voicemem.proxy.requests import CallRequest
from voicemem.proxy.settings import Settings

LOG = logging.getLogger("voicemem.proxy")
FRESH_S = 60.0
"""After this long, a key that is used is checked again, behind the call."""
NEEDED = "Show a key of the memory: in the header X-Voicemem-Key{place}."
NOT_KNOWN = "The memory does not know this key, or has revoked it: send another one in X-Voicemem-Key{place}."
IN_PLACE = ", or in place of the vendor's, which the proxy adds"
OPEN_MEMORY = (
    "The memory has no keys, so everyone who reaches this proxy could use it. Create a key, or listen on loopback, or"
    " start the proxy with --insecure."
)
AWAY = "The memory cannot be reached, and this key was not seen before, so the vendor's key cannot be used for it."
VENDOR_CALLS = frozenset({"conversation-relay", "retell", "ultravox"})
"""Dialects whose vendor connects to the app: there the upstream is the app."""
LAST_S = 10.0
"""How long the memories of calls that are over may still be delivered when the proxy ends."""


class Me(Struct, frozen=True):
    """The answer of `GET /v1/me` about a key."""

    scopes: tuple[str, ...]
    keys_required: bool


class KeyCheck:
    """Decides under which key a call is remembered, and whether it may be made.

    A key that was good is not checked again while a call waits.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rest = RestClient(settings.rest_url, None, Options())
        self.known: OrderedDict[bytes, float] = OrderedDict()
        """When a key was last found to be good, by its hash; one that was used last is the last."""
        self.checks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for check in self.checks:
            check.cancel()
        await self.rest.close()

    async def key_for(self, request: CallRequest) -> str | None:
        """The key of the memory for a call. Raises `Refused` where it may not be made.

        A caller without a key has the proxy's own, unless the port is open to the network. While the memory is away, a
        key that was good before is good, and a new one will do where the caller has a key of the vendor's own.
        """
        if request.key is None:
            if self.settings.needs_callers_key:
                raise Refused("unauthorized", NEEDED.format(place=IN_PLACE if request.upstream.key else ""))
            return self.settings.key
        digest = hashlib.sha256(request.key.encode()).digest()
        if digest not in self.known:
            await self.ask(request, digest, must_know=request.upstream.key is not None)
        elif time.monotonic() - self.known[digest] > FRESH_S:
            self.known[digest] = time.monotonic()
            check = asyncio.create_task(self.check_again(request, digest))
            self.checks.add(check)
            check.add_done_callback(self.checks.discard)
        return request.key

    async def ask(self, request: CallRequest, digest: bytes, must_know: bool) -> None:
        """Ask the memory about a key, or about the session of a token, which must exist. Raises `Refused`."""
        me: Me | None = None
        path = session_path(request.session_id or "") if request.is_token else "/v1/me"
        headers = {"Authorization": f"Bearer {request.key}"}
        try:
            answer = await self.rest.request("GET", path, timeout_s=3.0, headers=headers)
            me = Me(("ingest",), True) if request.is_token else convert(answer, Me)
        except RequestRefused as refused:
            if refused.status in (401, 403, 404):
                place = IN_PLACE if request.upstream.key else ""
                raise Refused("unauthorized", NOT_KNOWN.format(place=place)) from None
        except (ClientError, ValidationError):
            pass
        if me is None:
            if must_know:
                raise Refused("store_unavailable", AWAY)
            return
        if not me.keys_required and self.settings.needs_callers_key:
            raise Refused("forbidden", OPEN_MEMORY)
        if me.keys_required and not {"ingest", "admin"} & {*me.scopes}:
            raise Refused("forbidden", "The key must have the scope ingest or admin.")
        self.known[digest] = time.monotonic()
        self.known.move_to_end(digest)
        if len(self.known) > 10_000:
            self.known.popitem(last=False)

    async def check_again(self, request: CallRequest, digest: bytes) -> None:
        try:
            await self.ask(request, digest, must_know=False)
        except Refused:
            self.known.pop(digest, None)


@dataclass
class SharedClient:
    """A client, and how many calls use it."""

    client: Client
    key: str | None
    users: int = 0


class Memories:
    """Creates the memory of each call, and releases it once all of it is delivered."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.room = Room(settings.buffer_bytes)
        self.options = Options(max_events=1_000_000, max_bytes=settings.buffer_bytes, room=self.room, leaves_gaps=True)
        self.clients: dict[str | None, SharedClient] = {}
        self.memories: set[CallMemory] = set()
        """Those of calls that last, and of calls that are not delivered yet."""
        self.gone: Counter[str] = Counter()
        """Numbers of the frames of the calls that are over, by result."""
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, dialect: str, session_id: str | None, key: str | None) -> CallMemory:
        """The memory of a new call. Raises `ValueError` for a key that cannot be one."""
        shared = self.clients.get(key)
        if shared is None or shared.client.error is not None:  # one that was refused may be welcome again
            client = Client(self.settings.ingest_url, self.settings.rest_url, key, options=self.options)
            shared = self.clients[key] = SharedClient(client, key)
        memory = CallMemory(
            shared.client,
            False,
            DIALECTS[dialect],
            session_id,
            side="vendor" if dialect in VENDOR_CALLS else "app",
            producer=dialect,
            times=Times(linger_s=86_400.0),  # a memory may be away for a day
        )
        memory.on_left = partial(self.release, memory, shared)
        shared.users += 1
        self.memories.add(memory)
        return memory

    def release(self, memory: CallMemory, shared: SharedClient) -> None:
        """Forget a call that was delivered as far as it will be; close its client if no other call uses it."""
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
        """Return the numbers of all frames so far by result: taken, ignored, unknown, malformed, dropped."""
        return sum((counts_of(memory) for memory in self.memories), start=+self.gone)

    async def close(self) -> None:
        """Deliver what is left, for a while. Sessions of calls that still last are not ended: they may continue."""
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
