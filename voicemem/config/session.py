"""The configuration of one session: its fields, merge patches of it, its secrets (docs/rest.md, "Configuration").

A configuration is stored as the JSON object that was given, without its secrets; `parse_config` makes it typed.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voicemem.config import context
from voicemem.documents.document import WorkingMemoryConfig, check_working_memory
from voicemem.errors import Refused
from voicemem.protocol.arguments import fit
from voicemem.protocol.codec import drop_nulls, merge_patch
from voicemem.protocol.explanations import FIELD_NAME, WRAPPERS, describe_error, unknown_field
from voicemem.protocol.telephone import is_number
from voicemem.protocol.types import MAX_TEXT_BYTES, JsonObject, Name, matching

SECRETS = (("llm", "api_key"), ("webhook", "secret"), ("llm", "headers"))
"""Places of secrets in a configuration. They are never journaled and never shown."""
OUTBOUND_FIELDS = frozenset({"url", "api_key", "headers"})
"""Fields of `llm` that, like `webhook`, make the service send requests to others: setting them needs `admin`."""
STANDARD_PREFIX = "whsec_"
"""The prefix of Standard Webhooks secrets."""
SORTED = msgspec.json.Encoder(order="sorted")


class SessionPatch(Struct, frozen=True):
    """A configuration or a merge patch of one, checked, with its secrets apart."""

    public: JsonObject
    secrets: dict[str, str | None]
    """By dotted path, such as "llm.api_key"; None where a patch removes one."""


def changes_outbound(config: JsonObject) -> bool:
    """Return whether a configuration or patch, as it came, sets or removes a cause of outbound requests."""
    llm = config.get("llm", {})
    return "webhook" in config or llm is None or (isinstance(llm, dict) and not OUTBOUND_FIELDS.isdisjoint(llm))


def patch_changes_outbound(session_patch: SessionPatch) -> bool:
    return bool(session_patch.secrets) or changes_outbound(session_patch.public)


def outbound_urls(session_patch: SessionPatch) -> list[str]:
    """Return the URLs that a configuration or patch sets: of its webhooks' receiver, and of its LLM."""
    sections = (session_patch.public.get(section) for section in ("webhook", "llm"))
    urls = (values.get("url") for values in sections if isinstance(values, dict))
    return [url for url in urls if isinstance(url, str)]


def check_webhook_secret(secret: str | None) -> None:
    """Refuse a `whsec_` secret that is not base64: verifiers of Standard Webhooks decode it. Raises `Refused`."""
    if secret is not None and secret.startswith(STANDARD_PREFIX) and not decode_standard_secret(secret):
        raise Refused("invalid_field", f"What follows {STANDARD_PREFIX} in a webhook secret must be base64.")


def decode_standard_secret(secret: str) -> bytes | None:
    """Return the key in a `whsec_` secret (verifiers allow missing padding); None where it is not base64."""
    encoded = secret.removeprefix(STANDARD_PREFIX)
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return None


MAX_LABELS = 64
MAX_CONFIG_BYTES = MAX_TEXT_BYTES
URL_PATTERN = r"https?://[^/\s@]+(/\S*)?"
URL_RULE = "An address is http:// or https://, a host, and optionally a path, without a user and without spaces"
HEADER_RULE = "The name of a header must be 1 to 128 letters, digits and signs such as - and _"
Seconds = Annotated[int, Meta(ge=0, le=10**10)] | Annotated[float, Meta(ge=0, le=1e10)]
Url = Annotated[str, matching(rf"^{URL_PATTERN}\Z", URL_RULE, max_length=2048)]
"""A URL by its form only; the address guard decides at each request whether it may be contacted."""
MaxHistory = Annotated[int, Meta(ge=1, le=1024)]
Labels = Annotated[dict[str, str], Meta(max_length=MAX_LABELS)]
HeaderName = Annotated[str, matching(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z", HEADER_RULE)]
HeaderValue = Annotated[
    str, matching(r"^[ -~\t]{0,4096}\Z", "The value of a header must be at most 4096 printable ASCII characters")
]
Headers = Annotated[dict[HeaderName, HeaderValue], Meta(max_length=MAX_LABELS)]
STARTED_EVENT, LEFT_EVENT, HISTORY_EVENT, METRICS_EVENT, TURNS_EVENT = 101, 102, 103, 111, 112
"""The event types of webhook events, with Agora's numbers."""
CLOSE_EVENTS = (LEFT_EVENT, HISTORY_EVENT, METRICS_EVENT, TURNS_EVENT)
"""Sent when a session is closed, in the order in which they become due; they may arrive in another."""
COMPLETE_TURNS_EVENT, MEMORIES_EVENT = 1001, 1002
"""Ours: turns that are complete, while the call runs; and memories that were kept, changed or removed."""
ORDERED_EVENTS = (COMPLETE_TURNS_EVENT, MEMORIES_EVENT)
"""Events of these types arrive one after another for each session or user."""
EventTypes = Annotated[tuple[Literal[101, 102, 103, 111, 112, 1001, 1002], ...], Meta(min_length=1, max_length=7)]
"""The webhook events that a receiver subscribes to."""


class SystemMessage(Struct, frozen=True):
    """A message that every LLM request begins with, in OpenAI's form; other fields pass through."""

    role: str
    """The role of the message, mostly `system`."""
    content: str | list[Any]
    """Its text, or the parts of it."""


class LlmSystemMessages(Struct, frozen=True):
    """The section `llm`, as far as its messages are checked a second time."""

    system_messages: tuple[SystemMessage, ...] | None = None


class ConfigSystemMessages(Struct, frozen=True):
    """A configuration, as far as that; it exists so that errors give the path `llm.system_messages`."""

    llm: LlmSystemMessages


class LlmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The LLM of a session. With `vendor` "custom", messages keep all their fields; else only role and content."""

    vendor: str | None = None
    """`custom` gets all fields of messages; any other the role and the content."""
    model: str | None = None
    """The model that requests name."""
    style: Literal["openai", "anthropic", "gemini"] = "openai"
    """Whose form the context has."""
    url: Url | None = None
    """The LLM behind the gateway, up to `/chat/completions`."""
    api_key: str | None = None
    """Its key."""
    params: JsonObject = {}
    """Further fields of every request."""
    max_history: MaxHistory = 32
    """How many messages a context has, unless a policy says so."""
    system_messages: tuple[JsonObject, ...] = ()
    """Messages that every context begins with."""
    system: Literal["one", "separate"] = "one"
    """System messages: joined to one for the LLM, or each by itself."""
    alternate: bool | Literal["auto"] = "auto"
    """True if user and assistant take turns; `auto`: in the gateway, for models that refuse anything else."""
    greeting_message: str | None = None
    """Kept for the agent."""
    failure_message: str | None = None
    """The gateway's words when the LLM fails."""
    headers: Headers = {}
    """Sent with every request to `url`, along with our own; stored apart like `api_key`, and replaced as a whole."""


Contents = Literal["full", "standard", "vcon"]
"""Form of the messages in a webhook event: with all fields, with role and content alone, or as a vCon."""


Included = Literal["user_id", "tools", "analysis"]
"""Further parts of webhook events: whose call it is, in all that are about one; its tool calls, in its history."""
IncludedParts = Annotated[tuple[Included, ...], Meta(max_length=8)]


class WebhookConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A session's own webhook receiver; without `url` it has none."""

    url: Url | None = None
    """The receiver's address."""
    secret: str | None = None
    """Signs what it is sent."""
    contents: Contents = "full"
    """The form of the messages: with all fields, with role and content, or as a vCon."""
    event_types: EventTypes = (103,)
    """The events that it gets."""
    include: IncludedParts = ()
    """What they have besides."""


class MemoryFrom(Struct, frozen=True, forbid_unknown_fields=True):
    """The part of its user's earlier sessions that a session takes over when its first context is read."""

    sessions: Annotated[int, Meta(ge=1, le=16)] = 1
    """How many sessions, the newest."""
    what: Literal["summary", "messages"] = "summary"
    """Their summaries or their messages."""
    max_messages: Annotated[int, Meta(ge=1, le=1024)] = 10
    """The newest messages of each session; with `what` "summary", the newest that its summary does not cover."""


class Durations(Struct, frozen=True, kw_only=True):
    """How long a session is open, and what is made of it is kept; the last fields of its configuration."""

    idle_timeout: Seconds = 60
    """Seconds without a connection after which the session is closed; 0 for never."""
    reopen_window: Seconds = 3600
    """Seconds in which a session that was closed as idle can come back."""
    max_duration: Seconds = 72 * 3600
    """Seconds after which the session is closed."""
    ttl_seconds: Seconds | None = None
    """So many seconds after its end the session is erased; never when missing."""
    memories_ttl_seconds: Seconds | None = None
    """How many seconds memories are kept from the end on, where that is longer than `ttl_seconds`."""


class SessionConfig(Durations, frozen=True, forbid_unknown_fields=True):
    """All settings of a session, with their defaults."""

    name: str | None = None
    """A text for the webhook."""
    channel: str | None = None
    """A text for the webhook."""
    user_id: Name | None = None
    """Whose call it is."""
    labels: Labels = {}
    """Texts by which sessions are found."""
    recording: Url | None = None
    """Where a recording of the call is; the service never fetches it."""
    llm: LlmConfig = LlmConfig()
    """The LLM, and what its requests hold."""
    interruptable: bool = True
    """Shown to custom LLMs."""
    webhook: WebhookConfig = WebhookConfig()
    """The session's own receiver."""
    memory: context.ContextConfig = context.ContextConfig()
    """How much of the memory an LLM gets, and what is kept of the call."""
    working_memory: WorkingMemoryConfig | None = None
    """A document that is kept during the call."""
    memory_from: MemoryFrom | None = None
    """Taken over from earlier calls of the user."""


SECTIONS: dict[str, type[Struct]] = {
    "llm": LlmConfig,
    "webhook": WebhookConfig,
    "memory": context.ContextConfig,
    "working_memory": WorkingMemoryConfig,
    "memory_from": MemoryFrom,
}
PLACES = {
    "at the top": SessionConfig.__struct_fields__,
    "at the top, field by field": WRAPPERS,
    "beside `session` in `session.open`": ("session_id", "producer", "dialect"),
    **{f"under `{section}`": kind.__struct_encode_fields__ for section, kind in SECTIONS.items()},
    "under `memory.extract`": context.ExtractConfig.__struct_encode_fields__,
    "under `memory.memories`": context.RecallConfig.__struct_encode_fields__,
}
"""The fields of each place, for errors."""


def parse_config(public: JsonObject) -> SessionConfig:
    """Return the typed configuration, with defaults, of a stored one."""
    return msgspec.convert(public, SessionConfig)


for kind in (SessionConfig, Durations):  # several threads that use a type for the first time at once would crash
    msgspec.convert({}, kind)


def validate_config(patch: JsonObject) -> SessionPatch:
    """Check a configuration or a merge patch of one, and take its secrets out.

    Raises `Refused` (`invalid_field`) naming the field. `system_messages` at the top is short for
    `llm.system_messages`.
    """
    check_size(patch)
    check_names(patch, (*SessionConfig.__struct_fields__, "system_messages"))
    for section, kind in SECTIONS.items():
        check_names(patch.get(section), kind.__struct_fields__, section)
    expanded, replaced = expand_shorthand(patch)
    expanded = fit(expanded, SessionConfig, nulls=True)
    try:
        config = msgspec.convert(drop_nulls(expanded), SessionConfig)
        for messages in (replaced, config.llm.system_messages):
            msgspec.convert({"llm": {"system_messages": messages}}, ConfigSystemMessages)
    except msgspec.ValidationError as error:
        why = describe_error(error, SessionConfig, places=PLACES)
        raise Refused("invalid_field", f"In the configuration: {why}") from None
    check_webhook_secret(config.webhook.secret)
    context.check_context(expanded.get("memory"))
    check_working_memory(config.working_memory)
    return split_secrets(expanded)


def check_size(config: JsonObject) -> None:
    """Refuse a configuration that is too large, before any other check. Raises `Refused`."""
    if len(msgspec.json.encode(config)) > MAX_CONFIG_BYTES:
        raise Refused("invalid_field", "A configuration may have at most 256 KiB.")


def expand_shorthand(config: JsonObject) -> tuple[JsonObject, Any]:
    """Return a copy with `system_messages` moved into `llm`, and the messages replaced there. Raises `Refused`."""
    if "system_messages" not in config:
        return config, None
    if "llm" in config and config["llm"] is None:
        raise Refused("invalid_field", "llm cannot be removed while system_messages are set.")
    expanded = dict(config)
    messages = {"system_messages": expanded.pop("system_messages")}
    llm = expanded.get("llm", {})
    if not isinstance(llm, dict):  # refused by the caller
        return expanded, None
    return expanded | {"llm": llm | messages}, llm.get("system_messages")


def split_secrets(config: JsonObject) -> SessionPatch:
    """Return a checked configuration or patch with its secrets apart.

    They come out before the configuration is journaled, since a journal cannot be changed and can be read back.
    A secret that a patch removes, alone or with its section, is None.
    """
    public = dict(config)
    secrets: dict[str, str | None] = {}
    for section, key in SECRETS:
        values = public.get(section)
        if section in public and values is None:
            secrets[f"{section}.{key}"] = None
        elif isinstance(values, dict) and key in values:
            value = values[key]  # a text, or headers, which are stored as JSON
            secrets[f"{section}.{key}"] = (
                SORTED.encode(drop_nulls(value)).decode() if isinstance(value, dict) else value
            )
            public[section] = {name: value for name, value in values.items() if name != key}
    return SessionPatch(public, secrets)


def check_names(values: Any, known: Iterable[str], section: str = "") -> None:
    """Refuse unknown settings, also ones that a patch removes with null, which decoding does not see."""
    names = tuple(known)
    unknown = sorted(values.keys() - set(names)) if isinstance(values, dict) else []
    if unknown:
        name = next((name for name in unknown if FIELD_NAME.match(name)), "")  # nothing else that came is quoted
        raise Refused("invalid_field", f"In the configuration: {unknown_field(name, names, section, PLACES)}")


NUMBER_IN_CLEAR = (
    "`user_id` looks like a telephone number in clear, and ids stand in logs: `voicemem users id --number` makes an id"
    " of a number."
)


def warnings_about(config: JsonObject) -> tuple[str, ...]:
    """Return a warning for each part of a configuration without effect: settings about a user, while none is named.

    It is not refused, since a call with an unknown caller must be recorded, and `user_id` may be set later. A user
    whose id is a telephone number in clear is warned of too.
    """
    of_user = {
        "memory_from": config.get("memory_from") is not None,
        "memories_ttl_seconds": config.get("memories_ttl_seconds") is not None,
        "working_memory.scope": (config.get("working_memory") or {}).get("scope") == "user",
    }
    if config.get("user_id") is not None:
        return (NUMBER_IN_CLEAR,) if is_number(config["user_id"]) else ()
    return tuple(
        f"`{name}` has no effect until the session has a `user_id`." for name, is_set in of_user.items() if is_set
    )


def different_settings(config: JsonObject, patch: JsonObject) -> str:
    """Return the names of the settings that differ between a configuration and a patch of an empty one."""

    def dotted(config: JsonObject) -> dict[str, bytes]:
        """Return the settings as JSON, by dotted name such as `llm.model`."""
        settings: dict[str, bytes] = {}
        for name, value in config.items():
            if name in SECTIONS and isinstance(value, dict):
                settings |= {f"{name}.{key}": SORTED.encode(item) for key, item in value.items()}
            else:
                settings[name] = SORTED.encode(value)
        return settings

    one, other = dotted(config), dotted(apply_patch({}, patch))
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return ", ".join(names) or "a secret"  # secrets are kept apart, and are in neither


def apply_patch(config: JsonObject, patch: JsonObject) -> JsonObject:
    """Return the configuration after a merge patch (RFC 7396). Raises `Refused` if that is too large."""
    result = merge_patch(config, patch)
    if isinstance(patch.get("memory"), dict):
        result["memory"] = context.drop_stale_parameters(result["memory"], patch["memory"])
        context.check_whole_context(result["memory"])
    check_size(result)
    labels = result.get("labels")
    if isinstance(labels, dict) and len(labels) > MAX_LABELS:
        raise Refused("invalid_field", f"A session may have at most {MAX_LABELS} labels.")
    return result
