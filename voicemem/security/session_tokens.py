"""Session tokens: HS256 JWTs (RFC 7519) that give access to one session for a short time (docs/access.md).

A token names the session as `sub`, its expiry as `exp`, and in its header the key that signed it as `kid`. It is signed
with the SHA-256 of that key's secret, which only the holder of the key and the service have. So there is no further
secret to store, and revoking the key revokes its tokens.
"""

import math
from typing import Any

import jwt
import msgspec
from jwt.types import Options
from msgspec import Struct

from voicemem.errors import Refused
from voicemem.protocol.types import SessionId

ALGORITHM = "HS256"
MAX_TOKEN_S = 3600
CLOCK_SKEW_S = 60
"""How far the signer's clock may be ahead when a token has the longest lifetime."""
MAX_TOKEN_LENGTH = 2048
USER_MEMORIES = "user"
DECODE_OPTIONS: Options = {
    "require": ["exp", "sub"],
    "verify_exp": False,  # times are checked here, by the service's own clock
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
}


class Claims(Struct, frozen=True):
    """The claims of a token; other claims are ignored."""

    sub: SessionId
    exp: float
    nbf: float | None = None
    memories: Any = None
    """`user` lets the token also reach the memories of the session's user; anything else is ignored."""

    @property
    def reaches_user(self) -> bool:
        return bool(self.memories == USER_MEMORIES)


def looks_like_token(text: str) -> bool:
    return text.count(".") == 2


def signer_of(text: str) -> str:
    """Return the id of the key that a token claims to be signed with. Raises `Refused` (`unauthorized`)."""
    if len(text) > MAX_TOKEN_LENGTH:
        raise Refused("unauthorized", "The session token is not valid.")
    try:
        header = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, RecursionError):  # the header is untrusted input
        raise Refused("unauthorized", "The session token is not valid.") from None
    key_id = header.get("kid")
    if header.get("alg") != ALGORITHM or not isinstance(key_id, str):
        raise Refused("unauthorized", "A session token must be an HS256 JWT with a kid.")
    return key_id


def verify_token(text: str, secret: bytes, now_ms: int) -> Claims:
    """Verify a token: signed with this secret, and valid now. Raises `Refused` (`unauthorized`, `token_expired`)."""
    try:
        payload = jwt.decode(text, secret, [ALGORITHM], DECODE_OPTIONS)
        claims = msgspec.convert(payload, Claims)
    except jwt.MissingRequiredClaimError as missing:
        raise Refused("unauthorized", f"The session token has no {missing.claim}.") from None
    except (jwt.PyJWTError, msgspec.ValidationError, ValueError, RecursionError):
        raise Refused("unauthorized", "The session token is not valid.") from None
    if not all(map(math.isfinite, (claims.exp, claims.nbf or 0.0))):
        raise Refused("unauthorized", "The session token is not valid.")
    if claims.exp * 1000 <= now_ms:
        raise Refused("token_expired")
    if claims.exp * 1000 > now_ms + (MAX_TOKEN_S + CLOCK_SKEW_S) * 1000 or (claims.nbf or 0.0) * 1000 > now_ms:
        raise Refused("unauthorized", "A session token is valid from its nbf on, and for an hour at most.")
    return claims


def shown_claims(text: str) -> Claims | None:
    """Return a token's claims, unverified; None if the text does not have the form of a token."""
    if not looks_like_token(text) or len(text) > MAX_TOKEN_LENGTH:
        return None
    try:
        return msgspec.convert(jwt.decode(text, options={"verify_signature": False}), Claims)
    except (jwt.PyJWTError, msgspec.ValidationError, ValueError, RecursionError):
        return None


def sign_token(session_id: str, expires_s: int, key_id: str, secret: bytes, reaches_user: bool = False) -> str:
    claims = {"sub": session_id, "exp": expires_s} | ({"memories": USER_MEMORIES} if reaches_user else {})
    return jwt.encode(claims, secret, ALGORITHM, headers={"kid": key_id})
