"""The secrets of a configuration, and what in it makes the service send requests."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.errors import Refused
from voicemem.protocol.strict_json import without_nulls
from voicemem.protocol.types import Fields

SECRETS = (("llm", "api_key"), ("webhook", "secret"), ("llm", "headers"))
"""Never journaled, never shown: where each stands in a configuration."""
CALLING_OUT = frozenset({"url", "api_key", "headers"})
"""Of `llm`; these and `webhook` make the server call somebody, so setting them needs the scope `admin`."""
SORTED = msgspec.json.Encoder(order="sorted")


class SessionPatch(Struct, frozen=True):
    """A configuration, or a patch of one, with its secrets taken out."""

    public: Fields
    secrets: dict[str, str | None]
    """By dotted path, "llm.api_key"; None where a patch takes one away."""


def secret_text(value: Any) -> str | None:
    """A secret as it is kept; headers are an object, whose JSON is the text."""
    return SORTED.encode(without_nulls(value)).decode() if isinstance(value, dict) else value


def calls_out(given: Fields) -> bool:
    """Whether a configuration or patch, as it was given, sets or takes away what makes the server call out."""
    llm = given.get("llm", {})
    return "webhook" in given or llm is None or (isinstance(llm, dict) and not CALLING_OUT.isdisjoint(llm))


def patch_calls_out(settled: SessionPatch) -> bool:
    """The same for what was settled."""
    return bool(settled.secrets) or calls_out(settled.public)


def llm_url(settled: SessionPatch) -> str | None:
    """The address of the LLM that a configuration or patch sets, if it sets one."""
    llm = settled.public.get("llm")
    url = llm.get("url") if isinstance(llm, dict) else None
    return url if isinstance(url, str) else None


def webhook_url(settled: SessionPatch) -> str | None:
    """The receiver's address that a configuration or patch sets, if it sets one."""
    webhook = settled.public.get("webhook")
    url = webhook.get("url") if isinstance(webhook, dict) else None
    return url if isinstance(url, str) else None


STANDARD_PREFIX = "whsec_"
"""So a secret of Standard Webhooks begins."""


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
