"""The section `memory` of a session's configuration.

It chooses which part of the memory the next LLM request gets (the context policy), which memories are made of the call
by an LLM (`extract`), and what is shown of earlier calls (`memories`).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from voicemem.documents.json_schema import PLAIN_NAME, check_schema
from voicemem.errors import Refused
from voicemem.protocol.codec import drop_nulls
from voicemem.protocol.types import MAX_INTEGER, MAX_TEXT_BYTES, JsonObject, matching

RecalledKind = Literal["fact", "preference", "episode", "summary", "message"]
RecalledKinds = Annotated[tuple[RecalledKind, ...], Meta(min_length=1, max_length=5)]
RecallSource = Literal["earlier", "all"]
RecallTokens = Annotated[int, Meta(ge=0, le=100_000)]
PLACEHOLDERS = ("{prev_summary}", "{messages_joined}")
PARAMETERS: Mapping[str, frozenset[str]] = {
    "full": frozenset(),
    "recent": frozenset({"max_messages"}),
    "window": frozenset({"max_tokens"}),
    "summary": frozenset({"max_tokens", "threshold", "target_ratio", "keep_recent", "model", "prompt"}),
    "priority": frozenset({"max_messages", "max_tokens"}),
}
"""The parameters of each policy."""
IMPLIED_POLICIES = ("recent", "window", "summary")
"""Policies that fields imply: `max_messages` alone implies `recent`, `max_tokens` `window`, and the rest `summary`."""
COMMON_PARAMETERS = frozenset({"policy", "context_window", "extract", "memories"})
OWN_PARAMETERS = "parameters"
THRESHOLD, TARGET_RATIO = 0.7, 0.3
POLICY_NAME = r"^[a-z][a-z0-9_.-]{0,63}\Z"
PolicyName = Annotated[str, matching(POLICY_NAME, "The name of a policy is a small letter, then up to 63 of a-z0-9_.-")]
Share = Annotated[float, Meta(gt=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Messages = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


MESSAGES, NOW = "{messages}", "{now}"
"""The placeholders of a prompt for extraction; the first must be in it."""
MAX_INSTRUCTIONS = 4_000
Strategy = Literal["discrete", "preferences", "summary", "custom", "analysis", "none"]
DEFAULT_STRATEGY: Strategy = "discrete"
MAX_FIELDS, MAX_SCHEMA_BYTES = 32, 16_000
"""Limits for the schema of an analysis."""
SAID_BY = "x-said-by"
"""The keyword of a field of that schema that says whose words must show its value; by default the caller's."""
SPEAKERS = ("caller", "agent", "anyone")


class ExtractConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The extraction of memories from a call. A field that is null has its default; without a strategy, `discrete`."""

    strategy: Strategy | None = None
    """How; `analysis` makes the analysis alone, `none` makes nothing, also where the service's default would."""
    prompt: Annotated[str, Meta(max_length=MAX_TEXT_BYTES // 16)] | None = None
    """For `custom`: says what to write down, and where the lines of the call stand."""
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | None = None
    """Added to the rules of the strategy."""
    schema: JsonObject | None = None
    """What is to be found out of the call: a JSON Schema, whose properties are the fields of the analysis."""
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Writes the memories; by default the model of the session."""


class RecallConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """The recall of earlier calls; a field that is null has the default. With `max_tokens` 0 nothing is shown.

    `from` says which memories: those of `earlier` calls, or `all`, those of this call too. The kind `message` is what
    was heard on earlier calls, word for word.
    """

    max_tokens: RecallTokens | None = None
    """How much, in tokens."""
    kinds: RecalledKinds | None = None
    """The kinds of memories."""
    source: RecallSource | None = None
    """The calls that they are of."""


class ContextConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy and its parameters; a parameter that is null has the policy's own default.

    Without `policy`, parameters apply to the service's default policy if it has them, else they imply the policy that
    does. Without any of them, `llm.max_history` counts.
    """

    policy: PolicyName | None = None
    """Its name."""
    max_messages: Messages | None = None
    """The most messages."""
    max_tokens: Tokens | None = None
    """The budget of messages, in tokens."""
    threshold: Share | None = None
    """The share of the budget at which a summary is made."""
    target_ratio: Share | None = None
    """The share of the budget that messages may still take after that."""
    keep_recent: Annotated[int, Meta(ge=0, le=1024)] | None = None
    """How many of the newest messages are never summarised."""
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Writes the summaries; by default the model of the session."""
    prompt: Annotated[str, Meta(max_length=MAX_TEXT_BYTES // 4)] | None = None
    """The instructions for summaries."""
    context_window: Tokens | None = None
    """The size of the model's context in tokens, for models that voicemem does not know."""
    parameters: JsonObject = {}
    """For a policy of the operator's own."""
    extract: ExtractConfig | None = None
    """Which memories are made of the call, whatever the policy."""
    memories: RecallConfig | None = None
    """The memories of earlier calls that contexts show, whatever the policy; none unless set."""


def check_context(section: Any) -> None:
    """Refuse parameters that the section's policy does not have, and a prompt that cannot work.

    `section` is that of a configuration or a patch, whose values were checked. Raises `Refused`.
    """
    if not isinstance(section, dict):
        return
    extract = section.get("extract")
    if isinstance(extract, dict) and (extract_prompt := extract.get("prompt")) is not None:
        if (strategy := extract.get("strategy")) not in (None, "custom"):
            why = f"The strategy {strategy} has no `memory.extract.prompt`; only `custom` has one."
            raise Refused("invalid_field", why)
        if MESSAGES not in extract_prompt:
            why = f"In the configuration: `memory.extract.prompt` lacks its placeholder {MESSAGES}."
            raise Refused("invalid_field", why)
    if isinstance(extract, dict) and isinstance(extract.get("schema"), dict):
        check_analysis_schema(drop_nulls(extract["schema"]))
    known = PARAMETERS.get(section.get("policy") or "")
    unknown = sorted(given_names(section) - known - COMMON_PARAMETERS) if known is not None else []
    if unknown:
        raise Refused("invalid_field", f"The policy {section['policy']} has no parameter `{unknown[0]}`.")
    if (section.get("target_ratio") or TARGET_RATIO) >= (section.get("threshold") or THRESHOLD):
        raise Refused("invalid_field", "`memory.target_ratio` must be less than `memory.threshold`.")
    prompt = section.get("prompt")
    missing = [placeholder for placeholder in PLACEHOLDERS if prompt is not None and placeholder not in prompt]
    if missing:
        raise Refused("invalid_field", f"In the configuration: `memory.prompt` lacks its placeholder {missing[0]}.")


def check_whole_context(section: JsonObject) -> None:
    """Refuse a section that after all patches does not fit together. Raises `Refused`."""
    check_context(section)
    extract = section.get("extract")
    if not isinstance(extract, dict):
        return
    if extract.get("strategy") == "custom" and extract.get("prompt") is None:
        raise Refused("invalid_field", "The strategy custom needs `memory.extract.prompt`.")
    schema = extract.get("schema")
    if extract.get("strategy") == "analysis" and schema is None:
        raise Refused("invalid_field", "The strategy analysis needs `memory.extract.schema`.")
    if schema is not None and not schema.get("properties"):
        raise Refused("invalid_field", "`memory.extract.schema` needs `properties`: the fields of the analysis.")


def check_analysis_schema(schema: JsonObject) -> None:
    """Refuse a schema, or a patch of one, that cannot be used for an analysis. Raises `Refused`."""
    try:
        check_schema(schema)
    except Refused as refused:
        raise Refused(refused.code, f"In `memory.extract` of the configuration: {refused.detail}") from None
    fields = schema.get("properties", {})
    if len(fields) > MAX_FIELDS or len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        why = f"`memory.extract.schema` may have at most {MAX_FIELDS} fields and {MAX_SCHEMA_BYTES} bytes."
        raise Refused("invalid_field", why)
    if not all(map(PLAIN_NAME.match, fields)):
        why = "The name of a field is a letter, then up to 63 of a-zA-Z0-9_-: `memory.extract.schema.properties`"
        raise Refused("invalid_field", why)
    for name, field in fields.items():
        if isinstance(field, dict) and field.get(SAID_BY, SPEAKERS[0]) not in SPEAKERS:
            why = f"`{SAID_BY}` must be one of {', '.join(SPEAKERS)}: `memory.extract.schema.properties.{name}`"
            raise Refused("invalid_field", why)


def given_names(section: JsonObject) -> set[str]:
    return {name for name, value in section.items() if value is not None}


def drop_stale_parameters(memory: JsonObject, patch: JsonObject) -> JsonObject:
    """Return the section after a patch, without parameters that only the previous policy or strategy had."""
    extract, change = memory.get("extract"), patch.get("extract")
    if isinstance(extract, dict) and isinstance(change, dict) and change.get("strategy") not in (None, "custom"):
        kept = {name: value for name, value in extract.items() if name != "prompt" or name in change}
        memory = memory | {"extract": kept}
    if patch.get("policy") is None:
        return memory
    known = PARAMETERS.get(patch["policy"], frozenset({OWN_PARAMETERS})) | COMMON_PARAMETERS | patch.keys()
    return {name: value for name, value in memory.items() if name in known}


def overlay(base: ContextConfig, settings: ContextConfig) -> ContextConfig:
    """Return the settings, on top of those of `base`.

    There are three cases. Another policy starts from its own defaults. Parameters of the same policy change these and
    keep the others. Parameters without a policy that `base`'s policy does not have imply a policy that does.
    """
    extract = overlay_extract(base.extract, settings.extract)
    if settings.policy not in (None, base.policy):
        return settings if extract is settings.extract else msgspec.structs.replace(settings, extract=extract)
    values = {
        name: value for name in settings.__struct_fields__ if (value := getattr(settings, name)) not in (None, {})
    }
    names = values.keys() - COMMON_PARAMETERS
    if base.policy is None or not names <= PARAMETERS.get(base.policy, frozenset({OWN_PARAMETERS})):
        implied = next((policy for policy in IMPLIED_POLICIES if names & PARAMETERS[policy]), None)
        if implied is None and extract is settings.extract:
            return settings
        return msgspec.structs.replace(settings, policy=implied or settings.policy, extract=extract)
    return msgspec.structs.replace(base, **(values | {"extract": extract}))


def fill_prompt(prompt: str, prev_summary: str, messages_joined: str) -> str:
    """Return the prompt with its placeholders replaced, in one pass: the texts that are put in may contain them."""
    values = dict(zip(PLACEHOLDERS, (prev_summary, messages_joined), strict=True))
    return re.sub("|".join(map(re.escape, PLACEHOLDERS)), lambda match: values[match[0]], prompt)


def overlay_extract(base: ExtractConfig | None, settings: ExtractConfig | None) -> ExtractConfig | None:
    """Return the settings, on top of those of `base`; another strategy starts from its own defaults."""
    if base is None or settings is None:
        return settings or base
    if settings.strategy not in (None, base.strategy):
        return settings
    values = {name: value for name in settings.__struct_fields__ if (value := getattr(settings, name)) is not None}
    return msgspec.structs.replace(base, **values)


# Recall of earlier calls


class Recalled(NamedTuple):
    """The settings for one context, with all defaults filled in."""

    max_tokens: int
    kinds: tuple[RecalledKind, ...]
    source: RecallSource


DEFAULT_RECALL = Recalled(300, ("preference", "fact", "episode", "message"), "earlier")


def settle_recall(
    requested: RecallConfig | None, session: RecallConfig | None, service: RecallConfig | None
) -> Recalled | None:
    """Merge these settings, the first taking precedence; return None if none of them asks for memories."""
    sections = [section for section in (requested, session, service) if section is not None]
    if not sections:
        return None
    max_tokens = next((one.max_tokens for one in sections if one.max_tokens is not None), DEFAULT_RECALL.max_tokens)
    kinds = next((one.kinds for one in sections if one.kinds is not None), DEFAULT_RECALL.kinds)
    source = next((one.source for one in sections if one.source is not None), DEFAULT_RECALL.source)
    return Recalled(max_tokens, kinds, source) if max_tokens else None
