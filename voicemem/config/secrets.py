"""The secrets of a configuration, and the parts of it that make the service send requests."""

import base64
import binascii
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.errors import Refused
from voicemem.protocol.codec import drop_nulls
from voicemem.protocol.types import JsonObject

SECRETS = (("llm", "api_key"), ("webhook", "secret"), ("llm", "headers"))
"""Places of secrets in a configuration. They are never journaled and never shown."""
OUTBOUND_FIELDS = frozenset({"url", "api_key", "headers"})
"""Of `llm`. These and `webhook` make the service send requests to others, so setting them needs the scope `admin`."""
STANDARD_PREFIX = "whsec_"
"""How secrets of Standard Webhooks begin."""
SORTED = msgspec.json.Encoder(order="sorted")


class SessionPatch(Struct, frozen=True):
    """A configuration or a merge patch of one, checked, with its secrets apart."""

    public: JsonObject
    secrets: dict[str, str | None]
    """By dotted path, such as "llm.api_key"; None where a patch removes one."""


def secret_text(value: Any) -> str | None:
    """A secret as it is stored: a text, which for headers is the JSON of the object."""
    return SORTED.encode(drop_nulls(value)).decode() if isinstance(value, dict) else value


def changes_outbound(config: JsonObject) -> bool:
    """Return whether a configuration or patch, as it came, sets or removes a cause of outbound requests."""
    llm = config.get("llm", {})
    return "webhook" in config or llm is None or (isinstance(llm, dict) and not OUTBOUND_FIELDS.isdisjoint(llm))


def patch_changes_outbound(session_patch: SessionPatch) -> bool:
    return bool(session_patch.secrets) or changes_outbound(session_patch.public)


def llm_url(session_patch: SessionPatch) -> str | None:
    """The URL of the LLM that a configuration or patch sets, if it sets one."""
    return url_of(session_patch, "llm")


def webhook_url(session_patch: SessionPatch) -> str | None:
    """The URL of the receiver that a configuration or patch sets, if it sets one."""
    return url_of(session_patch, "webhook")


def url_of(session_patch: SessionPatch, section: str) -> str | None:
    values = session_patch.public.get(section)
    url = values.get("url") if isinstance(values, dict) else None
    return url if isinstance(url, str) else None


def check_webhook_secret(secret: str | None) -> None:
    """Refuse a `whsec_` secret that is not base64: verifiers of Standard Webhooks decode it. Raises `Refused`."""
    if secret is not None and secret.startswith(STANDARD_PREFIX) and not decode_standard_secret(secret):
        raise Refused("invalid_field", f"What follows {STANDARD_PREFIX} in a webhook secret must be base64.")


def decode_standard_secret(secret: str) -> bytes | None:
    """The key in a `whsec_` secret (verifiers allow missing padding), or None for a secret in another form."""
    encoded = secret.removeprefix(STANDARD_PREFIX)
    if encoded == secret:
        return None
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return None
