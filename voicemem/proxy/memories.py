"""The memory service as the proxy uses it: which keys of callers are good, and a client for each key in use."""

import asyncio
import hashlib
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Literal

from msgspec import Struct, ValidationError, convert

from voicemem.client import Client, ClientError, Options, RequestRefused
from voicemem.client.options import Room
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.dialects.dialect import Dialect, Frame
from voicemem.dialects.registry import DIALECTS
from voicemem.errors import Refused
from voicemem.integrations.tee.memory import CallMemory, CrossingMessage, FrameQueue, ReducedCrossing, Times
from voicemem.proxy.requests import OUR_CREDENTIAL, CallRequest
from voicemem.proxy.settings import Settings
from voicemem.redaction.texts import redact_value, rules_of
from voicemem.security.rate_limits import TOO_MANY_WRONG_KEYS

LOG = logging.getLogger("voicemem.proxy")
FRESH_S = 3.0
"""After this long, the memory is asked again before a key makes another call: one that was revoked soon makes none."""
ASK_S, ASK_AGAIN_S = 3.0, 1.0
"""How long a call waits for what the memory says about its key; the latter where that was good before."""
NEEDED = "Show a key of the memory: in the header X-Voicemem-Key{place}."
NOT_KNOWN = "The memory does not know this key, or has revoked it: send another one in X-Voicemem-Key{place}."
IN_PLACE = ", or in place of the vendor's, which the proxy adds"
OPEN_MEMORY = (
    "The memory has no keys, so everyone who reaches this proxy could use it. Create a key, or listen on loopback, or"
    " start the proxy with --insecure."
)
AWAY = "The memory cannot be reached, and this key was not seen lately, so the vendor's key cannot be used for it."
VENDOR_CALLS = frozenset({"conversation-relay", "retell", "ultravox"})
"""Dialects whose vendor connects to the app: there the upstream is the app."""
LAST_S = 10.0
"""How long the memories of calls that are over may still be delivered when the proxy ends."""


class Me(Struct, frozen=True):
    """The answer of `GET /v1/me` about a key."""

    scopes: tuple[str, ...]
    keys_required: bool


Answer = Literal["good", "busy", "unknown", "no scope", "open", "away"]
"""The memory's word about a key: `busy`, it knows it, but it has sent too much; `open`, it needs none; `away`, none."""


class KeyCheck:
    """Decides under which key a call is remembered, and whether it may be made."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rest = RestClient(settings.rest_url, None, Options())
        self.known: OrderedDict[bytes, float] = OrderedDict()
        """The time at which the memory last knew a key, by its hash; the one that it knew last is the last."""
        self.asking: dict[bytes, asyncio.Task[Answer]] = {}
        self.away_s = -FRESH_S
        """The time at which the memory was last away."""

    async def close(self) -> None:
        for asking in self.asking.values():
            asking.cancel()
        await self.rest.close()

    async def key_for(self, request: CallRequest) -> str | None:
        """The key of the memory for a call. Raises `Refused` where it may not be made.

        A caller without a key has the proxy's own, unless the port is open to the network; without either, the
        operator's key of the vendor is only for a memory without keys. While the memory is away, a key that was good a
        while ago is good, and any will do where the caller has a key of the vendor's own.
        """
        place = IN_PLACE if request.upstream.key else ""
        if request.key is None:
            if self.settings.needs_callers_key:
                raise Refused("unauthorized", NEEDED.format(place=place))
            if self.settings.key is not None or request.upstream.key is None:
                return self.settings.key
        if request.expires_s is not None and request.expires_s <= time.time():
            raise Refused("token_expired")
        match await self.judge(request):
            case "unknown":
                raise Refused("unauthorized", (NOT_KNOWN if request.key else NEEDED).format(place=place))
            case "no scope":
                raise Refused("forbidden", "The key must have the scope ingest or admin.")
            case "open":
                raise Refused("forbidden", OPEN_MEMORY)
            case "away" if request.upstream.key is not None:
                raise Refused("store_unavailable", AWAY)
        return request.key

    async def judge(self, request: CallRequest) -> Answer:
        """Return what is known of a key, or else what the memory says about it now."""
        digest = hashlib.sha256(str(request.key).encode()).digest()
        known_s, now = self.known.get(digest), time.monotonic()
        if known_s is None or now - max(known_s, self.away_s) >= FRESH_S:
            answer = await self.ask_once(request, digest, ASK_S if known_s is None else ASK_AGAIN_S)
            now = time.monotonic()
            if answer == "good" or (answer == "busy" and known_s is not None):
                known_s = self.known[digest] = now
                self.known.move_to_end(digest)
                if len(self.known) > 10_000:
                    self.known.popitem(last=False)
            elif answer == "away":
                self.away_s = now
            elif answer != "busy":
                self.known.pop(digest, None)
                return answer
        is_good = known_s is not None and now - known_s <= max(FRESH_S, self.settings.key_grace)
        return "good" if is_good else "away"

    async def ask_once(self, request: CallRequest, digest: bytes, timeout_s: float) -> Answer:
        """Ask the memory about a key, once for all calls that wait for the answer."""
        asking = self.asking.get(digest)
        if asking is None:
            asking = self.asking[digest] = asyncio.create_task(self.ask(request, timeout_s))
            asking.add_done_callback(lambda _: self.asking.pop(digest, None))
        return await asyncio.shield(asking)

    async def ask(self, request: CallRequest, timeout_s: float) -> Answer:
        """Ask the memory about a key, or about the session of a token, which must exist."""
        is_token = request.expires_s is not None
        path = session_path(request.session_id or "") if is_token else "/v1/me"
        headers = {} if request.key is None else {"Authorization": f"Bearer {request.key}"}
        try:
            answer = await self.rest.request("GET", path, timeout_s=timeout_s, headers=headers)
            me = Me(("ingest",), True) if is_token else convert(answer, Me)
        except RequestRefused as refused:
            if refused.status in (401, 403, 404) or refused.detail == TOO_MANY_WRONG_KEYS:
                return "unknown"
            return "busy" if refused.status == HTTPStatus.TOO_MANY_REQUESTS else "away"
        except (ClientError, ValidationError):
            return "away"
        if not me.keys_required and self.settings.needs_callers_key:
            return "open"
        return "no scope" if me.keys_required and not {"ingest", "admin"} & {*me.scopes} else "good"


class DiscreetQueue(FrameQueue):
    """Takes the messages of a call, and forwards them without what its caller shows as credentials."""

    def __init__(
        self,
        credentials: Iterable[str],
        dialect: Dialect,
        keep_typed: bool,
        forward: Callable[[ReducedCrossing], object],
    ) -> None:
        super().__init__(dialect, keep_typed, forward)
        longest_first = sorted(credentials, key=len, reverse=True)
        secret = re.compile("|".join((*map(re.escape, longest_first), OUR_CREDENTIAL.pattern)))
        self.rules = rules_of((), [lambda text: (match.span() for match in secret.finditer(text))])

    def reduce(self, crossing: CrossingMessage) -> Frame | None:
        frame = super().reduce(crossing)
        return None if frame is None else frame._replace(content=redact_value(frame.content, self.rules))


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
        """The memories of calls that last, and of calls that are not delivered yet."""
        self.gone: Counter[str] = Counter()
        """Numbers of the frames of the calls that are over, by result."""
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, request: CallRequest, key: str | None) -> CallMemory:
        """The memory of a new call. Raises `ValueError` for a key that cannot be one."""
        dialect = request.upstream.dialect
        shared = self.clients.get(key)
        if shared is None or shared.client.error is not None:  # one that was refused may be welcome again
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
            queue_kind=partial(DiscreetQueue, request.credentials),
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
