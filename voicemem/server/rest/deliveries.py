"""Deliveries: what was and is to be sent to an endpoint of the project, and sending it again."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.errors import Refused
from voicemem.protocol.types import MAX_INTEGER, SessionId
from voicemem.server.http.request import NoQuery, answer, object_of, read_as, services_of
from voicemem.server.http.routes import DELIVERY_ID_PATTERN, JSON, Body, DeliveryId, Route, one
from voicemem.server.rest.webhooks import HOOK, UNKNOWN, note, place_of
from voicemem.store.records import DeliveryFilter, EndpointDelivery

DELIVERY_ID = re.compile(DELIVERY_ID_PATTERN)
DeliveryState = Literal["pending", "delivered", "failed"]


class Since(Struct, frozen=True, forbid_unknown_fields=True):
    """A time, Unix ms."""

    since: Annotated[int, Meta(ge=0, le=MAX_INTEGER)]


class DeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`before` is the `next_before` of the page before."""

    session_id: SessionId | None = None
    event_type: Literal[101, 102, 103, 111, 112] | None = None
    state: DeliveryState | None = None
    before: DeliveryId | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DeliveryAttempt(Struct, frozen=True):
    """`error` is a short word where there was no answer, or a redirect; `excerpt` the first bytes of the answer."""

    started_at: int
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class WebhookDelivery(Struct, frozen=True):
    """One notice to this endpoint. `next_attempt_at` is null when none is to come."""

    id: DeliveryId
    notice_id: str
    session_id: str
    event_type: int
    state: DeliveryState
    created_at: int
    next_attempt_at: int | None
    attempts: list[DeliveryAttempt]


class DeliveryPage(Struct, frozen=True):
    """The newest come first; `next_before` is null on the last page."""

    deliveries: list[WebhookDelivery]
    next_before: DeliveryId | None


class Recovered(Struct, frozen=True):
    """How many deliveries are due again."""

    recovered: int


def shown_delivery(made: EndpointDelivery) -> WebhookDelivery:
    delivery: Any = made.delivery
    return WebhookDelivery(
        id=str(made.key),
        notice_id=delivery.notice_id,
        session_id=made.session_id,
        event_type=delivery.event_type,
        state=delivery.state,
        created_at=made.made_ms,
        next_attempt_at=made.due_ms,
        attempts=[DeliveryAttempt(*attempt) for attempt in delivery.attempts],
    )


async def list_deliveries(request: web.Request, query: DeliveryQuery) -> web.Response:
    """What was and is to be sent to an endpoint, with every attempt; the newest first."""
    wanted = DeliveryFilter(
        session_id=query.session_id,
        event_type=query.event_type,
        state=query.state,
        before=None if query.before is None else int(query.before),
        limit=query.limit,
    )
    page, following = await services_of(request).webhooks.deliveries(*place_of(request), wanted)
    return answer(DeliveryPage([shown_delivery(one) for one in page], None if following is None else str(following)))


async def resend_delivery(request: web.Request, _: NoQuery) -> web.Response:
    """Send one notice again, whatever became of it; its schedule begins anew."""
    place, delivery = place_of(request), request.match_info["delivery"]
    if not DELIVERY_ID.match(delivery):
        raise Refused("invalid_field", "The id of a delivery is 1 to 18 digits.")
    resent = await services_of(request).webhooks.resend(*place, int(delivery))
    note(request, "delivery_resent", request.match_info["id"], delivery=delivery)
    return answer(shown_delivery(resent), 202)


async def recover_deliveries(request: web.Request, _: NoQuery) -> web.Response:
    """Send again what has failed of the notices made since a time."""
    given = read_as(await object_of(request), Since)
    count = await services_of(request).webhooks.recover(*place_of(request), given.since)
    note(request, "deliveries_recovered", request.match_info["id"], since=given.since, count=count)
    return answer(Recovered(count), 202)


ROUTES = (
    Route("GET", f"{HOOK}/deliveries", list_deliveries, "admin", DeliveryQuery, one(DeliveryPage), codes=UNKNOWN),
    Route(
        "POST",
        f"{HOOK}/deliveries/{{delivery}}/resend",
        resend_delivery,
        "admin",
        NoQuery,
        one(WebhookDelivery, HTTPStatus.ACCEPTED),
        codes=(*UNKNOWN, "unknown_delivery", "webhook_disabled"),
    ),
    Route(
        "POST",
        f"{HOOK}/recover",
        recover_deliveries,
        "admin",
        NoQuery,
        one(Recovered, HTTPStatus.ACCEPTED),
        Body({JSON: Since}),
        (*UNKNOWN, "webhook_disabled"),
    ),
)
