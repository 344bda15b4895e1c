"""Working memory as agent-memory-server's clients know it: a session's messages, data and summary as one object."""

from __future__ import annotations

import time
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.errors import RateLimited
from voicemem.memory.agent_memory.models import (
    AgentMemoryAck,
    GivenWorkingMemory,
    ServerTime,
    SessionList,
    StrategyConfig,
    WorkingMemoryView,
)
from voicemem.memory.agent_memory.owners import Owner, checked_owner
from voicemem.memory.agent_memory.working.windows import window_of
from voicemem.protocol.types import MAX_INTEGER
from voicemem.security.audit import audit
from voicemem.server.http.request import (
    GRANT,
    NoQuery,
    convert_body,
    json_response,
    read_object,
    services_of,
)
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok

TIMES_MISSING = "messages[].created_at is missing; it will be required. Please provide the time of every message."
Given = Annotated[str, Meta(min_length=1)]
"""An empty text must not mean everybody."""
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class SessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions: of a namespace, of a user, and which page."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    namespace: Given | None = None
    user_id: Given | None = None


class WorkingMemoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose session it is, where that is needed to tell it from others, and how much the client's model takes."""

    user_id: Given | None = None
    namespace: Given | None = None
    model_name: str | None = None
    context_window_max: Positive | None = None
    recent_messages_limit: Positive | None = None


class PutQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`user_id` goes before the one of the body; a model says how much it takes. `background` changes nothing."""

    user_id: Given | None = None
    model_name: str | None = None
    context_window_max: Positive | None = None
    background: bool = False


class OwnerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose session it is, where that is needed to tell it from others."""

    user_id: Given | None = None
    namespace: Given | None = None


async def health(request: web.Request, _: NoQuery) -> web.Response:
    """Say that the service answers."""
    return json_response(ServerTime(int(time.time())))


async def list_working_memories(request: web.Request, query: SessionsQuery) -> web.Response:
    """List the ids of sessions, the newest first."""
    page = slice(query.offset, query.offset + query.limit)
    found = await services_of(request).agent_memory.owned.list_ids(
        request[GRANT].project, query.namespace, query.user_id, page
    )
    return json_response(found)


async def get_working_memory(request: web.Request, query: WorkingMemoryQuery) -> web.Response:
    """Read a session's messages, data and summary; with the size of a model's window, the newest that fit."""
    owner = named_owner(request, query.namespace, query.user_id)
    window = window_of(query.model_name, query.context_window_max)
    view = await services_of(request).agent_memory.read(
        request[GRANT].project, owner, window, query.recent_messages_limit
    )
    return json_response(view)


async def put_working_memory(request: web.Request, query: PutQuery) -> web.Response:
    """Put a session's messages, data and summary in the place of what stood there, or begin the session.

    Messages that stand already are not written again. What another client has added since this one's read stays, if
    the body has the `last_accessed` of that read.
    """
    services, grant = services_of(request), request[GRANT]
    given = convert_body(await read_object(request), GivenWorkingMemory)
    owner = named_owner(request, given.namespace, query.user_id or given.user_id)

    def admit(events: int, size: int) -> None:
        wait_s = services.limits.take_events(grant.caller, events, size)
        if wait_s:
            raise RateLimited(wait_s)

    stream = await services.agent_memory.write(grant.project, owner, given, grant.key_id, admit)
    view = await services.agent_memory.view(stream, window_of(query.model_name, query.context_window_max))
    if not grant.allows("read"):
        view = unread(view, owner)
    undated = any(message.created_at is None for message in given.named_messages)
    return json_response(view, headers={"X-Deprecation-Warning": TIMES_MISSING} if undated else None)


async def delete_working_memory(request: web.Request, query: OwnerQuery) -> web.Response:
    """Erase a session with everything that came from it. The id can be used again, for a new session."""
    grant = request[GRANT]
    owner = named_owner(request, query.namespace, query.user_id)
    stream = await services_of(request).agent_memory.owned.delete(grant.project, owner)
    if stream is not None:
        audit("session_erased", grant, stream.project, stream.id)
    return json_response(AgentMemoryAck("ok"))


def unread(view: WorkingMemoryView, owner: Owner) -> WorkingMemoryView:
    """A working memory for a caller who may not read it: nothing of what stands in it."""
    return WorkingMemoryView(
        messages=[],
        memories=[],
        data={},
        context=None,
        user_id=owner.user_id,
        tokens=0,
        session_id=owner.session_id,
        namespace=owner.namespace,
        long_term_memory_strategy=StrategyConfig(),
        ttl_seconds=None,
        last_accessed=view.last_accessed,
        created_at=view.created_at,
        updated_at=view.updated_at,
    )


def named_owner(request: web.Request, namespace: str | None, user_id: str | None) -> Owner:
    """The owner of the working memory that the path names. Raises `Refused` (`invalid_field`)."""
    return checked_owner(request.match_info["session_id"], namespace, user_id)


PATH = "/v1/working-memory/{session_id}"
ROUTES = (
    Route(
        "GET",
        PATH,
        get_working_memory,
        "read",
        WorkingMemoryQuery,
        json_ok(WorkingMemoryView),
        codes=("invalid_field", "unknown_session", "session_set_aside"),
    ),
    Route(
        "PUT",
        PATH,
        put_working_memory,
        "ingest",
        PutQuery,
        json_ok(WorkingMemoryView),
        BodySpec({JSON: GivenWorkingMemory}, required=False),
        (
            *("invalid_field", "text_too_long", "session_in_use", "session_ended", "session_set_aside"),
            *("quota_exceeded", "session_exists", "session_erased"),
        ),
    ),
    Route(
        "DELETE", PATH, delete_working_memory, "admin", OwnerQuery, json_ok(AgentMemoryAck), codes=("invalid_field",)
    ),
    Route("GET", "/v1/working-memory/", list_working_memories, "read", SessionsQuery, json_ok(SessionList)),
    Route("GET", "/v1/health", health, None, NoQuery, json_ok(ServerTime)),
)
