"""Agora's paths: the REST calls of its Conversational AI Engine that touch memory, so that its clients work here.

A session is an agent. https://docs.agora.io/en/conversational-ai/rest-api/join; docs/agora.md says what differs.
"""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web

from voicemem.security.gate import Gate
from voicemem.server.agora import agents, conversation
from voicemem.server.agora.auth import with_bearer
from voicemem.server.agora.conversation import CONTENTS
from voicemem.server.agora.errors import ERRORS, translated
from voicemem.server.http.guard import guarded
from voicemem.server.http.listener import expect
from voicemem.server.http.problems import Handler, problems
from voicemem.server.http.routes import Route

BASES = ("/api/conversational-ai-agent", "/cn/api/conversational-ai-agent")
"""Everywhere, and in mainland China."""
ROUTES: tuple[Route[Any], ...] = (*agents.ROUTES, *conversation.ROUTES)
"""Their paths stand below each of the bases."""
DOCUMENTED = tuple(
    route._replace(
        path=BASES[0] + route.path, errors=ERRORS, servers=("/", "/cn"), schemes=("key", "password", "agora")
    )
    for route in ROUTES
)
"""The same for `/openapi.json`: one path, below two servers."""


def mount(app: web.Application, gate: Gate, contents: Literal["full", "standard"]) -> None:
    """Add the routes to the REST application, under the same guard as its own."""
    app[CONTENTS] = contents
    for route in ROUTES:
        handler = as_agora(guarded(route, gate))
        for base in BASES:
            app.router.add_route(route.method, base + route.path, handler, expect_handler=expect)


def as_agora(handler: Handler) -> Handler:
    """A handler that takes Agora's ways to show a key, and whose errors are Agora's."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return translated(await problems(with_bearer(request), handler))

    return handle
