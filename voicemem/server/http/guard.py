"""What surrounds every handler: the checks of host, origin, key and scope; metrics, spans and log lines."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from voicemem.errors import StoreUnavailable
from voicemem.security.access import Gate, Grant
from voicemem.server.http.listener import authenticated
from voicemem.server.http.problems import SERVER, Handler
from voicemem.server.http.request import FAIR_QUEUE, GRANT, parse_query
from voicemem.server.http.routes import Route
from voicemem.sessions.gauges import STORE_S
from voicemem.telemetry import Telemetry
from voicemem.telemetry.metrics import METHODS

LOG = logging.getLogger("voicemem.requests")
NO_ROUTE = "none"
"""For requests to unknown paths."""
CLIENT_GONE_STATUS = 499
"""The status of a request whose caller has hung up, as in nginx."""


def route_of(request: web.Request) -> str:
    """Return the path with placeholders for ids, which is what may appear in metrics, spans and logs."""
    resource = request.match_info.route.resource
    return NO_ROUTE if resource is None else resource.canonical


def observe_requests(telemetry: Telemetry) -> Middleware:
    """Return the outermost middleware."""
    metrics, tracer = telemetry

    @web.middleware
    async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        route, status = route_of(request), CLIENT_GONE_STATUS
        method = request.method if request.method in METHODS else "other"
        attributes = {"http.request.method": method, "http.route": route}
        with tracer.span(f"{method} {route}", "server", attributes, [tracer.origin(request.headers)]) as span:
            try:
                response = await handler(request)
                status = response.status
                if status >= 500:
                    span.fail(str(status))
                return response
            finally:
                seconds = time.monotonic() - began
                span.set_attribute("http.response.status_code", status)
                metrics.observe_request(method, route, status, seconds)
                if LOG.isEnabledFor(logging.DEBUG):
                    fields = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 1)}
                    LOG.debug("%s %s %d", method, route, status, extra=fields)

    return observe


async def name_server(_: web.Request, response: web.StreamResponse) -> None:
    """Set the `Server` header of an answer that is about to be sent."""
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
            await request.app[FAIR_QUEUE].wait(grant.project)
        return await route.handler(request, parse_query(request, route.query))

    return handler


async def check_origin(request: web.Request, route: Route[Any], gate: Gate) -> bool:
    """Check the origin as `Gate.check_origin` does, and ask the store only as far as the route needs it."""
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
