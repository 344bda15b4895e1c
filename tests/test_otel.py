"""Traces: what is in them, whom they continue, and that they cost nothing and import nothing where nobody asked."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from callers import Caller, Reply, receiving, talk, until
from calls import final
from click.testing import CliRunner
from llm_server import Script, llm_server
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id
from processes import running_process
from producers import held_store
from services import ANY_PORT
from websockets.asyncio.client import connect

from voicemem.app import App, running
from voicemem.cli import main
from voicemem.config.service import Settings
from voicemem.errors import CannotStart
from voicemem.store.sqlite import SqliteStore
from voicemem.telemetry.otel import OtelTracer, make_tracer, wanted
from voicemem.telemetry.tracing import NoTracer

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
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
async def traced(**settings: str) -> AsyncIterator[tuple[App, Spans]]:
    """A service that keeps its spans here."""
    spans = Spans()
    chosen = Settings(**{"store": "memory:", "rest": ANY_PORT, "ingest": ANY_PORT, **settings})  # type: ignore[arg-type]
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
        await Caller(app).create()
        answered = await Caller(app).call(
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
        await Caller(app).get("/livez")
        await Caller(app).get("/livez", {"traceparent": "00-nonsense-01"})
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
        api = Caller(app)
        for session_id in "abc":
            await api.create(session_id)

        async def append(session_id: str, headers: dict[str, str]) -> None:
            path = f"/v1/sessions/{session_id}/events"
            assert 200 == (await api.call("POST", path, headers=headers, json=[final(1, "x")])).status

        assert isinstance(app.services.store, SqliteStore)
        release = threading.Event()
        held = asyncio.create_task(app.services.store.database.write(lambda _: release.wait(10)))
        try:
            first = asyncio.create_task(append("a", {}))
            await until(True, lambda: asyncio.sleep(0, app.services.recorder.committing is not None))
            others = [asyncio.create_task(append("b", parent(TRACE))), asyncio.create_task(append("c", parent(OTHER)))]
            await until(2, lambda: asyncio.sleep(0, len(app.services.recorder.waiting)))
        finally:
            release.set()
            await held
        await asyncio.gather(first, *others)
        together = [span for span in spans.named("commit") if 2 == (span.attributes or {})["voicemem.batches"]]
    assert [{TRACE, OTHER}] == [{trace_of(span), *linked(span)} for span in together]


async def test_failures_are_seen_without_their_words(tmp_path: Path) -> None:
    """A span that failed says so by a code; nothing of the request stands in it."""
    async with traced(store=f"sqlite:{tmp_path}/db") as (app, spans):
        await Caller(app).create()
        assert isinstance(app.services.store, SqliteStore)
        await app.services.store.database.write(lambda connection: connection.set_busy_timeout(0))
        with held_store(f"{tmp_path}/db"):
            await Caller(app).post("/v1/sessions/s/events", [final(1, "hush")])
        (commit,), (request,) = spans.named("commit"), spans.named("POST /v1/sessions/{id}/events")
        everything = "".join(span.to_json() for span in spans.exporter.get_finished_spans())
    assert [StatusCode.ERROR] * 2 == [commit.status.status_code, request.status.status_code]
    assert ("store_unavailable", "503") == tuple((span.attributes or {})["error.type"] for span in (commit, request))
    assert "hush" not in everything


async def test_webhook_attempts_are_spans_whose_trace_the_receiver_gets() -> None:
    """Each attempt is a trace of its own, continued by the receiver; path and query of its URL stand in no span."""
    async with receiving(Reply(410)) as hook:
        async with traced(webhook_url=hook.url("/secret-path")) as (app, spans):
            await Caller(app).create()
            await Caller(app).end()
            notice = await hook.one()
            await until(1, lambda: asyncio.sleep(0, len(spans.named("webhook"))))
        (attempt,) = spans.named("webhook")
    version, trace, span_id, _ = notice.headers["traceparent"].split("-")
    assert attempt.context is not None
    assert ("00", trace_of(attempt), f"{attempt.context.span_id:016x}") == (version, trace, span_id)
    assert attempt.parent is None
    expected = {"http.request.method": "POST", "server.address": "127.0.0.1", "http.response.status_code": 410}
    assert {**expected, "error.type": "410"} == dict(attempt.attributes or {})


async def test_nothing_of_a_call_is_in_a_span() -> None:
    """Neither ids nor texts, nor methods that somebody made up."""
    async with traced() as (app, spans):
        await Caller(app).create("planted-id", user_id="planted-user")
        await Caller(app).send(final(1, "planted-text"), {"type": "planted-type"}, session_id="planted-id")
        await Caller(app).get("/v1/sessions/planted-id/history?planted=1")
        await Caller(app).get("/planted/path")
        await talk(app, b"PLANTED / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        everything = "".join(span.to_json() for span in spans.exporter.get_finished_spans())
    assert "/v1/sessions/{id}/history" in everything
    assert "planted" not in everything.lower()


async def test_without_traces_receivers_get_no_header() -> None:
    """The header is sent by a service that traces, and by no other."""
    async with receiving() as hook:
        chosen = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, webhook_url=hook.url())
        async with running(chosen) as app:
            await Caller(app).create()
            await Caller(app).end()
            assert "traceparent" not in (await hook.one()).headers


# By environment


@pytest.mark.parametrize(
    ("env", "exporter"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "memory"}, None),
        (ENDPOINT, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_traces_are_off_unless_the_environment_asks(env: Mapping[str, str], exporter: str | None) -> None:
    """An exporter or an endpoint turns them on; `none` and the general switch turn them off."""
    assert exporter == wanted(env)
    if exporter is None:
        assert isinstance(make_tracer(env), NoTracer)


@pytest.mark.parametrize(
    "env", [{"OTEL_TRACES_EXPORTER": "zipkin"}, {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}]
)
def test_what_cannot_be_sent_is_said_at_the_start(env: Mapping[str, str]) -> None:
    """An exporter or protocol that is not there keeps the service from starting, rather than losing traces."""
    with pytest.raises(CannotStart, match="OTEL_"):
        wanted(env)
    checked = CliRunner().invoke(main, ["check-config"], env=env)
    assert (1, True) == (checked.exit_code, "OTEL_" in checked.output)


def python(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**inherited, **env}
    )


IMPORTED = (
    "import sys, voicemem.app, voicemem.cli, voicemem.telemetry.otel as o;"
    " o.make_tracer({}); print('opentelemetry' in sys.modules)"
)
ABSENT = "import sys; sys.modules['opentelemetry'] = None; import voicemem.cli as c; c.main(%r)"


def test_nothing_is_imported_unless_it_is_asked_for() -> None:
    """A service that does not trace does not load OpenTelemetry."""
    assert "False" == python(IMPORTED).stdout.strip()


def test_without_the_extra_the_service_says_what_is_missing() -> None:
    """Where traces are asked for and the extra is absent, one sentence; where they are not, nothing changes."""
    serve = ["serve", "--store", "memory:", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"]
    asked = python(ABSENT % (serve,), **ENDPOINT)
    assert (1, 1) == (asked.returncode, asked.stderr.count("\n"))
    assert "'voicemem-core[otel]'" in asked.stderr
    assert 0 == python(ABSENT % (["check-config"],)).returncode


async def test_a_real_process_sends_its_spans_to_a_collector(tmp_path: Path) -> None:
    """`voicemem serve` with the standard variables sends OTLP over HTTP, all of it at the latest when it stops.

    What is logged inside a span has its ids, and nothing else has.
    """
    requests: list[ExportTraceServiceRequest] = []

    async def collect(request: web.Request) -> web.Response:
        assert "/v1/traces" == request.path
        requests.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    collector = web.Application()
    collector.router.add_post("/{path:.*}", collect)
    runner = web.AppRunner(collector, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{runner.addresses[0][1]}",
            "OTEL_SERVICE_NAME": "memory",
        }
        said = "--log-format", "json", "--log-level", "debug"
        async with running_process(tmp_path / "db", *said, env=env) as process:
            await process.api.create()
            await process.api.send(final(1, "Hi."))
            assert 0 == await process.stop()
    finally:
        await runner.cleanup()
    resources = [resource for request in requests for resource in request.resource_spans]
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    names = {span.name for span in spans}
    (created,) = [span for span in spans if span.name == "POST /v1/sessions"]
    lines = [json.loads(line) for line in (tmp_path / "db.log").read_text().splitlines()]
    (line,) = [line for line in lines if line.get("route") == "/v1/sessions"]
    assert (created.trace_id.hex(), created.span_id.hex()) == (line["trace_id"], line["span_id"])
    assert ["Started", "Stopping"] == [line["message"] for line in lines if "trace_id" not in line]
    assert {"POST /v1/sessions", "POST /v1/sessions/{id}/events", "commit"} <= names
    services = {a.value.string_value for one in resources for a in one.resource.attributes if a.key == "service.name"}
    assert {"memory"} == services


async def test_a_call_of_an_llm_is_traced_through_the_gateway() -> None:
    """Its span is inside the caller's request, the LLM gets it to go on with, and a failure is a status."""
    async with llm_server(Script(["Hello."]), Script(status=503)) as llm, traced(llm_url=llm.url) as (app, spans):
        api = Caller(app)
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
