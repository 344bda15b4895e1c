"""Reading a memory: history and turns."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from voicemem.config.session import parse_config
from voicemem.protocol.types import MAX_INTEGER, JsonObject, SessionId
from voicemem.server.http.request import NoQuery, get_stream, json_response, services_of
from voicemem.server.http.routes import JSON, ResponseSpec, Route, json_ok
from voicemem.server.rest.sessions import StateName
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message, Role
from voicemem.transcript.turns import turns


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`limit` takes the newest messages; `open` adds replies and partials in progress."""

    fields: Literal["full", "standard"] = "full"
    open: bool = False
    after_turn: Annotated[int, Meta(ge=-1, le=MAX_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None


class Spoken(Struct, frozen=True):
    """A message with `fields=standard`."""

    role: Role
    content: str


class SessionMemory(Struct, frozen=True):
    """The session of a memory; times are Unix ms."""

    session_id: SessionId
    state: StateName
    started_at: int
    ended_at: int | None
    position: int


class History(SessionMemory, frozen=True):
    """A memory, with its messages in the order of the phone call."""

    contents: list[Message]


class EncodedHistory(SessionMemory, frozen=True):
    """A whole memory whose messages are already JSON."""

    contents: Raw


class StandardHistory(SessionMemory, frozen=True):
    """A memory with `fields=standard`."""

    contents: list[Spoken]


class TurnStart(Struct, frozen=True):
    """When a turn began, and what began it."""

    start_at: int
    type: Literal["voice_input", "greeting", "silence_timeout", "api_speak", "api_think", "message"]
    metadata: JsonObject


class TurnEnd(Struct, frozen=True):
    """When and how a turn ended."""

    end_at: int
    type: Literal["ok", "interrupted", "error"]
    metadata: JsonObject


class SegmentLatency(Struct, frozen=True):
    """The newest latency of one stage of the pipeline, in ms."""

    name: str
    latency: float


class TurnMetrics(Struct, frozen=True):
    """The latencies of a turn, in ms."""

    segmented_latency_ms: list[SegmentLatency]
    e2e_latency_ms: float | UnsetType = UNSET


class TurnReport(Struct, frozen=True):
    """One turn; `end` is null while it lasts, `start` as long as nothing was said in it."""

    agent_id: SessionId
    channel: str
    turn_id: int
    start: TurnStart | None
    end: TurnEnd | None
    metrics: TurnMetrics


class Turns(Struct, frozen=True):
    """The turns of a session."""

    turns: list[TurnReport]


async def read_history(request: web.Request, query: HistoryQuery) -> web.Response:
    """Read the memory, during the phone call and after it: all of it, unless the query says otherwise."""
    stream = await get_stream(request)
    services = services_of(request)
    etag = etag_of(request, services.store.incarnation, stream)
    tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")}
    if not tags.isdisjoint({etag, "*"}):
        return web.Response(status=304, headers={"ETag": etag})
    memory = await services.memories.get(stream)
    if memory.position > stream.position:  # more was committed since: the row must be of the same moment
        stream = await get_stream(request)
        memory = await services.memories.get(stream)
    head = (stream.id, stream.state, stream.started_ms, stream.ended_ms, stream.position)
    if query == HistoryQuery():
        return json_response(EncodedHistory(*head, Raw(memory.encode_messages())), headers={"ETag": etag})
    messages = select(memory.messages(unfinished=query.open), query)
    if query.fields == "full":
        return json_response(History(*head, messages), headers={"ETag": etag})
    spoken = [Spoken(message.role, message.content) for message in messages]
    return json_response(StandardHistory(*head, spoken), headers={"ETag": etag})


def select(messages: list[Message], query: HistoryQuery) -> list[Message]:
    if query.after_turn is not None:
        messages = [message for message in messages if message.turn_id > query.after_turn]
    return messages if query.limit is None else messages[-query.limit :]


def etag_of(request: web.Request, incarnation: str, stream: Stream) -> str:
    """Return a tag that changes whenever the answer may: one position of one journal gives one memory."""
    # A restored store has another incarnation, since its positions may mean other events. The key distinguishes
    # sessions with one id, in other projects for example. The query chooses what is shown of the memory.
    version = f"{incarnation}/{stream.key}/{stream.position}?{request.query_string}"
    return f'"{hashlib.blake2b(version.encode(), digest_size=16).hexdigest()}"'


async def read_turns(request: web.Request, _: NoQuery) -> web.Response:
    """Read each turn's start, end, cause and latencies, in Agora's form."""
    stream = await get_stream(request)
    memory = await services_of(request).memories.get(stream)
    channel = parse_config(stream.config).channel or ""
    return json_response(Turns([TurnReport(stream.id, channel, **turn) for turn in turns(memory.state)]))


ROUTES = (
    Route(
        "GET",
        "/v1/sessions/{id}/history",
        read_history,
        "read",
        HistoryQuery,
        {200: ResponseSpec({JSON: History | StandardHistory}, headers=("ETag",)), 304: ResponseSpec(headers=("ETag",))},
    ),
    Route("GET", "/v1/sessions/{id}/turns", read_turns, "read", NoQuery, json_ok(Turns)),
)
