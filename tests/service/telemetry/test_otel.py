"""Traces: what is in them, whom they continue, and that they cost nothing and import nothing where no one asked."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id
from websockets.asyncio.client import connect

from tests.support.callers.raw_http import raw_exchange
from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.samples.callers import AGENT, CALLER, SAMPLES
from tests.support.servers.llm_server import Script, llm_server
from tests.support.servers.webhook_receiver import Reply, webhook_receiver
from tests.support.services import ANY_PORT
from tests.support.stores.failing import locked_database
from tests.support.waiting import eventually
from voicemem.app import App, running
from voicemem.config.service import Settings
from voicemem.store.sqlite.store import SqliteStore
from voicemem.telemetry.otel import OtelTracer

TRACE, OTHER = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319c"


def parent(trace: str) -> dict[str, str]:
    """The header of a caller that is traced (https://www.w3.org/TR/trace-context/)."""
    return {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}


class Spans:
    """What was traced."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@asynccontextmanager
async def traced(**settings: Any) -> AsyncIterator[tuple[App, Spans]]:
    """A service that keeps its spans here."""
    spans = Spans()
    chosen = Settings(**{"store": "memory:", "rest": ANY_PORT, "ingest": ANY_PORT, **settings})
    async with running(chosen, tracer=OtelTracer(spans.provider)) as app:
        yield app, spans


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format_trace_id(span.context.trace_id)


def linked(span: ReadableSpan) -> list[str]:
    return [format_trace_id(link.context.trace_id) for link in span.links]


async def test_a_request_continues_its_callers_trace_and_its_commit_too() -> None:
    """The server's span is the caller's child, and the commit of what it brought is the server span's."""
    async with traced() as (app, spans):
        await RestClient(app).create()
        answered = await RestClient(app).call(
            "POST", "/v1/sessions/s/events", headers=parent(TRACE), json=[final(1, "Hi.")]
        )
        assert 200 == answered.status
        (request,), (commit,) = spans.named("POST /v1/sessions/{id}/events"), spans.named("commit")
    assert (TRACE, TRACE) == (trace_of(request), trace_of(commit))
    assert request.parent is not None
    assert commit.parent is not None
    assert 0xB7AD6B7169203331 == request.parent.span_id
    assert request.context is not None
    assert request.context.span_id == commit.parent.span_id
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/sessions/{id}/events",
        "http.response.status_code": 200,
    }
    assert expected == dict(request.attributes or {})


async def test_requests_without_a_trace_begin_their_own() -> None:
    """No header, or a broken one, is no parent."""
    async with traced() as (app, spans):
        await RestClient(app).get("/livez")
        await RestClient(app).get("/livez", {"traceparent": "00-nonsense-01"})
        roots = spans.named("GET /livez")
    assert [None, None] == [span.parent for span in roots]
    assert 2 == len({trace_of(span) for span in roots})


async def test_a_websockets_commits_continue_the_trace_of_its_handshake() -> None:
    """Frames have no headers: the handshake's are those of all that comes over it."""
    async with traced() as (app, spans):
        url = f"ws://{app.ingest_address}/v1/ingest"
        async with connect(url, additional_headers=parent(TRACE)) as socket:
            await socket.send(json.dumps({"type": "session.open"}))
            await socket.recv()
            await socket.send(json.dumps({"seq": 1, **final(1, "Hi.")}))
            assert 1 == json.loads(await socket.recv())["seq"]
        (commit,) = spans.named("commit")
    assert TRACE == trace_of(commit)


async def test_a_commit_of_several_links_to_the_others(tmp_path: Path) -> None:
    """What waited together is one commit: it continues one trace, and names the other."""
    async with traced(store=f"sqlite:{tmp_path}/db") as (app, spans):
        api = RestClient(app)
        for session_id in "abc":
            await api.create(session_id)

        async def append(session_id: str, headers: dict[str, str]) -> None:
            path = f"/v1/sessions/{session_id}/events"
            assert 200 == (await api.call("POST", path, headers=headers, json=[final(1, "x")])).status

        assert isinstance(app.services.store, SqliteStore)
        release = threading.Event()
        held = asyncio.create_task(app.services.store.database.write(lambda _: release.wait(10)))
        try:
            (lane,) = app.services.recorder.commits.shards
            first = asyncio.create_task(append("a", {}))
            await eventually(True, lambda: asyncio.sleep(0, lane.task is not None))
            others = [asyncio.create_task(append("b", parent(TRACE))), asyncio.create_task(append("c", parent(OTHER)))]
            await eventually(2, lambda: asyncio.sleep(0, len(lane.pending)))
        finally:
            release.set()
            await held
        await asyncio.gather(first, *others)
        together = [span for span in spans.named("commit") if 2 == (span.attributes or {})["voicemem.batches"]]
    assert [{TRACE, OTHER}] == [{trace_of(span), *linked(span)} for span in together]


async def test_failures_are_seen_without_their_words(tmp_path: Path) -> None:
    """A span that failed says so by a code; nothing of the request stands in it."""
    async with traced(store=f"sqlite:{tmp_path}/db") as (app, spans):
        await RestClient(app).create()
        assert isinstance(app.services.store, SqliteStore)
        await app.services.store.database.write(lambda connection: connection.raw.set_busy_timeout(0))
        with locked_database(f"{tmp_path}/db"):
            await RestClient(app).post("/v1/sessions/s/events", [final(1, "hush")])
        (commit,), (request,) = spans.named("commit"), spans.named("POST /v1/sessions/{id}/events")
        everything = "".join(span.to_json() for span in spans.exporter.get_finished_spans())
    assert [StatusCode.ERROR] * 2 == [commit.status.status_code, request.status.status_code]
    assert ("store_unavailable", "503") == tuple((span.attributes or {})["error.type"] for span in (commit, request))
    assert "hush" not in everything


async def test_webhook_attempts_are_spans_whose_trace_the_receiver_gets() -> None:
    """Each attempt is a trace of its own, continued by the receiver; path and query of its URL stand in no span."""
    async with webhook_receiver(Reply(410)) as hook:
        async with traced(webhook_url=hook.url("/secret-path")) as (app, spans):
            await RestClient(app).create()
            await RestClient(app).end()
            webhook_event = await hook.one()
            await eventually(1, lambda: asyncio.sleep(0, len(spans.named("webhook"))))
        (attempt,) = spans.named("webhook")
    version, trace, span_id, _ = webhook_event.headers["traceparent"].split("-")
    assert attempt.context is not None
    assert ("00", trace_of(attempt), f"{attempt.context.span_id:016x}") == (version, trace, span_id)
    assert attempt.parent is None
    expected = {"http.request.method": "POST", "server.address": "127.0.0.1", "http.response.status_code": 410}
    assert {**expected, "error.type": "410"} == dict(attempt.attributes or {})


async def test_nothing_of_a_call_is_in_a_span() -> None:
    """Neither ids nor texts, nor methods that someone made up."""
    async with traced() as (app, spans):
        await RestClient(app).create("planted-id", user_id="planted-user")
        await RestClient(app).send(final(1, "planted-text"), {"type": "planted-type"}, session_id="planted-id")
        await RestClient(app).get("/v1/sessions/planted-id/history?planted=1")
        await RestClient(app).get("/planted/path")
        await raw_exchange(app, b"PLANTED / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        everything = "".join(span.to_json() for span in spans.exporter.get_finished_spans())
    assert "/v1/sessions/{id}/history" in everything
    assert "planted" not in everything.lower()


async def test_without_traces_receivers_get_no_header() -> None:
    """The header is sent by a service that traces, and by no other."""
    async with webhook_receiver() as hook:
        chosen = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, webhook_url=hook.url())
        async with running(chosen) as app:
            await RestClient(app).create()
            await RestClient(app).end()
            assert "traceparent" not in (await hook.one()).headers


async def test_a_call_of_an_llm_is_traced_through_the_gateway() -> None:
    """Its span is inside the caller's request, the LLM gets it to go on with, and a failure is a status."""
    async with llm_server(Script(["Hello."]), Script(status=503)) as llm, traced(llm_url=llm.url) as (app, spans):
        api = RestClient(app)
        await api.create()
        body = {"messages": [{"role": "user", "content": "hush"}], "stream": True}
        for status in (200, 502):
            path = "/v1/sessions/s/chat/completions"
            assert status == (await api.call("POST", path, headers=parent(TRACE), json=body)).status
        first, second = spans.named("llm")
        assert {"voicemem.use": "gateway", "server.address": "127.0.0.1"} == first.attributes
        assert (second.attributes or {})["error.type"] == "503"
        assert first.context is not None
        expected = f"00-{TRACE}-{format_span_id(first.context.span_id)}-01"
        assert expected == llm.requests[0].headers["traceparent"]
        everything = "".join(span.to_json() for span in spans.exporter.get_finished_spans())
        assert "hush" not in everything


async def test_no_span_has_a_partys_number() -> None:
    """Whatever frames of other stacks say of who calls, and whether that names the session's user."""
    async with traced(identify=("vapi=user,number",)) as (app, spans):
        for body in next(one for one in SAMPLES if one.dialect == "vapi").frames:
            await RestClient(app).call("POST", "/v1/hooks/vapi", json=body)
        everything = "".join(span.to_json() for span in spans.exporter.get_finished_spans())
    assert "hooks" in everything
    assert CALLER[1:] not in everything
    assert AGENT[1:] not in everything
