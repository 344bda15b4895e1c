"""Who may do what: keys, their scopes and projects (design, section 10).

A key reads `vm_<id>_<secret>`. Only the SHA-256 of the secret is stored, which is enough for random secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from voicemem.errors import Refused
from voicemem.store.base import Directory, Key

SCOPES = ("ingest", "read", "admin")
DEFAULT_PROJECT = "default"
KEY = re.compile(r"vm_([0-9a-z]{12})_([0-9A-Za-z]{40})\Z", re.ASCII)
PROJECT = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
ADMIN_KEY_ID = "environment"
ASK_AGAIN_MS = 2
"""Every request asks whether there is a first key, which a command beside the server may have made just now."""


class Grant(Struct, frozen=True):
    """What a caller may do, and in which project."""

    project: str
    scopes: tuple[str, ...]
    key_id: str | None = None

    def allows(self, scope: str) -> bool:
        """`admin` includes the others."""
        return scope in self.scopes or "admin" in self.scopes

    def require(self, scope: str) -> None:
        """Raises `Refused` (`forbidden`)."""
        if not self.allows(scope):
            raise Refused("forbidden", f"The key does not have the scope {scope}.")


EVERYTHING = Grant(DEFAULT_PROJECT, SCOPES)
"""Without keys, for callers from loopback."""


class Access:
    """Keys of all projects. `new_secret(n)` gives n random letters and digits, `clock` Unix ms."""

    def __init__(
        self,
        directory: Directory,
        clock: Callable[[], int],
        new_secret: Callable[[int], str],
        admin_key: str | None = None,
    ) -> None:
        self.directory = directory
        self.clock = clock
        self.new_secret = new_secret
        self.seen_key = admin_key is not None
        """Whether a key was ever found, which no revoking undoes."""
        self.asked_ms = -ASK_AGAIN_MS
        """When the store last had no key, Unix ms."""
        self.admin_digest = None if admin_key is None else digest(admin_key)

    async def needed(self) -> bool:
        """Whether callers need a key: once there was one, also when all are revoked."""
        if not self.seen_key and abs(self.clock() - self.asked_ms) >= ASK_AGAIN_MS:
            self.asked_ms = self.clock()
            self.seen_key = await self.directory.has_keys()
        return self.seen_key

    async def grant(self, token: str | None) -> Grant:
        """What the holder of a key may do. Raises `Refused` (`unauthorized`)."""
        if not await self.needed():
            return EVERYTHING
        if token is None:
            raise Refused("unauthorized")
        if self.admin_digest is not None and hmac.compare_digest(digest(token), self.admin_digest):
            return Grant(DEFAULT_PROJECT, SCOPES, ADMIN_KEY_ID)
        match = KEY.match(token)
        key = await self.directory.key(match[1]) if match else None
        if match is None or key is None or key.revoked_ms is not None:
            raise Refused("unauthorized")
        if not hmac.compare_digest(digest(match[2]), key.hash):
            raise Refused("unauthorized")
        return Grant(key.project, key.scopes, key.id)

    async def create_key(self, project: str, name: str, scopes: Sequence[str]) -> tuple[Key, str]:
        """A new key, and its text, which is never to be had again. Raises `Refused` (`invalid_field`)."""
        if not PROJECT.match(project):
            raise Refused("invalid_field", "A project is 1 to 128 characters of A-Za-z0-9._:-.")
        if not scopes or any(scope not in SCOPES for scope in scopes):
            raise Refused("invalid_field", f"Scopes are {', '.join(SCOPES)}.")
        key_id, secret = self.new_secret(12).lower(), self.new_secret(40)
        key = Key(key_id, project, name, digest(secret), tuple(dict.fromkeys(scopes)), self.clock())
        await self.directory.add_key(key)
        self.seen_key = True
        return key, f"vm_{key_id}_{secret}"


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def token_of(authorization: str | None) -> str | None:
    """The key in an `Authorization: Bearer …` header. Raises `Refused` for another scheme."""
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused("unauthorized", "Send the key as Authorization: Bearer <key>.")
    return token.strip()
