"""The checks that both servers make of a request before anything else (docs/access.md)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from voicemem.config.service import is_loopback
from voicemem.errors import Refused
from voicemem.security.access import FULL_GRANT, Access, Grant, bearer_token
from voicemem.security.rate_limits import RateLimits

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?\Z")
GrantHolder = Callable[[str | None], Awaitable[Grant]]
"""What the holder of a key or token may do. Raises `Refused` (`unauthorized`, `token_expired`)."""
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(?::[0-9]{1,5})?\Z", re.ASCII | re.IGNORECASE)
"""An origin as browsers write it (RFC 6454, section 6.2); lenient parsers see loopback in `[::1].example.com`."""


class Gate:
    """Checks the origin, key and rate of callers. `open_to_all` is set by `--insecure`."""

    def __init__(
        self,
        access: Access,
        open_to_all: bool = False,
        limits: RateLimits | None = None,
        grant_holder: GrantHolder | None = None,
    ) -> None:
        """Without `limits`, only wrong keys are limited; without `grant_holder`, `access` grants."""
        self.access = access
        self.grant_holder = grant_holder or access.grant
        self.open_to_all = open_to_all
        self.limits = limits or RateLimits(access.clock, 0, 0)

    def granting(self, grant_holder: GrantHolder) -> Gate:
        """The same gate, with the same limits, for callers who may also show something else than keys."""
        return Gate(self.access, self.open_to_all, self.limits, grant_holder)

    async def check_origin(self, host: str | None, origin: str | None, ask_store: bool = True) -> bool:
        """Check the `Host` and `Origin` of a request, and return whether the caller needs a key.

        While there is no key, only loopback names are accepted: a web page from elsewhere must not reach the service
        through a browser on its machine, by its own origin or by a name that resolves to loopback (DNS rebinding).
        Without `ask_store` the last known answer about keys is used. Raises `Refused` (`foreign_host`,
        `foreign_origin`).
        """
        needed = await self.access.needs_key() if ask_store else self.access.has_seen_key
        if needed or self.open_to_all:
            return needed
        match = HOST.match(host or "")
        if match is None or not is_loopback(match[1]):
            raise Refused("foreign_host")
        if origin is not None and not is_loopback(origin_host(origin)):
            raise Refused("foreign_origin")
        return needed

    async def grant(self, authorization: str | None, needed: bool, address: str | None = None) -> Grant:
        """What the caller with this `Authorization` header may do; counts one request, or one wrong key of `address`.

        Raises `Refused` (`unauthorized`, `token_expired`), and `RateLimited`.
        """
        if not needed:
            return FULL_GRANT
        with self.counting_wrong_keys(authorization, address):
            grant = await self.grant_holder(bearer_token(authorization))
        self.limits.count_request(grant.caller)
        return grant

    async def grant_token(self, token: str | None, address: str | None) -> Grant:
        """What the holder of a key or token in a frame may do; counts one wrong key of `address`.

        Raises `Refused` (`unauthorized`, `token_expired`), and `RateLimited`.
        """
        with self.counting_wrong_keys(token, address):
            return await self.access.grant(token)

    @contextmanager
    def counting_wrong_keys(self, sent: str | None, address: str | None) -> Iterator[None]:
        """Count a key that turns out to be wrong in the block. Raises `RateLimited` instead of what the block does."""
        try:
            yield
        except Refused as refused:
            if sent is not None and refused.code == "unauthorized":
                self.limits.count_wrong_key(address)
            raise


def origin_host(origin: str) -> str:
    """The host of an `Origin` header; empty when it has none, such as `null`, and for anything that is no origin."""
    match = ORIGIN.match(origin)
    return match[1] if match else ""
