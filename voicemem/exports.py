"""A finished session on its way to a webhook: the body, its signatures, and when to try again (design, section 8).

The payload is made once per close and frozen; `envelope` puts the time of one attempt around it, `signature_headers`
signs exactly those bytes, a sender turns a `Shipment` into an `Answer`, and `verdict` and `next_delay_s` say what the
answer means. `verify` is the receiver's side.

Two signature schemes go out with every request: Agora's notification callbacks (HMAC over the body, in hex) and
Standard Webhooks 1.0.0 (HMAC over id, time and body, in base64).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import orjson
from msgspec import Struct

from voicemem.errors import Refused
from voicemem.messages import Message, ordered_metadata

PRODUCT_ID = 17
"""Agora's number for conversational agents; stands in every envelope."""

HISTORY_EVENT = 103
"""Event type of the history of a finished session."""

AGORA_SHA1 = "Agora-Signature"
AGORA_SHA256 = "Agora-Signature-V2"
WEBHOOK_ID = "webhook-id"
WEBHOOK_TIMESTAMP = "webhook-timestamp"
WEBHOOK_SIGNATURE = "webhook-signature"

DAY_S = 86_400
RETRY_DELAYS_S = (0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, DAY_S)
"""Seconds between attempts: the first entry is the pause after the first failed attempt."""

MAX_ATTEMPTS = len(RETRY_DELAYS_S) + 1

SPREAD = 0.2
"""Jitter: a delay is moved by at most this share, either way."""

OVERLOADED = frozenset({429, 502, 503, 504})
"""Statuses that say that the receiver, or the gateway before it, has too much to do."""


STANDARD_PREFIX = "whsec_"
"""So a secret of Standard Webhooks begins."""


class Shipment(Struct, frozen=True):
    """One attempt to deliver one notice: everything that a sender needs to know."""

    url: str
    secret: str | None
    public_only: bool
    """True for an address that came through the API, False for one that the operator gave."""
    notice_id: str
    """The same over all attempts. It is part of what is signed, where `.` separates: it must not hold one."""
    body: bytes
    timestamp_s: int
    """Unix seconds of this attempt."""
    old_secret: str | None = None
    """Signs as well, while a receiver may still hold the secret of before."""


class Answer(Struct, frozen=True):
    """What came of one attempt. Either `status` or `error` is set; for a redirect both are."""

    status: int | None
    error: str | None
    """A stable short word: timeout, refused, reset, unreachable, dns, tls, address_not_allowed, redirect, invalid_url,
    bad_answer (no HTTP), error (anything else)."""
    retry_after: str | None
    """The Retry-After header as it came, garbage included."""
    duration_ms: int
    excerpt: str
    """The first 256 bytes of the answer's body as text."""


def history_payload(
    *,
    session_id: str,
    name: str | None,
    channel: str | None,
    started_ms: int,
    stopped_ms: int,
    labels: Mapping[str, str] | None,
    contents: Sequence[Message],
    fields: Literal["full", "standard"],
) -> bytes:
    """The JSON of `payload` for a history notice. `standard` leaves only role and content in each of `contents`."""
    item = _full_item if fields == "full" else _standard_item
    return orjson.dumps(
        {
            "agent_id": session_id,
            "name": name or "",
            "channel": channel or "",
            "start_ts": started_ms // 1000,
            "stop_ts": stopped_ms // 1000,
            "labels": dict(labels or {}),
            "contents": [item(message) for message in contents],
        }
    )


def envelope(*, notice_id: str, event_type: int, notify_ms: int, session_id: str, payload: bytes) -> bytes:
    """The whole body around a frozen payload, whose bytes stand in it unchanged: only `notifyMs` differs by attempt."""
    return orjson.dumps(
        {
            "noticeId": notice_id,
            "productId": PRODUCT_ID,
            "eventType": event_type,
            "notifyMs": notify_ms,
            "sid": session_id,
            "payload": orjson.Fragment(payload),
        }
    )


def signature_headers(
    body: bytes, *, secret: str | None, notice_id: str, timestamp_s: int, old_secret: str | None = None
) -> dict[str, str]:
    """The headers that identify and sign one attempt; without a secret they only identify it.

    With an old secret Standard Webhooks' header holds both signatures; Agora's hold one, since receivers compare all
    of it.
    """
    headers = {WEBHOOK_ID: notice_id, WEBHOOK_TIMESTAMP: str(timestamp_s)}
    if secret:
        headers |= _signatures(body, secret, notice_id, str(timestamp_s))
    if secret and old_secret:
        old = _signatures(body, old_secret, notice_id, str(timestamp_s))
        headers[WEBHOOK_SIGNATURE] += f" {old[WEBHOOK_SIGNATURE]}"
    return headers


def verify(
    headers: Mapping[str, str], body: bytes, secret: str | None, now_s: float, tolerance_s: float = 300
) -> dict[str, bool]:
    """Which signatures a request carries rightly, by the headers' names: False where one is absent, wrong or too old.

    The age (`webhook-timestamp` against `now_s`) counts for the Standard Webhooks signature only: Agora signs no time.
    """
    given = {name.lower(): value for name, value in headers.items()}
    timestamp = given.get(WEBHOOK_TIMESTAMP, "")
    right = dict.fromkeys((AGORA_SHA1, AGORA_SHA256, WEBHOOK_SIGNATURE), False)
    if not secret:  # an empty key would let anyone sign
        return right
    for name, expected in _signatures(body, secret, given.get(WEBHOOK_ID, ""), timestamp).items():
        # A list of signatures, old and new, lets a secret be changed without a gap.
        right[name] = any(
            hmac.compare_digest(_octets(one), expected.encode()) for one in given.get(name.lower(), "").split()
        )
    right[WEBHOOK_SIGNATURE] &= _is_recent(timestamp, now_s, tolerance_s)
    return right


def verdict(answer: Answer) -> Literal["delivered", "retry", "gone"]:
    """What an answer means: 2xx is success, 410 asks never to call again, everything else (redirects too) may pass."""
    if answer.status is not None and 200 <= answer.status < 300:
        return "delivered"
    return "gone" if answer.status == 410 else "retry"


def next_delay_s(attempts_made: int, answer: Answer, jitter: float, now_s: float | None = None) -> float | None:
    """Seconds until the next attempt, at most a day; None when no attempt is left.

    `jitter` is a random number in [0, 1). `now_s` (Unix seconds) is needed for a Retry-After that is a date.
    """
    if attempts_made < 1:
        return 0.0
    if attempts_made >= MAX_ATTEMPTS:
        return None
    scheduled = RETRY_DELAYS_S[attempts_made - 1] * (1 - SPREAD + 2 * SPREAD * jitter)
    overloaded = answer.status in OVERLOADED or answer.error == "timeout"
    earliest = _retry_after_s(answer.retry_after, now_s) or (RETRY_DELAYS_S[1] if overloaded else 0)
    # The receiver's own wish is spread to later only, so that a crowd does not come back at one moment.
    return min(DAY_S, max(scheduled, earliest * (1 + SPREAD * jitter)))


def _full_item(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "turn_id": message.turn_id,
        "timestamp": message.timestamp,
        "metadata": ordered_metadata(message.metadata),
    }


def _standard_item(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content}


def _signatures(body: bytes, secret: str, notice_id: str, timestamp: str) -> dict[str, str]:
    text_key = secret.encode("utf-8", "surrogateescape")  # as written, also when an environment variable is not UTF-8
    signed = b".".join((_octets(notice_id), _octets(timestamp), body))
    standard = hmac.digest(_decoded(secret) or text_key, signed, "sha256")
    return {
        AGORA_SHA1: hmac.digest(text_key, body, "sha1").hex(),
        AGORA_SHA256: hmac.digest(text_key, body, "sha256").hex(),
        WEBHOOK_SIGNATURE: "v1," + base64.b64encode(standard).decode("ascii"),
    }


def check_secret(secret: str | None) -> None:
    """Refuse (`invalid_field`) a secret that receivers of Standard Webhooks take for base64, and that is none."""
    if secret is not None and secret.startswith(STANDARD_PREFIX) and not _decoded(secret):
        raise Refused("invalid_field", f"What follows {STANDARD_PREFIX} in a webhook secret must be base64.")


def _decoded(secret: str) -> bytes | None:
    """The key inside a `whsec_` secret (verifiers allow missing padding), or None for a secret in another form."""
    encoded = secret.removeprefix(STANDARD_PREFIX)
    if encoded == secret:
        return None
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return None


def _octets(text: str) -> bytes:
    """A header's value as bytes, whatever it holds: servers hand on undecodable bytes as surrogates."""
    return text.encode("utf-8", "surrogatepass")


def _is_recent(timestamp: str, now_s: float, tolerance_s: float) -> bool:
    return re.fullmatch("[0-9]{1,12}", timestamp) is not None and abs(now_s - int(timestamp)) <= tolerance_s


def _retry_after_s(value: str | None, now_s: float | None) -> float:
    """The seconds that a Retry-After header asks for, at most a day; 0 for none, garbage, or a date in the past."""
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
