"""What Agora's clients send, and what of it is a session's configuration. Unknown fields and nulls are passed over."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.config import Labels, LlmConfig, without_nulls
from voicemem.errors import Refused
from voicemem.events import Fields
from voicemem.server.rest.parts import object_of
from voicemem.wire import explain

T = TypeVar("T")
MAX_SPEECH_BYTES = 512
KEPT = (
    "vendor",
    "style",
    "url",
    "api_key",
    "params",
    "max_history",
    "system_messages",
    "greeting_message",
    "failure_message",
    "headers",
)
"""The settings of `llm` that a session has too."""
Text = Annotated[str, Meta(min_length=1)]
Action = Literal["inject", "interrupt", "ignore", "append"]


class Properties(Struct, frozen=True):
    """Of an agent's properties those that are kept. `idle_timeout` is in seconds."""

    channel: Text
    llm: Fields = {}
    labels: Labels | UnsetType = UNSET
    idle_timeout: Annotated[int, Meta(ge=0, le=259_200)] | UnsetType = UNSET


class Join(Struct, frozen=True):
    """A call for an agent."""

    name: Text
    properties: Properties


class LlmUpdate(Struct, frozen=True):
    """What may change while an agent runs; `params` are replaced whole."""

    system_messages: list[Fields] | UnsetType = UNSET
    params: Fields | UnsetType = UNSET


class UpdateProperties(Struct, frozen=True):
    """The rest of them is not kept."""

    llm: LlmUpdate = LlmUpdate()


class Update(Struct, frozen=True):
    """New settings of a running agent."""

    properties: UpdateProperties


class Speak(Struct, frozen=True):
    """A text that the agent is to say; priorities are the engine's business."""

    text: Text
    priority: Literal["INTERRUPT", "APPEND", "IGNORE"] = "INTERRUPT"
    interruptable: bool = True


class Think(Struct, frozen=True):
    """A text that the agent is to take as the user's; actions are the engine's business."""

    text: Text
    on_listening_action: Action = "interrupt"
    on_thinking_action: Action = "interrupt"
    on_speaking_action: Action = "ignore"
    interruptable: bool = True
    metadata: dict[str, str] | UnsetType = UNSET


async def body_as(request: web.Request, kind: type[T]) -> T:
    """The body as a struct. Raises `Refused` (`missing_field`, `invalid_field`), `InvalidFrame`."""
    try:
        return msgspec.convert(without_nulls(await object_of(request)), kind)
    except msgspec.ValidationError as error:
        raise Refused(*explain(error)) from None


def configuration(join: Join) -> Fields:
    """The configuration of the session that an agent is."""
    properties = join.properties
    llm = {name: properties.llm[name] for name in KEPT if name in properties.llm}
    if llm.get("style") == "dify":  # a style of Agora's that context has no format for
        del llm["style"]
    given: dict[str, Any] = {
        "name": join.name,
        "channel": properties.channel,
        "labels": properties.labels,
        "idle_timeout": properties.idle_timeout,
        "llm": llm or UNSET,
    }
    return {name: value for name, value in given.items() if value is not UNSET}


def patch(update: Update, now: LlmConfig) -> Fields:
    """The merge patch of a configuration that an update makes."""
    llm: Fields = {}
    given = update.properties.llm
    if given.system_messages is not UNSET:
        llm["system_messages"] = given.system_messages
    if given.params is not UNSET:
        llm["params"] = replacing(now.params, given.params)
    return {"llm": llm} if llm else {}


def replacing(old: Fields, new: Fields) -> Fields:
    """The merge patch (RFC 7396) that leaves nothing of an old object but what the new one has too."""
    nested = {
        name: replacing(old[name], value)
        for name, value in new.items()
        if isinstance(value, dict) and isinstance(old.get(name), dict)
    }
    return {**dict.fromkeys(old), **new, **nested}
