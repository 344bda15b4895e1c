"""The service needs no API of other products: without any it starts, and their paths are not there."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from voicemem import app

PATHS = {"/v1/working-memory/", "/v1/summary-views", "/api/conversational-ai-agent/v2/projects/{appid}/agents"}


async def test_the_service_starts_without_other_apis(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own API works, and the document of its routes has none of the others; with them it has."""
    api = RestClient(await serve())
    assert (await api.get("/openapi.json")).json["paths"].keys() >= PATHS
    monkeypatch.setattr(app, "COMPAT", ())
    api = RestClient(await serve())
    await api.create()
    assert 200 == (await api.get("/v1/sessions/s/history")).status
    assert PATHS.isdisjoint((await api.get("/openapi.json")).json["paths"])
