"""Users: list the sessions of a user, export all that is stored of a user, erase a user; link two ids of one person."""

from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.memory.exports import ExportLine, export_user
from voicemem.memory.long_term.removal import erase_person
from voicemem.protocol.types import Name
from voicemem.security.audit import audit
from voicemem.server.http.request import Request, json_response, name_in_path, stream_body
from voicemem.server.http.routes import JSON, JSON_LINES, ResponseSpec, Routes
from voicemem.server.rest.sessions import SessionPage
from voicemem.sessions.lifecycle import info_of, session_filter

ROUTES = Routes()


class UserSessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a user's sessions; pages are those of the list of all sessions."""

    state: Literal["running", "ended"] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class ExportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of an export; with `events` it has the journals too."""

    events: bool = False


@ROUTES.add("GET /v1/users/{user_id}/sessions", "read", codes="invalid_cursor")
async def list_user_sessions(request: Request, query: UserSessionsQuery) -> SessionPage:
    """List the sessions of a user in the project, the newest first."""
    conditions = session_filter(request.grant.project, query, user_id=name_in_path(request, "user_id"))
    page, cursor = await request.services.sessions.list(conditions, query.cursor)
    return SessionPage([info_of(stream) for stream in page], cursor)


@ROUTES.add("GET /v1/users/{user_id}/export", "admin", {JSON_LINES: list[ExportLine]})
async def export_user_memory(request: Request, query: ExportQuery) -> web.StreamResponse:
    """Export all that is stored of a user, as JSON lines: documents, memories, and sessions with all that they hold.

    The last line is of the type `end`; without it the export was cut short. A user of whom nothing is stored has an
    export too, which says so.
    """
    services, grant, user_id = request.services, request.grant, name_in_path(request, "user_id")
    lines = export_user(
        services.store, services.read_models, grant.project, user_id, services.runtime.clock, query.events
    )
    audit("user_exported", grant)
    return await stream_body(request, {"Content-Type": JSON_LINES}, lines)


class EraseQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of an erasure; with `linked` the other id of the same person is erased too."""

    linked: bool = False


class LinkedUser(Struct, frozen=True):
    """The other id of the same person, which was not erased."""

    linked: str


@ROUTES.add("DELETE /v1/users/{user_id}", "admin", {200: ResponseSpec({JSON: LinkedUser}), 204: ResponseSpec()})
async def erase_user_memory(request: Request, query: EraseQuery) -> web.StreamResponse:
    """Erase a user: the document, memories, and all sessions with this `user_id`. Nothing of them can be read any more.

    Where another id of the same person is left, the answer names it.
    """
    services, grant, user_id = request.services, request.grant, name_in_path(request, "user_id")
    erased = await erase_person(services.long_term, grant.project, user_id, query.linked)
    audit("user_erased", grant, sessions=erased.sessions)
    return web.Response(status=204) if erased.linked is None else json_response(LinkedUser(erased.linked))


class SameAs(Struct, frozen=True, forbid_unknown_fields=True):
    """The other id of the same person."""

    user_id: Name


class Link(Struct, frozen=True):
    """Two ids of one person."""

    user_id: str
    same_as: str


@ROUTES.add("PUT /v1/users/{user_id}/same-as", "admin", codes="user_conflict quota_exceeded")
async def link_users(request: Request, body: SameAs) -> Link:
    """Make two ids one person's: what is read, searched, listed or exported of either is then of both.

    An id has at most one other. What is written stays with the id that it was written for.
    """
    services, grant, user_id = request.services, request.grant, name_in_path(request, "user_id")
    link_id, now = services.runtime.new_id(), services.runtime.clock()
    if await services.store.users.link(grant.project, user_id, body.user_id, link_id, now):
        audit("users_linked", grant)
    return Link(user_id, body.user_id)


@ROUTES.add("DELETE /v1/users/{user_id}/same-as", "admin")
async def unlink_user(request: Request) -> None:
    """Remove the link of an id, from either of the two; an id without one stays as it is."""
    services, grant, user_id = request.services, request.grant, name_in_path(request, "user_id")
    if await services.store.users.unlink(grant.project, user_id, services.runtime.clock()):
        audit("users_unlinked", grant)
