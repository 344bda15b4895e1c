"""The API of agent-memory-server, so that its clients work unchanged (docs/from-agent-memory-server.md)."""

from __future__ import annotations

from typing import Any

from voicemem.server.ams import long_term, views, working_memory
from voicemem.server.http.routes import Route

ROUTES: tuple[Route[Any], ...] = (*working_memory.ROUTES, *long_term.ROUTES, *views.ROUTES)
