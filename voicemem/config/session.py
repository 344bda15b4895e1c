"""The configuration of one session: its fields, merge patches of it, and the secrets in it (design, section 6).

A configuration is kept as the JSON object that was given, without its secrets; `read` makes it typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voicemem.config.memory import MemoryConfig, check_memory, drop_stale_parameters
from voicemem.config.secrets import SECRETS, SessionPatch, check_webhook_secret, secret_text
from voicemem.documents.document import WorkingMemoryConfig, check_working_memory
from voicemem.errors import Refused
from voicemem.protocol.explain import describe_error
from voicemem.protocol.strict_json import drop_nulls, merge_patch
from voicemem.protocol.types import MAX_TEXT_BYTES, JsonObject, Name, matching

MAX_LABELS = 64
MAX_CONFIG_BYTES = MAX_TEXT_BYTES
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}\Z")
URL_PATTERN = r"https?://[^/\s@]+(/\S*)?"
URL_RULE = "An address is http:// or https://, a host, and a path if any, without a user and without white space"
HEADER_RULE = "The name of a header is 1 to 128 letters, digits and signs such as - and _"
Seconds = Annotated[int, Meta(ge=0, le=10**10)] | Annotated[float, Meta(ge=0, le=1e10)]
Url = Annotated[str, matching(rf"^{URL_PATTERN}\Z", URL_RULE, max_length=2048)]
"""Whether the address may be called is decided when it is."""
MaxHistory = Annotated[int, Meta(ge=1, le=1024)]
Labels = Annotated[dict[str, str], Meta(max_length=MAX_LABELS)]
HeaderName = Annotated[str, matching(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z", HEADER_RULE)]
HeaderValue = Annotated[
    str, matching(r"^[ -~\t]{0,4096}\Z", "The value of a header is at most 4096 printable ASCII characters")
]
Headers = Annotated[dict[HeaderName, HeaderValue], Meta(max_length=MAX_LABELS)]
STARTED_EVENT, LEFT_EVENT, HISTORY_EVENT, METRICS_EVENT, TURNS_EVENT = 101, 102, 103, 111, 112
"""Event types of notices, with Agora's numbers."""
CLOSE_EVENTS = (LEFT_EVENT, HISTORY_EVENT, METRICS_EVENT, TURNS_EVENT)
"""Sent when a session is closed, in the order in which they become due; they may arrive in any."""
EventTypes = Annotated[tuple[Literal[101, 102, 103, 111, 112], ...], Meta(min_length=1, max_length=5)]
"""What a receiver subscribes to."""


class SystemMessage(Struct, frozen=True):
    """What every LLM call begins with, as OpenAI has it; fields beside these pass through."""

    role: str
    content: str | list[Any]


class LlmSystemMessages(Struct, frozen=True):
    """Of `llm`, what needs a second look."""

    system_messages: tuple[SystemMessage, ...] | None = None


class ConfigSystemMessages(Struct, frozen=True):
    """Of a configuration, so that errors name the place."""

    llm: LlmSystemMessages


class LlmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The LLM of a session. `vendor` "custom" gets every field of every message, any other role and content only."""

    vendor: str | None = None
    model: str | None = None
    style: Literal["openai", "anthropic", "gemini"] = "openai"
    url: Url | None = None
    api_key: str | None = None
    params: JsonObject = {}
    max_history: MaxHistory = 32
    system_messages: tuple[JsonObject, ...] = ()
    greeting_message: str | None = None
    failure_message: str | None = None
    headers: Headers = {}
    """Go beside our own with every call to `url`; kept apart like `api_key`, and replaced whole."""


class WebhookConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A session's own receiver; without `url` there is none."""

    url: Url | None = None
    secret: str | None = None
    contents: Literal["full", "standard"] = "full"
    event_types: EventTypes = (103,)


class MemoryFrom(Struct, frozen=True, forbid_unknown_fields=True):
    """What a session knows from earlier ones of its user, at its first context."""

    sessions: Annotated[int, Meta(ge=1, le=16)] = 1
    what: Literal["summary", "messages"] = "summary"
    max_messages: Annotated[int, Meta(ge=1, le=1024)] = 10
    """Of each session, the newest; with summaries, of those that its summary does not stand for."""


class SessionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a session, with their defaults. Durations are in seconds; 0 turns `idle_timeout` off."""

    name: str | None = None
    channel: str | None = None
    user_id: Name | None = None
    labels: Labels = {}
    llm: LlmConfig = LlmConfig()
    interruptable: bool = True
    webhook: WebhookConfig = WebhookConfig()
    memory: MemoryConfig = MemoryConfig()
    working_memory: WorkingMemoryConfig | None = None
    memory_from: MemoryFrom | None = None
    idle_timeout: Seconds = 60
    reopen_window: Seconds = 3600
    max_duration: Seconds = 72 * 3600
    ttl_seconds: Seconds | None = None


def parse_config(public: JsonObject) -> SessionConfig:
    """The typed configuration, with defaults, of what was given and settled."""
    return msgspec.convert(public, SessionConfig)


def validate_config(given: JsonObject) -> SessionPatch:
    """Check a configuration or a merge patch of one, and take its secrets out.

    Raises `Refused` (`invalid_field`) naming the field. `system_messages` at the top is short for
    `llm.system_messages`.
    """
    tidy, replaced = dict(given), None
    check_names(tidy, {*SessionConfig.__struct_fields__, "system_messages"})
    check_names(tidy.get("llm"), LlmConfig.__struct_fields__, "llm.")
    check_names(tidy.get("webhook"), WebhookConfig.__struct_fields__, "webhook.")
    check_names(tidy.get("memory"), MemoryConfig.__struct_fields__, "memory.")
    check_names(tidy.get("working_memory"), WorkingMemoryConfig.__struct_fields__, "working_memory.")
    check_names(tidy.get("memory_from"), MemoryFrom.__struct_fields__, "memory_from.")
    if "system_messages" in tidy:
        if "llm" in tidy and tidy["llm"] is None:
            raise Refused("invalid_field", "llm cannot be taken away while system_messages are set.")
        short = {"system_messages": tidy.pop("system_messages")}
        llm = tidy.get("llm", {})
        if isinstance(llm, dict):  # what else it may be is refused below
            replaced = llm.get("system_messages")
            tidy["llm"] = llm | short
    try:
        config = msgspec.convert(drop_nulls(tidy), SessionConfig)
        for messages in (replaced, config.llm.system_messages):
            msgspec.convert({"llm": {"system_messages": messages}}, ConfigSystemMessages)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", f"In the configuration: {describe_error(error, SessionConfig)}") from None
    check_webhook_secret(config.webhook.secret)
    check_memory(tidy.get("memory"))
    check_working_memory(config.working_memory)
    secrets: dict[str, str | None] = {}
    for section, key in SECRETS:
        values = tidy.get(section)
        if section in tidy and values is None:
            secrets[f"{section}.{key}"] = None
        elif isinstance(values, dict) and key in values:
            secrets[f"{section}.{key}"] = secret_text(values[key])
            tidy[section] = {name: value for name, value in values.items() if name != key}
    return SessionPatch(tidy, secrets)


def check_names(given: Any, known: Iterable[str], section: str = "") -> None:
    """Refuse unknown settings here, where a patch takes them away: what it sets is decoded."""
    unknown = given.keys() - set(known) if isinstance(given, dict) else ()
    if unknown:
        plain_names = sorted(name for name in unknown if PLAIN_NAME.match(name))  # no other text of a sender's is shown
        named = f": `{section}{plain_names[0]}`" if plain_names else f" in `{section[:-1]}`" if section else ""
        raise Refused("invalid_field", f"In the configuration: there is a setting that is not known{named}.")


def apply_patch(config: JsonObject, patch: JsonObject) -> JsonObject:
    """The configuration after a merge patch (RFC 7396). Raises `Refused` when it then is too large."""
    result = merge_patch(config, patch)
    if isinstance(patch.get("memory"), dict):
        result["memory"] = drop_stale_parameters(result["memory"], patch["memory"])
        check_memory(result["memory"])
    if len(msgspec.json.encode(result)) > MAX_CONFIG_BYTES:
        raise Refused("invalid_field", "A configuration has at most 256 KiB.")
    labels = result.get("labels")
    if isinstance(labels, dict) and len(labels) > MAX_LABELS:
        raise Refused("invalid_field", f"A session has at most {MAX_LABELS} labels.")
    return result
