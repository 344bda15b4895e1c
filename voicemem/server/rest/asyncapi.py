"""The AsyncAPI 3.0 document of the websocket ingest, made from the types that decode and encode its frames.

https://www.asyncapi.com/docs/reference/specification/v3.0.0; its schemas are JSON Schema draft 7.
"""

import inspect
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import Struct

from voicemem.dialects.registry import DIALECTS
from voicemem.errors import CODES
from voicemem.protocol.events import Auth, FrameEvent, ProducedEvent, SessionOpen
from voicemem.protocol.frames import PATH, PROTOCOL, AckFrame, Error, GoAway, Ready
from voicemem.protocol.types import JsonObject
from voicemem.server.http.openapi import COMPONENTS, Schemas, inline
from voicemem.server.http.routes import MergePatch
from voicemem.server.rest.sessions import GivenConfig
from voicemem.version import __version__

VERSION = "3.0.0"
ABOUT = """A producer opens a session, numbers its events 1, 2, 3 and so on, and keeps each until it is acknowledged.

A text frame holds one event or an array of events. Besides what the schemas say: a frame may be at most 1 MiB and
nested at most 32 deep, a text at most 256 KiB of UTF-8, integers are within ±2^53 and written without a fraction (times
in ms are rounded), and an event may carry further fields. The server may send new frames and fields at any time;
clients ignore those that they do not know."""
BATCH = "events"
EVENTS: tuple[type[Struct], ...] = get_args(ProducedEvent)
REPLIES: dict[str, tuple[tuple[type[Struct], ...], tuple[type[Struct], ...]]] = {
    "authenticate": ((Auth,), ()),
    "open": ((SessionOpen,), (Ready, Error)),
    "record": (EVENTS, (AckFrame, Error)),
}
"""By operation: the messages that come, and the messages that answer them."""
SENT: tuple[type[Struct], ...] = (Ready, AckFrame, Error, GoAway)
BARE, ENVELOPE = "frame.bare", "frame.envelope"
DIALECT_ANSWERS: tuple[type[Struct], ...] = (Ready, AckFrame, Error)
ABOUT_DIALECTS = f"""Frames of another voice stack, as they are or in envelopes, with no `session.open` before them.

Text or binary messages of up to 16 MiB. Nothing that is sent here closes the connection. The server sends nothing at
all, unless the subprotocol {PROTOCOL} is offered."""
ABOUT_BARE = "A frame as its sender wrote it: JSON, a text where the stack sends one, or binary audio."
ABOUT_ENVELOPE = """A frame of another stack with its time, sender and number: an object with `frame`, without `type`.

On the ingest path they come after a `session.open` that names the `dialect`."""


@cache
def asyncapi_json() -> bytes:
    schemas = Schemas(unions={})
    received = [kind for kinds, _ in REPLIES.values() for kind in kinds]
    messages = {
        tag: {"name": tag, "summary": inspect.getdoc(kind) or "", "payload": schemas.of(kind)}
        for tag, kind in zip(tags([*received, *SENT]), [*received, *SENT], strict=True)
    }
    batch = {"type": "array", "items": {"anyOf": [messages[tag]["payload"] for tag in tags(received)]}}
    messages[BATCH] = {"name": BATCH, "summary": "Several events, in their order.", "payload": batch}
    frames = frame_messages()
    refine_configuration(schemas)
    return msgspec.json.encode(
        {
            "asyncapi": VERSION,
            "info": {
                "title": "voicemem ingest",
                "version": __version__,
                "description": ABOUT,
                "license": {"name": "Apache License 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            },
            "defaultContentType": "application/json",
            "servers": {
                "ingest": {
                    "host": "{host}:{port}",
                    "protocol": "ws",
                    "variables": {"host": {"default": "localhost"}, "port": {"default": "8765"}},
                    "security": [{"$ref": "#/components/securitySchemes/key"}],
                }
            },
            "channels": {
                "ingest": ingest_channel([*messages, ENVELOPE]),
                "dialect": dialect_channel([*frames, *tags([Auth, *SENT])]),
            },
            "operations": operations(),
            "components": {
                "messages": messages | frames,
                "schemas": schemas.components,
                "securitySchemes": {
                    "key": {"type": "http", "scheme": "bearer"},
                    "session_token": {"type": "httpApiKey", "name": "token", "in": "query"},
                },
            },
        }
    )


TARGET_QUERY = {
    "session_id": "The session; without it, the stack's own id of the call.",
    "producer": "The name of the producer; the dialect's, when missing.",
    "token": "A session token, for senders that can set nothing but a URL; never a key.",
    "user_id": "The user of a session that has none.",
    "typed": "Whether texts that were typed and not spoken count; they do unless it is `ignore`.",
}
ENVELOPE_FIELDS = ("frame", "ts", "from", "seq", "id", "session_id", "producer")


def tags(kinds: Iterable[type[Struct]]) -> list[str]:
    return [str(kind.__struct_config__.tag) for kind in kinds]


def channel(address: str, title: str, about: str, messages: list[str], **binding: Any) -> JsonObject:
    return {
        "address": address,
        "title": title,
        "description": about,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0", **binding}},
    }


def ingest_channel(messages: list[str]) -> JsonObject:
    closes = [f"- {code.close} `{name}`: {code.sentence}" for name, code in CODES.items() if code.close is not None]
    about = "\n".join(["The server closes the connection with these codes:", "", *closes])
    return channel(PATH, f"The ingest, with or without the subprotocol {PROTOCOL}", about, messages)


def frame_messages() -> JsonObject:
    """Describe the messages of another stack's sender: the stack defines the content of its frames."""
    fields = {name: field for name, field in inline(FrameEvent)["properties"].items() if name in ENVELOPE_FIELDS}
    payload = {"type": "object", "properties": fields, "required": ["frame"], "not": {"required": ["type"]}}
    return {
        BARE: {"name": BARE, "summary": ABOUT_BARE, "payload": {"type": ["object", "string"]}},
        ENVELOPE: {"name": ENVELOPE, "summary": ABOUT_ENVELOPE, "payload": payload},
    }


def dialect_channel(messages: list[str]) -> JsonObject:
    fields: JsonObject = {name: {"type": "string", "description": text} for name, text in TARGET_QUERY.items()}
    fields["typed"]["enum"] = ["keep", "ignore"]
    query = {"type": "object", "properties": fields}
    described = channel(f"{PATH}/{{dialect}}", "Other stacks' frames", ABOUT_DIALECTS, messages, query=query)
    dialect = {"description": "The stack whose frames come.", "enum": sorted(DIALECTS)}
    return described | {"parameters": {"dialect": dialect}}


def operations() -> JsonObject:
    """Describe the operations, from the server's side: it receives."""
    described = {}
    for name, (kinds, answers) in REPLIES.items():
        more = [BATCH, ENVELOPE] if kinds is EVENTS else []
        described[name] = operation("ingest", "receive", [*tags(kinds), *more], tags(answers))
    relay = operation("dialect", "receive", [*tags([Auth]), BARE, ENVELOPE], tags(DIALECT_ANSWERS))
    relay["security"] = [{"$ref": f"#/components/securitySchemes/{name}"} for name in ("key", "session_token")]
    return described | {"relay": relay, "drain": operation("ingest", "send", tags([GoAway]))}


def operation(channel: str, action: str, messages: list[str], answers: Sequence[str] = ()) -> JsonObject:
    place = {"$ref": f"#/channels/{channel}"}

    def references(names: Sequence[str]) -> list[JsonObject]:
        return [{"$ref": f"{place['$ref']}/messages/{name}"} for name in names]

    described: JsonObject = {"action": action, "channel": place, "messages": references(messages)}
    return described | ({"reply": {"channel": place, "messages": references(answers)}} if answers else {})


def refine_configuration(schemas: Schemas) -> None:
    """Give configurations in events a schema; their own types have none, since they are passed on as they came."""
    patch = schemas.of(MergePatch(GivenConfig))
    settings = schemas.components[patch["$ref"].removeprefix(COMPONENTS)]["properties"]
    update = schemas.components["SessionUpdate"]["properties"]
    update |= {name: setting for name, setting in settings.items() if name in update}
    schemas.components["SessionOpen"]["properties"]["session"]["anyOf"] = [patch, {"type": "null"}]
