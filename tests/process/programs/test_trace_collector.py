"""A real process sends its spans to a collector."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.events import final
from tests.support.processes.service_process import running_process


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
