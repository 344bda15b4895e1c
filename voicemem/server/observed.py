"""Requests in and webhooks out, as metrics, spans and log lines see them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from voicemem.exports import Answer, Shipment, verdict
from voicemem.metrics import METHODS, Metrics
from voicemem.server.problems import Handler
from voicemem.tracing import Tracer

LOG = logging.getLogger("voicemem.requests")
WEBHOOKS = logging.getLogger("voicemem.webhooks")
Send = Callable[[Shipment], Awaitable[Answer]]
NO_ROUTE = "none"
"""For requests to paths that there are not."""
UNANSWERED = 499
"""The status of a request whose caller has hung up, as nginx has it."""


def route_of(request: web.Request) -> str:
    """The path with placeholders for ids: what may stand in metrics, spans and logs."""
    resource = request.match_info.route.resource
    return NO_ROUTE if resource is None else resource.canonical


def observe_requests(metrics: Metrics, tracer: Tracer) -> Middleware:
    """The middleware around all others."""

    @web.middleware
    async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        route, status = route_of(request), UNANSWERED
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
                metrics.request(method, route, status, seconds)
                if LOG.isEnabledFor(logging.DEBUG):
                    fields = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 1)}
                    LOG.debug("%s %s %d", method, route, status, extra=fields)

    return observe


def observe_webhooks(send: Send, metrics: Metrics, tracer: Tracer) -> Send:
    """The same as `send`, with every attempt counted and traced."""

    async def observed(shipment: Shipment) -> Answer:
        host = host_of(shipment.url)
        with tracer.span("webhook", "client", {"http.request.method": "POST", "server.address": host}, []) as span:
            answer = await send(shipment)
            result = "failed" if (meaning := verdict(answer)) == "retry" else meaning
            if answer.status is not None:
                span.set_attribute("http.response.status_code", answer.status)
            if result != "delivered":
                span.fail(answer.error or str(answer.status))
            fields = {"host": host, "status": answer.status, "result": result, "ms": answer.duration_ms}
            WEBHOOKS.info("Webhook to %s: %s", host, answer.error or answer.status, extra=fields)
        metrics.webhook_attempts.labels(result).inc()
        metrics.webhook_attempt_seconds.observe(answer.duration_ms / 1000)
        return answer

    return observed


def host_of(url: str) -> str:
    """Without path and query, which may hold a secret."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
