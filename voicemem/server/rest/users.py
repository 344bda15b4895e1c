"""Users: list the sessions of a user, export all that is stored of a user, erase a user."""

from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.memory.exports import ExportLine, export_user
from voicemem.memory.long_term.forgetting import forget_user
from voicemem.security.audit import audit
from voicemem.server.http.request import GRANT, json_response, name_in_path, services_of, session_filter, stream_body
from voicemem.server.http.routes import JSON_LINES, Routes
from voicemem.server.rest.sessions import SessionPage
from voicemem.sessions.lifecycle import info_of
from voicemem.sessions.retention import erase_user

ROUTES = Routes()


class UserSessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pages are those of the list of all sessions."""

    state: Literal["running", "ended"] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class ExportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """With `events` the journals come along."""

    events: bool = False


@ROUTES.add("GET /v1/users/{user_id}/sessions", "read", SessionPage, codes="invalid_cursor")
async def list_user_sessions(request: web.Request, query: UserSessionsQuery) -> web.Response:
    """List the sessions of a user in the project, the newest first."""
    conditions = session_filter(request, query, user_id=name_in_path(request, "user_id"))
    page, cursor = await services_of(request).sessions.list(conditions, query.cursor)
    return json_response(SessionPage([info_of(stream) for stream in page], cursor))


@ROUTES.add("GET /v1/users/{user_id}/export", "admin", {JSON_LINES: list[ExportLine]})
async def export_user_memory(request: web.Request, query: ExportQuery) -> web.StreamResponse:
    """Export all that is stored of a user, as JSON lines: documents, memories, and sessions with all that they hold.

    The last line is of the type `end`; without it the export was cut short. A user of whom nothing is stored has an
    export too, which says so.
    """
    services, grant, user_id = services_of(request), request[GRANT], name_in_path(request, "user_id")
    lines = export_user(
        services.store, services.read_models, grant.project, user_id, services.runtime.clock, query.events
    )
    audit("user_exported", grant)
    return await stream_body(request, {"Content-Type": JSON_LINES}, lines)


@ROUTES.add("DELETE /v1/users/{user_id}", "admin", None)
async def erase_user_memory(request: web.Request) -> web.Response:
    """Erase a user: the document, and all sessions with this `user_id`. Nothing of them can be read any more."""
    services, grant, user_id = services_of(request), request[GRANT], name_in_path(request, "user_id")
    clock = services.working_memory.clock
    sessions = await erase_user(services.store, services.read_models, grant.project, user_id, clock)
    await forget_user(services.long_term, grant.project, user_id)
    audit("user_erased", grant, sessions=sessions)
    return web.Response(status=204)
