"""The guard before the page's paths: host, sender, and instead of a key the cookie of who has signed in."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from aiohttp import web

from voicemem.errors import Refused, StoreUnavailable
from voicemem.security.access import DEFAULT_PROJECT, SCOPES, Grant
from voicemem.security.gate import Gate
from voicemem.security.page_cookies import LIFE_S, NAME, NOT_SIGNED_IN, PATH, SECURE_NAME, PageCookies, SignedIn
from voicemem.security.page_origin import PageOrigin
from voicemem.server.http.listener import authenticated
from voicemem.server.http.problems import Handler
from voicemem.server.http.request import GRANT, TURNS, parse_query
from voicemem.server.http.routes import Route

EVERYBODY = Grant(DEFAULT_PROJECT, SCOPES, via="page")
"""The grant of every sender while there is no key."""
RENEWED = web.RequestKey("renewed", SignedIn)
"""Who is to get a new cookie with the answer."""


class Door:
    """Lets in the page itself, for those who have signed in; while there is no key, everybody on this machine."""

    def __init__(self, gate: Gate, origin: PageOrigin) -> None:
        self.gate = gate
        self.origin = origin
        self.cookies = PageCookies(gate.access)

    async def check_host(self, request: web.Request) -> bool:
        """Check the host, and return whether a key is needed; without one only loopback is answered, as by REST.

        Raises `Refused` (`foreign_host`, `foreign_origin`).
        """
        host = request.headers.get("Host")
        self.origin.check_host(host)
        return await self.gate.check_origin(host, request.headers.get("Origin"))

    async def check(self, request: web.Request) -> bool:
        """Check that the page itself sends this, and return whether a key is needed. Raises likewise."""
        needed = await self.check_host(request)
        self.origin.check_sender(request.method, request.headers)
        return needed

    async def admit(self, request: web.Request) -> Grant:
        """What the sender may do, in the project that the path names, or else the first one. Raises `Refused`."""
        needed = await self.check(request)
        project = request.match_info.get("project")
        if not needed:
            if project not in (None, DEFAULT_PROJECT):
                raise Refused("unauthorized", NOT_SIGNED_IN)
            return EVERYBODY
        signed_in = await self.cookies.read(request.cookies)
        one = next((one for one in signed_in if project in (None, one.grant.project)), None)
        if one is None:
            raise Refused("unauthorized", NOT_SIGNED_IN)
        self.gate.limits.count_request(one.grant.caller)
        if one.is_half_over(self.gate.access.clock() // 1000):
            request[RENEWED] = one
        return one.grant

    async def renew(self, request: web.Request, response: web.StreamResponse) -> None:
        """Give who uses the page a new cookie in time; called when an answer is about to be sent."""
        one = request.get(RENEWED)
        if one is None:
            return
        with suppress(Refused, StoreUnavailable):  # the answer stands all the same
            value, _ = await self.cookies.make(one.grant)
            set_cookie(response, one.name, value)
            # By now aiohttp has made headers of the cookies.
            response.headers.add("Set-Cookie", response.cookies[one.name].output(header="").strip())

    def name_cookie(self, request: web.Request, number: int) -> str:
        """The name of a cookie with this number, which over https says that it stays there."""
        https = self.origin.is_https(request.headers.get("Host"), request.headers.get("Origin"))
        return f"{SECURE_NAME if https else NAME}{number}"


def set_cookie(response: web.StreamResponse, name: str, value: str, max_age: int = LIFE_S) -> None:
    """Give the browser a cookie, for the page's paths alone; with `max_age` 0 take it away."""
    secure = name.startswith(SECURE_NAME)
    response.set_cookie(name, value, max_age=max_age, path=PATH, httponly=True, samesite="Strict", secure=secure)


def guard_page(route: Route[Any], door: Door) -> Handler:
    """Return a route's handler behind the door instead of the gate."""

    async def handler(request: web.Request) -> web.StreamResponse:
        grant = await door.admit(request)
        grant.require(str(route.scope))
        authenticated(request)
        request[GRANT] = grant
        await request.app[TURNS].take(grant.project)
        return await route.handler(request, parse_query(request, route.query))

    return handler
