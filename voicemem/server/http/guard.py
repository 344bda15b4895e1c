"""The guard before every handler: host, origin, key and scope; and the name in the `Server` header."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from voicemem.errors import StoreUnavailable
from voicemem.security.access import Grant
from voicemem.security.gate import Gate
from voicemem.server.http.listener import authenticated
from voicemem.server.http.problems import SERVER, Handler
from voicemem.server.http.request import GRANT, TURNS, parse_query
from voicemem.server.http.routes import Route
from voicemem.sessions.gauges import STORE_S


async def name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER


def guard_route(route: Route[Any], gate: Gate) -> Handler:
    """Return the route's handler behind the checks of host, origin, key, scope and query."""

    async def handler(request: web.Request) -> web.StreamResponse:
        needed = await check_origin(request, route, gate)
        if route.scope is not None:
            grant: Grant = await gate.grant(request.headers.get("Authorization"), needed, request.remote)
            grant.require(route.scope, grant.session_id if route.for_tokens else session_of(request, route))
            authenticated(request)
            request[GRANT] = grant
            await request.app[TURNS].take(grant.project)
        return await route.handler(request, parse_query(request, route.query))

    return handler


async def check_origin(request: web.Request, route: Route[Any], gate: Gate) -> bool:
    """What `Gate.check_origin` does and says, as far as the route needs the store for it."""
    host, origin = request.headers.get("Host"), request.headers.get("Origin")
    if not route.outlives_store:
        return await gate.check_origin(host, origin, ask_store=route.scope is not None)
    try:
        async with asyncio.timeout(STORE_S):
            return await gate.check_origin(host, origin)
    except (StoreUnavailable, TimeoutError):
        return await gate.check_origin(host, origin, ask_store=False)


def session_of(request: web.Request, route: Route[Any]) -> str | None:
    """Return the id of the session that the path names, which is all that a session token opens."""
    return request.match_info["id"] if route.path.startswith("/v1/sessions/{id}") else None
