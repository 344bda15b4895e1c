"""The bodies that Agora's clients send, and the configuration in them. Unknown fields and nulls are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.config.session import URL_PATTERN, URL_RULE, Headers, Labels, LlmConfig, MaxHistory
from voicemem.errors import Refused
from voicemem.protocol.explain import describe_error
from voicemem.protocol.merge_patch import drop_nulls
from voicemem.protocol.types import JsonObject, matching
from voicemem.server.http.request import fields_given, read_object

T = TypeVar("T")
MAX_SPEECH_BYTES = 512
UrlOrNone = Annotated[str, matching(rf"^({URL_PATTERN})?\Z", URL_RULE, max_length=2048)]
Text = Annotated[str, Meta(min_length=1)]
Action = Literal["inject", "interrupt", "ignore", "append"]


class GeminiPart(Struct, frozen=True):
    """A part of a message in Gemini's form."""

    text: str


class Llm(Struct, frozen=True):
    """The settings of `llm` that a session has too; styles without a context format are ignored."""

    vendor: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    style: Literal["openai", "anthropic", "gemini", "dify", "bedrock"] | UnsetType = UNSET
    url: UrlOrNone | UnsetType = UNSET
    api_key: str | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET
    params: JsonObject | UnsetType = UNSET
    max_history: MaxHistory | UnsetType = UNSET
    system_messages: list[JsonObject] | UnsetType = UNSET
    greeting_message: str | UnsetType = UNSET
    failure_message: str | UnsetType = UNSET


class Properties(Struct, frozen=True):
    """The properties of an agent that are kept. `idle_timeout` is in seconds."""

    channel: Text
    llm: Llm = Llm()
    labels: Labels | UnsetType = UNSET
    idle_timeout: Annotated[int, Meta(ge=0, le=259_200)] | UnsetType = UNSET


class Join(Struct, frozen=True):
    """A request for an agent."""

    name: Text
    properties: Properties


class LlmUpdate(Struct, frozen=True):
    """The settings that may change while an agent runs; `params` are replaced as a whole."""

    system_messages: list[JsonObject] | UnsetType = UNSET
    params: JsonObject | UnsetType = UNSET


class UpdateProperties(Struct, frozen=True):
    """The properties that may change; others are ignored."""

    llm: LlmUpdate = LlmUpdate()


class Update(Struct, frozen=True):
    """New settings of a running agent."""

    properties: UpdateProperties


class Speak(Struct, frozen=True):
    """A text that the agent is to say; the engine follows the priority, voicemem does not."""

    text: Text
    priority: Literal["INTERRUPT", "APPEND", "IGNORE"] = "INTERRUPT"
    interruptable: bool = True


class Think(Struct, frozen=True):
    """A text that the agent is to take as the user's; the engine follows the actions, voicemem does not."""

    text: Text
    on_listening_action: Action = "interrupt"
    on_thinking_action: Action = "interrupt"
    on_speaking_action: Action = "ignore"
    interruptable: bool = True
    metadata: dict[str, str] | UnsetType = UNSET


async def body_as(request: web.Request, kind: type[T]) -> T:
    """Read the body as a struct. Raises `Refused` (`missing_field`, `invalid_field`), `InvalidFrame`."""
    try:
        return msgspec.convert(drop_nulls(await read_object(request)), kind)
    except msgspec.ValidationError as error:
        code = "missing_field" if str(error).startswith("Object missing required field") else "invalid_field"
        raise Refused(code, describe_error(error, kind)) from None


def session_config(join: Join) -> JsonObject:
    """Return the configuration of the agent's session."""
    properties = join.properties
    llm = move_key_out_of_url(without_empty(fields_given(properties.llm)))
    if "system_messages" in llm:
        llm["system_messages"] = with_content(llm["system_messages"])
    if llm.get("style") in ("dify", "bedrock"):
        del llm["style"]
    config: dict[str, Any] = {
        "name": join.name,
        "channel": properties.channel,
        "labels": properties.labels,
        "idle_timeout": properties.idle_timeout,
        "llm": llm or UNSET,
    }
    return {name: value for name, value in config.items() if value is not UNSET}


def without_empty(llm: JsonObject) -> JsonObject:
    """Drop an empty URL and key, which applications send whose environment variables are not set."""
    return {name: value for name, value in llm.items() if value != "" or name not in ("url", "api_key")}


def move_key_out_of_url(llm: JsonObject) -> JsonObject:
    """Move Gemini's key, which Agora's SDK puts into the URL, to `api_key`: keys are never shown, the URL is."""
    url = urlsplit(llm.get("url", ""))
    pairs = url.query.split("&")
    keys = [pair.removeprefix("key=") for pair in pairs if pair.startswith("key=")]
    if not keys:
        return llm
    query = "&".join(pair for pair in pairs if not pair.startswith("key="))
    return {"api_key": unquote(keys[0]), **llm, "url": urlunsplit(url._replace(query=query))}


def with_content(messages: list[JsonObject]) -> list[JsonObject]:
    """Turn system messages in Gemini's form (`parts`, mostly of the role `user`) into a session's; keep others."""
    return [
        {"role": "system", "content": text_of_parts(message)} if has_parts(message) else message for message in messages
    ]


def has_parts(message: JsonObject) -> bool:
    return "content" not in message and "parts" in message


def text_of_parts(message: JsonObject) -> str:
    """Join the texts of a message in Gemini's form. Raises `Refused` for a part of another kind."""
    try:
        return "\n".join(part.text for part in msgspec.convert(message["parts"], list[GeminiPart]))
    except msgspec.ValidationError:
        raise Refused("invalid_field", "The parts of a system message must be texts.") from None


def agora_update_patch(update: Update, now: LlmConfig) -> JsonObject:
    """Return an update as a merge patch of the configuration."""
    llm: JsonObject = {}
    changes = update.properties.llm
    if changes.system_messages is not UNSET:
        llm["system_messages"] = with_content(changes.system_messages)
    if changes.params is not UNSET:
        llm["params"] = replacement_patch(now.params, changes.params)
    return {"llm": llm} if llm else {}


def replacement_patch(old: JsonObject, new: JsonObject) -> JsonObject:
    """Return the merge patch (RFC 7396) that turns the old object into the new one."""
    nested = {
        name: replacement_patch(old[name], value)
        for name, value in new.items()
        if isinstance(value, dict) and isinstance(old.get(name), dict)
    }
    return {**dict.fromkeys(old), **new, **nested}
