"""Delivery attempts: what they need, what their answer means, and when the next one is due (docs/webhook.md)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

from msgspec import Struct

from voicemem.backoff import spread

DAY_S = 86_400
RETRY_DELAYS_S = (0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, DAY_S)
"""Seconds between attempts: the first entry is the pause after the first failed attempt."""
MAX_ATTEMPTS = len(RETRY_DELAYS_S) + 1
JITTER = 0.2
"""A delay is moved by at most this share, either way."""
OVERLOAD_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that say that the receiver, or a proxy before it, is overloaded."""


class AttemptRequest(Struct, frozen=True):
    """One attempt to deliver one webhook event: all that a sender needs."""

    url: str
    secret: str | None
    public_only: bool
    """True for a URL that came through the API, False for one that the operator configured."""
    notice_id: str
    """The same for all attempts. It must not contain `.`, which separates the parts of the signed text."""
    event_type: int
    session_id: str
    body: bytes
    timestamp_s: int
    """Unix seconds of this attempt."""
    old_secret: str | None = None
    """Signs as well, while a receiver may still use the previous secret."""


class AttemptResult(Struct, frozen=True):
    """The result of one attempt. Either `status` or `error` is set; for a redirect both are."""

    status: int | None
    error: str | None
    """A stable short word: timeout, refused, reset, unreachable, dns, tls, address_not_allowed, redirect, invalid_url,
    bad_answer (not HTTP), error (anything else)."""
    retry_after: str | None
    """The Retry-After header as it came, even if it is invalid."""
    duration_ms: int
    excerpt: str
    """The first 256 bytes of the answer's body as text."""


Send = Callable[[AttemptRequest], Awaitable[AttemptResult]]
"""Makes one attempt; never raises for what the receiver does."""


def verdict(answer: AttemptResult) -> Literal["delivered", "retry", "gone"]:
    """What an answer means: 2xx is success, 410 asks for no more requests, anything else (also a redirect) may pass."""
    if answer.status is not None and 200 <= answer.status < 300:
        return "delivered"
    return "gone" if answer.status == 410 else "retry"


def next_delay_s(attempts_made: int, answer: AttemptResult, jitter: float, now_s: float | None = None) -> float | None:
    """Seconds until the next attempt, at most a day; None if no attempt is left.

    `jitter` is a random number in [0, 1). `now_s` (Unix seconds) is needed for a Retry-After that is a date.
    """
    if attempts_made < 1:
        return 0.0
    if attempts_made >= MAX_ATTEMPTS:
        return None
    scheduled = spread(RETRY_DELAYS_S[attempts_made - 1], jitter, 1 - JITTER, 1 + JITTER)
    overloaded = answer.status in OVERLOAD_STATUSES or answer.error == "timeout"
    earliest = _retry_after_s(answer.retry_after, now_s) or (RETRY_DELAYS_S[1] if overloaded else 0)
    # Never earlier than the receiver asks for; later by chance, so that not all sessions come back at one moment.
    return min(DAY_S, max(scheduled, earliest * (1 + JITTER * jitter)))


def _retry_after_s(value: str | None, now_s: float | None) -> float:
    """The seconds that a Retry-After header asks for, at most a day; 0 if it is missing, invalid, or in the past."""
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        return min(DAY_S, float(text))
    if now_s is None:
        return 0.0
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(DAY_S, max(0.0, date.timestamp() - now_s))
