"""The configuration of one session: its fields, merge patches of it, and the secrets in it (design, section 6).

A configuration is kept as the JSON object that was given, without its secrets; `read` makes it typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from voicemem.documents import WorkingMemoryConfig, check_section
from voicemem.errors import Refused
from voicemem.events import MAX_TEXT_BYTES, Fields, Name
from voicemem.exports import check_secret
from voicemem.forms import in_words, matching
from voicemem.policies.parameters import MemoryConfig, check_memory, tidied

MAX_LABELS = 64
MAX_CONFIG_BYTES = MAX_TEXT_BYTES
SECRETS = (("llm", "api_key"), ("webhook", "secret"), ("llm", "headers"))
"""Never journaled, never shown: where each stands in a configuration."""
CALLING_OUT = frozenset({"url", "api_key", "headers"})
"""Of `llm`; these and `webhook` make the server call somebody, so setting them needs the scope `admin`."""

SORTED = msgspec.json.Encoder(order="sorted")
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}\Z")

URL_PATTERN = r"https?://[^/\s@]+(/\S*)?"
IS_URL = "An address is http:// or https://, a host, and a path if any, without a user and without white space"
IS_HEADER = "The name of a header is 1 to 128 letters, digits and signs such as - and _"
Seconds = Annotated[int, Meta(ge=0, le=10**10)] | Annotated[float, Meta(ge=0, le=1e10)]
Url = Annotated[str, matching(rf"^{URL_PATTERN}\Z", IS_URL, max_length=2048)]
"""Whether the address may be called is decided when it is."""
MaxHistory = Annotated[int, Meta(ge=1, le=1024)]
Labels = Annotated[dict[str, str], Meta(max_length=MAX_LABELS)]
HeaderName = Annotated[str, matching(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z", IS_HEADER)]
HeaderValue = Annotated[
    str, matching(r"^[ -~\t]{0,4096}\Z", "The value of a header is at most 4096 printable ASCII characters")
]
Headers = Annotated[dict[HeaderName, HeaderValue], Meta(max_length=MAX_LABELS)]


EventTypes = Annotated[tuple[Literal[101, 102, 103, 111, 112], ...], Meta(min_length=1, max_length=5)]
"""What a receiver hears of (`voicemem.notices`)."""


class SystemMessage(Struct, frozen=True):
    """What every LLM call begins with, as OpenAI has it; fields beside these pass through."""

    role: str
    content: str | list[Any]


class OfLlm(Struct, frozen=True):
    """Of `llm`, what needs a second look."""

    system_messages: tuple[SystemMessage, ...] | None = None


class SystemMessages(Struct, frozen=True):
    """Of a configuration, so that errors name the place."""

    llm: OfLlm


class LlmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The LLM of a session. `vendor` "custom" gets every field of every message, any other role and content only."""

    vendor: str | None = None
    model: str | None = None
    style: Literal["openai", "anthropic", "gemini"] = "openai"
    url: Url | None = None
    api_key: str | None = None
    params: Fields = {}
    max_history: MaxHistory = 32
    system_messages: tuple[Fields, ...] = ()
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


class Settled(Struct, frozen=True):
    """A configuration, or a patch of one, with its secrets taken out."""

    public: Fields
    secrets: dict[str, str | None]
    """By dotted path, "llm.api_key"; None where a patch takes one away."""


def read(public: Fields) -> SessionConfig:
    """The typed configuration, with defaults, of what was given and settled."""
    return msgspec.convert(public, SessionConfig)


def settle(given: Fields) -> Settled:
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
        config = msgspec.convert(without_nulls(tidy), SessionConfig)
        for messages in (replaced, config.llm.system_messages):
            msgspec.convert({"llm": {"system_messages": messages}}, SystemMessages)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", f"In the configuration: {plain(error, SessionConfig)}") from None
    check_secret(config.webhook.secret)
    check_memory(tidy.get("memory"))
    check_section(config.working_memory)
    secrets: dict[str, str | None] = {}
    for section, key in SECRETS:
        values = tidy.get(section)
        if section in tidy and values is None:
            secrets[f"{section}.{key}"] = None
        elif isinstance(values, dict) and key in values:
            secrets[f"{section}.{key}"] = secret_text(values[key])
            tidy[section] = {name: value for name, value in values.items() if name != key}
    return Settled(tidy, secrets)


def secret_text(value: Any) -> str | None:
    """A secret as it is kept; headers are an object, whose JSON is the text."""
    return SORTED.encode(without_nulls(value)).decode() if isinstance(value, dict) else value


def check_names(given: Any, known: Iterable[str], section: str = "") -> None:
    """Refuse unknown settings here, where a patch takes them away: what it sets is decoded."""
    unknown = given.keys() - set(known) if isinstance(given, dict) else ()
    if unknown:
        plain_names = sorted(name for name in unknown if PLAIN_NAME.match(name))  # no other text of a sender's is shown
        named = f": `{section}{plain_names[0]}`" if plain_names else f" in `{section[:-1]}`" if section else ""
        raise Refused("invalid_field", f"In the configuration: there is a setting that is not known{named}.")


def without_nulls(value: Any) -> Any:
    """A merge patch without what it takes away, which then must be valid as a configuration."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def plain(error: msgspec.ValidationError, *kinds: Any) -> str:
    """What a validation error says, without the value that was sent; `kinds` are what may have been decoded."""
    sentence, at, path = str(error).replace("- at `key` in `$", "- at `$").rpartition(" - at `$")
    if not at:
        sentence, path = path, ""
    sentence = in_words(sentence)
    if sentence.startswith("Invalid"):  # "Invalid value …", "Invalid enum value …"
        sentence = "The value is not one of those that it can have"
        values = choices(kinds, path.strip("`.")) if path else ()
        sentence += f" ({', '.join(map(str, values))})" if values else ""
    return f"{sentence}: `{path.removeprefix('.')}" if path.strip("`") else sentence


@lru_cache(maxsize=256)
def choices(kinds: tuple[Any, ...], path: str) -> tuple[str, ...]:
    """The values that a field with a choice can have, by its dotted path in one of some structs; else nothing."""
    name, _, rest = path.partition(".")
    for kind in kinds:
        fields = get_type_hints(kind) if isinstance(kind, type) and issubclass(kind, Struct) else {}
        members = tuple(within(fields.get(name.partition("[")[0])))
        found = choices(members, rest) if rest else next((get_args(one) for one in members if is_choice(one)), ())
        if found:
            return found
    return ()


def within(kind: Any) -> Iterator[Any]:
    """A type, and those that it is made of: of a union its members, of an array or object its values."""
    yield kind
    for part in () if is_choice(kind) else get_args(kind):
        yield from within(part)


def is_choice(kind: Any) -> bool:
    return get_origin(kind) is Literal


def merged(config: Fields, patch: Fields) -> Fields:
    """The configuration after a merge patch (RFC 7396). Raises `Refused` when it then is too large."""
    result = merge_patch(config, patch)
    if isinstance(patch.get("memory"), dict):
        result["memory"] = tidied(result["memory"], patch["memory"])
        check_memory(result["memory"])
    if len(msgspec.json.encode(result)) > MAX_CONFIG_BYTES:
        raise Refused("invalid_field", "A configuration has at most 256 KiB.")
    labels = result.get("labels")
    if isinstance(labels, dict) and len(labels) > MAX_LABELS:
        raise Refused("invalid_field", f"A session has at most {MAX_LABELS} labels.")
    return result


def merge_patch(target: Fields, patch: Fields) -> Fields:
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = merge_patch(inner if isinstance(inner, dict) else {}, value)
        else:
            result[key] = value
    return result


def calls_out(given: Fields) -> bool:
    """Whether a configuration or patch, as it was given, sets or takes away what makes the server call out."""
    llm = given.get("llm", {})
    return "webhook" in given or llm is None or (isinstance(llm, dict) and not CALLING_OUT.isdisjoint(llm))


def settled_calls_out(settled: Settled) -> bool:
    """The same for what was settled."""
    return bool(settled.secrets) or calls_out(settled.public)


def llm_url(settled: Settled) -> str | None:
    """The address of the LLM that a configuration or patch sets, if it sets one."""
    llm = settled.public.get("llm")
    url = llm.get("url") if isinstance(llm, dict) else None
    return url if isinstance(url, str) else None


def webhook_url(settled: Settled) -> str | None:
    """The receiver's address that a configuration or patch sets, if it sets one."""
    webhook = settled.public.get("webhook")
    url = webhook.get("url") if isinstance(webhook, dict) else None
    return url if isinstance(url, str) else None
