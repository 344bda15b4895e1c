"""Memories that an LLM makes of a session: asked for at once."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from voicemem.memory.extraction.state import ExtractionState
from voicemem.server.http.request import NoQuery, get_stream, json_response, services_of
from voicemem.server.http.routes import JSON, ResponseSpec, Route


async def extract_memories(request: web.Request, _: NoQuery) -> web.Response:
    """Make memories of what was heard in a session since the last time, without waiting for a pause or its end.

    It happens in the background: the statistics of the session say how far it is.
    """
    stream, services = await get_stream(request), services_of(request)
    services.extractions.ask(stream)
    state = await services.read_models.get_state(stream)
    return json_response(services.extractions.state_of(stream, state.extracted), HTTPStatus.ACCEPTED)


ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{id}/memories/extract",
        extract_memories,
        "ingest",
        NoQuery,
        {202: ResponseSpec({JSON: ExtractionState})},
        codes=("no_extraction", "llm_not_configured", "session_set_aside"),
    ),
)
