"""The secrets of a configuration, and what in it makes the service send requests."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.errors import Refused
from voicemem.protocol.strict_json import drop_nulls
from voicemem.protocol.types import JsonObject

SECRETS = (("llm", "api_key"), ("webhook", "secret"), ("llm", "headers"))
"""Never journaled, never shown: where each stands in a configuration."""
OUTBOUND_FIELDS = frozenset({"url", "api_key", "headers"})
"""Of `llm`; these and `webhook` make the server call somebody, so setting them needs the scope `admin`."""
SORTED = msgspec.json.Encoder(order="sorted")


class SessionPatch(Struct, frozen=True):
    """A configuration, or a patch of one, with its secrets taken out."""

    public: JsonObject
    secrets: dict[str, str | None]
    """By dotted path, "llm.api_key"; None where a patch takes one away."""


def secret_text(value: Any) -> str | None:
    """A secret as it is kept; headers are an object, whose JSON is the text."""
    return SORTED.encode(drop_nulls(value)).decode() if isinstance(value, dict) else value


def changes_outbound(given: JsonObject) -> bool:
    """Whether a configuration or patch, as it was given, sets or takes away what makes the server call out."""
    llm = given.get("llm", {})
    return "webhook" in given or llm is None or (isinstance(llm, dict) and not OUTBOUND_FIELDS.isdisjoint(llm))


def patch_changes_outbound(session_patch: SessionPatch) -> bool:
    """The same for what was settled."""
    return bool(session_patch.secrets) or changes_outbound(session_patch.public)


def llm_url(session_patch: SessionPatch) -> str | None:
    """The address of the LLM that a configuration or patch sets, if it sets one."""
    llm = session_patch.public.get("llm")
    url = llm.get("url") if isinstance(llm, dict) else None
    return url if isinstance(url, str) else None


def webhook_url(session_patch: SessionPatch) -> str | None:
    """The receiver's address that a configuration or patch sets, if it sets one."""
    webhook = session_patch.public.get("webhook")
    url = webhook.get("url") if isinstance(webhook, dict) else None
    return url if isinstance(url, str) else None


STANDARD_PREFIX = "whsec_"
"""So a secret of Standard Webhooks begins."""


def check_webhook_secret(secret: str | None) -> None:
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
