"""Ultravox' webhooks: who signed them, and the end of a call."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping

from voicemem.dialects.dialect import MalformedFrame
from voicemem.dialects.reading import Record, read
from voicemem.dialects.ultravox.frames import ENDED
from voicemem.protocol.memories import time_ms
from voicemem.protocol.types import JsonObject

SIGNATURE = "x-ultravox-webhook-signature"
TIMESTAMP = "x-ultravox-webhook-timestamp"
TOLERANCE_MS = 60 * 1000
"""How old or new a signature may be, as Ultravox advises."""
MAX_TIMESTAMP = 64
ENDS = ("call.ended", "call.billed")
"""What says that a call is over; either may be subscribed to."""


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Whether a body was signed with this secret within the last minute: HMAC-SHA256 of the body and the timestamp.

    Several signatures are separated by commas, one for each secret of the webhook.
    """
    stated = headers.get(TIMESTAMP, "")
    sent = unix_ms(stated)
    if not secret or sent is None or abs(now - sent) > TOLERANCE_MS:
        return False
    expected = hmac.new(secret.encode(), body + stated.encode(), hashlib.sha256).hexdigest()
    signed = [one.strip() for one in headers.get(SIGNATURE, "").split(",")]
    return any(one.isascii() and hmac.compare_digest(expected, one) for one in signed)


def unix_ms(stated: str | None) -> int | None:
    """A time of Ultravox' (ISO 8601, UTC where it names no offset) in Unix ms; None for what is none."""
    if not stated or len(stated) > MAX_TIMESTAMP:
        return None
    try:
        time = time_ms(stated)
    except ValueError:
        return None
    return time if time >= 0 else None


class Call(Record, rename="camel"):
    call_id: str
    ended: str | None = None
    end_reason: str | None = None


def frames(body: JsonObject) -> Iterator[JsonObject]:
    """One frame for the end of a call; nothing for webhooks that say no end. Raises `MalformedFrame`."""
    if not isinstance(body.get("event"), str):
        raise MalformedFrame("A webhook has an event.")
    if body["event"] in ENDS:
        call = read(Call, body.get("call"))
        yield {"type": ENDED, "callId": call.call_id, "endReason": call.end_reason, "ts": unix_ms(call.ended)}
