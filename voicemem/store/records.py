"""The records that a store takes and returns: entries, deliveries, endpoints, keys, apps. Times are Unix ms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from voicemem.config.session import HISTORY_EVENT, Contents
from voicemem.store.admission import Outcome
from voicemem.store.streams import ProducerState, SessionEnding, Stream


class JournalRow(NamedTuple):
    """One entry of a journal. `producer` and `seq` are None for the server's own events."""

    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    payload: bytes


class OpenResult(NamedTuple):
    """The result of an open: the producer continues at `next_seq` under `epoch`, and older epochs are refused.

    `created` and `reopened` say what the open did to the session.
    """

    stream: Stream
    epoch: int
    next_seq: int
    created: bool
    reopened: bool


class AppendResult(NamedTuple):
    """What became of a batch, with the stream and the producer's `next_seq` after it.

    `position` is that of the first event when all were stored in a row. Otherwise it is None, and `outcomes` has one
    outcome for each event.
    """

    stream: Stream
    next_seq: int
    position: int | None
    outcomes: Sequence[Outcome] = ()
    reopened: bool = False
    """Whether the batch opened its session again."""
    position_taken: bool = False
    """Whether the journal did not end at the batch's `expected_position`, so that nothing was looked at."""


class Snapshot(NamedTuple):
    """An encoded fold state at a position; `version` is that of the encoding."""

    position: int
    version: int
    state: bytes


class RestoredSession(Struct, frozen=True, kw_only=True):
    """The journal of a session that is to be restored, and the state of the session after it."""

    rows: Sequence[JournalRow]
    """From position 1 on, without holes."""
    started_ms: int
    producers: Sequence[ProducerState] = ()
    ended_ms: int | None = None
    """None for a session that is running."""
    reason: str | None = None
    provisional: bool = False
    ending: SessionEnding | None = None
    """What a `session.end` said that no close has followed yet."""
    secrets_of: int | None = None
    """The key of a session whose secrets are copied."""


LIST_BYTES = 1024 * 1024
"""JSON of configurations with which a page of a list ends: as objects they take up to twenty times as much."""
CLIENT_ID_LABEL = "agent-memory.session"
"""The one label by which sessions are found without a look at each."""
MAX_COUNTED = 10_000
"""Sessions that a list counts on all of its pages, at most: a project may have millions."""


SLOW_MS = 1_000
"""Calls with a latency from here on are found by an index."""


class SessionFilter(Struct, frozen=True, kw_only=True):
    """Which sessions to list: those for which all conditions hold.

    `label` is a name and its value. `after` is the (started_ms, key) of the last session of the page before.
    `interrupted` and `slow_ms` (the longest end-to-end latency is at least that) are those of the figures that were
    saved last. `webhook` means sessions with any delivery in that state. `keys` are those to choose among.
    """

    project: str
    state: str | None = None
    user_id: str | None = None
    label: tuple[str, str] | None = None
    started_after: int | None = None
    started_before: int | None = None
    channel: str | None = None
    interrupted: bool | None = None
    slow_ms: int | None = None
    webhook: Literal["failed", "pending"] | None = None
    keys: tuple[int, ...] | None = None
    after: tuple[int, int] | None = None
    limit: int = 100


class SavedFigures(NamedTuple):
    """What slim rows show of a memory at a position, as bytes that are only passed on, and what filters go by."""

    key: int
    position: int
    figures: bytes
    interruptions: int
    slowest_ms: int | None


DeliveryState = Literal["pending", "delivered", "failed"]


class SessionOverview(NamedTuple):
    """What a slim list shows of a session, without its configuration. Texts are at most 160 characters long."""

    key: int
    session_id: str
    state: str
    reason: str | None
    started_ms: int
    ended_ms: int | None
    active_ms: int
    """When the last entry was journaled."""
    position: int
    """Of the last entry."""
    name: str | None
    user_id: str | None
    labels: str | None
    """As JSON; None without any, and where they take more than 2,048 characters."""
    figures_position: int | None
    figures: bytes | None
    """What was last saved of its memory, and as of which position; None until then."""
    interruptions: int | None
    slowest_ms: int | None
    """What was saved with the figures for filters."""
    webhooks: DeliveryState | None
    """The worst state of its deliveries: `failed`, else `pending`, else `delivered`; None without any."""
    next_attempt_ms: int | None
    """When the first of the pending ones is due."""


class Endpoint(Struct, frozen=True):
    """A receiver of webhooks. A session's own has a `stream`, a project's a `project`, the operator's neither."""

    key: int
    stream: int | None
    url: str
    secret: str | None
    contents: Contents
    public_only: bool
    """Whether its address must be a public one: true for a URL that came through the API."""
    disabled_ms: int | None
    id: str | None = None
    """Only a project's has one."""
    project: str | None = None
    description: str = ""
    event_types: tuple[int, ...] = (HISTORY_EVENT,)
    created_ms: int = 0
    old_secret: str | None = None
    """After a rotation: signs alongside the new one until `old_secret_until_ms`."""
    old_secret_until_ms: int | None = None
    failing_since_ms: int | None = None
    """The first failed attempt since the last success."""
    disabled_reason: str | None = None
    """`request` (its owner disabled it), `gone` (it answered 410) or `failing`."""


class SessionHeader(Struct, frozen=True):
    """What a webhook event says of its session, as it was when the delivery was made.

    `stopped_ms` is the time of the close; for a start, that of the start or reopening.
    """

    session_id: str
    name: str | None
    channel: str | None
    labels: dict[str, str]
    started_ms: int
    stopped_ms: int
    reason: str | None = None
    """Why the session was closed; None for a start."""
    user_id: str | None = None


def notice_id(close_id: str, event_type: int) -> str:
    """The id of a webhook event: of the history that of the close itself, of others one derived from it."""
    return close_id if event_type == HISTORY_EVENT else f"{close_id}-{event_type}"


class ClaimedDelivery(Struct, frozen=True):
    """A webhook event about a session on its way to one endpoint."""

    key: int
    stream: int
    endpoint: Endpoint
    notice_id: str
    event_type: int
    position: int
    """The body is made from the memory at this position of the journal."""
    header: SessionHeader
    payload: bytes | None
    """The body's payload, frozen before the first attempt; None before that."""
    attempts: int
    lease: int
    """Raised by every claim; a finish counts only under the lease of its own claim."""
    restarted_at: int = 0
    """How many attempts had been made when it was last sent again by hand."""


class Attempt(NamedTuple):
    """One logged attempt at a delivery. `excerpt` is the beginning of the answer."""

    started_ms: int
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class Delivery(NamedTuple):
    """A delivery as its session's owner reads it."""

    notice_id: str
    url: str
    event_type: int
    state: str
    """`pending`, `delivered` or `failed`."""
    attempts: list[Attempt]
    waiting_for: str | None = None
    """`session_set_aside` while it cannot be made for that reason."""


class EndpointDelivery(NamedTuple):
    """A delivery as the owner of its endpoint reads it."""

    key: int
    session_id: str
    made_ms: int
    due_ms: int | None
    """When the next attempt is due; during an attempt, when its lease ends."""
    delivery: Delivery


class DeliveryFilter(Struct, frozen=True, kw_only=True):
    """Which deliveries to list: those for which all conditions hold.

    `before` is the key of the last delivery of the page before.
    """

    session_id: str | None = None
    event_type: int | None = None
    state: str | None = None
    before: int | None = None
    limit: int = 100


class Quotas(NamedTuple):
    """What each project may have; 0: no limit."""

    open: int = 0
    per_day: int = 0
    """Begun since midnight, UTC."""
    stored_bytes: int = 0
    """Of its journals, archived parts included."""


class KeyLimits(NamedTuple):
    """The limits of one key, below those of the service; 0: none of its own."""

    events_per_second: int = 0
    bytes_per_second: int = 0
    """Of events."""
    open_sessions: int = 0
    """Sessions begun with the key that run at a time."""
    sessions_per_day: int = 0
    """Sessions begun with the key since midnight, UTC."""


class ApiKey(Struct, frozen=True):
    """An API key as it is stored; `hash` is the SHA-256 of its secret."""

    id: str
    project: str
    name: str
    hash: bytes
    scopes: tuple[str, ...]
    created_ms: int
    revoked_ms: int | None = None
    limits: KeyLimits = KeyLimits()


class AgoraApp(Struct, frozen=True):
    """An app of Agora's: tokens signed with its certificates open a project on Agora's paths."""

    app_id: str
    project: str
    certificate: str
    scopes: tuple[str, ...]
    created_ms: int
    old_certificate: str | None = None
    """Valid alongside the certificate after a rotation."""


class HookSecret(Struct, frozen=True):
    """What signs the webhooks of another stack's platform, for one project and dialect."""

    project: str
    dialect: str
    secret: str
    set_ms: int
    """When `secret` was set."""
    old_secret: str | None = None
    """Verifies too, until `old_secret_until_ms`."""
    old_secret_until_ms: int | None = None


class Node(Struct, frozen=True, kw_only=True):
    """A process that serves a store."""

    token: str
    """Random, made at each start."""
    address: str = ""
    """Where it listens, for people to read; empty for a library, which has no callers."""
    version: str = ""
    """Of the program."""
    snapshot_version: int = 0
    """Of the snapshots that it reads."""
    started_ms: int
    expires_ms: int
    """When its lease is over, unless it is renewed."""


OPERATOR_OVERLAP_MS = 86_400_000
"""How long the operator's last secret signs alongside a new one: nodes may be restarted with it one by one."""


class Figures(NamedTuple):
    """Counts and sizes, for the operator. Sizes are in bytes, and 0 where there is no file."""

    running: int
    """Sessions that have not ended."""
    pending: int
    """Deliveries that wait, including those whose next attempt is later."""
    due: int
    """Those that are due and not leased."""
    oldest_due_ms: int | None
    """When the oldest of these became due."""
    bytes: int
    wal_bytes: int
