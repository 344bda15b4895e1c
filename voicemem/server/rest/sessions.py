"""Sessions over REST: create, list, read, change, end, erase."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta, Struct

from voicemem import config
from voicemem.admission import Stream
from voicemem.checks import check_text
from voicemem.errors import Refused
from voicemem.events import MAX_INTEGER, Fields
from voicemem.server.rest.parts import (
    GRANT,
    NoQuery,
    Route,
    answer,
    checked_session_id,
    object_of,
    parts_of,
    query_of,
    stream_of,
)
from voicemem.store.base import StreamFilter

Millis = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`label` is `key:value` or `key=value`; the first of the two signs ends the key."""

    state: Literal["running", "ended"] | None = None
    user_id: str | None = None
    label: Annotated[str, Meta(pattern="^[^:=]+[:=]")] | None = None
    started_after: Millis | None = None
    started_before: Millis | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


def session_object(stream: Stream) -> dict[str, Any]:
    """A session as it is shown; times are Unix ms, secrets are not there."""
    return {
        "session_id": stream.id,
        "state": stream.state,
        "reason": stream.reason,
        "started_at": stream.started_ms,
        "ended_at": stream.ended_ms,
        "position": stream.position,
        "config": stream.config,
    }


async def create(request: web.Request) -> web.Response:
    query_of(request, NoQuery)
    given = await object_of(request)
    session_id = given.pop("session_id", None)
    if session_id is not None:
        session_id = checked_session_id(session_id)
    check_calling_out(request, given)
    stream, new = await parts_of(request).sessions.create(request[GRANT].project, session_id, given)
    return answer(session_object(stream), 201 if new else 200)


def check_calling_out(request: web.Request, given: Fields) -> None:
    if config.calls_out(given):
        request[GRANT].require("admin")


async def list_sessions(request: web.Request) -> web.Response:
    query = query_of(request, ListQuery)
    label = None
    if query.label is not None:
        key, value = re.split("[:=]", query.label, maxsplit=1)
        label = (key, value)
    wanted = StreamFilter(
        project=request[GRANT].project,
        state=query.state,
        user_id=query.user_id,
        label=label,
        started_after=query.started_after,
        started_before=query.started_before,
        limit=query.limit,
    )
    page, cursor = await parts_of(request).sessions.list(wanted, query.cursor)
    return answer({"sessions": [session_object(stream) for stream in page], "next_cursor": cursor})


async def read(request: web.Request) -> web.Response:
    query_of(request, NoQuery)
    return answer(session_object(await stream_of(request)))


async def change(request: web.Request) -> web.Response:
    query_of(request, NoQuery)
    stream = await stream_of(request)
    patch = await object_of(request)
    check_calling_out(request, patch)
    return answer(session_object(await parts_of(request).sessions.change(stream, patch)))


async def end(request: web.Request) -> web.Response:
    query_of(request, NoQuery)
    stream = await stream_of(request)
    given = await object_of(request)
    reason = given.get("reason")
    if set(given) - {"reason"} or not (reason is None or isinstance(reason, str)):
        raise Refused("invalid_field", "The body may hold a reason, which is text, and nothing else.")
    check_text(reason)
    return answer(session_object(await parts_of(request).sessions.end(stream, reason)))


async def erase(request: web.Request) -> web.Response:
    query_of(request, NoQuery)
    stream = await stream_of(request)
    parts = parts_of(request)
    await parts.sessions.erase(stream)
    parts.memories.forget(stream.key)
    return web.Response(status=204)


ROUTES = (
    Route("POST", "/v1/sessions", create, "ingest"),
    Route("GET", "/v1/sessions", list_sessions, "read"),
    Route("GET", "/v1/sessions/{id}", read, "read"),
    Route("PATCH", "/v1/sessions/{id}", change, "ingest"),
    Route("DELETE", "/v1/sessions/{id}", erase, "admin"),
    Route("POST", "/v1/sessions/{id}/end", end, "ingest"),
)
