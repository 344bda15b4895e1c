"""The service itself: is it alive, is it ready, what does it count, what is its interface."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from voicemem.errors import Refused, StoreUnavailable
from voicemem.security.access import DEFAULT_PROJECT
from voicemem.server.http.request import (
    ASYNCAPI_DOCUMENT,
    GAUGES,
    GRANT,
    OPENAPI_DOCUMENT,
    NoQuery,
    json_response,
    services_of,
)
from voicemem.server.http.routes import JSON, ResponseSpec, Route, json_ok
from voicemem.telemetry.metrics import TEXT_FORMAT


class Health(Struct, frozen=True):
    """The service is well."""

    status: Literal["ok"] = "ok"


class QuarantineCount(Struct, frozen=True):
    """How many sessions are set aside, and where the service needs no keys the ids of up to 10 of them."""

    count: int
    sessions: list[str] | UnsetType = UNSET


class Readiness(Health, frozen=True):
    """The process should get traffic.

    `node` is its token where several may serve the store. `set_aside` is there only when there are such sessions; they
    do not stop it.
    """

    node: str | UnsetType = UNSET
    set_aside: QuarantineCount | UnsetType = UNSET


class OpenApi(Struct, frozen=True):
    """https://spec.openapis.org/oas/v3.1.1"""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class AsyncApi(Struct, frozen=True):
    """https://www.asyncapi.com/docs/reference/specification/v3.0.0"""

    asyncapi: str
    info: dict[str, Any]
    channels: dict[str, Any]
    operations: dict[str, Any]
    components: dict[str, Any]


async def livez(_: web.Request, __: NoQuery) -> web.Response:
    """Check that the process answers.

    The store is not asked, so that its outage does not make an orchestrator restart every process.
    """
    return json_response(Health())


async def readyz(request: web.Request, _: NoQuery) -> web.Response:
    """Check that the process should get traffic: the store can be written, and the service is not draining.

    So it is when the last commit succeeded; with PostgreSQL, on each of the process's connections.
    """
    services = services_of(request)
    if services.draining.is_set():
        raise Refused("draining")
    if not services.store.healthy:
        raise StoreUnavailable(services.store.trouble)
    node = services.node.shown_token() or UNSET
    report = services.read_models.quarantined.report
    if not report.streams:
        return json_response(Readiness(node=node))
    # Anyone who reaches the port may ask, so the ids of projects with keys are in the log only.
    ids = UNSET if await services.access.needs_key() else [session_id for _, session_id in report.sessions]
    return json_response(Readiness(node=node, set_aside=QuarantineCount(report.streams, ids)))


async def asyncapi(request: web.Request, _: NoQuery) -> web.Response:
    """The AsyncAPI document of the websocket ingest: its frames and their answers."""
    return web.Response(body=await asyncio.to_thread(request.app[ASYNCAPI_DOCUMENT]), content_type=JSON)


async def openapi(request: web.Request, _: NoQuery) -> web.Response:
    """This document."""
    return web.Response(body=await asyncio.to_thread(request.app[OPENAPI_DOCUMENT]), content_type=JSON)


async def metrics(request: web.Request, _: NoQuery) -> web.Response:
    """Read the metrics of the service, in Prometheus' text format.

    They are of all projects together, so the key must be of the project `default`, which is the operator's. While the
    store is away they are served all the same, as far as the key can be checked without it; those that come from the
    store keep their last values.
    """
    if request[GRANT].project != DEFAULT_PROJECT:
        raise Refused("forbidden", "Metrics are of all projects; they need a key of the project default.")
    services = services_of(request)
    await request.app[GAUGES].refresh()
    return web.Response(body=services.telemetry.metrics.render(), headers={"Content-Type": TEXT_FORMAT})


ROUTES = (
    Route("GET", "/livez", livez, None, NoQuery, json_ok(Health)),
    Route("GET", "/readyz", readyz, None, NoQuery, json_ok(Readiness), codes=("draining", "store_unavailable")),
    Route(
        *("GET", "/metrics", metrics, "read", NoQuery, {200: ResponseSpec({"text/plain": str})}),
        outlives_store=True,
    ),
    Route("GET", "/openapi.json", openapi, None, NoQuery, json_ok(OpenApi)),
    Route("GET", "/asyncapi.json", asyncapi, None, NoQuery, json_ok(AsyncApi)),
)
