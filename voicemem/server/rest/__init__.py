"""The REST server: routes by resource, each with the scope that it needs (design, section 6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from voicemem.access import Grant
from voicemem.events import MAX_FRAME_BYTES
from voicemem.server.auth import Gate
from voicemem.server.http import expect
from voicemem.server.observed import observe_requests
from voicemem.server.problems import SERVER, Handler, problems
from voicemem.server.rest import (
    asyncapi,
    chat,
    copies,
    deliveries,
    events,
    history,
    keys,
    managing,
    operations,
    sessions,
    tails,
    tokens,
    users,
    webhooks,
    working_memory,
)
from voicemem.server.rest.chat_errors import chat_errors
from voicemem.server.rest.openapi import document
from voicemem.server.rest.parts import ASYNC_DOCUMENT, DOCUMENT, GRANT, PARTS, Parts, query_of
from voicemem.server.rest.routes import Route
from voicemem.tracing import Tracer

ROUTES: tuple[Route[Any], ...] = (
    *history.ROUTES,  # what is asked for most is looked for first
    *sessions.ROUTES,
    *events.ROUTES,
    *operations.ROUTES,
    *tokens.ROUTES,
    *keys.ROUTES,
    *tails.ROUTES,
    *webhooks.ROUTES,
    *deliveries.ROUTES,
    *chat.ROUTES,
    *working_memory.ROUTES,
    *copies.ROUTES,
    *managing.ROUTES,
    *users.ROUTES,
)


def application(parts: Parts, gate: Gate, tracer: Tracer, beside: Iterable[Route[Any]] = ()) -> web.Application:
    """The REST application; whoever has none of a route's scope gets 401 or 403.

    Routes `beside` its own are documented with them, and mounted by others.
    """
    app = web.Application(
        middlewares=[observe_requests(parts.metrics, tracer), chat_errors(chat.PATH), problems],
        client_max_size=MAX_FRAME_BYTES,
    )
    app.on_response_prepare.append(name_server)
    app[PARTS] = parts
    app[DOCUMENT] = document([*ROUTES, *beside])
    app[ASYNC_DOCUMENT] = asyncapi.document()
    for route in ROUTES:
        app.router.add_route(route.method, route.path, guarded(route, gate), expect_handler=expect)
    return app


async def name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER


def guarded(route: Route[Any], gate: Gate) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        needed = await gate.check_origin(host, origin, ask_store=route.scope is not None)
        if route.scope is not None:
            grant: Grant = await gate.grant(request.headers.get("Authorization"), needed, request.remote)
            grant.require(route.scope, session_of(request, route))
            request[GRANT] = grant
        return await route.handler(request, query_of(request, route.query))

    return handler


def session_of(request: web.Request, route: Route[Any]) -> str | None:
    """The session that the path names: the only one that its session tokens reach."""
    return request.match_info["id"] if route.path.startswith("/v1/sessions/{id}") else None
