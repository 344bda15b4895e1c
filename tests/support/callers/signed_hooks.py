"""Webhooks that say that a call is over, signed as each platform signs them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tests.support.callers.rest import RestClient, RestResponse
from voicemem.protocol.types import JsonObject

SECRET = "the-secret-of-the-platform"
BODIES: Mapping[str, Callable[[str], Any]] = {
    "elevenlabs-agents": lambda call: {
        "type": "post_call_transcription",
        "data": {"conversation_id": call, "transcript": [{"role": "agent", "message": "Hello."}]},
    },
    "livekit-agents": lambda call: {
        "job_id": call,
        "chat_history": {"items": [{"id": "i", "type": "message", "role": "assistant", "content": ["Hello."]}]},
    },
    "retell": lambda call: {
        "event": "call_ended",
        "call": {"call_id": call, "transcript_object": [{"role": "agent", "content": "Hello.", "words": []}]},
    },
    "ultravox": lambda call: {"event": "call.ended", "call": {"callId": call, "endReason": "hangup"}},
    "vapi": lambda call: {
        "message": {
            "type": "end-of-call-report",
            "endedReason": "customer-ended-call",
            "timestamp": 1_790_000_000_000,
            "call": {"id": call},
            "artifact": {"messages": [{"role": "bot", "message": "Hello.", "time": 1_790_000_000_000}]},
        }
    },
}
"""By dialect, of the vendor's id of a call."""


def body_of(dialect: str, call: str) -> bytes:
    return msgspec.json.encode(BODIES[dialect](call))


def signature_of(dialect: str, body: bytes, secret: str = SECRET) -> dict[str, str]:
    """The headers with which a platform signs a body now."""
    now = int(time.time())

    def digest(payload: bytes) -> str:
        return hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()

    match dialect:
        case "livekit-agents":
            claims = {"observability": {"write": True}, "iss": "APIkey", "nbf": now, "exp": now + 60}
            return {"Authorization": f"Bearer {json_web_token(claims, secret)}"}
        case "elevenlabs-agents":
            return {"ElevenLabs-Signature": f"t={now},v0={digest(f'{now}.'.encode() + body)}"}
        case "retell":
            return {"X-Retell-Signature": f"v={now}000,d={digest(body + f'{now}000'.encode())}"}
        case "ultravox":
            stated = datetime.fromtimestamp(now, UTC).isoformat()
            signature = digest(body + stated.encode())
            return {"X-Ultravox-Webhook-Timestamp": stated, "X-Ultravox-Webhook-Signature": signature}
    return {"X-Vapi-Signature": digest(body)}


def json_web_token(claims: JsonObject, secret: str, algorithm: str = "HS256") -> str:
    """A token as LiveKit signs it, whatever the length of the secret."""
    parts = ({"alg": algorithm, "typ": "JWT"}, claims)
    signed = b".".join(base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=") for part in parts)
    signature = hmac.digest(secret.encode(), signed, "sha256" if algorithm == "HS256" else "sha384")
    return f"{signed.decode()}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def send_hook(
    api: RestClient, dialect: str, body: bytes, headers: Mapping[str, str], query: str = ""
) -> RestResponse:
    """The answer to a webhook as it came; a key of `api` goes with it."""
    sent = {"Content-Type": "application/json", **headers}
    return await api.call("POST", f"/v1/hooks/{dialect}{query}", headers=sent, data=io.BytesIO(body))
