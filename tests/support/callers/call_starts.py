"""Questions of platforms at the start of a call, signed as each platform signs them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.callers.rest import RestClient, RestResponse

SECRET = "the-secret-of-the-platform"
TELNYX_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
TELNYX_PUBLIC = base64.b64encode(
    TELNYX_KEY.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
).decode()
SECRETS = {"retell": SECRET, "elevenlabs-agents": SECRET, "vapi": SECRET, "telnyx": TELNYX_PUBLIC}
STARTS: Mapping[str, Callable[[str], Any]] = {
    "retell": lambda number: {
        "event": "call_inbound",
        "event_timestamp": 1_790_000_000_000,
        "call_inbound": {"agent_id": "agent_1", "from_number": number, "to_number": "+15551230000"},
    },
    "elevenlabs-agents": lambda number: {
        "caller_id": number,
        "agent_id": "agent_1",
        "called_number": "+15551230000",
        "call_sid": "CA2",
    },
    "vapi": lambda number: {
        "message": {
            "type": "assistant-request",
            "timestamp": 1_790_000_000_000,
            "call": {"id": "call-2", "type": "inboundPhoneCall", "customer": {"number": number}},
            "customer": {"number": number},
            "phoneNumber": {"id": "pn_1", "number": "+15551230000"},
        }
    },
    "telnyx": lambda number: {
        "data": {
            "record_type": "event",
            "id": "event_1",
            "event_type": "assistant.initialization",
            "occurred_at": "2026-11-27T10:00:00Z",
            "payload": {
                "telnyx_conversation_channel": "phone_call",
                "telnyx_agent_target": "+15551230000",
                "telnyx_end_user_target": number,
                "telnyx_end_user_target_verified": True,
                "call_control_id": "v3:u5OAKGEPT3Dx8SZSSDRWEMdNH2OripQhO",
                "assistant_id": "assistant_1",
            },
        }
    },
}
"""By dialect, of the caller's number."""


def start_of(dialect: str, number: str) -> bytes:
    return msgspec.json.encode(STARTS[dialect](number))


def credential_of(dialect: str, body: bytes, secret: str = SECRET, age_s: int = 0) -> dict[str, str]:
    """The headers with which a platform shows who it is."""
    now = int(time.time()) - age_s
    match dialect:
        case "retell":
            digest = hmac.new(secret.encode(), body + f"{now}000".encode(), hashlib.sha256).hexdigest()
            return {"X-Retell-Signature": f"v={now}000,d={digest}"}
        case "elevenlabs-agents":
            return {"X-Voicemem-Secret": secret}
        case "vapi":
            payload = f"{now}.".encode() + body
            digest = hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()
            return {"X-Vapi-Signature": digest, "X-Vapi-Timestamp": str(now)}
    key = TELNYX_KEY if secret == SECRET else Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
    signature = base64.b64encode(key.sign(f"{now}|".encode() + body)).decode()
    return {"Telnyx-Signature-Ed25519": signature, "Telnyx-Timestamp": str(now)}


async def ask(
    api: RestClient, dialect: str, body: bytes, headers: Mapping[str, str] | None = None, query: str = ""
) -> RestResponse:
    """The answer to a question; by default it carries the platform's credential."""
    shown = credential_of(dialect, body) if headers is None else headers
    sent = {"Content-Type": "application/json", **shown}
    return await api.call("POST", f"/v1/hooks/{dialect}{query}", headers=sent, data=io.BytesIO(body))


def variables_in(dialect: str, answer: Any) -> dict[str, Any]:
    """The variables of an answer, from where its platform looks for them."""
    match dialect:
        case "retell":
            found = answer["call_inbound"]["dynamic_variables"]
        case "vapi":
            found = answer["assistantOverrides"]["variableValues"]
        case _:
            found = answer["dynamic_variables"]
    return dict(found)
