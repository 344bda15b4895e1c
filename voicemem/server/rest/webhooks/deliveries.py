"""Deliveries: what was sent to a webhook endpoint of the project, what is still to be sent, and sending it again."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.errors import Refused
from voicemem.protocol.types import MAX_INTEGER, SessionId
from voicemem.server.http.request import NoQuery, convert_body, json_response, read_object, services_of
from voicemem.server.http.routes import DELIVERY_ID_PATTERN, JSON, BodySpec, DeliveryId, Route, json_ok
from voicemem.server.rest.webhooks.endpoints import ENDPOINT_PATH, UNKNOWN_ENDPOINT, audit_endpoint, endpoint_of
from voicemem.store.records import DeliveryFilter, EndpointDelivery

DELIVERY_ID = re.compile(DELIVERY_ID_PATTERN)
DeliveryState = Literal["pending", "delivered", "failed"]


class Since(Struct, frozen=True, forbid_unknown_fields=True):
    """A time, Unix ms."""

    since: Annotated[int, Meta(ge=0, le=MAX_INTEGER)]


class DeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`before` is the `next_before` of the previous page."""

    session_id: SessionId | None = None
    event_type: Literal[101, 102, 103, 111, 112] | None = None
    state: DeliveryState | None = None
    before: DeliveryId | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DeliveryAttempt(Struct, frozen=True):
    """`error` is a short word if there was no answer, or a redirect; `excerpt` is the beginning of the answer."""

    started_at: int
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class WebhookDelivery(Struct, frozen=True):
    """One notice to this endpoint. `next_attempt_at` is null when no further attempt is planned.

    `waiting_for` is there only while the notice cannot be made, since its session is set aside.
    """

    id: DeliveryId
    notice_id: str
    session_id: str
    event_type: int
    state: DeliveryState
    created_at: int
    next_attempt_at: int | None
    attempts: list[DeliveryAttempt]
    waiting_for: Literal["session_set_aside"] | UnsetType = UNSET


class DeliveryPage(Struct, frozen=True):
    """The newest deliveries first; `next_before` is null on the last page."""

    deliveries: list[WebhookDelivery]
    next_before: DeliveryId | None


class Recovered(Struct, frozen=True):
    """How many deliveries are due again."""

    recovered: int


def delivery_view(item: EndpointDelivery) -> WebhookDelivery:
    return WebhookDelivery(**delivery_fields(item))


def delivery_fields(item: EndpointDelivery) -> dict[str, Any]:
    delivery = item.delivery
    return {
        "id": str(item.key),
        "notice_id": delivery.notice_id,
        "session_id": item.session_id,
        "event_type": delivery.event_type,
        "state": delivery.state,
        "created_at": item.made_ms,
        "next_attempt_at": item.due_ms,
        "attempts": [DeliveryAttempt(*attempt) for attempt in delivery.attempts],
        "waiting_for": (delivery.state == "pending" and delivery.waiting_for) or UNSET,
    }


def filter_of(query: DeliveryQuery) -> DeliveryFilter:
    """The conditions of a query."""
    return DeliveryFilter(
        session_id=query.session_id,
        event_type=query.event_type,
        state=query.state,
        before=None if query.before is None else int(query.before),
        limit=query.limit,
    )


def delivery_of(request: web.Request) -> int:
    """The id of the delivery in the path. Raises `Refused` (`invalid_field`)."""
    delivery = request.match_info["delivery"]
    if not DELIVERY_ID.match(delivery):
        raise Refused("invalid_field", "The id of a delivery is 1 to 18 digits.")
    return int(delivery)


async def list_deliveries(request: web.Request, query: DeliveryQuery) -> web.Response:
    """List what was sent to an endpoint and what is still to be sent, with every attempt; the newest first."""
    page, following = await services_of(request).webhooks.deliveries(*endpoint_of(request), filter_of(query))
    return json_response(
        DeliveryPage([delivery_view(delivery) for delivery in page], None if following is None else str(following))
    )


async def resend_delivery(request: web.Request, _: NoQuery) -> web.Response:
    """Send one notice again, also one that was delivered; its schedule starts again."""
    resent = await services_of(request).webhooks.resend(*endpoint_of(request), delivery_of(request))
    audit_endpoint(request, "delivery_resent", request.match_info["id"], delivery=request.match_info["delivery"])
    return json_response(delivery_view(resent), 202)


async def recover_deliveries(request: web.Request, _: NoQuery) -> web.Response:
    """Send again all notices since a time that could not be delivered."""
    body = convert_body(await read_object(request), Since)
    count = await services_of(request).webhooks.recover(*endpoint_of(request), body.since)
    audit_endpoint(request, "deliveries_recovered", request.match_info["id"], since=body.since, count=count)
    return json_response(Recovered(count), 202)


ROUTES = (
    Route(
        "GET",
        f"{ENDPOINT_PATH}/deliveries",
        list_deliveries,
        "admin",
        DeliveryQuery,
        json_ok(DeliveryPage),
        codes=UNKNOWN_ENDPOINT,
    ),
    Route(
        "POST",
        f"{ENDPOINT_PATH}/deliveries/{{delivery}}/resend",
        resend_delivery,
        "admin",
        NoQuery,
        json_ok(WebhookDelivery, HTTPStatus.ACCEPTED),
        codes=(*UNKNOWN_ENDPOINT, "unknown_delivery", "webhook_disabled"),
    ),
    Route(
        "POST",
        f"{ENDPOINT_PATH}/recover",
        recover_deliveries,
        "admin",
        NoQuery,
        json_ok(Recovered, HTTPStatus.ACCEPTED),
        BodySpec({JSON: Since}),
        (*UNKNOWN_ENDPOINT, "webhook_disabled"),
    ),
)
