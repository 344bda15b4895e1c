"""API keys, the rights of their holders, and the checks that both servers make of each request (docs/access.md).

A key is `vm_<id>_<secret>`. Only the SHA-256 of the secret is stored, which is enough since secrets are random. That
hash also signs the key's session tokens (`voicemem.security.session_tokens`).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from voicemem.config.service import is_loopback
from voicemem.errors import Refused, StoreUnavailable
from voicemem.runtime import Runtime
from voicemem.security.rate_limits import Principal, RateLimits
from voicemem.security.session_tokens import looks_like_token, sign_token, signer_of, verify_token
from voicemem.store.directory import ApiKey, Directory, KeyLimits

SCOPES = ("ingest", "read", "admin")
ANY_SCOPE = "any"
"""The scope of a route that is open to every key."""
DEFAULT_PROJECT = "default"
KEY_PATTERN = re.compile(r"vm_([0-9a-z]{12})_([0-9A-Za-z]{40})\Z", re.ASCII)
KEY_ID_PATTERN = re.compile(r"[0-9a-z]{12}\Z", re.ASCII)
PROJECT_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
ADMIN_KEY_ID = "environment"
WRONG_KEY = "The key is unknown or was revoked; send another one as Authorization: Bearer KEY."
"""One sentence for both: a client must not learn which keys existed."""
SETS_NOTHING = "A session token cannot change the configuration."
NO_LIMITS = KeyLimits()
KEY_CACHE_MS = 1_000
"""How long a key that was looked up is cached where there are several nodes: one of them may let in a revoked key for
this long."""
ASK_AGAIN_MS = 20
"""How long the answer "there is no key" is cached.

While there is no key, every request checks for a first one, which another process may just have made. The command that
makes it takes longer than this to exit, so once it has exited, a key is required.
"""
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?\Z")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(?::[0-9]{1,5})?\Z", re.ASCII | re.IGNORECASE)
"""An origin as browsers write it (RFC 6454, section 6.2); lenient parsers see loopback in `[::1].example.com`."""


class Grant(Struct, frozen=True):
    """The rights of a client in one project."""

    project: str
    scopes: tuple[str, ...]
    key_id: str | None = None
    session_id: str | None = None
    """The one session that a token gives access to; None for a key, which gives access to its whole project."""
    expires_ms: int | None = None
    channel: str | None = None
    """The one channel whose agents an Agora token gives access to (`*`: all channels); None for keys."""
    limits: KeyLimits = KeyLimits()
    reaches_user: bool = False
    """True if a token also reaches what is remembered of its session's user."""
    via: str | None = None
    """`page` for someone who has signed in to the page with a key."""

    def allows(self, scope: str, session_id: str | None = None) -> bool:
        """Return whether the client has a scope; `admin` includes the others. A token is for its `session_id` only."""
        return self.session_id in (None, session_id) and self.has_scope(scope)

    def has_scope(self, scope: str) -> bool:
        return scope == ANY_SCOPE or scope in self.scopes or "admin" in self.scopes

    def require(self, scope: str, session_id: str | None = None) -> None:
        """Raise `Refused` (`forbidden`) unless the scope is allowed."""
        if not self.allows(scope, session_id):
            if self.session_id is None or not self.has_scope(scope):
                raise Refused("forbidden", f"The key does not have the scope {scope}.")
            if session_id is not None:
                raise Refused("forbidden", "The session token is for another session.")
            raise Refused("forbidden", "A session token cannot do this; use a key.")

    def require_setting(self) -> None:
        """Raise `Refused` (`forbidden`) for a session token, which may not change a configuration."""
        if self.session_id is not None:
            raise Refused("forbidden", SETS_NOTHING)

    def includes(self, other: Grant) -> bool:
        return (
            self.project == other.project
            and all(self.allows(scope, other.session_id) for scope in other.scopes)
            and self.session_id in (None, other.session_id)
        )

    @property
    def principal(self) -> Principal | None:
        """The client, as the rate limits count it; None when there are no keys, and so no limits."""
        return None if self.key_id is None else Principal(self.key_id, self.session_id, self.limits)


FULL_GRANT = Grant(DEFAULT_PROJECT, SCOPES)
"""The grant of every client while there is no key."""


class Access:
    """Grants access to the holders of keys and session tokens; creates and revokes both."""

    def __init__(
        self,
        directory: Directory,
        runtime: Runtime | None = None,
        admin_key: str | None = None,
        cache_ms: int = 0,
        key_command: str | None = None,
    ) -> None:
        """For `cache_ms` a key that was found is not looked up again, for stores that are a round trip away."""
        self.cache_ms = cache_ms
        self.key_command = key_command
        """The command that makes the first key, for messages."""
        self.cached_keys: dict[str, tuple[int, ApiKey]] = {}
        """By id: when a key was looked up (Unix ms), and the key."""
        runtime = runtime or Runtime()
        self.directory = directory
        self.clock = runtime.clock
        self.new_secret = runtime.new_secret
        self.has_seen_key = admin_key is not None
        """True if a key was ever found; revoking keys does not undo it."""
        self.checked_ms = -ASK_AGAIN_MS
        """When the store was last found to have no key, Unix ms."""
        self.admin_digest = None if admin_key is None else digest(admin_key)
        self.key_revoked = asyncio.Event()
        """Set when this process revokes a key; the task that closes its connections clears it."""

    async def needs_key(self) -> bool:
        """Return whether clients need a key: once there was one, even if all are revoked."""
        if self.must_look_for_keys():
            self.checked_ms = self.clock()
            self.has_seen_key = await self.directory.has_keys()
        return self.has_seen_key

    def must_look_for_keys(self) -> bool:
        """Return whether no key was seen, and it is time to look again."""
        return not self.has_seen_key and abs(self.clock() - self.checked_ms) >= max(ASK_AGAIN_MS, self.cache_ms)

    async def grant(self, token: str | None) -> Grant:
        """Return the grant of a key or session token. Raises `Refused` (`unauthorized`, `token_expired`)."""
        if not await self.needs_key():
            return FULL_GRANT
        if token is None:
            sentence = (
                "No key was sent; send one as Authorization: Bearer KEY, or over a websocket in a first auth frame."
            )
            raise Refused("unauthorized", sentence)
        if self.is_admin_key(token):
            return Grant(DEFAULT_PROJECT, SCOPES, ADMIN_KEY_ID)
        if looks_like_token(token):
            return await self.grant_session(token)
        match = KEY_PATTERN.match(token)
        key = await self.find_key(match[1]) if match else None
        if (
            match is None
            or key is None
            or key.revoked_ms is not None
            or not hmac.compare_digest(digest(match[2]), key.hash)
        ):
            raise Refused("unauthorized", WRONG_KEY)
        return Grant(key.project, key.scopes, key.id, limits=key.limits)

    async def find_key(self, key_id: str) -> ApiKey | None:
        """Return a key as it is now, or was up to `cache_ms` ago; None when the id is unknown."""
        found_ms, key = self.cached_keys.get(key_id, (0, None))
        now = self.clock()
        if key is not None and abs(now - found_ms) < self.cache_ms:
            return key
        key = await self.directory.find_key(key_id)
        if self.cache_ms and key is not None:
            self.cached_keys[key_id] = now, key
        return key

    def is_admin_key(self, text: str) -> bool:
        return self.admin_digest is not None and hmac.compare_digest(digest(text), self.admin_digest)

    async def grant_session(self, text: str) -> Grant:
        """Return the grant of a session token. Raises `Refused` (`unauthorized`, `token_expired`)."""
        signer, secret = await self.find_signer(signer_of(text))
        claims = verify_token(text, secret, self.clock())
        scopes, until = tuple(scope for scope in ("ingest", "read") if signer.allows(scope)), int(claims.exp * 1000)
        return replace(signer, scopes=scopes, session_id=claims.sub, expires_ms=until, reaches_user=claims.reaches_user)

    async def find_signer(self, key_id: str) -> tuple[Grant, bytes]:
        """Return the grant of a key that signs tokens, and its signing secret. Raises `Refused` (`unauthorized`)."""
        if key_id == ADMIN_KEY_ID and self.admin_digest is not None:
            # A person chose this key, so it may be weak. If its hash alone signed tokens, the holder of one could
            # search for the key offline; the store's secret, which no client knows, prevents that.
            secret = hmac.digest(self.directory.cursor_secret, self.admin_digest, "sha256")
            return Grant(DEFAULT_PROJECT, SCOPES, ADMIN_KEY_ID), secret
        key = await self.find_key(key_id) if KEY_ID_PATTERN.match(key_id) else None
        if key is None or key.revoked_ms is not None:
            raise Refused("unauthorized", "The key that signed the session token is unknown or was revoked.")
        return Grant(key.project, key.scopes, key.id, limits=key.limits), key.hash

    def key_of(self, grant: Grant) -> str:
        """Return the id of a grant's key. Raises `Refused` (`no_keys`) where there are no keys."""
        if grant.key_id is None:
            how = self.key_command or "the setting admin-key"
            raise Refused("no_keys", f"There are no keys yet; the first one comes from {how}.")
        return grant.key_id

    async def create_token(
        self, grant: Grant, session_id: str, ttl_s: int, reaches_user: bool = False
    ) -> tuple[str, int]:
        """Return a session token, signed with the grant's key, and when it expires. Raises `Refused` (`no_keys`)."""
        key_id = self.key_of(grant)
        _, secret = await self.find_signer(key_id)
        expires_s = self.clock() // 1000 + ttl_s
        return sign_token(session_id, expires_s, key_id, secret, reaches_user), expires_s * 1000

    async def ended_grants(self, grants: Sequence[Grant]) -> dict[Grant, Refused]:
        """Return the grants of open connections that are no longer valid, each with the reason."""
        now, expired, keys = self.clock(), {}, set[str]()
        for grant in grants:
            if grant.expires_ms is not None and grant.expires_ms <= now:
                expired[grant] = Refused("token_expired")
            elif grant.key_id is not None and grant.key_id != ADMIN_KEY_ID:
                keys.add(grant.key_id)
        revoked: Collection[str] = ()
        if keys:
            with suppress(StoreUnavailable):  # the next check is soon
                revoked = await self.directory.revoked_keys(keys)
        gone = Refused("unauthorized", "The key was revoked.")
        return {grant: gone for grant in grants if grant.key_id in revoked} | expired

    async def list_keys(self, project: str) -> list[ApiKey]:
        """Return the keys of a project, revoked ones included, the oldest first."""
        return [key for key in await self.directory.list_keys() if key.project == project]

    async def revoke_key(self, project: str, key_id: str) -> None:
        """Revoke a key. Raises `Refused` (`unknown_key`) when the project has no active key with this id."""
        key = await self.directory.find_key(key_id)
        if key is None or key.project != project or not await self.directory.revoke_key(key_id, self.clock()):
            raise Refused("unknown_key")
        self.cached_keys.pop(key_id, None)
        self.key_revoked.set()

    async def change_limits(self, project: str, key_id: str, changes: Mapping[str, int]) -> ApiKey:
        """Change some limits of an active key of the project; return the key. Raises `Refused` (`unknown_key`)."""
        key = await self.directory.find_key(key_id)
        if key is None or key.project != project:
            raise Refused("unknown_key")
        limits = key.limits._replace(**changes)
        if not await self.directory.set_key_limits(key_id, limits):
            raise Refused("unknown_key")
        self.cached_keys.pop(key_id, None)
        return replace(key, limits=limits)

    async def create_key(
        self, project: str, name: str, scopes: Sequence[str], limits: KeyLimits = NO_LIMITS
    ) -> tuple[ApiKey, str]:
        """Create a key; return it and its text, which cannot be read again. Raises `Refused` (`invalid_field`)."""
        check_project(project)
        check_scopes(scopes)
        key_id, secret = self.new_secret(12).lower(), self.new_secret(40)
        key = ApiKey(key_id, project, name, digest(secret), tuple(dict.fromkeys(scopes)), self.clock(), limits=limits)
        await self.directory.add_key(key)
        self.has_seen_key = True
        return key, f"vm_{key_id}_{secret}"


def check_project(project: str) -> None:
    """Raise `Refused` (`invalid_field`) for an invalid project name."""
    if not PROJECT_PATTERN.match(project):
        raise Refused("invalid_field", "A project must be 1 to 128 of the characters A-Za-z0-9._:-.")


def check_scopes(scopes: Sequence[str]) -> None:
    """Raise `Refused` (`invalid_field`) if a scope is unknown, or if there is none."""
    if not scopes or any(scope not in SCOPES for scope in scopes):
        raise Refused("invalid_field", f"Scopes must be one or more of {', '.join(SCOPES)}.")


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def bearer_token(authorization: str | None) -> str | None:
    """Return the key in an `Authorization: Bearer …` header. Raises `Refused` (`unauthorized`) for another scheme."""
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused(
            "unauthorized", "The header Authorization has another form. Send the key as Authorization: Bearer KEY."
        )
    return token.strip()


@lru_cache(64)
def check_local(host: str | None, origin: str | None) -> None:
    """Check that host and origin name this machine. Raises `Refused` (`foreign_host`, `foreign_origin`)."""
    match = HOST.match(host or "")
    if match is None or not is_loopback(match[1]):
        raise Refused("foreign_host")
    match = ORIGIN.match(origin or "")
    if origin is not None and (match is None or not is_loopback(match[1])):  # such as null
        raise Refused("foreign_origin")


GrantHolder = Callable[[str | None], Awaitable[Grant]]
"""Returns the grant of a key or token. Raises `Refused` (`unauthorized`, `token_expired`)."""


class Gate:
    """Checks the origin, key and rate of requests. `open_to_all` is set by `--insecure`."""

    def __init__(
        self,
        access: Access,
        open_to_all: bool = False,
        limits: RateLimits | None = None,
        grant_holder: GrantHolder | None = None,
    ) -> None:
        """Without `limits`, only wrong keys are limited; without `grant_holder`, `access` is asked."""
        self.access = access
        self.grant_holder = grant_holder or access.grant
        self.open_to_all = open_to_all
        self.limits = limits or RateLimits(access.clock, 0, 0)

    async def check_origin(self, host: str | None, origin: str | None, ask_store: bool = True) -> bool:
        """Check the `Host` and `Origin` of a request, and return whether the client needs a key.

        While there is no key, only loopback names are accepted: a web page from elsewhere must not reach the service
        through a browser on its machine, by its own origin or by a name that resolves to loopback (DNS rebinding).
        Without `ask_store` the last known answer about keys is used. Raises `Refused` (`foreign_host`,
        `foreign_origin`).
        """
        if ask_store and self.access.must_look_for_keys():
            await self.access.needs_key()
        needed = self.access.has_seen_key
        if not (needed or self.open_to_all):
            check_local(host, origin)
        return needed

    async def grant(self, authorization: str | None, needed: bool, address: str | None = None) -> Grant:
        """Return the grant of an `Authorization` header; count one request, or one wrong key from `address`.

        Raises `Refused` (`unauthorized`, `token_expired`), and `RateLimited`.
        """
        if not needed:
            return FULL_GRANT
        with self.counting_wrong_keys(authorization, address):
            grant = await self.grant_holder(bearer_token(authorization))
        self.limits.count_request(grant.principal)
        return grant

    async def grant_token(self, token: str | None, address: str | None) -> Grant:
        """Return the grant of a key or token in a frame; count a wrong key from `address`.

        Raises `Refused` (`unauthorized`, `token_expired`), and `RateLimited`.
        """
        with self.counting_wrong_keys(token, address):
            return await self.access.grant(token)

    @contextmanager
    def counting_wrong_keys(self, sent: str | None, address: str | None) -> Iterator[None]:
        """Count a key that the block finds wrong. Raises `RateLimited` in place of the block's error."""
        try:
            yield
        except Refused as refused:
            if sent is not None and refused.code == "unauthorized":
                self.limits.count_wrong_key(address)
            raise
