"""The REST API: one module for each resource, with its routes and the scope that each of them needs."""

import asyncio
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any
from weakref import WeakValueDictionary

from voicemem.runtime import FairQueue
from voicemem.security.access import Gate
from voicemem.server.http import request
from voicemem.server.http.application import Application
from voicemem.server.http.openapi import openapi_json
from voicemem.server.http.request import SERVICES
from voicemem.server.http.routes import Route
from voicemem.server.rest import (
    chat,
    checkpoints,
    context,
    deliveries,
    events,
    history,
    inbound,
    keys,
    livekit_reports,
    memories,
    messages,
    operations,
    responses,
    sessions,
    tails,
    users,
    webhooks,
    working_memory,
)
from voicemem.services import Services

RESOURCES = (
    *(history, context, sessions, events, operations, keys, tails, webhooks, deliveries, chat, responses),
    *(working_memory, checkpoints, messages, users, memories, inbound, livekit_reports),
)
ROUTES: tuple[Route[Any], ...] = tuple(route for resource in RESOURCES for route in resource.ROUTES)


def application(services: Services, gate: Gate) -> Application:
    app = Application(services.telemetry)
    app[SERVICES] = services
    documented: list[Route[Any]] = []
    openapi: Callable[[], bytes] = cache(partial(openapi_json, documented))
    app[request.BODIES] = WeakValueDictionary[str | None, asyncio.Semaphore]()
    app[request.FAIR_QUEUE] = FairQueue(request.STARTED_PER_ROUND)
    app[request.DOCUMENTED], app[request.OPENAPI_DOCUMENT] = documented, openapi
    add_routes(app, gate, ROUTES)
    return app


def add_routes(
    app: Application, gate: Gate, routes: Iterable[Route[Any]], served: Iterable[Route[Any]] | None = None
) -> None:
    """Document routes, and serve them behind the gate, or only those in `served`."""
    app[request.DOCUMENTED].extend(routes)
    for route in routes if served is None else served:
        app.add_route(route.method, route.path, request.guard_route(route, gate))
