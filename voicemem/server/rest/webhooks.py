"""Webhooks: the endpoints of the project, their secrets, and test callbacks."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.config.session import Contents, EventTypes, Included, IncludedParts, Url, check_webhook_secret
from voicemem.errors import Refused
from voicemem.protocol.codec import check_text
from voicemem.protocol.types import JsonObject, fields_given, matching
from voicemem.security.audit import Act, audit
from voicemem.server.http.request import SESSION_ID, Request
from voicemem.server.http.routes import Routes
from voicemem.store.deliveries import EndpointCounts
from voicemem.store.outbox import Endpoint

ROUTES = Routes()
UNKNOWN_ENDPOINT = "unknown_webhook"
ENDPOINT_CODES = "invalid_field address_not_allowed"
ENDPOINT_PATH = "/v1/webhooks/{id}"

Description = Annotated[str, Meta(max_length=1000)]
PRINTABLE_ASCII = "A secret must be 8 to 256 printable ASCII characters without spaces"
Secret = Annotated[str, matching(r"^[!-~]{8,256}\Z", PRINTABLE_ASCII, extra_json_schema={"writeOnly": True})]
"""Printable ASCII, since receivers keep it in their environments."""


class NewWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint as clients send it; without a secret the server generates one."""

    url: Url
    description: Description = ""
    event_types: EventTypes = (103,)
    contents: Contents = "full"
    include: IncludedParts = ()
    enabled: bool = True
    secret: Secret | UnsetType = UNSET


class WebhookChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings to change; the others stay."""

    url: Url | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET
    event_types: EventTypes | UnsetType = UNSET
    contents: Contents | UnsetType = UNSET
    include: IncludedParts | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class NewSecret(Struct, frozen=True, forbid_unknown_fields=True):
    """The next secret (without one the server generates it), and how long the old one also signs."""

    secret: Secret | UnsetType = UNSET
    overlap_seconds: Annotated[int, Meta(ge=0, le=7 * 86_400)] = 86_400


class Webhook(Struct, frozen=True):
    """An endpoint. `failing_since` is the time of the first failed attempt since the last success.

    `delivered_24h` and `failed_24h` count the webhook events made in the last 24 hours, `pending` those that wait.
    """

    id: str
    url: str
    description: str
    event_types: tuple[int, ...]
    contents: Contents
    include: tuple[Included, ...]
    enabled: bool
    disabled_at: int | None
    disabled_reason: Literal["request", "gone", "failing"] | None
    failing_since: int | None
    delivered_24h: int
    failed_24h: int
    pending: int
    old_secret_until: int | None
    created_at: int


class WebhookWithSecret(Webhook, frozen=True):
    """An endpoint with its secret, which only these answers show."""

    secret: str


class WebhookList(Struct, frozen=True):
    """The endpoints, in the order in which they were created."""

    webhooks: list[Webhook]


class CheckResult(Struct, frozen=True):
    """The result of one test callback."""

    event_type: int
    passed: bool
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class CheckResults(Struct, frozen=True):
    """`passed` if every callback was answered with 2xx."""

    passed: bool
    results: list[CheckResult]


def endpoint_fields(endpoint: Endpoint, counts: EndpointCounts) -> JsonObject:
    return {
        "id": endpoint.id,
        "url": endpoint.url if endpoint.project else origin_of(endpoint.url),
        "description": endpoint.description,
        "event_types": endpoint.event_types,
        "contents": endpoint.contents,
        "include": endpoint.include,
        "enabled": endpoint.disabled_ms is None,
        "disabled_at": endpoint.disabled_ms,
        "disabled_reason": endpoint.disabled_reason,
        "failing_since": endpoint.failing_since_ms,
        "delivered_24h": counts.delivered,
        "failed_24h": counts.failed,
        "pending": counts.pending,
        "old_secret_until": endpoint.old_secret_until_ms,
        "created_at": endpoint.created_ms,
    }


def origin_of(url: str) -> str:
    """Return scheme and host of the operator's URL; the rest of it may hold the operator's secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def fields_now(request: Request, endpoint: Endpoint) -> JsonObject:
    return endpoint_fields(endpoint, (await request.services.webhooks.counts_of_day([endpoint]))[endpoint.key])


def endpoint_of(request: Request) -> tuple[str, str]:
    """Return the client's project and the id of the endpoint that the path names. Raises `Refused`."""
    endpoint_id = request.in_path["id"]
    if not SESSION_ID.match(endpoint_id):
        raise Refused("invalid_field", "An id is 1 to 128 characters of A-Za-z0-9._:-.")
    return request.grant.project, endpoint_id


def checked_fields(body: Struct) -> JsonObject:
    """Return the fields that a body has; event types in order, each once. Raises `Refused`."""
    values = fields_given(body)
    check_text(values.get("description"))
    check_webhook_secret(values.get("secret"))
    if values.get("description", "") is None:
        values["description"] = ""
    for name in ("event_types", "include"):
        if name in values:
            values[name] = tuple(sorted(set(values[name])))
    return values


def audit_endpoint(request: Request, act: Act, endpoint_id: str | None, **more: object) -> None:
    audit(act, request.grant, request.grant.project, None, webhook=endpoint_id, **more)


@ROUTES.add("POST /v1/webhooks", "admin", codes=f"{ENDPOINT_CODES} too_many_webhooks", status=201, id_field="id")
async def create_webhook(request: Request, body: NewWebhook) -> WebhookWithSecret:
    """Create an endpoint that is notified of the project's sessions. The answer shows its secret."""
    values = checked_fields(body)
    disabled = {"disabled_ms": None} if values.pop("enabled") else {"disabled_ms": 0, "disabled_reason": "request"}
    new = Endpoint(key=0, stream=None, public_only=True, **{"secret": None, **disabled, **values})
    created = await request.services.webhooks.create(request.grant.project, new)
    audit_endpoint(request, "webhook_created", created.id)
    # A new endpoint has no counts, and its secret is shown only now: nothing may fail.
    return WebhookWithSecret(**endpoint_fields(created, EndpointCounts()), secret=created.secret or "")


@ROUTES.add("GET /v1/webhooks", "admin")
async def list_webhooks(request: Request) -> WebhookList:
    """List the endpoints of the project; for `default`, the operator's comes first."""
    endpoints = await request.services.webhooks.list(request.grant.project)
    counts = await request.services.webhooks.counts_of_day(endpoints)
    return WebhookList([Webhook(**endpoint_fields(one, counts[one.key])) for one in endpoints])


@ROUTES.add(f"GET {ENDPOINT_PATH}", "admin", codes=UNKNOWN_ENDPOINT)
async def read_webhook(request: Request) -> Webhook:
    """Read an endpoint, and whether it works."""
    endpoint = await request.services.webhooks.get(*endpoint_of(request))
    return Webhook(**await fields_now(request, endpoint))


@ROUTES.add(f"PATCH {ENDPOINT_PATH}", "admin", codes=f"{ENDPOINT_CODES} {UNKNOWN_ENDPOINT}")
async def change_webhook(request: Request, body: WebhookChange) -> Webhook:
    """Change an endpoint, disable it or enable it. When it is disabled, its pending deliveries become failed."""
    changes = checked_fields(body)
    enabled = changes.pop("enabled", None)
    changed = await request.services.webhooks.change(*endpoint_of(request), changes, enabled)
    audit_endpoint(request, "webhook_changed", changed.id)
    return Webhook(**await fields_now(request, changed))


@ROUTES.add(f"DELETE {ENDPOINT_PATH}", "admin", codes=UNKNOWN_ENDPOINT)
async def delete_webhook(request: Request) -> None:
    """Delete an endpoint, with its secret and its deliveries."""
    await request.services.webhooks.delete(*endpoint_of(request))
    audit_endpoint(request, "webhook_deleted", request.in_path["id"])


@ROUTES.add(f"POST {ENDPOINT_PATH}/rotate-secret", "admin", codes=UNKNOWN_ENDPOINT)
async def rotate_secret(request: Request, body: NewSecret) -> WebhookWithSecret:
    """Give an endpoint a new secret, which the answer shows; for a while the old one also signs."""
    secret = None if body.secret is UNSET else body.secret
    check_webhook_secret(secret)
    rotated = await request.services.webhooks.rotate_secret(*endpoint_of(request), secret, body.overlap_seconds)
    audit_endpoint(request, "webhook_secret_rotated", rotated.id)
    return WebhookWithSecret(**await fields_now(request, rotated), secret=rotated.secret or "")


@ROUTES.add(f"POST {ENDPOINT_PATH}/test", "admin", codes=UNKNOWN_ENDPOINT)
async def check_webhook(request: Request) -> CheckResults:
    """Send Agora's test callback for each event type now, and report the answers."""
    results = []
    for event_type, sent in await request.services.webhooks.send_health_checks(*endpoint_of(request)):
        passed = sent.status is not None and sent.status // 100 == 2
        results.append(CheckResult(event_type, passed, sent.duration_ms, sent.status, sent.error, sent.excerpt))
    audit_endpoint(request, "webhook_tested", request.in_path["id"])
    return CheckResults(all(result.passed for result in results), results)
