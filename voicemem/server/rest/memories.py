"""Memories of earlier calls: search what was heard."""

from __future__ import annotations

from aiohttp import web

from voicemem.memory.long_term.search import FoundMemories, MemorySearch
from voicemem.server.http.request import GRANT, NoQuery, convert_body, json_response, read_object, services_of
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok


async def search_memories(request: web.Request, _: NoQuery) -> web.Response:
    """Search what was heard in the calls of the project, of a user or of one session, by words.

    Each message is shown as it was heard, with the place that it comes from. The best is first.
    """
    wanted = convert_body(await read_object(request), MemorySearch)
    return json_response(await services_of(request).heard_search.search(request[GRANT].project, wanted))


ROUTES = (
    Route(
        "POST",
        "/v1/memories/search",
        search_memories,
        "read",
        NoQuery,
        json_ok(FoundMemories),
        BodySpec({JSON: MemorySearch}),
        ("invalid_field", "invalid_cursor"),
    ),
)
