"""The records that a store takes and returns: entries, deliveries, endpoints, keys, apps. Times are Unix ms."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from voicemem.store.deliveries import DeliveryState
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


class Snapshot(NamedTuple):
    """An encoded fold state at a position; `version` is that of the encoding."""

    position: int
    version: int
    state: bytes


class RestoredSession(Struct, frozen=True, kw_only=True):
    """The journal of a session to restore, and the session's state after it."""

    rows: Sequence[JournalRow]
    """From position 1 on, without holes."""
    started_ms: int
    producers: Sequence[ProducerState] = ()
    ended_ms: int | None = None
    """None for a session that is running."""
    reason: str | None = None
    provisional: bool = False
    ending: SessionEnding | None = None
    """The `session.end`, if no close has followed yet."""
    secrets_of: int | None = None
    """The key of a session whose secrets are copied."""


LIST_BYTES = 1024 * 1024
"""Bytes of configurations as JSON at which a page of a list ends: as objects they take up to twenty times as much."""
CLIENT_ID_LABEL = "agent-memory.session"
"""The one label that has an index."""
MAX_COUNTED = 10_000
"""The most sessions that a list counts over all its pages: a project may have millions."""


SLOW_MS = 1_000
"""Calls with a latency of at least this are found by an index."""


class SavedFigures(NamedTuple):
    """Figures of a memory at a position: bytes that slim rows pass on as they are, and values for filters."""

    key: int
    position: int
    figures: bytes
    interruptions: int
    slowest_ms: int | None
    outcome: str | None = None


class SessionOverview(NamedTuple):
    """A slim row of a session, without its configuration. Texts are at most 160 characters long."""

    key: int
    session_id: str
    state: str
    reason: str | None
    started_ms: int
    ended_ms: int | None
    active_ms: int
    """When the last entry was journaled."""
    position: int
    name: str | None
    user_id: str | None
    labels: str | None
    """As JSON; None without any, and if they take more than 2,048 characters."""
    figures_position: int | None
    figures: bytes | None
    """The figures that were last saved of its memory, and their position; None until then."""
    interruptions: int | None
    slowest_ms: int | None
    outcome: str | None
    """Saved with the figures, for filters."""
    webhooks: DeliveryState | None
    """The worst state of its deliveries: `failed`, else `pending`, else `delivered`; None without any."""
    next_attempt_ms: int | None
    """When the next attempt of a pending one is due."""


class DisconnectedProducer(NamedTuple):
    """A producer whose connection has ended, and until when it is expected back; None if it closed on purpose."""

    key: int
    producer: str
    epoch: int
    expected_until_ms: int | None = None


class Quotas(NamedTuple):
    """The limits of each project, and of its sessions; 0: none."""

    open: int = 0
    per_day: int = 0
    """Sessions begun since midnight, UTC."""
    stored_bytes: int = 0
    """The size of its journals, archived parts included."""
    ttl_seconds: int = 0
    """How long sessions without `ttl_seconds` of their own are kept after their end."""


class Node(Struct, frozen=True):
    """A process that serves a store."""

    token: str
    """Random, made at each start."""
    started_ms: int
    expires_ms: int
    """When its lease is over, unless it is renewed."""
    address: str = ""
    """Its address, for people to read; empty for a library, which has no clients."""
    version: str = ""
    snapshot_version: int = 0
    """The version of the snapshots that it reads."""


class Figures(NamedTuple):
    """Counts and sizes, for the operator. Sizes are in bytes, and 0 where there is no file."""

    running: int
    pending: int
    """Deliveries that wait, including those whose next attempt is later."""
    due: int
    """Deliveries that are due and not leased."""
    oldest_pending_ms: int | None
    """When the oldest waiting delivery was made, however often it was attempted."""
    bytes: int
    wal_bytes: int
