"""Deliveries on their way to endpoints, and the endpoints that projects registered. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from voicemem.store.delivery_rows import DeliveryPage, EndpointCounts, ListedDelivery
from voicemem.store.records import (
    Attempt,
    ClaimedDelivery,
    Delivery,
    DeliveryFilter,
    Endpoint,
    EndpointDelivery,
)

ANY_NUMBER = 2**31


class Outbox(Protocol):
    """Deliveries: webhook events on their way to endpoints.

    The journal's transactions make them: at a start or reopening (event type 101) and at a close (102, 103, 111, 112;
    only 102 at the idle close of a session that nobody joined), one for each endpoint that subscribed to it and is not
    disabled: the session's own, its project's, and the operator's, which gets 103 only. A delivery is `pending` with a
    time at which it is due, then `delivered` or `failed`.
    """

    async def claim_deliveries(
        self,
        now_ms: int,
        lease_ms: int,
        taken: Mapping[str, int],
        limit: int,
        node: str = "",
        places: int = ANY_NUMBER,
    ) -> list[ClaimedDelivery]:
        """Lease due deliveries to a node, the longest due first.

        Each URL has so many places over all nodes. Those that other nodes have under lease are taken, and so are those
        in `taken`: the node's own, and those that it leaves free. However many claim at once, no place is given twice.

        Until its lease is over, or its node is retired, a delivery is claimed by no other node. Deliveries of erased
        sessions and disabled endpoints are not claimed. A receiver that is down must not delay the claims of others,
        however many deliveries wait for it.
        """

    async def freeze_payload(self, delivery: ClaimedDelivery, payload: bytes) -> bytes | None:
        """Store the payload of a delivery's body, unless it has one. Returns the stored one; None if erased."""

    async def finish_delivery(
        self,
        delivery: ClaimedDelivery,
        attempt: Attempt,
        state: Literal["pending", "delivered", "failed"],
        due_ms: int | None,
    ) -> bool:
        """Log an attempt, set what comes next, and end the lease; False, with nothing changed, if the lease was lost.

        A delivery that was failed meanwhile (its endpoint was disabled) is not tried again, but `delivered` counts.
        Also keeps `failing_since_ms` of an endpoint that is no session's own: the first failed attempt since the last
        success.
        """

    async def postpone_delivery(self, delivery: ClaimedDelivery, waiting_for: str, due_ms: int) -> None:
        """End the lease without an attempt, and note what the delivery waits for; it is due again at `due_ms`.

        Does nothing when the lease was lost. `freeze_payload` and `put_back` clear the note.
        """

    async def disable_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        """Disable an endpoint that answered that it is gone, and fail what waits for it.

        Does nothing when its URL has changed meanwhile: only the old address is gone.
        """

    async def disable_failing(self, key: int, since_ms: int, now_ms: int) -> bool:
        """Disable a project's endpoint that has been failing since `since_ms` or longer; whether it was disabled."""

    async def next_delivery_ms(self) -> int | None:
        """When the next delivery is due, leases included; None when none waits."""

    async def list_deliveries(self, stream: int) -> list[Delivery]:
        """All deliveries of a session with their attempts, in the order of their making; none once it is erased."""


class Endpoints(Protocol):
    """The endpoints that projects registered, and their deliveries."""

    async def add_endpoint(self, endpoint: Endpoint, limit: int) -> Endpoint | None:
        """Store a project's new endpoint, and return it with its key; None when the project has `limit` already."""

    async def list_endpoints(self, project: str) -> list[Endpoint]:
        """A project's endpoints, in the order in which they were made."""

    async def find_endpoint(self, project: str, endpoint_id: str) -> Endpoint | None:
        """A project's endpoint; None when the id is unknown."""

    async def find_operator_endpoint(self) -> Endpoint | None:
        """The operator's endpoint; None when there never was one, or it was turned off."""

    async def change_endpoint(
        self, project: str, endpoint_id: str, change: Callable[[Endpoint], Endpoint]
    ) -> Endpoint | None:
        """Replace an endpoint by what `change` returns for it; None when the id is unknown.

        `change` is pure, and may run more than once. When the result is disabled, what waits for it is failed.
        """

    async def delete_endpoint(self, project: str, endpoint_id: str) -> bool:
        """Delete an endpoint, and fail what waits for it; False when the id is unknown."""

    async def list_endpoint_deliveries(self, key: int, wanted: DeliveryFilter) -> list[EndpointDelivery]:
        """An endpoint's deliveries that match, the newest first, without those of erased sessions."""

    async def resend(self, key: int, delivery: int, now_ms: int) -> EndpointDelivery | None:
        """Make a delivery of an endpoint due now, whatever its state; None when it is unknown.

        Its schedule of retries starts again: `Delivery.restarted_at` becomes the number of attempts so far.
        """

    async def resend_failed(self, key: int, since_ms: int, now_ms: int) -> int:
        """Do the same for all failed deliveries made at `since_ms` or later. Returns how many there are."""


class DeliveryLists(Protocol):
    """Deliveries of a project's sessions over all endpoints, the sessions' own included; none of erased sessions.

    With `operators` also those to the operator's endpoint.
    """

    async def list_project_deliveries(
        self, project: str, wanted: DeliveryFilter, operators: bool, stream: int | None = None
    ) -> DeliveryPage:
        """Those that match, the newest first; with `stream` only those of one session."""

    async def find_project_delivery(
        self, project: str, delivery: int, operators: bool
    ) -> tuple[ListedDelivery, bytes | None] | None:
        """One of them, and the payload of its body, None before it is made; None when it is unknown."""

    async def count_endpoint_deliveries(self, keys: Sequence[int], since_ms: int) -> dict[int, EndpointCounts]:
        """How the endpoints with these keys do; deliveries made before `since_ms` count only while they wait."""
