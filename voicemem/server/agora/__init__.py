"""Agora's paths: the REST API of its Conversational AI Engine, as far as it concerns memory, so that its clients work.

A session is an agent. https://docs.agora.io/en/conversational-ai/rest-api/join; docs/agora.md says what differs.
"""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web

from voicemem.security.gate import Gate
from voicemem.server.agora import agents, conversation
from voicemem.server.agora.auth import with_bearer
from voicemem.server.agora.conversation import CONTENTS_KEY
from voicemem.server.agora.errors import ERRORS, translate_problem
from voicemem.server.http.guard import guard_route
from voicemem.server.http.listener import answer_expect
from voicemem.server.http.problems import Handler, problems
from voicemem.server.http.routes import Route

BASES = ("/api/conversational-ai-agent", "/cn/api/conversational-ai-agent")
"""Worldwide, and in mainland China."""
ROUTES: tuple[Route[Any], ...] = (*agents.ROUTES, *conversation.ROUTES)
"""Their paths follow each of the bases."""
DOCUMENTED = tuple(
    route._replace(
        path=BASES[0] + route.path, errors=ERRORS, servers=("/", "/cn"), schemes=("key", "password", "agora")
    )
    for route in ROUTES
)
"""The same for `/openapi.json`: one path, on two servers."""


def mount(app: web.Application, gate: Gate, contents: Literal["full", "standard"]) -> None:
    """Add the routes to the REST application, behind the same guard as its own."""
    app[CONTENTS_KEY] = contents
    for route in ROUTES:
        handler = as_agora(guard_route(route, gate))
        for base in BASES:
            app.router.add_route(route.method, base + route.path, handler, expect_handler=answer_expect)


def as_agora(handler: Handler) -> Handler:
    """Wrap a handler: it accepts keys in Agora's headers, and its errors are Agora's."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return translate_problem(await problems(with_bearer(request), handler))

    return handle
