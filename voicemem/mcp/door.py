"""Who may come in over HTTP: the service says whether it knows the key, and answers for what it opens."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from voicemem.client.errors import ClientError, RequestRefused
from voicemem.mcp.caller import Caller, Service, caller_with
from voicemem.mcp.sentences import sentence_of

KNOWN_S = 10.0
"""How long a key counts as known. The service checks it again with each request for a tool."""
MAX_KNOWN = 1_000
ANY_SESSION = ("/v1/sessions", {"limit": "1", "fields": "overview"})


class Refusal(NamedTuple):
    """Why a request gets no answer; `error` is the code of RFC 6750."""

    status: int
    error: str
    sentence: str


NO_KEY = Refusal(401, "invalid_token", "Send a key or a session token of voicemem as Authorization: Bearer KEY.")
OTHER_SCHEME = Refusal(401, "invalid_request", "The header Authorization must be Bearer KEY.")
OPEN_SERVICE = Refusal(
    403,
    "access_denied",
    "The memory service has no keys, so everybody who reaches this address could read everything. Create a key, or "
    "listen on loopback, or allow it with --insecure.",
)


class Door:
    """Decides who may come in. `is_private` says that only this machine reaches the address, or that all may."""

    def __init__(self, service: Service, is_private: bool, clock_s: Callable[[], float]) -> None:
        self.service = service
        self.is_private = is_private
        self.clock_s = clock_s
        self.known: OrderedDict[bytes, float] = OrderedDict()
        self.needs_key = False
        """Whether the service was seen to ask for keys; once it does, it always will."""

    async def refuse(self, authorization: str | None) -> Refusal | None:
        """Why the caller with this header may not come in; None if he may.

        While the service is away everybody may: the tools then say so, and the lists are no secret.
        """
        bearer = None
        if authorization is not None:
            scheme, _, bearer = authorization.partition(" ")
            bearer = bearer.strip()
            if scheme.lower() != "bearer" or not bearer:
                return OTHER_SCHEME
        if not self.is_private and not self.needs_key and await self.refusal_of(Caller(self.service)) is None:
            return OPEN_SERVICE
        digest = hashlib.sha256((bearer or "").encode("utf-8", "replace")).digest()
        if self.known.get(digest, 0.0) > self.clock_s():
            return None
        try:
            refusal = await self.refusal_of(caller_with(self.service, bearer))
        except ClientError as error:
            return Refusal(401, "invalid_token", sentence_of(error))
        if refusal is None:
            self.known[digest] = self.clock_s() + KNOWN_S
            if len(self.known) > MAX_KNOWN:
                self.known.popitem(last=False)
        return refusal

    async def refusal_of(self, caller: Caller) -> Refusal | None:
        """What the service says about a caller."""
        path, query = ANY_SESSION if caller.session_id is None else (f"/v1/sessions/{caller.session_id}", {})
        try:
            await caller.get(path, query)
        except RequestRefused as refused:
            if refused.status == 401:
                self.needs_key = True
                return NO_KEY if caller.bearer is None else Refusal(401, "invalid_token", sentence_of(refused))
            if refused.status == 429:
                return Refusal(429, "slow_down", sentence_of(refused))
        except ClientError:
            pass
        return None
