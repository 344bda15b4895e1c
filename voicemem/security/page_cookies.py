"""The page's cookies: one for each project that a browser is signed in to (docs/page.md).

A cookie says `<key id>.<expiry>.<mac>`. The mac is made with a secret that is derived from the hash of the key, so that
no session token stands for a cookie, and no cookie for a token; it dies with the key, and needs no table.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from voicemem.errors import Refused
from voicemem.security.access import Access, Grant

LIFE_S = 12 * 3600
MOST = 8
"""Cookies that one browser may have."""
NAME, SECURE_NAME = "voicemem_ui_", "__Secure-voicemem_ui_"
VALUE = re.compile(r"([0-9a-z]{11,12})\.([0-9]{10,11})\.([0-9a-f]{64})\Z", re.ASCII)
PURPOSE = b"page"
PATH = "/ui"
NOT_SIGNED_IN = "Nobody is signed in to this project here; sign in with a key."
KEYS_ONLY = "A session token opens one session, and not the page; sign in with a key."
READ_NEEDED = "This key may only send events. To look at calls, sign in with one that has the scope read or admin."


class SignedIn(Struct, frozen=True):
    """A cookie that stands, and what its holder may do."""

    name: str
    number: int
    grant: Grant
    expires_s: int

    def is_half_over(self, now_s: int) -> bool:
        return self.expires_s - now_s < LIFE_S // 2


class PageCookies:
    """Makes and reads the cookies."""

    def __init__(self, access: Access) -> None:
        self.access = access

    async def make(self, grant: Grant) -> tuple[str, int]:
        """The value of a cookie for the holder of a key, and when it expires, Unix s. Raises `Refused`."""
        if grant.session_id is not None:
            raise Refused("forbidden", KEYS_ONLY)
        if not grant.allows("read"):
            raise Refused("forbidden", READ_NEEDED)
        assert grant.key_id is not None
        _, secret = await self.access.find_signer(grant.key_id)
        expires_s = self.access.clock() // 1000 + LIFE_S
        return f"{grant.key_id}.{expires_s}.{mac(secret, grant.key_id, expires_s)}", expires_s

    async def read(self, cookies: Mapping[str, str]) -> list[SignedIn]:
        """Those of a request's cookies that stand, in the order of their numbers; of a project the one that lasts."""
        found: dict[str, SignedIn] = {}
        for number in range(MOST):
            for name in (f"{SECURE_NAME}{number}", f"{NAME}{number}"):
                one = await self.verify(name, number, cookies[name]) if name in cookies else None
                if one is None:
                    continue
                known = found.setdefault(one.grant.project, one)
                if one.expires_s > known.expires_s:
                    found[one.grant.project] = one
        return list(found.values())

    async def verify(self, name: str, number: int, value: str) -> SignedIn | None:
        """What a cookie opens; None for one that is not ours, has expired, or whose key was revoked."""
        match, now_s = VALUE.match(value), self.access.clock() // 1000
        if match is None or not now_s < int(match[2]) <= now_s + LIFE_S:
            return None
        try:
            grant, secret = await self.access.find_signer(match[1])
        except Refused:
            return None
        expires_s = int(match[2])
        if not hmac.compare_digest(mac(secret, match[1], expires_s), match[3]) or not grant.allows("read"):
            return None
        return SignedIn(
            name, number, msgspec.structs.replace(grant, expires_ms=expires_s * 1000, via="page"), expires_s
        )


def mac(secret: bytes, key_id: str, expires_s: int) -> str:
    """What shows that a cookie was made here, by who has the hash of this key."""
    return hmac.digest(hmac.digest(secret, PURPOSE, "sha256"), f"{key_id}.{expires_s}".encode(), "sha256").hex()


def free_number(cookies: Mapping[str, str], signed_in: list[SignedIn], project: str) -> int:
    """The number of the cookie for a project: its own, else one that is not there yet, else one that does not stand.

    Others are left alone, since a service on another port of the host has its cookies in the same place.
    """
    own = [one.number for one in signed_in if one.grant.project == project]
    taken = {number for number in range(MOST) for name in (NAME, SECURE_NAME) if f"{name}{number}" in cookies}
    standing = {one.number for one in signed_in}
    unused = [number for number in range(MOST) if number not in taken]
    fallen = [number for number in range(MOST) if number not in standing]
    return (own + unused + fallen + [MOST - 1])[0]
