"""Agora's paths: the parts of its Conversational AI Engine's REST API that concern memory, for its clients.

A session is an agent. https://docs.agora.io/en/conversational-ai/rest-api/join; docs/agora.md says what differs.
"""

from functools import partial

from aiohttp import web

from voicemem.compat.agora import agents, apps
from voicemem.compat.agora.apps import APPS, AppRegistry
from voicemem.compat.agora.requests import ERRORS, SCHEMES, AppId, translate_problem, with_bearer
from voicemem.security.access import Gate
from voicemem.server.http.application import Application, with_problems
from voicemem.server.http.request import SERVICES, Request, guard_route
from voicemem.server.http.routes import Handler
from voicemem.server.rest import add_routes

BASES = ("/api/conversational-ai-agent", "/cn/api/conversational-ai-agent")
"""Worldwide, and in mainland China."""
ROUTES = agents.ROUTES
"""Their paths follow each of the bases."""
DOCUMENTED = (
    *apps.ROUTES,
    *(
        route._replace(
            path=BASES[0] + route.path,
            errors=ERRORS,
            servers=("/", "/cn"),
            schemes=SCHEMES,
            placeholders={"appid": AppId},
        )
        for route in ROUTES
    ),
)
"""All routes of this package for `/openapi.json`: those of agents are one path, on two servers."""


def register_agora(app: Application, gate: Gate) -> None:
    """Add the routes to the REST application, behind the same gate as its own."""
    registry = app[APPS] = AppRegistry(app[SERVICES].access)
    add_routes(app, gate, DOCUMENTED, served=apps.ROUTES)
    gate = Gate(gate.access, gate.open_to_all, gate.limits, registry.grant)
    for route in ROUTES:
        handler = partial(as_agora, guard_route(route, gate))
        for base in BASES:
            app.add_route(route.method, base + route.path, handler)


async def as_agora(handler: Handler, request: Request) -> web.StreamResponse:
    """Handle a request with a key in Agora's headers; errors have Agora's form."""
    return translate_problem(await with_problems(handler, with_bearer(request)))
