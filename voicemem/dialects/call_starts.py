"""Requests of platforms at the start of a call: they name the caller, and get variables for the agent.

A platform sends its request while the phone rings, and puts the answer into the agent's prompt. Each entry of
`CALL_STARTS` reads one platform's request and formats the answer; the variables come from elsewhere.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from voicemem.dialects.caller_fields import Caller, CallerFields, value_at
from voicemem.dialects.dialect import Verify
from voicemem.dialects.reading import is_recent
from voicemem.dialects.retell import frames as retell
from voicemem.dialects.vapi import frames as vapi
from voicemem.protocol.types import JsonObject

Value = str | int | float | bool
Variables = Mapping[str, Value]
BEARER = "bearer "
SECRET_HEADER = "x-voicemem-secret"  # noqa: S105 (a name)
"""For platforms that do not sign requests, and send secrets in configurable headers."""
ED25519_SIGNATURE, ED25519_TIMESTAMP = "telnyx-signature-ed25519", "telnyx-timestamp"
TOLERANCE_S = 300
"""How far from now the time of a Telnyx signature may be, as in its own SDK."""
KEY_BYTES, SIGNATURE_BYTES = 32, 64
NO_ED25519 = "Telnyx's signatures need the extra telnyx: pip install 'voicemem-core[telnyx]'."
NOT_A_KEY = "The secret of telnyx is the public key of the account: 32 bytes in base64, from Keys & Credentials there."


class CallStart(NamedTuple):
    """A platform's request at the start of a call."""

    caller: Caller
    call_id: str | None
    """The platform's id of the call, if it has one by then."""
    kind: str = ""
    """The kind of request, if a platform has several."""


class StartAnswer(NamedTuple):
    """The content of an answer."""

    variables: Variables
    user_id: str | None = None
    """The caller's user id, if known."""
    assistant_id: str | None = None
    """The assistant that should answer the call, for platforms that ask."""


class StartDialect(Struct, frozen=True):
    """How a platform's request at the start of a call is read and answered."""

    verify: Verify
    mark: bytes
    """Bytes in every such request: other bodies are not parsed as one."""
    read: Callable[[JsonObject], CallStart | None]
    """Returns the request in a body; None for a webhook of another kind."""
    answer: Callable[[CallStart, StartAnswer], JsonObject]
    check_secret: Callable[[str], None] = lambda secret: None
    """Raises `ValueError` for an invalid secret, with a sentence that does not quote it."""


def text(holder: Any, *path: str) -> str | None:
    """Return the text at a path of objects; None if there is none."""
    value = value_at(holder, path)
    return value if isinstance(value, str) and value else None


def start_of(fields: CallerFields, body: JsonObject, call_id: str | None, kind: str = "") -> CallStart:
    return CallStart(fields.read(body) or Caller(), call_id, kind)


# Retell: a webhook of the number, signed like its others. Variables are texts.

ASKED = ("call_inbound", "chat_inbound")


def read_retell(body: JsonObject) -> CallStart | None:
    kind = body.get("event")
    if kind not in ASKED:
        return None
    return start_of(CallerFields(number=f"{kind}/from_number"), body, text(body, kind, "call_id"), kind)


def answer_retell(start: CallStart, answer: StartAnswer) -> JsonObject:
    """Answer with the variables as texts, and the caller in `metadata`, which the call's later webhooks repeat."""
    metadata = {} if answer.user_id is None else {"user_id": answer.user_id}
    variables = {name: as_text(value) for name, value in answer.variables.items()}
    return {start.kind: {"dynamic_variables": variables, "metadata": metadata}}


def as_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ElevenLabs: fetched for an incoming call, with secrets in configurable headers.


def read_elevenlabs(body: JsonObject) -> CallStart | None:
    if "type" in body or "caller_id" not in body:
        return None
    return start_of(CallerFields(number="caller_id"), body, text(body, "conversation_id"))


def answer_elevenlabs(start: CallStart, answer: StartAnswer) -> JsonObject:
    return {"type": "conversation_initiation_client_data", "dynamic_variables": dict(answer.variables)}


def has_secret(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a header has the secret itself, in `Authorization` also after `Bearer`."""
    bearer = headers.get("authorization", "")
    sent = bearer[len(BEARER) :].lstrip() if bearer.lower().startswith(BEARER) else bearer
    shown = (sent, headers.get(SECRET_HEADER, ""))
    return bool(secret) and any(hmac.compare_digest(secret.encode(), one.encode(errors="replace")) for one in shown)


# Vapi: a message to the server of a number without an assistant.


OF_VAPI = CallerFields(
    user="customer/externalId call/customer/externalId", number="customer/number call/customer/number", within="message"
)


def read_vapi(body: JsonObject) -> CallStart | None:
    if text(body, "message", "type") != "assistant-request":
        return None
    return start_of(OF_VAPI, body, text(body, "message", "call", "id"))


def answer_vapi(start: CallStart, answer: StartAnswer) -> JsonObject:
    assistant = {} if answer.assistant_id is None else {"assistantId": answer.assistant_id}
    return {**assistant, "assistantOverrides": {"variableValues": dict(answer.variables)}}


# Telnyx: an event, signed with the account's key; the variables are in an object of their own.


def read_telnyx(body: JsonObject) -> CallStart | None:
    if text(body, "data", "event_type") != "assistant.initialization":
        return None
    fields = CallerFields(number="data/payload/telnyx_end_user_target")
    return start_of(fields, body, text(body, "data", "payload", "call_control_id"))


def answer_telnyx(start: CallStart, answer: StartAnswer) -> JsonObject:
    return {"dynamic_variables": dict(answer.variables)}


def check_public_key(secret: str) -> None:
    """Raise `ValueError` unless a secret is a public key, and its signatures can be verified here."""
    if decoded(secret, KEY_BYTES) is None:
        raise ValueError(NOT_A_KEY)
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: F401 (is it installed?)
    except ImportError:
        raise ValueError(NO_ED25519) from None


def verify_telnyx(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a body was signed within the last five minutes: Ed25519, over `UNIX_SECONDS|BODY`."""
    stated = headers.get(ED25519_TIMESTAMP, "")
    key = decoded(secret, KEY_BYTES)
    signature = decoded(headers.get(ED25519_SIGNATURE, ""), SIGNATURE_BYTES)
    if key is None or signature is None or not is_recent(stated, now, TOLERANCE_S):
        return False
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, stated.encode() + b"|" + body)
    except InvalidSignature:
        return False
    return True


def decoded(value: str, length: int) -> bytes | None:
    """Decode base64; None if the bytes have another length."""
    try:
        content = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return content if len(content) == length else None


CALL_STARTS: Mapping[str, StartDialect] = {
    "retell": StartDialect(retell.verify, b"_inbound", read_retell, answer_retell),
    "elevenlabs-agents": StartDialect(has_secret, b'"caller_id"', read_elevenlabs, answer_elevenlabs),
    "vapi": StartDialect(vapi.verify, b"assistant-request", read_vapi, answer_vapi),
    "telnyx": StartDialect(verify_telnyx, b"assistant.init", read_telnyx, answer_telnyx, check_public_key),
}
"""By the name of the dialect. Telnyx has no frames and no other webhooks here."""
