"""Webhooks: the endpoints of the project, and what was sent to them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.checks import check_text
from voicemem.config import EventTypes, Url
from voicemem.events import MAX_INTEGER, SessionId
from voicemem.server.rest.parts import GRANT, NoQuery, answer, object_of, parts_of, read_as
from voicemem.server.rest.routes import JSON, Answer, Body, DeliveryId, Route, one
from voicemem.store.base import DeliveryFilter, Endpoint, EndpointDelivery

MAX_DAYS = 7
Contents = Literal["full", "standard"]
Description = Annotated[str, Meta(max_length=1000)]
Secret = Annotated[str, Meta(pattern=r"^[!-~]{8,256}\Z", extra_json_schema={"writeOnly": True})]
"""Printable ASCII, since receivers keep it in their environments."""
DeliveryState = Literal["pending", "delivered", "failed"]


class NewWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint as it is given; without a secret the server makes one."""

    url: Url
    description: Description = ""
    event_types: EventTypes = (103,)
    contents: Contents = "full"
    enabled: bool = True
    secret: Secret | UnsetType = UNSET


class WebhookChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed; the rest stays."""

    url: Url | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    event_types: EventTypes | UnsetType = UNSET
    contents: Contents | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class NewSecret(Struct, frozen=True, forbid_unknown_fields=True):
    """The next secret (the server makes one otherwise), and for how long the one before signs as well."""

    secret: Secret | UnsetType = UNSET
    overlap_seconds: Annotated[int, Meta(ge=0, le=MAX_DAYS * 86_400)] = 86_400


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


class Webhook(Struct, frozen=True):
    """An endpoint as it is shown. `failing_since` is the first failed attempt since the last success."""

    id: str
    url: str
    description: str
    event_types: tuple[int, ...]
    contents: Contents
    enabled: bool
    disabled_at: int | None
    disabled_reason: Literal["request", "gone", "failing"] | None
    failing_since: int | None
    old_secret_until: int | None
    created_at: int


class WebhookWithSecret(Webhook, frozen=True):
    """The only answers that show a secret."""

    secret: str


class WebhookList(Struct, frozen=True):
    """In the order in which they were made."""

    webhooks: list[Webhook]


class DeliveryAttempt(Struct, frozen=True):
    """`error` is a short word where there was no answer, or a redirect; `excerpt` the first bytes of the answer."""

    started_at: int
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class CheckResult(Struct, frozen=True):
    """What came of one test callback."""

    event_type: int
    passed: bool
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class CheckResults(Struct, frozen=True):
    """`passed` when every callback was answered with 2xx."""

    passed: bool
    results: list[CheckResult]


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


def shown(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "description": endpoint.description,
        "event_types": endpoint.event_types,
        "contents": endpoint.contents,
        "enabled": endpoint.disabled_ms is None,
        "disabled_at": endpoint.disabled_ms,
        "disabled_reason": endpoint.disabled_reason,
        "failing_since": endpoint.failing_since_ms,
        "old_secret_until": endpoint.old_secret_until_ms,
        "created_at": endpoint.created_ms,
    }


def with_secret(endpoint: Endpoint) -> WebhookWithSecret:
    return WebhookWithSecret(**shown(endpoint), secret=endpoint.secret or "")


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


def place_of(request: web.Request) -> tuple[str, str]:
    """The caller's project, and the endpoint that the path names."""
    return request[GRANT].project, request.match_info["id"]


def given_fields(given: Struct) -> dict[str, Any]:
    """What was given, without what was left out; event types in order, each once."""
    values = {name: getattr(given, name) for name in given.__struct_fields__}
    values = {name: value for name, value in values.items() if value is not UNSET}
    check_text(values.get("description"))
    if "event_types" in values:
        values["event_types"] = tuple(sorted(set(values["event_types"])))
    return values


async def create_webhook(request: web.Request, _: NoQuery) -> web.Response:
    """Add an endpoint that hears of the project's sessions. The answer shows its secret."""
    values = given_fields(read_as(await object_of(request), NewWebhook))
    disabled = None if values.pop("enabled") else 0
    new = Endpoint(
        key=0,
        stream=None,
        public_only=True,
        disabled_ms=disabled,
        disabled_reason=None if disabled is None else "request",
        **{"secret": None, **values},
    )
    return answer(with_secret(await parts_of(request).webhooks.create(request[GRANT].project, new)), 201)


async def list_webhooks(request: web.Request, _: NoQuery) -> web.Response:
    """The endpoints of the project."""
    endpoints = await parts_of(request).webhooks.list(request[GRANT].project)
    return answer(WebhookList([Webhook(**shown(endpoint)) for endpoint in endpoints]))


async def read_webhook(request: web.Request, _: NoQuery) -> web.Response:
    """An endpoint, and whether it is well."""
    return answer(Webhook(**shown(await parts_of(request).webhooks.get(*place_of(request)))))


async def change_webhook(request: web.Request, _: NoQuery) -> web.Response:
    """Change an endpoint, turn it off or on. What waits for one that is turned off is failed."""
    changes = given_fields(read_as(await object_of(request), WebhookChange))
    enabled = changes.pop("enabled", None)
    return answer(Webhook(**shown(await parts_of(request).webhooks.change(*place_of(request), changes, enabled))))


async def delete_webhook(request: web.Request, _: NoQuery) -> web.Response:
    """Forget an endpoint, its secret and its deliveries."""
    await parts_of(request).webhooks.delete(*place_of(request))
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def rotate_secret(request: web.Request, _: NoQuery) -> web.Response:
    """Give an endpoint a new secret, which the answer shows; for a while the old one signs as well."""
    given = read_as(await object_of(request), NewSecret)
    secret = None if given.secret is UNSET else given.secret
    webhooks = parts_of(request).webhooks
    return answer(with_secret(await webhooks.rotate_secret(*place_of(request), secret, given.overlap_seconds)))


async def check_webhook(request: web.Request, _: NoQuery) -> web.Response:
    """Send Agora's test callback for each event type now, and say what was answered."""
    results = [
        CheckResult(
            tried.event_type,
            tried.answer.status is not None and tried.answer.status // 100 == 2,
            tried.answer.duration_ms,
            tried.answer.status,
            tried.answer.error,
            tried.answer.excerpt,
        )
        for tried in await parts_of(request).webhooks.test(*place_of(request))
    ]
    return answer(CheckResults(all(result.passed for result in results), results))


async def list_deliveries(request: web.Request, query: DeliveryQuery) -> web.Response:
    """What was and is to be sent to an endpoint, with every attempt; the newest first."""
    wanted = DeliveryFilter(
        session_id=query.session_id,
        event_type=query.event_type,
        state=query.state,
        before=None if query.before is None else int(query.before),
        limit=query.limit,
    )
    page, following = await parts_of(request).webhooks.deliveries(*place_of(request), wanted)
    return answer(DeliveryPage([shown_delivery(one) for one in page], None if following is None else str(following)))


async def resend_delivery(request: web.Request, _: NoQuery) -> web.Response:
    """Send one notice again, whatever became of it; its schedule begins anew."""
    delivery = request.match_info["delivery"]
    number = int(delivery) if delivery.isdecimal() and delivery.isascii() and len(delivery) <= 18 else 0
    return answer(shown_delivery(await parts_of(request).webhooks.resend(*place_of(request), number)), 202)


async def recover_deliveries(request: web.Request, _: NoQuery) -> web.Response:
    """Send again what has failed of the notices made since a time."""
    given = read_as(await object_of(request), Since)
    return answer(Recovered(await parts_of(request).webhooks.recover(*place_of(request), given.since)), 202)


UNKNOWN = ("unknown_webhook",)
SETTING = ("invalid_field", "address_not_allowed")
HOOK = "/v1/webhooks/{id}"

ROUTES = (
    Route(
        "POST",
        "/v1/webhooks",
        create_webhook,
        "admin",
        NoQuery,
        {201: Answer({JSON: WebhookWithSecret}, id_field="id")},
        Body({JSON: NewWebhook}),
        (*SETTING, "too_many_webhooks"),
    ),
    Route("GET", "/v1/webhooks", list_webhooks, "admin", NoQuery, one(WebhookList)),
    Route("GET", HOOK, read_webhook, "admin", NoQuery, one(Webhook), codes=UNKNOWN),
    Route(
        "PATCH",
        HOOK,
        change_webhook,
        "admin",
        NoQuery,
        one(Webhook),
        Body({JSON: WebhookChange}, required=False),
        (*SETTING, *UNKNOWN),
    ),
    Route("DELETE", HOOK, delete_webhook, "admin", NoQuery, {204: Answer()}, codes=UNKNOWN),
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
    Route("POST", f"{HOOK}/test", check_webhook, "admin", NoQuery, one(CheckResults), codes=UNKNOWN),
    Route(
        "POST",
        f"{HOOK}/rotate-secret",
        rotate_secret,
        "admin",
        NoQuery,
        one(WebhookWithSecret),
        Body({JSON: NewSecret}, required=False),
        UNKNOWN,
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
