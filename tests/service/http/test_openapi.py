"""The OpenAPI document is valid, is served, and is what really happens."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.support.callers.rest import RestClient, make_key
from tests.support.checks.openapi import component, openapi_document
from tests.support.paths import FIXTURES
from tests.support.routes import ROUTES
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.compat import agora
from voicemem.compat.agent_memory_server.routes import ROUTES as AGENT_MEMORY_ROUTES
from voicemem.protocol.types import JsonObject
from voicemem.version import __version__

CALLS = sorted(FIXTURES.glob("*.jsonl"))
QUERIES = (
    "/history",
    "/history?open=true",
    "/history?fields=standard&limit=3",
    "/context?enrich=timestamps,users,originals&tools=true",
    "/context?style=anthropic&tools=true",
    "/context?style=gemini",
    "/turns",
    "/events",
)


def events_of(call: Path) -> list[JsonObject]:
    return [json.loads(line) for line in call.read_text("utf-8").splitlines()]


@pytest.mark.long
def test_the_document_is_valid() -> None:
    """It is OpenAPI 3.1, and each of its schemas JSON Schema 2020-12."""
    assert [] == list(OpenAPIV31SpecValidator(openapi_document()).iter_errors())
    assert ("3.1.0", __version__) == (openapi_document()["openapi"], openapi_document()["info"]["version"])
    for schema in openapi_document()["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


async def test_it_is_served_to_everybody(serve: Serve) -> None:
    """Whoever reaches the port may read it, also when everything else needs a key."""
    app = await serve()
    await make_key(app, "read")
    answered = await RestClient(app).get("/openapi.json")
    assert (200, "application/json", openapi_document()) == (
        answered.status,
        answered.headers["Content-Type"],
        answered.json,
    )
    assert (400, "invalid_query") == (await RestClient(app).get("/openapi.json?format=yaml")).problem


async def test_it_names_the_routes_that_are_served(serve: Serve) -> None:
    """Every route of the running server but the page's is there, Agora's below both servers, and nothing else is."""
    app = await serve(ui=False)
    served = [one for one in app.rest.served() if one[0] != "HEAD"]  # which goes with every GET
    documented = {
        (method.upper(), f"{server['url'].rstrip('/')}{path}")
        for path, operations in openapi_document()["paths"].items()
        for method, found in operations.items()
        for server in found.get("servers", openapi_document()["servers"])
    }
    assert set(served) == documented
    of_others = len(agora.BASES) * len(agora.ROUTES) + len(AGENT_MEMORY_ROUTES)
    assert len(served) == len(ROUTES) + of_others


@pytest.mark.long
@every_row("call", CALLS, ids=lambda call: call.stem)
async def test_recorded_calls_are_taken_and_shown_as_documented(api: RestClient, call: Path) -> None:
    """A call's events are those of the document, and so is all that can be read of it, while it runs and after."""
    events = events_of(call)
    assert [] == [event for event in events if not component("ProducedEvent").is_valid(event)]
    await api.create(call.stem, user_id="u", labels={"desk": "front"}, llm={"vendor": "custom", "api_key": "k"})
    half = len(events) // 2
    for some in (events[:half], [*events[half:], {"type": "no.such.type", "seq": 10**6}]):
        await api.send(*some, session_id=call.stem)
        for query in QUERIES:
            assert 200 == (await api.get(f"/v1/sessions/{call.stem}{query}")).status
    await api.end(call.stem)
    for query in QUERIES:
        assert 200 == (await api.get(f"/v1/sessions/{call.stem}{query}")).status
    assert 200 == (await api.get("/v1/sessions?limit=1")).status
