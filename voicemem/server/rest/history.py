"""Reading a memory over REST: history, the context of the next LLM call, turns."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta, Struct

from voicemem import config
from voicemem.admission import Stream
from voicemem.context import Wishes, context
from voicemem.errors import Refused
from voicemem.events import MAX_INTEGER
from voicemem.formats import ENRICHERS
from voicemem.messages import Message
from voicemem.server.rest.parts import NoQuery, Route, answer, parts_of, query_of, stream_of
from voicemem.turns import turns


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`limit` takes the newest messages; `open` adds replies and partials in progress."""

    fields: Literal["full", "standard"] = "full"
    open: bool = False
    after_turn: Annotated[int, Meta(ge=-1, le=MAX_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None


class ContextQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`enrich` names enrichers, with commas between them."""

    enrich: str = ""
    style: Literal["openai", "anthropic", "gemini"] | None = None
    alternate: bool = False
    tools: bool = False
    max_history: Annotated[int, Meta(ge=1, le=1024)] | None = None


async def history(request: web.Request) -> web.Response:
    query = query_of(request, HistoryQuery)
    stream = await stream_of(request)
    parts = parts_of(request)
    etag = etag_of(request, parts.store.incarnation, stream)
    if {etag, "*"} & {tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")}:
        return web.Response(status=304, headers={"ETag": etag})
    memory = await parts.memories.at(stream)
    if memory.state.position > stream.position:  # more was committed meanwhile: let the row be of the same moment
        stream = await stream_of(request)
        memory = await parts.memories.at(stream)
    messages = memory.messages(unfinished=query.open)
    body = {
        "session_id": stream.id,
        "state": stream.state,
        "started_at": stream.started_ms,
        "ended_at": stream.ended_ms,
        "position": stream.position,
        "contents": chosen(messages, query),
    }
    return answer(body, headers={"ETag": etag})


def chosen(messages: list[Message], query: HistoryQuery) -> list[Any]:
    if query.after_turn is not None:
        messages = [message for message in messages if message.turn_id > query.after_turn]
    if query.limit is not None:
        messages = messages[-query.limit :]
    if query.fields == "full":
        return messages
    return [{"role": message.role, "content": message.content} for message in messages]


def etag_of(request: web.Request, incarnation: str, stream: Stream) -> str:
    """The same journal position and the same question give the same answer."""
    asked = f"{incarnation}/{stream.key}/{stream.position}/{request.path}?{sorted(request.query.items())}"
    return f'"{hashlib.sha256(asked.encode()).hexdigest()[:32]}"'


async def next_context(request: web.Request) -> web.Response:
    query = query_of(request, ContextQuery)
    enrich = tuple(name for name in query.enrich.split(",") if name)
    if not set(enrich) <= set(ENRICHERS):
        raise Refused("invalid_query", f"Enrichers are {', '.join(ENRICHERS)}.")
    stream = await stream_of(request)
    wishes = Wishes(
        enrich=enrich,
        style=query.style,
        alternate=query.alternate,
        tools=query.tools,
        max_history=query.max_history,
    )
    return answer(await context(parts_of(request).memories, stream, wishes))


async def read_turns(request: web.Request) -> web.Response:
    query_of(request, NoQuery)
    stream = await stream_of(request)
    memory = await parts_of(request).memories.at(stream)
    call = {"agent_id": stream.id, "channel": config.read(stream.config).channel or ""}
    return answer({"turns": [call | turn for turn in turns(memory.state)]})


ROUTES = (
    Route("GET", "/v1/sessions/{id}/history", history, "read"),
    Route("GET", "/v1/sessions/{id}/context", next_context, "read"),
    Route("GET", "/v1/sessions/{id}/turns", read_turns, "read"),
)
