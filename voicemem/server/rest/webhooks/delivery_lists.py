"""Deliveries over all endpoints: of the project, or of one session, its own receiver included; and what was sent."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from voicemem.server.http.request import GRANT, get_stream, json_response, services_of
from voicemem.server.http.routes import DeliveryId, Route, json_ok
from voicemem.server.rest.webhooks.deliveries import (
    DeliveryQuery,
    DeliveryState,
    WebhookDelivery,
    delivery_fields,
    delivery_of,
    filter_of,
)
from voicemem.server.rest.webhooks.endpoints import origin_of
from voicemem.store.delivery_rows import DeliveryPage, ListedDelivery
from voicemem.store.records import DeliveryFilter, Endpoint
from voicemem.webhooks.endpoints import OPERATOR_ID


class SessionDeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`before` is the `next_before` of the previous page."""

    state: DeliveryState | None = None
    before: DeliveryId | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class OneDeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` asks for what was sent."""

    payload: bool = False


class Receiver(Struct, frozen=True):
    """Where a delivery goes; `id` is null for a session's own receiver. Of the URL only scheme and host are shown."""

    id: str | None
    origin: str
    description: str
    enabled: bool


class ProjectDelivery(WebhookDelivery, frozen=True):
    """One notice, and where it goes."""

    webhook: Receiver = Receiver(None, "", "", True)


class DeliveryWithPayload(ProjectDelivery, frozen=True):
    """`payload` is there when it was asked for; null before it is made, and then never changed."""

    payload: Raw | UnsetType | None = UNSET


class ProjectDeliveryPage(Struct, frozen=True):
    """The newest deliveries first. A page may be short, or empty; `next_before` is null on the last page."""

    deliveries: list[ProjectDelivery]
    next_before: DeliveryId | None


def receiver_of(endpoint: Endpoint) -> Receiver:
    is_operators = endpoint.stream is None and endpoint.project is None
    return Receiver(
        OPERATOR_ID if is_operators else endpoint.id,
        origin_of(endpoint.url),
        endpoint.description,
        endpoint.disabled_ms is None,
    )


def listed_view(listed: ListedDelivery) -> ProjectDelivery:
    return ProjectDelivery(**delivery_fields(listed.delivery), webhook=receiver_of(listed.endpoint))


def page_view(page: DeliveryPage) -> ProjectDeliveryPage:
    following = None if page.next_before is None else str(page.next_before)
    return ProjectDeliveryPage([listed_view(listed) for listed in page.deliveries], following)


async def list_project_deliveries(request: web.Request, query: DeliveryQuery) -> web.Response:
    """List what was sent of the project's sessions and what is still to be sent, to whatever endpoint."""
    page = await services_of(request).webhooks.project_deliveries(request[GRANT].project, filter_of(query))
    return json_response(page_view(page))


async def list_session_deliveries(request: web.Request, query: SessionDeliveryQuery) -> web.Response:
    """List what was sent of a session and what is still to be sent, its own receiver included."""
    stream = await get_stream(request)
    before = None if query.before is None else int(query.before)
    wanted = DeliveryFilter(state=query.state, before=before, limit=query.limit)
    page = await services_of(request).webhooks.project_deliveries(stream.project, wanted, stream.key)
    return json_response(page_view(page))


async def read_delivery(request: web.Request, query: OneDeliveryQuery) -> web.Response:
    """Read a delivery; with `payload=true` also what was sent."""
    listed, sent = await services_of(request).webhooks.project_delivery(request[GRANT].project, delivery_of(request))
    payload = UNSET if not query.payload else None if sent is None else Raw(sent)
    receiver = receiver_of(listed.endpoint)
    return json_response(DeliveryWithPayload(**delivery_fields(listed.delivery), webhook=receiver, payload=payload))


ROUTES = (
    Route("GET", "/v1/deliveries", list_project_deliveries, "read", DeliveryQuery, json_ok(ProjectDeliveryPage)),
    Route(
        "GET",
        "/v1/deliveries/{delivery}",
        read_delivery,
        "read",
        OneDeliveryQuery,
        json_ok(DeliveryWithPayload),
        codes=("unknown_delivery",),
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/deliveries",
        list_session_deliveries,
        "read",
        SessionDeliveryQuery,
        json_ok(ProjectDeliveryPage),
    ),
)
