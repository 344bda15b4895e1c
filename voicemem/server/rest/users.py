"""Users: the sessions of one."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from voicemem.errors import Refused
from voicemem.events import Name
from voicemem.server.rest.parts import GRANT, answer, parts_of
from voicemem.server.rest.routes import Route, one
from voicemem.server.rest.sessions import SessionPage, shown
from voicemem.store.base import StreamFilter


class UserSessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pages as in the list of all sessions."""

    state: Literal["running", "ended"] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


async def list_user_sessions(request: web.Request, query: UserSessionsQuery) -> web.Response:
    """The sessions of a user in the project, the newest first."""
    wanted = StreamFilter(
        project=request[GRANT].project, state=query.state, user_id=user_id_of(request), limit=query.limit
    )
    page, cursor = await parts_of(request).sessions.list(wanted, query.cursor)
    return answer(SessionPage([shown(stream) for stream in page], cursor))


def user_id_of(request: web.Request) -> str:
    """The user that the path names. Raises `Refused`."""
    try:
        return msgspec.convert(request.match_info["user_id"], Name)
    except msgspec.ValidationError:
        raise Refused("invalid_field", "A user's id has 1 to 128 characters.") from None


ROUTES = (
    Route(
        "GET",
        "/v1/users/{user_id}/sessions",
        list_user_sessions,
        "read",
        UserSessionsQuery,
        one(SessionPage),
        codes=("invalid_cursor",),
    ),
)
