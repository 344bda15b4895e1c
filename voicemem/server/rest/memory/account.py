"""Reading what a session's memory has besides its messages."""

from __future__ import annotations

from aiohttp import web

from voicemem.memory.account import MemoryAccount
from voicemem.server.http.request import NoQuery, get_stream, json_response, services_of
from voicemem.server.http.routes import Route, json_ok


async def read_session_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Read what the memory has besides its messages: summaries, what was forgotten, what was carried over."""
    return json_response(await services_of(request).accounts.read(await get_stream(request)))


ROUTES = (
    Route(
        "GET",
        "/v1/sessions/{id}/memory",
        read_session_memory,
        "read",
        NoQuery,
        json_ok(MemoryAccount),
        codes=("session_set_aside",),
    ),
)
