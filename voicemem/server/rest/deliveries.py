"""Deliveries of webhooks: to one endpoint, of one session or of the project; sending them again, and what was sent."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from voicemem.errors import Refused
from voicemem.protocol.types import MAX_INTEGER, SessionId
from voicemem.server.http.request import Request, json_response, stream_body
from voicemem.server.http.routes import DELIVERY_ID_PATTERN, JSON, DeliveryId, Routes
from voicemem.server.rest.webhooks import ENDPOINT_PATH, UNKNOWN_ENDPOINT, audit_endpoint, endpoint_of, origin_of
from voicemem.store.deliveries import DeliveryFilter, DeliveryState, EndpointDelivery, ListedDelivery
from voicemem.store.deliveries import DeliveryPage as ListedPage
from voicemem.store.streams import Stream
from voicemem.webhooks.endpoints import OPERATOR_ID
from voicemem.webhooks.outbox import Body, enclosed

ROUTES = Routes()

DELIVERY_ID = re.compile(DELIVERY_ID_PATTERN)


class Since(Struct, frozen=True, forbid_unknown_fields=True):
    """A time, Unix ms."""

    since: Annotated[int, Meta(ge=0, le=MAX_INTEGER)]


class SessionDeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a session's deliveries; `before` is the `next_before` of the previous page."""

    state: DeliveryState | None = None
    before: DeliveryId | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DeliveryQuery(SessionDeliveryQuery, frozen=True, forbid_unknown_fields=True):
    """The query of deliveries; `before` is the `next_before` of the previous page."""

    session_id: SessionId | None = None
    event_type: Literal[101, 102, 103, 111, 112, 1001, 1002] | None = None


class DeliveryAttempt(Struct, frozen=True):
    """An attempt: `error` is a short word if there was no answer, or a redirect; `excerpt` begins the answer."""

    started_at: int
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class WebhookDelivery(Struct, frozen=True):
    """One webhook event to this endpoint. `next_attempt_at` is null when no further attempt is planned.

    `waiting_for` is there only while the event cannot be made, for a quarantined session or an analysis.
    """

    id: DeliveryId
    notice_id: str
    session_id: str
    event_type: int
    state: DeliveryState
    created_at: int
    next_attempt_at: int | None
    attempts: list[DeliveryAttempt]
    waiting_for: Literal["session_set_aside", "analysis"] | UnsetType = UNSET


class DeliveryPage(Struct, frozen=True):
    """A page of deliveries, the newest first; `next_before` is null on the last page."""

    deliveries: list[WebhookDelivery]
    next_before: DeliveryId | None


class Recovered(Struct, frozen=True):
    """The number of deliveries that are due again."""

    recovered: int


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


def filter_of(query: SessionDeliveryQuery) -> DeliveryFilter:
    return DeliveryFilter(**structs.asdict(query) | {"before": None if query.before is None else int(query.before)})


def delivery_of(request: Request) -> int:
    delivery = request.in_path["delivery"]
    if not DELIVERY_ID.match(delivery):
        raise Refused("invalid_field", "The id of a delivery is 1 to 18 digits.")
    return int(delivery)


@ROUTES.add(f"GET {ENDPOINT_PATH}/deliveries", "admin", codes=UNKNOWN_ENDPOINT)
async def list_deliveries(request: Request, query: DeliveryQuery) -> DeliveryPage:
    """List what was sent to an endpoint and what is still to be sent, with every attempt; the newest first."""
    page, following = await request.services.webhooks.deliveries(*endpoint_of(request), filter_of(query))
    deliveries = [WebhookDelivery(**delivery_fields(delivery)) for delivery in page]
    return DeliveryPage(deliveries, None if following is None else str(following))


@ROUTES.add(
    f"POST {ENDPOINT_PATH}/deliveries/{{delivery}}/resend",
    "admin",
    codes=f"{UNKNOWN_ENDPOINT} unknown_delivery webhook_disabled",
    status=202,
)
async def resend_delivery(request: Request) -> WebhookDelivery:
    """Send one webhook event again, also one that was delivered; its schedule starts again."""
    resent = await request.services.webhooks.resend(*endpoint_of(request), delivery_of(request))
    audit_endpoint(request, "delivery_resent", request.in_path["id"], delivery=request.in_path["delivery"])
    return WebhookDelivery(**delivery_fields(resent))


@ROUTES.add(f"POST {ENDPOINT_PATH}/recover", "admin", codes=f"{UNKNOWN_ENDPOINT} webhook_disabled", status=202)
async def recover_deliveries(request: Request, body: Since) -> Recovered:
    """Send again all webhook events since a time that could not be delivered."""
    count = await request.services.webhooks.recover(*endpoint_of(request), body.since)
    audit_endpoint(request, "deliveries_recovered", request.in_path["id"], since=body.since, count=count)
    return Recovered(count)


class OneDeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a delivery; `payload` asks for what was sent."""

    payload: bool = False


class Receiver(Struct, frozen=True):
    """The receiver of a delivery; `id` is null for a session's own. Of the URL only scheme and host are shown."""

    id: str | None
    origin: str
    description: str
    enabled: bool


class ProjectDelivery(WebhookDelivery, frozen=True):
    """One webhook event, and where it goes."""

    webhook: Receiver = Receiver(None, "", "", True)


class DeliveryWithPayload(ProjectDelivery, frozen=True):
    """`payload` is there when it was asked for; null before it is made, and then never changed."""

    payload: Raw | UnsetType | None = UNSET


class ProjectDeliveryPage(Struct, frozen=True):
    """A page of deliveries, the newest first. It may be short, or empty; `next_before` is null on the last page."""

    deliveries: list[ProjectDelivery]
    next_before: DeliveryId | None


def page_view(page: ListedPage) -> ProjectDeliveryPage:
    following = None if page.next_before is None else str(page.next_before)
    return ProjectDeliveryPage([ProjectDelivery(**listed_fields(listed)) for listed in page.deliveries], following)


def listed_fields(listed: ListedDelivery) -> dict[str, Any]:
    endpoint = listed.endpoint
    receiver = Receiver(
        OPERATOR_ID if endpoint.stream is None and endpoint.project is None else endpoint.id,
        origin_of(endpoint.url),
        endpoint.description,
        endpoint.disabled_ms is None,
    )
    return delivery_fields(listed.delivery) | {"webhook": receiver}


@ROUTES.add("GET /v1/deliveries", "read")
async def list_project_deliveries(request: Request, query: DeliveryQuery) -> ProjectDeliveryPage:
    """List what was sent of the project's sessions and what is still to be sent, to whatever endpoint."""
    page = await request.services.webhooks.project_deliveries(request.grant.project, filter_of(query))
    return page_view(page)


@ROUTES.add("GET /v1/sessions/{id}/deliveries", "read")
async def list_session_deliveries(request: Request, query: SessionDeliveryQuery, stream: Stream) -> ProjectDeliveryPage:
    """List what was sent of a session and what is still to be sent, its own receiver included."""
    page = await request.services.webhooks.project_deliveries(stream.project, filter_of(query), stream.key)
    return page_view(page)


@ROUTES.add("GET /v1/deliveries/{delivery}", "read", DeliveryWithPayload, codes="unknown_delivery")
async def read_delivery(request: Request, query: OneDeliveryQuery) -> web.StreamResponse:
    """Read a delivery; with `payload=true` also what was sent."""
    listed, sent = await request.services.webhooks.project_delivery(request.grant.project, delivery_of(request))
    fields = listed_fields(listed)
    if not query.payload or sent is None:
        return json_response(DeliveryWithPayload(**fields, payload=None if query.payload else UNSET))
    head = msgspec.json.encode(DeliveryWithPayload(**fields, payload=Raw(b"")))
    body = Body(sent.size, partial(request.services.store.outbox.parts_of, sent))
    return await stream_body(request, {"Content-Type": JSON}, enclosed(head[:-1], body, head[-1:]).parts())
