"""Callers' keys of the memory: its REST API says which are good, and is not asked again while calls wait."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict

from msgspec import Struct, ValidationError, convert

from voicemem.client.errors import ClientError, RequestRefused
from voicemem.client.options import Options
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.errors import Refused
from voicemem.proxy.requests import Wanted
from voicemem.proxy.settings import Settings

FRESH_S = 60.0
"""After this long, a key that is used is checked again, behind the call."""
MAX_KNOWN = 10_000
CHECK_S = 3.0
"""How long a call may wait for what the memory says about a key that is new."""
NEEDED = "Show a key of the memory: in the header X-Voicemem-Key{place}."
NOT_KNOWN = "The memory does not know this key, or has revoked it: send another one in X-Voicemem-Key{place}."
IN_PLACE = ", or in place of the vendor's, which the proxy adds"
NO_SCOPE = "The key must have the scope ingest or admin."
OPEN_MEMORY = (
    "The memory has no keys, so everybody who reaches this proxy could use it. Create a key, or listen on loopback, or"
    " start the proxy with --insecure."
)
AWAY = "The memory cannot be reached, and this key was not seen before, so the vendor's key cannot be used for it."


class Me(Struct, frozen=True):
    """What the memory says about a key."""

    scopes: tuple[str, ...]
    keys_required: bool


TOKEN = Me(("ingest",), True)
"""What a session token is good for."""


class KeyCheck:
    """Decides under which key a call is remembered, and whether it may be made."""

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

    async def key_for(self, wanted: Wanted) -> str | None:
        """The key of the memory for a call. Raises `Refused` where it may not be made.

        A caller without a key has the proxy's own, unless the port is open to the network. While the memory is away, a
        key that was good before is good, and a new one will do where the caller has a key of the vendor's own.
        """
        if wanted.key is None:
            if self.settings.needs_callers_key:
                raise Refused("unauthorized", NEEDED.format(place=IN_PLACE if wanted.upstream.key else ""))
            return self.settings.key
        digest = hashlib.sha256(wanted.key.encode()).digest()
        if digest not in self.known:
            await self.ask(wanted, digest, must_know=wanted.upstream.key is not None)
        elif time.monotonic() - self.known[digest] > FRESH_S:
            self.known[digest] = time.monotonic()
            check = asyncio.create_task(self.check_again(wanted, digest))
            self.checks.add(check)
            check.add_done_callback(self.checks.discard)
        return wanted.key

    async def ask(self, wanted: Wanted, digest: bytes, must_know: bool) -> None:
        """Ask the memory about a key. Raises `Refused`."""
        me: Me | None = None
        try:
            me = await self.read(wanted)
        except RequestRefused as refused:
            if refused.status in (401, 403, 404):
                place = IN_PLACE if wanted.upstream.key else ""
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
            raise Refused("forbidden", NO_SCOPE)
        self.remember(digest)

    async def read(self, wanted: Wanted) -> Me:
        """What the memory says about a key, or about the session of a token, which must be there."""
        path = session_path(wanted.session_id or "") if wanted.is_token else "/v1/me"
        headers = {"Authorization": f"Bearer {wanted.key}"}
        answer = await self.rest.request("GET", path, timeout_s=CHECK_S, headers=headers)
        return TOKEN if wanted.is_token else convert(answer, Me)

    def remember(self, digest: bytes) -> None:
        self.known[digest] = time.monotonic()
        self.known.move_to_end(digest)
        if len(self.known) > MAX_KNOWN:
            self.known.popitem(last=False)

    async def check_again(self, wanted: Wanted, digest: bytes) -> None:
        """Forget a key that is good no more."""
        try:
            await self.ask(wanted, digest, must_know=False)
        except Refused:
            self.known.pop(digest, None)
