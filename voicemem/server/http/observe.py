"""Metrics, spans and log lines of REST requests."""

from __future__ import annotations

import logging
import time

from aiohttp import web
from aiohttp.typedefs import Middleware

from voicemem.server.http.problems import Handler
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
