"""All routes of the REST port but Agora's paths for agents: its own, and those that rooms of `compat` add."""

from __future__ import annotations

from typing import Any

from voicemem.compat.agora import apps
from voicemem.server import rest
from voicemem.server.http.routes import Route

ROUTES: tuple[Route[Any], ...] = (*rest.ROUTES, *apps.ROUTES)
