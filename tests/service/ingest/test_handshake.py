"""Who may connect, who holds a producer, and how everybody is sent home (docs/ingest.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

import aiohttp
import pytest
from websockets import exceptions
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.support.callers.ingest import UPGRADE, refusal, status
from tests.support.callers.producer import url_of
from tests.support.callers.rest import PROBLEM
from voicemem.app import App
from voicemem.dialects.registry import DIALECTS
from voicemem.errors import StoreUnavailable


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/ingests", "/v2/ingest", "/V1/INGEST"])
async def test_other_paths_are_not_found(app: App, path: str) -> None:
    """There is one path for events; what is wrong is said as a problem document."""
    assert (404, "not_found") == await refusal(app, path)


@pytest.mark.parametrize("path", ["/v1/ingest/", "/v1/ingest/s", "/v1/ingest/openai-realtime/x"])
async def test_paths_of_unknown_dialects(app: App, path: str) -> None:
    """Below it, each dialect has one."""
    assert (404, "unknown_dialect") == await refusal(app, path)


async def test_the_nearest_dialect_is_named(app: App) -> None:
    """Who misspells the path of a dialect is told the right one, and all others."""
    with pytest.raises(exceptions.InvalidStatus) as refused:
        async with connect(f"{url_of(app)}/openai_realtime"):
            pass
    detail = json.loads(refused.value.response.body)["detail"]
    assert "did you mean `openai-realtime`?" in detail
    assert all(name in detail for name in DIALECTS)


async def test_a_store_that_is_away(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no one can say who may come in, the caller is told to come back, and the log has no traceback."""

    async def needs_key() -> bool:
        raise StoreUnavailable

    monkeypatch.setattr(app.services.access, "needs_key", needs_key)
    app.services.access.checked_ms = 0  # it is time to ask again
    assert (503, "store_unavailable") == await refusal(app)
    assert "process_request" not in caplog.text


async def test_the_protocol_may_be_named(app: App) -> None:
    """A client that offers `voicemem.v1` gets it; one that offers others or none is let in without."""
    ours, other = Subprotocol("voicemem.v1"), Subprotocol("other")
    chosen = []
    for offered in ([ours], [other, ours], [other], None):
        async with connect(url_of(app), subprotocols=offered) as client:
            chosen.append(client.subprotocol)
    assert ["voicemem.v1", "voicemem.v1", None, None] == chosen


async def test_frames_are_not_compressed(app: App) -> None:
    """A client that offers compression is let in without: no bombs."""
    async with connect(url_of(app)) as client:
        assert [] == client.protocol.extensions


@pytest.mark.parametrize("target", ["//[/v1/ingest", "http://[/v1/ingest", "*", "http:"])
async def test_what_is_no_path_is_refused(app: App, caplog: pytest.LogCaptureFixture, target: str) -> None:
    """A request target that cannot be read is the client's fault, and no traceback."""
    host = f"Host: {app.ingest_address}"
    assert await status(app, f"GET {target} HTTP/1.1", host, *UPGRADE) in range(400, 500)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("header", ["Host: 127.0.0.1", "Origin: http://127.0.0.1", "Authorization: Bearer x"])
async def test_doubled_headers_are_refused(app: App, caplog: pytest.LogCaptureFixture, header: str) -> None:
    """Two values where one counts are the client's fault, and no traceback."""
    host = [] if header.startswith("Host") else ["Host: 127.0.0.1"]
    assert await status(app, "GET /v1/ingest HTTP/1.1", *host, header, header, *UPGRADE) in range(400, 500)
    assert "Traceback" not in caplog.text


async def test_plain_http_is_told_to_upgrade(app: App) -> None:
    """A browser or a probe on the ingest port gets a 4xx, which says where it is."""
    async with aiohttp.ClientSession() as http, http.get(f"http://{app.ingest_address}/v1/ingest") as answer:
        problem = await answer.json(content_type=PROBLEM)
        assert (426, "websocket") == (answer.status, answer.headers["Upgrade"])
        assert (426, "Upgrade Required", "invalid_http") == (problem["status"], problem["title"], problem["reason"])


async def test_other_methods_are_refused(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A POST gets a 405, or, from a `websockets` that reads nothing but GET, no answer; none of it is in the log."""
    url = f"http://{app.ingest_address}/v1/ingest"
    async with aiohttp.ClientSession() as http:
        if hasattr(exceptions, "InvalidMethod"):
            async with http.post(url) as answer:
                problem = await answer.json(content_type=PROBLEM)
            assert (405, "GET") == (answer.status, answer.headers["Allow"])
            assert (405, "method_not_allowed") == (problem["status"], problem["reason"])
        else:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await http.post(url)
    assert "" == caplog.text
