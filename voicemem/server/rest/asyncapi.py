"""The AsyncAPI 3.0 document of the websocket ingest, made from the types that decode and encode its frames.

https://www.asyncapi.com/docs/reference/specification/v3.0.0; its schemas are JSON Schema draft 7.
"""

from __future__ import annotations

import inspect
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
nested at most 32 deep, a text at most 256 KiB of UTF-8, integers are within ±2^53 and written without a fraction, and
an event may carry further fields. The server may send new frames and fields at any time; clients ignore those that
they do not know."""
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
    """Return the document as JSON."""
    schemas = Schemas(unions={})
    received: list[type[Struct]] = [kind for kinds, _ in REPLIES.values() for kind in kinds]
    messages = {event_type_of(kind): message(kind, schemas) for kind in [*received, *SENT]}
    messages[BATCH] = batch([messages[event_type_of(kind)]["payload"] for kind in received])
    frames = frame_messages(schemas)
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
                "ingest": channel([*messages, ENVELOPE]),
                "dialect": dialect_channel([*frames, event_type_of(Auth), *map(event_type_of, SENT)]),
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


DOOR_QUERY = {
    "session_id": "The session; without it, the stack's own id of the call.",
    "producer": "The name of the producer; the dialect's, when missing.",
    "token": "A session token, for senders that can set nothing but a URL; never a key.",
    "typed": "Whether texts that were typed and not spoken count; they do unless it is `ignore`.",
}
ENVELOPE_FIELDS = ("frame", "ts", "from", "seq", "id", "session_id", "producer")


def event_type_of(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)


def message(kind: type[Struct], schemas: Schemas) -> JsonObject:
    """Describe one type of frame."""
    return {"name": event_type_of(kind), "summary": inspect.getdoc(kind) or "", "payload": schemas.of(kind)}


def batch(payloads: list[Any]) -> JsonObject:
    """Describe a frame of several events."""
    payload = {"type": "array", "items": {"anyOf": payloads}}
    return {"name": BATCH, "summary": "Several events, in their order.", "payload": payload}


def channel(messages: list[str]) -> JsonObject:
    """Describe the ingest path, its messages and its close codes."""
    closes = [f"- {code.close} `{name}`: {code.sentence}" for name, code in CODES.items() if code.close is not None]
    return {
        "address": PATH,
        "title": f"The ingest, with or without the subprotocol {PROTOCOL}",
        "description": "\n".join(["The server closes the connection with these codes:", "", *closes]),
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
    }


def frame_messages(schemas: Schemas) -> JsonObject:
    """Describe what another stack's sender sends: what is in a frame is for the stack to say."""
    envelope = inline(FrameEvent)
    fields = {name: field for name, field in envelope["properties"].items() if name in ENVELOPE_FIELDS}
    payload = {"type": "object", "properties": fields, "required": ["frame"], "not": {"required": ["type"]}}
    return {
        BARE: {"name": BARE, "summary": ABOUT_BARE, "payload": {"type": ["object", "string"]}},
        ENVELOPE: {"name": ENVELOPE, "summary": ABOUT_ENVELOPE, "payload": payload},
    }


def dialect_channel(messages: list[str]) -> JsonObject:
    """Describe the paths of dialects, and what their addresses may say."""
    query: JsonObject = {name: {"type": "string", "description": text} for name, text in DOOR_QUERY.items()}
    query["typed"]["enum"] = ["keep", "ignore"]
    names = sorted(DIALECTS)
    return {
        "address": f"{PATH}/{{dialect}}",
        "title": "Other stacks' frames",
        "description": ABOUT_DIALECTS,
        "parameters": {"dialect": {"description": "The stack whose frames come.", "enum": names}},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {
            "ws": {"method": "GET", "query": {"type": "object", "properties": query}, "bindingVersion": "0.1.0"}
        },
    }


def operations() -> JsonObject:
    """Describe the operations, from the server's side: it receives."""
    described: JsonObject = {}
    for name, (kinds, answers) in REPLIES.items():
        names = [*map(event_type_of, kinds), *([BATCH, ENVELOPE] if kinds is EVENTS else [])]
        described[name] = {"action": "receive", "channel": {"$ref": "#/channels/ingest"}, "messages": references(names)}
        if answers:
            answered = references([event_type_of(kind) for kind in answers])
            described[name]["reply"] = {"channel": {"$ref": "#/channels/ingest"}, "messages": answered}
    described["relay"] = {
        "action": "receive",
        "channel": {"$ref": "#/channels/dialect"},
        "messages": references([event_type_of(Auth), BARE, ENVELOPE], "dialect"),
        "reply": {
            "channel": {"$ref": "#/channels/dialect"},
            "messages": references([event_type_of(kind) for kind in DIALECT_ANSWERS], "dialect"),
        },
        "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in ("key", "session_token")],
    }
    going = references([event_type_of(GoAway)])
    described["drain"] = {"action": "send", "channel": {"$ref": "#/channels/ingest"}, "messages": going}
    return described


def references(names: list[str], channel: str = "ingest") -> list[JsonObject]:
    return [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names]


def refine_configuration(schemas: Schemas) -> None:
    """Give configurations in events a schema; their own types have none, since they are passed on as they came."""
    patch = schemas.of(MergePatch(GivenConfig))
    settings = schemas.components[patch["$ref"].removeprefix(COMPONENTS)]["properties"]
    update = schemas.components["SessionUpdate"]["properties"]
    update |= {name: setting for name, setting in settings.items() if name in update}
    schemas.components["SessionOpen"]["properties"]["session"] = {"anyOf": [patch, {"type": "null"}]}
