"""Retell's signature of webhooks: `v=UNIX_MS,d=HEX`, HMAC-SHA256 of the body and the time with an API key."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

SIGNATURE = "x-retell-signature"
FORM = re.compile(r"v=([0-9]{1,15}),d=([0-9a-f]{64})")
TOLERANCE_MS = 5 * 60 * 1000
"""How old or new a signature may be, as in Retell's own SDK."""


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Whether a body was signed with this key within the last five minutes."""
    found = FORM.fullmatch(headers.get(SIGNATURE, ""))
    if found is None or not secret or abs(now - int(found[1])) > TOLERANCE_MS:
        return False
    expected = hmac.new(secret.encode(), body + found[1].encode(), hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, found[2])
