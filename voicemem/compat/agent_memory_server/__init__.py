"""agent-memory-server's API, so that its clients work unchanged (docs/from-agent-memory-server.md).

A working memory is a session, a long-term memory is a memory of ours.
"""

from __future__ import annotations

from aiohttp import web

from voicemem.compat.agent_memory_server.routes import AGENT_MEMORY, ROUTES, AgentMemory
from voicemem.security.access import Gate
from voicemem.server.http.request import SERVICES
from voicemem.server.rest import add_routes


def register_agent_memory_server(app: web.Application, gate: Gate) -> None:
    """Add the routes to the REST application, behind the same guard as its own."""
    app[AGENT_MEMORY] = AgentMemory(app[SERVICES])
    add_routes(app, gate, ROUTES)
