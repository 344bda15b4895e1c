"""The check of a caller's key by the memory service, whose answer is cached for a few seconds."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from http import HTTPStatus
from typing import Literal

from msgspec import Struct, ValidationError, convert

from voicemem.client import ClientError, Options, RequestRefused
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.errors import Refused
from voicemem.proxy.requests import CallRequest
from voicemem.proxy.settings import Settings
from voicemem.security.rate_limits import TOO_MANY_WRONG_KEYS

FRESH_S = 3.0
"""After this long, the memory is asked about a key again, so a revoked key soon makes no more calls."""
ASK_S, ASK_AGAIN_S = 3.0, 1.0
"""How long a call waits for the memory's answer about its key; the latter for a key that was good before."""
NEEDED = "Send a key of the memory in the header X-Voicemem-Key{place}."
NOT_KNOWN = "The memory does not know this key, or has revoked it: send another one in X-Voicemem-Key{place}."
IN_PLACE = ", or in place of the vendor's, which the proxy adds"
OPEN_MEMORY = (
    "The memory has no keys, so everyone who reaches this proxy could use it. Create a key, or listen on loopback, or"
    " start the proxy with --insecure."
)
AWAY = "The memory cannot be reached, and this key was not seen lately, so the vendor's key cannot be used for it."


class Me(Struct, frozen=True):
    """The answer of `GET /v1/me` about a key."""

    scopes: tuple[str, ...]
    keys_required: bool


Answer = Literal["good", "busy", "unknown", "no scope", "open", "away"]
"""The memory's answer about a key. `busy`: a known key over its rate; `open`: no keys are needed; `away`: no answer."""


class KeyCheck:
    """Decides whether a call may be made, and under which key it is recorded."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rest = RestClient(settings.rest_url, None, Options())
        self.known: OrderedDict[bytes, float] = OrderedDict()
        """The time at which the memory last knew a key, by the key's hash; the most recent is last."""
        self.asking: dict[bytes, asyncio.Task[Answer]] = {}
        self.away_s = -FRESH_S
        """The time at which the memory was last unavailable."""

    async def close(self) -> None:
        for asking in self.asking.values():
            asking.cancel()
        await self.rest.close()

    async def key_for(self, request: CallRequest) -> str | None:
        """Return the memory key for a call. Raises `Refused` if the call may not be made.

        A caller without a key uses the proxy's own, unless the port is open to the network; without either, the
        operator's vendor key serves only a memory without keys. While the memory is away, a key that was recently good
        is accepted, and any key if the caller brings a vendor key of its own.
        """
        place = IN_PLACE if request.upstream.key else ""
        if request.key is None:
            if self.settings.needs_callers_key:
                raise Refused("unauthorized", NEEDED.format(place=place))
            if self.settings.key is not None or request.upstream.key is None:
                return self.settings.key
        if request.expires_s is not None and request.expires_s <= time.time():
            raise Refused("token_expired")
        match await self.check(request):
            case "unknown":
                raise Refused("unauthorized", (NOT_KNOWN if request.key else NEEDED).format(place=place))
            case "no scope":
                raise Refused("forbidden", "The key must have the scope ingest or admin.")
            case "open":
                raise Refused("forbidden", OPEN_MEMORY)
            case "away" if request.upstream.key is not None:
                raise Refused("store_unavailable", AWAY)
        return request.key

    async def check(self, request: CallRequest) -> Answer:
        """Return the answer about a key: a recent one, or else the memory's now."""
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
        """Ask the memory about a key, or about a token's session, which must exist."""
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
