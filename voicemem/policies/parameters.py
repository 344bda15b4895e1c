"""Which memory the next LLM call gets: the section `memory` of a session's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from voicemem.errors import Refused
from voicemem.events import MAX_INTEGER, MAX_TEXT_BYTES, Fields
from voicemem.forms import matching

PLACEHOLDERS = ("{prev_summary}", "{messages_joined}")
PARAMETERS: Mapping[str, frozenset[str]] = {
    "full": frozenset(),
    "recent": frozenset({"max_messages"}),
    "window": frozenset({"max_tokens"}),
    "summary": frozenset({"max_tokens", "threshold", "target_ratio", "keep_recent", "model", "prompt"}),
    "priority": frozenset({"max_messages", "max_tokens"}),
}
"""What each policy can be told."""
ALWAYS = frozenset({"policy", "context_window", "parameters"})
PolicyName = Annotated[
    str, matching(r"^[a-z][a-z0-9_.-]{0,63}\Z", "The name of a policy is a small letter, then up to 63 of a-z0-9_.-")
]
Share = Annotated[float, Meta(gt=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Messages = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class MemoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy and its parameters; None is the policy's own default. Without `policy`, `llm.max_history` counts."""

    policy: PolicyName | None = None
    max_messages: Messages | None = None
    max_tokens: Tokens | None = None
    threshold: Share | None = None
    """The share of the budget at which a summary is made."""
    target_ratio: Share | None = None
    """The share of the budget that messages may still take after that."""
    keep_recent: Annotated[int, Meta(ge=0, le=1024)] | None = None
    """So many of the newest messages are never summarised."""
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Writes the summaries; else that of the session."""
    prompt: Annotated[str, Meta(max_length=MAX_TEXT_BYTES // 4)] | None = None
    context_window: Tokens | None = None
    """Tokens of the model's context, where the table does not know it."""
    parameters: Fields = {}
    """Of a policy of the operator's own."""


def check_memory(given: Any) -> None:
    """Refuse parameters that the policy beside them does not have, and a prompt that would not work.

    `given` is the section of a configuration or a patch, whose values were decoded. Raises `Refused`.
    """
    if not isinstance(given, dict):
        return
    known = PARAMETERS.get(given.get("policy") or "")
    strange = sorted(given.keys() - known - ALWAYS) if known is not None else []
    if strange:
        raise Refused("invalid_field", f"The policy {given['policy']} has no parameter `{strange[0]}`.")
    prompt = given.get("prompt")
    missing = [one for one in PLACEHOLDERS if prompt is not None and one not in prompt]
    if missing:
        raise Refused("invalid_field", f"In the configuration: `memory.prompt` lacks its placeholder {missing[0]}.")


def filled(prompt: str, prev_summary: str, messages_joined: str) -> str:
    """The prompt with its placeholders replaced, once: what stands in the texts is no placeholder."""
    values = dict(zip(PLACEHOLDERS, (prev_summary, messages_joined), strict=True))
    return re.sub("|".join(map(re.escape, PLACEHOLDERS)), lambda found: values[found[0]], prompt)
