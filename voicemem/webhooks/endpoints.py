"""A project's webhook endpoints: create, change and test them, and list what was sent (docs/webhook.md)."""

import asyncio
import base64
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from voicemem.errors import Refused
from voicemem.runtime import Runtime
from voicemem.security.access import DEFAULT_PROJECT
from voicemem.store import deliveries as stored
from voicemem.store.endpoints import Endpoints
from voicemem.store.outbox import Endpoint, FrozenPayload
from voicemem.webhooks.outbox import HEALTH_CHECK, HEALTH_CHECK_SID, AttemptResult, Send, make_attempt_request

MAX_ENDPOINTS = 50
"""The most endpoints of a project: every session makes webhook events for each of them."""
SECRET_BYTES = 24
DAY_MS = 86_400_000
OPERATOR_ID = "operator"
"""The id of the operator's endpoint, which the project `default` can see, but not change."""


class Webhooks:
    """Manages endpoints by project and id.

    `wake` is set to tell the outbox that something is due; `check_address` raises `Refused` for a URL that the service
    may not reach.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        deliveries: stored.Deliveries,
        send: Send,
        runtime: Runtime,
        wake: asyncio.Event,
        check_address: Callable[[str], None],
    ) -> None:
        self.endpoints = endpoints
        self.sent = deliveries
        self.send = send
        self.clock = runtime.clock
        self.new_id = runtime.new_id
        self.wake = wake
        self.check_address = check_address

    async def create(self, project: str, endpoint: Endpoint) -> Endpoint:
        """Store a new endpoint, with a new secret if it has none. Raises `Refused` (`too_many_webhooks`)."""
        self.check_address(endpoint.url)
        now = self.clock()
        created = replace(
            endpoint,
            id=self.new_id(),
            project=project,
            secret=endpoint.secret or new_webhook_secret(),
            public_only=True,
            created_ms=now,
            disabled_ms=None if endpoint.disabled_ms is None else now,
        )
        added = await self.endpoints.add_endpoint(created, MAX_ENDPOINTS)
        if added is None:
            raise Refused("too_many_webhooks")
        return added

    async def list(self, project: str) -> Sequence[Endpoint]:
        """Return a project's endpoints; for the project `default` the operator's comes first."""
        operator = await self.find_operator_endpoint() if project == DEFAULT_PROJECT else None
        return [*([operator] if operator else []), *await self.endpoints.list_endpoints(project)]

    async def get(self, project: str, endpoint_id: str) -> Endpoint:
        """Return an endpoint. Raises `Refused` (`unknown_webhook`)."""
        is_operator = (project, endpoint_id) == (DEFAULT_PROJECT, OPERATOR_ID)
        endpoint = self.find_operator_endpoint() if is_operator else self.endpoints.find_endpoint(project, endpoint_id)
        return require_endpoint(await endpoint)

    async def find_operator_endpoint(self) -> Endpoint | None:
        endpoint = await self.endpoints.find_operator_endpoint()
        return None if endpoint is None else replace(endpoint, id=OPERATOR_ID)

    async def change(self, project: str, endpoint_id: str, changes: dict[str, Any], enabled: bool | None) -> Endpoint:
        """Change fields of an endpoint; with `enabled` None it stays enabled or disabled. Raises `Refused`."""
        check_changeable(project, endpoint_id)
        if "url" in changes:
            self.check_address(changes["url"])
        now = self.clock()

        def changed(old: Endpoint) -> Endpoint:
            new = replace(old, **changes)
            if enabled:  # which clears the history of its failures
                return replace(new, disabled_ms=None, disabled_reason=None, failing_since_ms=None)
            is_disabled_now = enabled is False and old.disabled_ms is None
            return replace(new, disabled_ms=now, disabled_reason="request") if is_disabled_now else new

        return require_endpoint(await self.endpoints.change_endpoint(project, endpoint_id, changed))

    async def delete(self, project: str, endpoint_id: str) -> None:
        """Delete an endpoint. Raises `Refused` (`unknown_webhook`, `forbidden`)."""
        check_changeable(project, endpoint_id)
        if not await self.endpoints.delete_endpoint(project, endpoint_id):
            raise Refused("unknown_webhook")

    async def rotate_secret(self, project: str, endpoint_id: str, secret: str | None, overlap_s: int) -> Endpoint:
        """Replace the secret; the old one signs as well for `overlap_s` seconds. Raises `Refused`."""
        check_changeable(project, endpoint_id)
        new, until = secret or new_webhook_secret(), self.clock() + 1000 * overlap_s

        def rotated(old: Endpoint) -> Endpoint:
            before = old.old_secret if old.secret == new else old.secret  # a repeated request changes nothing
            if not (overlap_s and before):
                return replace(old, secret=new, old_secret=None, old_secret_until_ms=None)
            return replace(old, secret=new, old_secret=before, old_secret_until_ms=until)

        return require_endpoint(await self.endpoints.change_endpoint(project, endpoint_id, rotated))

    async def send_health_checks(self, project: str, endpoint_id: str) -> Sequence[tuple[int, AttemptResult]]:
        """Agora's health check: one callback for each event type, sent now, without retries, and not recorded."""
        endpoint, now = await self.get(project, endpoint_id), self.clock()
        checks = [
            make_attempt_request(endpoint, self.new_id(), event_type, HEALTH_CHECK_SID, HEALTH_CHECK, now)
            for event_type in endpoint.event_types
        ]
        answers = await asyncio.gather(*map(self.send, checks))
        return [*zip(endpoint.event_types, answers, strict=True)]

    async def deliveries(
        self, project: str, endpoint_id: str, filter: stored.DeliveryFilter
    ) -> tuple[Sequence[stored.EndpointDelivery], int | None]:
        """Return a page of deliveries, newest first, and `before` for the next page. Raises `Refused`."""
        endpoint = await self.get(project, endpoint_id)
        page = await self.sent.list_endpoint_deliveries(endpoint.key, replace(filter, limit=filter.limit + 1))
        if len(page) <= filter.limit:
            return page, None
        return page[: filter.limit], page[filter.limit - 1].key

    async def project_deliveries(
        self, project: str, filter: stored.DeliveryFilter, stream: int | None = None
    ) -> stored.DeliveryPage:
        """Return a page of deliveries of a project's sessions over all endpoints, or of one session."""
        return await self.sent.list_project_deliveries(project, filter, project == DEFAULT_PROJECT, stream)

    async def project_delivery(self, project: str, delivery: int) -> tuple[stored.ListedDelivery, FrozenPayload | None]:
        """Return a delivery, and its payload once that is made. Raises `Refused` (`unknown_delivery`)."""
        row = await self.sent.find_project_delivery(project, delivery, project == DEFAULT_PROJECT)
        if row is None:
            raise Refused("unknown_delivery")
        return row

    async def counts_of_day(self, endpoints: Sequence[Endpoint]) -> dict[int, stored.EndpointCounts]:
        keys = [endpoint.key for endpoint in endpoints]
        return await self.sent.count_endpoint_deliveries(keys, self.clock() - DAY_MS)

    async def resend(self, project: str, endpoint_id: str, delivery: int) -> stored.EndpointDelivery:
        """Make a delivery due now. Raises `Refused` (`unknown_webhook`, `unknown_delivery`, `webhook_disabled`)."""
        endpoint = await self.get_enabled(project, endpoint_id)
        again = await self.sent.resend(endpoint.key, delivery, self.clock())
        if again is None:
            raise Refused("unknown_delivery")
        self.wake.set()
        return again

    async def recover(self, project: str, endpoint_id: str, since_ms: int) -> int:
        """Make all deliveries that failed since a time due now; return their number. Raises `Refused`."""
        endpoint = await self.get_enabled(project, endpoint_id)
        count = await self.sent.resend_failed(endpoint.key, since_ms, self.clock())
        self.wake.set()
        return count

    async def get_enabled(self, project: str, endpoint_id: str) -> Endpoint:
        """Return an enabled endpoint. Raises `Refused` (`unknown_webhook`, `webhook_disabled`)."""
        endpoint = await self.get(project, endpoint_id)
        if endpoint.disabled_ms is not None:
            raise Refused("webhook_disabled")
        return endpoint


def new_webhook_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode("ascii")


def check_changeable(project: str, endpoint_id: str) -> None:
    """Raise `Refused` (`forbidden`) for the operator's endpoint."""
    if (project, endpoint_id) == (DEFAULT_PROJECT, OPERATOR_ID):
        raise Refused("forbidden", "The operator's webhook can only be changed where the service is started.")


def require_endpoint(endpoint: Endpoint | None) -> Endpoint:
    """Return the endpoint. Raises `Refused` (`unknown_webhook`) if there is none."""
    if endpoint is None:
        raise Refused("unknown_webhook")
    return endpoint
