"""Who sent a webhook of Vapi's: by the secret itself, or by a signature over the body."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping

from voicemem.dialects.vapi.messages import ms

SECRETS = "x-vapi-secret", "authorization"
"""Where Vapi puts the token of a credential, as it is or behind `Bearer`."""
BEARER = re.compile("^Bearer +", re.IGNORECASE)
SIGNATURES = "x-vapi-signature", "x-signature"
TIMESTAMPS = "x-vapi-timestamp", "x-timestamp"
TOLERANCE_MS = 5 * 60 * 1000
"""How old or new a signature with a time may be."""
NEWEST_S = 100_000_000_000
"""Larger times are ms."""
MAX_TIMESTAMP = 40


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Whether a webhook carries the secret, or a signature with it: HMAC-SHA256 in hex, of the body or `TIME.BODY`."""
    if not secret:
        return False
    given = [BEARER.sub("", headers[name]) for name in SECRETS if name in headers]
    if any(hmac.compare_digest(secret.encode(), one.encode()) for one in given):
        return True
    timestamp = next((headers[name] for name in TIMESTAMPS if name in headers), None)
    if timestamp is not None and not is_now(timestamp, now):
        return False
    signed = [*signed_forms(body, secret, timestamp)]
    stated = [headers[name].removeprefix("sha256=") for name in SIGNATURES if name in headers]
    return any(hmac.compare_digest(one.encode(), form) for one in stated for form in signed)


def is_now(timestamp: str, now: int) -> bool:
    """Whether a time (Unix seconds or ms, or ISO 8601) is about now."""
    if len(timestamp) > MAX_TIMESTAMP:
        return False
    number = int(timestamp) if timestamp.isascii() and timestamp.isdecimal() else None
    at = ms(timestamp) if number is None else number if number >= NEWEST_S else number * 1000
    return at is not None and abs(now - at) <= TOLERANCE_MS


def signed_forms(body: bytes, secret: str, timestamp: str | None) -> Iterator[bytes]:
    """What a signature may be; with a time only over both, since the time alone could be changed."""
    payload = body if timestamp is None else timestamp.encode() + b"." + body
    yield hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest().encode()
