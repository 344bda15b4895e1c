"""The service itself: whether it is alive and ready, its metrics and interface, and how it does right now."""

import asyncio
from contextlib import suppress
from typing import Literal

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType
from prometheus_client import Gauge

from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.types import JsonObject
from voicemem.security.access import DEFAULT_PROJECT
from voicemem.server.http.request import GAUGES, OPENAPI_DOCUMENT, Request
from voicemem.server.http.routes import JSON, Routes
from voicemem.server.rest.asyncapi import asyncapi_json
from voicemem.services import Services
from voicemem.store.outbox import Endpoint
from voicemem.store.session_filters import SessionFilter
from voicemem.telemetry.metrics import TEXT_FORMAT
from voicemem.version import __version__

ROUTES = Routes()


class Health(Struct, frozen=True):
    """The answer of a service that is alive."""

    status: Literal["ok"] = "ok"


class QuarantineCount(Struct, frozen=True):
    """The number of quarantined sessions, and where the service needs no keys the ids of up to 10 of them."""

    count: int
    sessions: list[str] | UnsetType = UNSET


class Readiness(Health, frozen=True):
    """The answer of a process that should get traffic.

    `node` is its token where several may serve the store. `set_aside` is there only when there are such sessions; they
    do not stop it.
    """

    node: str | UnsetType = UNSET
    set_aside: QuarantineCount | UnsetType = UNSET


@ROUTES.add("GET /livez", None)
async def livez(_: Request) -> Health:
    """Check that the process answers.

    The store is not asked, so that its outage does not make an orchestrator restart every process.
    """
    return Health()


@ROUTES.add("GET /readyz", None, codes="draining store_unavailable")
async def readyz(request: Request) -> Readiness:
    """Check that the process should get traffic: the store can be written, and the service is not draining.

    So it is when the last commit succeeded; with PostgreSQL, on each of the process's connections.
    """
    services = request.services
    if services.draining.is_set():
        raise Refused("draining")
    if not services.store.healthy:
        raise StoreUnavailable(services.store.trouble)
    node = services.node.shown_token() or UNSET
    report = services.read_models.quarantined.report
    if not report.streams:
        return Readiness(node=node)
    # Anyone who reaches the port may ask, so the ids of projects with keys are in the log only.
    ids = UNSET if await services.access.needs_key() else [session_id for _, session_id in report.sessions]
    return Readiness(node=node, set_aside=QuarantineCount(report.streams, ids))


@ROUTES.add("GET /asyncapi.json", None, JsonObject)
async def asyncapi(_: Request) -> web.StreamResponse:
    """The AsyncAPI 3.0 document of the websocket ingest: its frames and their answers."""
    return web.Response(body=await asyncio.to_thread(asyncapi_json), content_type=JSON)


@ROUTES.add("GET /openapi.json", None, JsonObject)
async def openapi(request: Request) -> web.StreamResponse:
    """This document, OpenAPI 3.1."""
    return web.Response(body=await asyncio.to_thread(request.shared[OPENAPI_DOCUMENT]), content_type=JSON)


@ROUTES.add("GET /metrics", "read", {"text/plain": str}, outlives_store=True)
async def metrics(request: Request) -> web.StreamResponse:
    """Read the metrics of the service, in Prometheus' text format.

    They are of all projects together, so the key must be of the project `default`, which is the operator's. While the
    store is away they are served all the same, as far as the key can be checked without it; those that come from the
    store keep their last values.
    """
    if request.grant.project != DEFAULT_PROJECT:
        raise Refused("forbidden", "Metrics are of all projects; they need a key of the project default.")
    await request.shared[GAUGES].refresh()
    body = await asyncio.to_thread(request.services.telemetry.metrics.render)
    return web.Response(body=body, headers={"Content-Type": TEXT_FORMAT})


class FailingWebhook(Struct, frozen=True):
    """An endpoint that fails, or was disabled since it did."""

    id: str | None
    description: str
    failing_since: int | None
    disabled_reason: str | None
    pending: int


class StoreFigures(Struct, frozen=True):
    """The store; sizes in bytes."""

    healthy: bool
    bytes: int
    log_bytes: int
    set_aside: int


class Percentiles(Struct, frozen=True):
    """Percentiles of the last minute, in ms; null when nothing happened in it."""

    p50: float | None
    p99: float | None


class OutboxFigures(Struct, frozen=True):
    """Webhooks that wait, those of them that are due, and how long the oldest has waited, retries included."""

    pending: int
    due: int
    oldest_s: float


class MemoryFigures(Struct, frozen=True):
    """Memories at hand, and about how many bytes all of them take."""

    in_use: int
    packed: int
    bytes: int


class ServiceNode(Struct, frozen=True):
    """A process that serves the store."""

    node: str
    address: str
    version: str
    started_at: int
    alive: bool
    this: bool


class ServiceFigures(Struct, frozen=True):
    """Figures of the whole service. Rates are per second, by the span that they are of."""

    node: str | None
    uptime_s: float
    draining: bool
    store: StoreFigures
    connected: int
    connections: dict[str, int]
    rates: dict[str, dict[str, float]]
    ack_ms: Percentiles
    commit_ms: Percentiles
    outbox: OutboxFigures
    memories: MemoryFigures
    refused: dict[str, int]
    nodes: list[ServiceNode]


class RunningSessions(Struct, frozen=True):
    """The number of running sessions."""

    running: int


class OperationsReport(Struct, frozen=True):
    """The state of things. `service` is null for keys of projects but `default`, and `sessions` then the project's."""

    project: str
    version: str
    ready: bool
    sessions: RunningSessions
    webhooks: list[FailingWebhook]
    service: ServiceFigures | None


@ROUTES.add("GET /v1/operations", "read")
async def read_operations(request: Request) -> OperationsReport:
    """Read how things go now: rates, latencies, what waits and what fails."""
    project, services = request.grant.project, request.services
    ready = services.store.healthy and not services.draining.is_set()
    webhooks: list[FailingWebhook] = []
    with suppress(StoreUnavailable):
        webhooks = await failing_webhooks(services, project)
    service = await service_figures(request) if project == DEFAULT_PROJECT else None
    if service is not None:
        running = value(services.telemetry.metrics.sessions, "running")
    else:
        running = await services.store.journal.count_sessions(SessionFilter(project=project, state="running"))
    return OperationsReport(project, __version__, ready, RunningSessions(running), webhooks, service)


async def failing_webhooks(services: Services, project: str) -> list[FailingWebhook]:
    failing = [endpoint for endpoint in await services.webhooks.list(project) if is_failing(endpoint)]
    counts = await services.webhooks.counts_of_day(failing)
    return [
        FailingWebhook(one.id, one.description, one.failing_since_ms, one.disabled_reason, counts[one.key].pending)
        for one in failing
    ]


def is_failing(endpoint: Endpoint) -> bool:
    if endpoint.disabled_ms is not None:
        return endpoint.disabled_reason in ("failing", "gone")
    return endpoint.failing_since_ms is not None


async def service_figures(request: Request) -> ServiceFigures:
    services, gauges = request.services, request.shared[GAUGES]
    metrics, recent = services.telemetry.metrics, services.recent
    await gauges.refresh()
    pending, due = value(metrics.outbox_pending), value(metrics.outbox_due)
    sizes = (metrics.db_bytes, metrics.db_wal_bytes, metrics.sessions_set_aside)
    size = sum(int(sample.value) for family in metrics.memories_bytes.collect() for sample in family.samples)
    refused = {
        sample.labels["code"]: int(sample.value)
        for family in metrics.refused_events.collect()
        for sample in family.samples
        if sample.value
    }
    return ServiceFigures(
        node=services.node.shown_token() or None,
        uptime_s=recent.uptime_s,
        draining=services.draining.is_set(),
        store=StoreFigures(services.store.healthy, *map(value, sizes)),
        connected=value(metrics.sessions_connected),
        connections=dict(gauges.connections()),
        rates={"10s": recent.rates(10), "1m": recent.rates(60)},
        ack_ms=Percentiles(recent.ack_ms(0.5), recent.ack_ms(0.99)),
        commit_ms=Percentiles(recent.commit_ms(0.5), recent.commit_ms(0.99)),
        outbox=OutboxFigures(pending, due, metrics.outbox_oldest_seconds._value.get()),
        memories=MemoryFigures(value(metrics.memories, "in_use"), value(metrics.memories, "packed"), size),
        refused=refused,
        nodes=await nodes_of(services),
    )


async def nodes_of(services: Services) -> list[ServiceNode]:
    """Return the nodes of a store that may have several; none if it has only this process."""
    own = services.node.shown_token()
    if not own:
        return []
    with suppress(StoreUnavailable):
        now = services.runtime.clock()
        return [
            ServiceNode(
                node.token, node.address, node.version, node.started_ms, node.expires_ms > now, node.token == own
            )
            for node in await services.store.nodes.list_nodes()
        ]
    return []


def value(gauge: Gauge, *labels: str) -> int:
    return int((gauge.labels(*labels) if labels else gauge)._value.get())
