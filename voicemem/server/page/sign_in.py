"""Signing in to the page with a key, and out again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from msgspec import Struct

from voicemem.security.access import Grant
from voicemem.security.audit import audit
from voicemem.security.page_cookies import free_number
from voicemem.server.http.listener import authenticated
from voicemem.server.http.request import NoQuery, convert_body, json_response, parse_query, read_object
from voicemem.server.page.door import EVERYBODY, Door, set_cookie

PATH = "/ui/session"


class GivenKey(Struct, frozen=True, forbid_unknown_fields=True):
    """The key that somebody signs in with."""

    key: str


class ShownProject(Struct, frozen=True):
    """A project that this browser may look at."""

    project: str
    scopes: tuple[str, ...]
    key_id: str | None


class ShownSession(Struct, frozen=True):
    """Whether the page has to ask for a key, and what it may show."""

    signed_in: bool
    keys_required: bool
    projects: list[ShownProject]


class SignOutQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The project to sign out of; by default all."""

    project: str | None = None


class SignIn:
    """The handlers of `/ui/session`."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def handlers(self) -> dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        """By method."""
        return {"GET": self.show, "POST": self.sign_in, "DELETE": self.sign_out}

    async def show(self, request: web.Request) -> web.Response:
        """Tell the page whether to ask for a key."""
        needed = await self.door.check(request)
        parse_query(request, NoQuery)
        if not needed:
            return json_response(ShownSession(True, False, [shown(EVERYBODY)]))
        signed_in = await self.door.cookies.read(request.cookies)
        return json_response(ShownSession(bool(signed_in), True, [shown(one.grant) for one in signed_in]))

    async def sign_in(self, request: web.Request) -> web.Response:
        """Take a key for a cookie."""
        needed = await self.door.check(request)
        parse_query(request, NoQuery)
        given = convert_body(await read_object(request), GivenKey)
        response = web.Response(status=204)
        if not needed:
            return response
        grant = await self.door.gate.grant_token(given.key.strip(), request.remote)
        value, _ = await self.door.cookies.make(grant)
        self.door.gate.limits.count_request(grant.caller)
        authenticated(request)
        signed_in = await self.door.cookies.read(request.cookies)
        number = free_number(request.cookies, signed_in, grant.project)
        set_cookie(response, self.door.name_cookie(request, number), value)
        audit("page_signed_in", grant, grant.project)
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """Take the cookies away again; others that the key has let in stay in until it is revoked."""
        await self.door.check(request)
        project = parse_query(request, SignOutQuery).project
        response = web.Response(status=204)
        for one in await self.door.cookies.read(request.cookies):
            if project in (None, one.grant.project):
                set_cookie(response, one.name, "", max_age=0)
        return response


def shown(grant: Grant) -> ShownProject:
    return ShownProject(grant.project, grant.scopes, grant.key_id)
