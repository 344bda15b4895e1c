"""What a store takes and gives: rows, exports, endpoints, keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from voicemem.config.session import HISTORY_EVENT
from voicemem.store.admission import Outcome
from voicemem.store.streams import Ending, Producer, Stream


class Row(NamedTuple):
    """One entry of a journal. `producer` and `seq` are None for the server's own events."""

    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    payload: bytes


class Opened(NamedTuple):
    """A producer's new lease on a session: it sends on from `next_seq`, and older epochs are refused."""

    stream: Stream
    epoch: int
    next_seq: int
    created: bool
    reopened: bool


class Appended(NamedTuple):
    """What became of a batch, and the stream and the producer's `next_seq` after it.

    `position` is that of the first event when all were stored, one after the other; else each has its outcome.
    """

    stream: Stream
    next_seq: int
    position: int | None
    outcomes: Sequence[Outcome] = ()


class Snapshot(NamedTuple):
    """An encoded fold state; `version` is that of the fold that made it."""

    position: int
    version: int
    state: bytes


class Restored(Struct, frozen=True, kw_only=True):
    """The journal of a session that is to be made at once, and where the session stands after it."""

    rows: Sequence[Row]
    """From position 1 on, without holes."""
    started_ms: int
    producers: Sequence[Producer] = ()
    ended_ms: int | None = None
    """None while it runs."""
    reason: str | None = None
    provisional: bool = False
    ending: Ending | None = None
    """Of a `session.end` that is not followed by a close yet."""
    secrets_of: int | None = None
    """The key of a session whose secrets it gets too."""


class StreamFilter(Struct, frozen=True, kw_only=True):
    """Which sessions to list: all conditions hold at once. `after` is the (started_ms, key) of the last one seen."""

    project: str
    state: str | None = None
    user_id: str | None = None
    label: tuple[str, str] | None = None
    started_after: int | None = None
    started_before: int | None = None
    channel: str | None = None
    after: tuple[int, int] | None = None
    limit: int = 100


class Endpoint(Struct, frozen=True):
    """A receiver of webhooks. A session's own has its `stream`, a project's its `project`, the operator's neither."""

    key: int
    stream: int | None
    url: str
    secret: str | None
    contents: Literal["full", "standard"]
    public_only: bool
    """Whether its address must be a public one: true for what came through the API."""
    disabled_ms: int | None
    id: str | None = None
    """Of a project's."""
    project: str | None = None
    description: str = ""
    event_types: tuple[int, ...] = (HISTORY_EVENT,)
    created_ms: int = 0
    old_secret: str | None = None
    """Signs beside the new one until `old_secret_until_ms`."""
    old_secret_until_ms: int | None = None
    failing_since_ms: int | None = None
    """The first failed attempt since the last success."""
    disabled_reason: str | None = None
    """`request`, `gone` (it answered 410) or `failing`."""


class Closing(Struct, frozen=True):
    """What stands around the contents of an export, as it was when that was made (a start has stopped no session)."""

    session_id: str
    name: str | None
    channel: str | None
    labels: dict[str, str]
    started_ms: int
    stopped_ms: int
    reason: str | None = None
    """Why the session was closed."""


def notice_id(close_id: str, event_type: int) -> str:
    """Each notice of a close has an id of its own; the history's is that of the close."""
    return close_id if event_type == HISTORY_EVENT else f"{close_id}-{event_type}"


class Export(Struct, frozen=True):
    """A notice of a session on its way to one endpoint."""

    key: int
    stream: int
    endpoint: Endpoint
    notice_id: str
    event_type: int
    position: int
    """The body is the memory at this position of the journal."""
    closing: Closing
    payload: bytes | None
    """Frozen before the first attempt."""
    attempts: int
    lease: int
    """Raised by every claim; a finish counts only under the lease that it was claimed with."""
    restarted_at: int = 0
    """How many of the attempts were made before it was sent again by hand."""


class Attempt(NamedTuple):
    """One delivery attempt, as it is logged."""

    started_ms: int
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class Delivery(NamedTuple):
    """How an export stands, for reading."""

    notice_id: str
    url: str
    event_type: int
    state: str
    """`pending`, `delivered` or `failed`."""
    attempts: list[Attempt]


class EndpointDelivery(NamedTuple):
    """A delivery as the owner of its endpoint sees it."""

    key: int
    session_id: str
    made_ms: int
    due_ms: int | None
    """When the next attempt is due; while one is under way, when it counts as lost."""
    delivery: Delivery


class DeliveryFilter(Struct, frozen=True, kw_only=True):
    """Which deliveries to list: all conditions hold at once. `before` is the key of the last one seen."""

    session_id: str | None = None
    event_type: int | None = None
    state: str | None = None
    before: int | None = None
    limit: int = 100


class Key(Struct, frozen=True):
    """An API key as it is stored: only the SHA-256 of its secret."""

    id: str
    project: str
    name: str
    hash: bytes
    scopes: tuple[str, ...]
    created_ms: int
    revoked_ms: int | None = None


class Figures(NamedTuple):
    """How the store stands, for its operator. Sizes are in bytes, 0 where there is no file."""

    running: int
    """Sessions that have not ended."""
    pending: int
    """Exports that wait, also those that are to be tried again later."""
    due: int
    """Those of them that are due, and that nobody has leased."""
    oldest_due_ms: int | None
    bytes: int
    wal_bytes: int
