"""What is remembered of calls by an LLM: the section `memory.extract` of a session's configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voicemem.errors import Refused
from voicemem.protocol.types import MAX_TEXT_BYTES

MESSAGES, NOW = "{messages}", "{now}"
"""The placeholders of a prompt; the first must be in it."""
MAX_INSTRUCTIONS = 4_000
Strategy = Literal["discrete", "preferences", "summary", "custom", "none"]
DEFAULT_STRATEGY: Strategy = "discrete"
SUMMARY: Strategy = "summary"
CUSTOM: Strategy = "custom"
NONE: Strategy = "none"


class ExtractConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How memories are made of a call. Fields that are null have their defaults; without a strategy, `discrete`."""

    strategy: Strategy | None = None
    """`none` makes no memories, also where the service's default would."""
    prompt: Annotated[str, Meta(max_length=MAX_TEXT_BYTES // 16)] | None = None
    """For `custom`: says what to write down, and where the lines of the call stand."""
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | None = None
    """Added to the rules of the strategy."""
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Writes the memories; by default the model of the session."""


def check_extract(section: Any) -> None:
    """Refuse a prompt that cannot work. `section` is that of a configuration or a patch. Raises `Refused`."""
    if not isinstance(section, dict):
        return
    prompt, strategy = section.get("prompt"), section.get("strategy")
    if prompt is None:
        return
    if strategy not in (None, CUSTOM):
        raise Refused(
            "invalid_field", f"The strategy {strategy} has no `memory.extract.prompt`; only `custom` has one."
        )
    if MESSAGES not in prompt:
        raise Refused(
            "invalid_field", f"In the configuration: `memory.extract.prompt` lacks its placeholder {MESSAGES}."
        )


def check_whole_extract(section: Any) -> None:
    """Refuse a section, after all patches, whose parts do not fit together. Raises `Refused`."""
    check_extract(section)
    if isinstance(section, dict) and section.get("strategy") == CUSTOM and section.get("prompt") is None:
        raise Refused("invalid_field", "The strategy custom needs `memory.extract.prompt`.")


def drop_stale_prompt(section: Any, patch: Any) -> Any:
    """The section after a patch, without the prompt that only the strategy before it had."""
    if not (isinstance(section, dict) and isinstance(patch, dict)) or patch.get("strategy") in (None, CUSTOM):
        return section
    return {name: value for name, value in section.items() if name != "prompt" or name in patch}


def overlay_extract(base: ExtractConfig | None, given: ExtractConfig | None) -> ExtractConfig | None:
    """The settings `given`, on top of those of `base`; another strategy starts from its own defaults."""
    if base is None or given is None:
        return given or base
    if given.strategy not in (None, base.strategy):
        return given
    values = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None}
    return msgspec.structs.replace(base, **values)
