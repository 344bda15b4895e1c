"""Which memory the next LLM call gets: the section `memory` of a session's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from voicemem.errors import Refused
from voicemem.protocol.types import MAX_INTEGER, MAX_TEXT_BYTES, JsonObject, matching

PLACEHOLDERS = ("{prev_summary}", "{messages_joined}")
PARAMETERS: Mapping[str, frozenset[str]] = {
    "full": frozenset(),
    "recent": frozenset({"max_messages"}),
    "window": frozenset({"max_tokens"}),
    "summary": frozenset({"max_tokens", "threshold", "target_ratio", "keep_recent", "model", "prompt"}),
    "priority": frozenset({"max_messages", "max_tokens"}),
}
"""What each policy can be told."""
COMMON_PARAMETERS = frozenset({"policy", "context_window"})
OWN_PARAMETERS = "parameters"
THRESHOLD, TARGET_RATIO = 0.7, 0.3
POLICY_NAME = r"^[a-z][a-z0-9_.-]{0,63}\Z"
PolicyName = Annotated[str, matching(POLICY_NAME, "The name of a policy is a small letter, then up to 63 of a-z0-9_.-")]
Share = Annotated[float, Meta(gt=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Messages = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class MemoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy and its parameters; None is the policy's own default.

    Parameters without `policy` are for that of the service, or say which one is meant (`over`); without any of them
    `llm.max_history` counts.
    """

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
    parameters: JsonObject = {}
    """Of a policy of the operator's own."""


def check_memory(given: Any) -> None:
    """Refuse parameters that the policy beside them does not have, and a prompt that would not work.

    `given` is the section of a configuration or a patch, whose values were decoded. Raises `Refused`.
    """
    if not isinstance(given, dict):
        return
    known = PARAMETERS.get(given.get("policy") or "")
    unknown = sorted(given_names(given) - known - COMMON_PARAMETERS) if known is not None else []
    if unknown:
        raise Refused("invalid_field", f"The policy {given['policy']} has no parameter `{unknown[0]}`.")
    if (given.get("target_ratio") or TARGET_RATIO) >= (given.get("threshold") or THRESHOLD):
        raise Refused("invalid_field", "`memory.target_ratio` must be less than `memory.threshold`.")
    prompt = given.get("prompt")
    missing = [one for one in PLACEHOLDERS if prompt is not None and one not in prompt]
    if missing:
        raise Refused("invalid_field", f"In the configuration: `memory.prompt` lacks its placeholder {missing[0]}.")


def given_names(given: JsonObject) -> set[str]:
    """The parameters that have a value."""
    return {name for name, value in given.items() if value is not None}


def drop_stale_parameters(memory: JsonObject, patch: JsonObject) -> JsonObject:
    """A section after a patch that has chosen another policy: without the parameters that only the old one has."""
    if patch.get("policy") is None:
        return memory
    known = PARAMETERS.get(patch["policy"], frozenset({OWN_PARAMETERS})) | COMMON_PARAMETERS | patch.keys()
    return {name: value for name, value in memory.items() if name in known}


def overlay(base: MemoryConfig, given: MemoryConfig) -> MemoryConfig:
    """The settings when these are given over others: those of another policy, or parameters of the same.

    Parameters that are given alone, and that the other policy does not have, say by themselves which one is meant.
    """
    if given.policy not in (None, base.policy):
        return given
    values = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) not in (None, {})}
    names = values.keys() - COMMON_PARAMETERS
    if base.policy is None or not names <= PARAMETERS.get(base.policy, frozenset({OWN_PARAMETERS})):
        implied = next((policy for policy in IMPLIED_POLICIES if names & PARAMETERS[policy]), None)
        return msgspec.structs.replace(given, policy=implied) if implied else given
    return msgspec.structs.replace(base, **values)


IMPLIED_POLICIES = ("recent", "window", "summary")
"""By parameters alone: `max_messages` means the first, `max_tokens` the second, what only the third has means that."""


def fill_prompt(prompt: str, prev_summary: str, messages_joined: str) -> str:
    """The prompt with its placeholders replaced, once: what stands in the texts is no placeholder."""
    values = dict(zip(PLACEHOLDERS, (prev_summary, messages_joined), strict=True))
    return re.sub("|".join(map(re.escape, PLACEHOLDERS)), lambda found: values[found[0]], prompt)
