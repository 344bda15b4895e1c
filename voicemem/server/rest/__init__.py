"""The REST API: one module for each resource, with its routes and the scope that each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from aiohttp import web

from voicemem.protocol.types import MAX_FRAME_BYTES
from voicemem.security.gate import Gate
from voicemem.server import ams
from voicemem.server.http.bodies import BodySlots
from voicemem.server.http.guard import guard_route, name_server
from voicemem.server.http.listener import answer_expect
from voicemem.server.http.observe import observe_requests
from voicemem.server.http.openapi import openapi_json
from voicemem.server.http.problems import problems
from voicemem.server.http.request import ASYNCAPI_DOCUMENT, BODIES, DOCUMENTED, OPENAPI_DOCUMENT, SERVICES, TURNS
from voicemem.server.http.request_turns import RequestTurns
from voicemem.server.http.routes import Route
from voicemem.server.rest import (
    chat,
    checkpoints,
    context,
    events,
    exports,
    history,
    hooks,
    messages,
    observations,
    sessions,
    tails,
    users,
)
from voicemem.server.rest.memory import account, extraction, memories, working_memory
from voicemem.server.rest.operator import asyncapi, health, hook_secrets, keys, me, operations
from voicemem.server.rest.webhooks import deliveries, delivery_lists
from voicemem.server.rest.webhooks import endpoints as webhooks
from voicemem.services import Services

ROUTES: tuple[Route[Any], ...] = (
    *history.ROUTES,  # the most frequent requests first: the router goes through the list
    *context.ROUTES,
    *sessions.ROUTES,
    *events.ROUTES,
    *health.ROUTES,
    *keys.ROUTES,
    *me.ROUTES,
    *operations.ROUTES,
    *tails.ROUTES,
    *webhooks.ROUTES,
    *deliveries.ROUTES,
    *delivery_lists.ROUTES,
    *chat.ROUTES,
    *working_memory.ROUTES,
    *account.ROUTES,
    *checkpoints.ROUTES,
    *messages.ROUTES,
    *users.ROUTES,
    *exports.ROUTES,
    *memories.ROUTES,
    *extraction.ROUTES,
    *hooks.ROUTES,
    *observations.ROUTES,
    *hook_secrets.ROUTES,
    *ams.ROUTES,
)


def application(services: Services, gate: Gate) -> web.Application:
    """Make the REST application, to which others may add routes."""
    app = web.Application(
        middlewares=[observe_requests(services.telemetry), chat.chat_errors, problems],
        client_max_size=MAX_FRAME_BYTES,
    )
    app.on_response_prepare.append(name_server)
    app[SERVICES] = services
    app[BODIES], app[TURNS] = BodySlots(), RequestTurns()
    documented: list[Route[Any]] = []
    openapi: Callable[[], bytes] = cache(partial(openapi_json, documented))
    async_api: Callable[[], bytes] = cache(asyncapi.asyncapi_json)
    app[DOCUMENTED], app[OPENAPI_DOCUMENT], app[ASYNCAPI_DOCUMENT] = documented, openapi, async_api
    add_routes(app, gate, ROUTES)
    return app


def add_routes(
    app: web.Application, gate: Gate, routes: Iterable[Route[Any]], served: Iterable[Route[Any]] | None = None
) -> None:
    """Document routes, and serve them behind the gate, or only those in `served`."""
    app[DOCUMENTED].extend(routes)
    for route in routes if served is None else served:
        app.router.add_route(route.method, route.path, guard_route(route, gate), expect_handler=answer_expect)
