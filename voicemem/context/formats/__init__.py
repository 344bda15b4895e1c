"""From the messages that a policy chose to the body of an LLM request (docs/context.md).

Messages are enriched and interleaved with tool calls, become runs of one role (`conversation`), and then take the shape
of an API (`openai`, `anthropic`, `gemini`). The vendor alone decides which fields go with role and text (`standard`,
`custom`). All of it is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from voicemem.context.formats import anthropic, custom, gemini, openai, standard
from voicemem.context.formats.conversation import Part, RoleRun, alternate_roles, interleave, runs
from voicemem.context.formats.enrichers import ENRICHERS, enriched
from voicemem.transcript.messages import Message, ToolUse

__all__ = ["ENRICHERS", "RequestFormat", "request_body"]


class RequestFormat(Struct, frozen=True, kw_only=True):
    """The settings that shape a request: from the session's configuration and from the query."""

    vendor: str | None = None
    model: str | None = None
    style: Literal["openai", "anthropic", "gemini"] = "openai"
    params: dict[str, Any] = {}
    """`llm.params`: added to the body; they never replace anything that is made here."""
    system_messages: tuple[dict[str, Any], ...] = ()
    """OpenAI message objects, `{"role":"system","content":…}`; not counted by any policy."""
    interruptable: bool = True
    enrich: tuple[str, ...] = ()
    """Names in `ENRICHERS`, applied in this order."""
    alternate: bool = False
    """Whether user and assistant must alternate in the OpenAI style too; in the other styles they always do."""
    tools: bool = False
    """Whether to show answered tool calls. Their definitions come from the reader, in `params`."""


class VendorRules(Protocol):
    """Which fields a vendor gets besides role and text; a module of this folder."""

    KEEPS_BLANK: bool
    """Whether to pass on messages without text, if the style takes them."""
    RESERVED_PARAMS: frozenset[str]
    """Top-level names that params may not set, even if the body does not have them."""

    message_fields: Callable[[Message], dict[str, Any]] | None
    """The fields of a message besides role and content; None where there are never any."""

    def top_fields(self, memory: Sequence[Message], interruptable: bool, /) -> dict[str, Any]:
        """The fields of the body besides the conversation."""


class Style(Protocol):
    """The shape of an API's requests; a module of this folder."""

    ALTERNATES: bool
    """Whether the API refuses a conversation in which user and assistant do not alternate."""
    TAKES_BLANK: bool
    """Whether the API takes messages without text."""

    def conversation(self, runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]], /) -> dict[str, Any]:
        """The part of the body with the conversation and the system messages."""

    def body_params(self, params: dict[str, Any], /) -> dict[str, Any]:
        """The part of the body that is made from params."""


STYLES: dict[str, Style] = {"openai": openai, "anthropic": anthropic, "gemini": gemini}


def request_body(
    messages: Sequence[Message], tools: Sequence[ToolUse], format: RequestFormat, *, cut: bool = False
) -> dict[str, Any]:
    """The whole body of the next LLM request, ready for JSON; `messages` in the order of the memory.

    `cut` says that older messages were left out: tool uses before the first message are then left out too. The body
    shares dicts with the messages and the format, so it must not be changed.
    """
    rules = vendor_rules(format.vendor)
    style = STYLES[format.style]
    memory = enriched(messages, format.enrich)
    parts = interleave(memory, tools if format.tools else (), cut=cut)
    body = style.conversation(_runs(parts, rules, style, format), format.system_messages)
    body |= rules.top_fields(memory, format.interruptable)
    model = format.model or format.params.get("model")
    if model:
        body["model"] = model
    own = body.keys() | rules.RESERVED_PARAMS | {"model"}
    return body | {name: value for name, value in style.body_params(format.params).items() if name not in own}


def vendor_rules(vendor: str | None) -> VendorRules:
    """The rules of a vendor. This is the only place where fields are stripped or passed on by vendor."""
    return custom if vendor == "custom" else standard


def is_left_out(message: Message, vendor: str | None) -> bool:
    """Whether a message is left out for being blank (in the OpenAI style, without enrichers)."""
    return not message.content.strip() and not vendor_rules(vendor).KEEPS_BLANK


def _runs(parts: Sequence[Part], rules: VendorRules, style: Style, format: RequestFormat) -> list[RoleRun]:
    single = runs(parts, rules.message_fields, keeps_blank=rules.KEEPS_BLANK and style.TAKES_BLANK)
    return alternate_roles(single) if style.ALTERNATES or format.alternate else single
