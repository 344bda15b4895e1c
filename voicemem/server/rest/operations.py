"""For whoever runs the service: is it alive, is it ready."""

from __future__ import annotations

from aiohttp import web

from voicemem.errors import Refused, StoreUnavailable
from voicemem.server.rest.parts import NoQuery, Route, answer, parts_of, query_of


async def livez(request: web.Request) -> web.Response:
    """The process answers; the store is never asked, so that its outage does not restart every process."""
    query_of(request, NoQuery)
    return answer({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Whether this process should get traffic: the last commit's outcome, and draining."""
    query_of(request, NoQuery)
    parts = parts_of(request)
    if parts.draining.is_set():
        raise Refused("draining")
    if not parts.store.healthy:
        raise StoreUnavailable
    return answer({"status": "ok"})


ROUTES = (
    Route("GET", "/livez", livez, None),
    Route("GET", "/readyz", readyz, None),
)
