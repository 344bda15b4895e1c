"""From the memory to the request body of an LLM call (design, section 7).

The way of what a policy chose of a memory: the messages, enriched, tool calls between them, as runs of one side
(`conversation`), and those in the shape of the vendor (`openai`, `anthropic`, `gemini`). What a receiver is told beside
role and text is decided by its vendor alone (`standard`, `custom`). All of it is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from voicemem.context.formats import anthropic, custom, gemini, openai, standard
from voicemem.context.formats.conversation import Part, RoleRun, alternate_roles, interleave, is_blank, runs
from voicemem.context.formats.enrichers import ENRICHERS, enriched
from voicemem.transcript.messages import Message, ToolUse

__all__ = ["ENRICHERS", "RequestFormat", "request_body"]


class RequestFormat(Struct, frozen=True, kw_only=True):
    """How a reader wants the memory: the part of a session's configuration and of a query that shapes a request."""

    vendor: str | None = None
    model: str | None = None
    style: Literal["openai", "anthropic", "gemini"] = "openai"
    params: dict[str, Any] = {}
    """`llm.params`: goes into the body beside what is made here, and never replaces it."""
    system_messages: tuple[dict[str, Any], ...] = ()
    """OpenAI message objects, `{"role":"system","content":…}`; no policy counts them."""
    interruptable: bool = True
    enrich: tuple[str, ...] = ()
    """Names in `ENRICHERS`, applied in this order."""
    alternate: bool = False
    """Whether user and assistant must take turns in the OpenAI style, too; in the other styles they always do."""
    tools: bool = False
    """Whether answered tool calls are shown. Their definitions are the reader's, in `params`."""


class VendorRules(Protocol):
    """What a kind of vendor is told beside role and text; a module of this folder."""

    KEEPS_BLANK: bool
    """Whether messages without text are passed, where the style takes them."""
    RESERVED_PARAMS: frozenset[str]
    """Top-level names that params may not set, even when they are left out."""

    def message_fields(self, message: Message, /) -> dict[str, Any]:
        """What stands in a message beside role and content."""

    def top_fields(self, memory: Sequence[Message], interruptable: bool, /) -> dict[str, Any]:
        """What stands in the body beside the conversation."""


class Style(Protocol):
    """The shape that an API takes; a module of this folder."""

    ALTERNATES: bool
    """Whether the API refuses a conversation in which user and assistant do not take turns."""
    TAKES_BLANK: bool
    """Whether the API takes messages without text."""

    def conversation(self, runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]], /) -> dict[str, Any]:
        """The part of the body that holds what was said, and the system messages."""

    def body_params(self, params: dict[str, Any], /) -> dict[str, Any]:
        """The part of the body that params become."""


STYLES: dict[str, Style] = {"openai": openai, "anthropic": anthropic, "gemini": gemini}


def request_body(
    messages: Sequence[Message], tools: Sequence[ToolUse], format: RequestFormat, *, cut: bool = False
) -> dict[str, Any]:
    """The whole body of the next LLM call, ready for JSON; `messages` in the order of the memory.

    `cut` says that older messages were left out: tool uses from before the first one then go with them. The body
    shares the dicts of the messages and of the format: write it out, do not change it.
    """
    rules = vendor_rules(format.vendor)
    style = STYLES[format.style]
    memory = enriched(messages, format.enrich)
    parts = interleave(memory, tools if format.tools else (), cut=cut)
    if not (rules.KEEPS_BLANK and style.TAKES_BLANK):
        parts = [part for part in parts if not is_blank(part)]
    body = style.conversation(_runs(parts, rules, style, format), format.system_messages)
    body |= rules.top_fields(memory, format.interruptable)
    model = format.model or format.params.get("model")
    if model:
        body["model"] = model
    own = body.keys() | rules.RESERVED_PARAMS | {"model"}
    return body | {name: value for name, value in style.body_params(format.params).items() if name not in own}


def vendor_rules(vendor: str | None) -> VendorRules:
    """The one place where a vendor decides whether a message's fields are stripped or passed."""
    return custom if vendor == "custom" else standard


def is_left_out(message: Message, vendor: str | None) -> bool:
    """Whether a vendor is not shown a message because it says nothing; in the OpenAI style, with no enrichers."""
    return is_blank(message) and not vendor_rules(vendor).KEEPS_BLANK


def _runs(parts: Sequence[Part], rules: VendorRules, style: Style, format: RequestFormat) -> list[RoleRun]:
    single = runs(parts, rules.message_fields)
    return alternate_roles(single) if style.ALTERNATES or format.alternate else single
