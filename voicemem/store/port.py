"""The port: what voicemem needs of a store (docs/storage.md). Each engine is one object with all of it.

It is split by use:

- `Journal`: streams (sessions and users), their producers, and their append-only lists of events;
- `Overviews`: slim rows of sessions;
- `Outbox`: deliveries, which are webhook notices on their way to endpoints;
- `Endpoints`: the receivers that projects registered, and their deliveries;
- `SetAsides`: sessions whose memory cannot be made;
- `Retention`: expiry, erasure and compaction, in small steps;
- `Directory`: API keys, apps of Agora's, the operator's endpoint, and the store's own identity;
- `Operations`: figures and health.

What holds for every method of every engine:

- A method that writes is one transaction. It returns after its commit is on disk (or on as many replicas as the engine
  promises), and raises `StoreUnavailable` when the commit failed or its outcome is unknown. Callers may repeat it.
- A read sees everything that was acknowledged before it, on every node. It raises `StoreUnavailable` when the store
  cannot be read, and `DamagedEntry` when what it reads is damaged; damage of one session must not affect another.
- `Refused` is raised before anything is written. Its codes stand at each method.
- Times are Unix ms, passed in by the caller; they come from one clock per service.
- A `key` is the store's number of a stream, an endpoint or a delivery. It is never given twice. Streams that are made
  later have higher keys; of those made at about the same time, a lower key may become visible after a higher one.
- Rules of order are not the engine's: it asks `voicemem.store.admission` and `voicemem.store.streams` in its
  transaction, so that all engines decide alike.
- Several processes may work on one store at a time, where the engine allows it: claims and sweeps pick candidates, and
  then change each row only where it is as it was seen.

One contract suite runs on all engines: `tests/contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

from voicemem.config.secrets import SessionPatch
from voicemem.store.admission import Batch
from voicemem.store.records import (
    AgoraApp,
    ApiKey,
    AppendResult,
    Attempt,
    ClaimedDelivery,
    Delivery,
    DeliveryFilter,
    Endpoint,
    EndpointDelivery,
    Figures,
    JournalRow,
    OpenResult,
    Quotas,
    RestoredSession,
    SessionFilter,
    SessionOverview,
    SetAside,
    Snapshot,
)
from voicemem.store.streams import SessionEnding, Stream


class Journal(Protocol):
    """Streams and their append-only lists of events.

    A stream is a session or a user's own; it is unique by project, kind and id. Positions of its entries are 1, 2, 3 …
    without holes, and become visible in that order. A `session_patch` has the configuration without secrets, which goes
    into the stream, and the secrets, which are kept apart and never journaled.
    """

    # Sessions

    async def create_session(
        self,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        now_ms: int,
        key_id: str | None = None,
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        """Create a session, or return the existing one and whether its configuration is the same.

        A new session gets its start deliveries (see `Outbox`). Raises `Refused` (`session_erased`).
        """

    async def restore_session(
        self,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        restored: RestoredSession,
        now_ms: int,
        key_id: str | None = None,
    ) -> Stream | None:
        """Create a session together with its journal so far; None when the id is taken.

        A session that has ended gets no deliveries, any other its start deliveries. Raises `Refused` (`session_erased`;
        `unknown_session` when the session named by `restored.secrets_of` does not exist or is erased).
        """

    async def open_producer(
        self,
        project: str,
        session_id: str,
        producer: str,
        session_patch: SessionPatch,
        from_seq: int | None,
        now_ms: int,
        key_id: str | None = None,
    ) -> OpenResult:
        """Open a producer's line: raise its epoch, so that appends under an older one are refused.

        Creates the session when it does not exist; an existing one keeps its configuration. Reopens a session after an
        idle close (`streams.may_reopen`). On a running session, a `from_seq` above `next_seq` is journaled as
        `session.gap`, and `next_seq` becomes `from_seq`. The session is not silent any more. Raises `Refused`
        (`session_erased`).
        """

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        """Append producers' events, all batches in one transaction; the result of each is at its index.

        Each event is taken or refused alone, by `admission.admit`. An event that repeats a stored seq is compared with
        what is stored: equal as JSON is a duplicate, anything else `seq_conflict`. This is the hot path: a batch of
        plain events in order (`admission.admits_all`) should write the journal only, and read nothing.

        A batch's `from_seq` is declared first, as by `open_producer`, unless its epoch is outdated, or the producer has
        ended or sends events without seq.

        Raises `Refused` (`unknown_session`); erased sessions are an outcome of each event.
        """

    async def has_seqs(self, key: int, producer: str) -> bool:
        """Whether a producer has sent events with a seq in this session."""

    async def change_config(self, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
        """Merge a patch into the configuration, and journal `payload` as the server's own event.

        Raises `Refused` (`unknown_session`, `session_ended`; `invalid_field` when the result exceeds a limit).
        """

    async def append_server_event(self, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
        """Journal an event of the server's own at position `expected` + 1; None when that position is taken.

        Also on a session that has ended, and on a user's stream. Raises `Refused` (`unknown_session`).
        """

    # When sessions end

    async def set_silent_since(self, key: int, now_ms: int | None) -> None:
        """Note since when a running session has no connection; None when it has one."""

    async def restart_silence(self, now_ms: int) -> None:
        """Called once at the start of a service: time without a server does not count as silence.

        Every running session is silent from now on. Of those with a committed `session.end`, a session whose producers
        have all ended is due now; for the others the grace (`streams.END_GRACE_MS`) starts again.
        """

    async def find_due(self, now_ms: int, limit: int) -> list[int]:
        """Keys of sessions that are due to close by now (`streams.close_due_ms`), the longest due first."""

    async def close_session(self, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int) -> Stream | None:
        """Journal `session.closed` and add the close deliveries, in one transaction; None when nothing was closed.

        With an `ending`, a running session is closed at once. Without one it is closed only if it is due, with the
        ending of `streams.ending_if_due`. `notice_id` becomes the id of the history notice.
        """

    async def close_if_ended(
        self, key: int, connected: Sequence[str], seen: Collection[str] | None, notice_id: str, now_ms: int
    ) -> Stream | None:
        """Close a session with a committed `session.end` if every connected producer has ended; None otherwise.

        `connected` names the producers that are connected or expected back. With `seen`, every producer that was ever
        connected and is not in `seen` counts as connected too: a service that has just started does not know them.
        """

    # Reads

    async def find_session(self, project: str, session_id: str) -> Stream | None:
        """A session's row, including everything that was acknowledged; None for an unknown or erased session."""

    async def load_secrets(self, key: int) -> dict[str, str]:
        """The secrets of a session's configuration, by dotted path (`llm.api_key`); empty for an erased one."""

    async def list_sessions(self, wanted: SessionFilter) -> list[Stream]:
        """Sessions that match, by start and key, the newest first; erased ones never match."""

    async def list_page(self, wanted: SessionFilter, max_bytes: int) -> tuple[list[Stream], bool]:
        """The same, and whether more of them match.

        The list may be shorter than its limit: it ends with the session with which the configurations are `max_bytes`
        of JSON or more.
        """

    async def count_sessions(self, wanted: SessionFilter) -> int:
        """How many sessions match, whatever `after` and `limit` say."""

    async def is_name_running(self, project: str, name: str) -> bool:
        """Whether a running session has this name in its configuration."""

    async def find_sessions(self, project: str, keys: Sequence[int]) -> list[Stream]:
        """The project's sessions with these keys, by key, erased ones included."""

    async def list_newest_keys(self, project: str, limit: int) -> list[int]:
        """The highest keys of the project's sessions, erased ones included, the highest first; at most `limit`."""

    async def list_keys_after(self, project: str, key: int, limit: int) -> list[int]:
        """The lowest keys above `key` of the project's sessions, erased ones included, in order; at most `limit`."""

    async def read_rows(self, key: int, after: int, limit: int) -> list[JournalRow]:
        """Entries at positions above `after`, in order, at most `limit`; empty only at the end, or when erased.

        A page may be shorter than `limit`, when its payloads are large.
        """

    # Users

    async def find_user(self, project: str, user_id: str) -> Stream | None:
        """The row of a user's own stream; None for an unknown or erased user."""

    async def ensure_user(self, project: str, user_id: str, now_ms: int) -> Stream:
        """The same, created when it does not exist. It is not a session: never due, closed, listed or counted."""

    # Snapshots

    async def load_snapshot(self, key: int, version: int, at_most: int) -> Snapshot | None:
        """The stored fold state, if it is of this version and of a position up to `at_most`.

        A damaged snapshot, and one of an erased session, is None: it saves time, and the journal gives the same state.
        """

    async def save_snapshot(self, key: int, snapshot: Snapshot) -> None:
        """Replace a stream's snapshot; does nothing for an erased one."""

    # Erasure

    async def erase(self, key: int, now_ms: int) -> None:
        """Make everything of a session unreadable, in one step.

        Its row stays without content, in the state `erased`, so that a producer that comes back late cannot create it
        again. The content itself is deleted through `Retention`. The row of a user's stream loses the id too, since it
        identifies a person; a later user of that id gets a new stream.
        """


class Overviews(Protocol):
    """Slim rows of sessions: a list of a thousand must not read a configuration, nor fold a memory."""

    async def list_overviews(self, wanted: SessionFilter) -> list[SessionOverview]:
        """The same sessions as `Journal.list_sessions`, in the same order, and what was saved of their memories."""

    async def save_figures(self, made: Sequence[tuple[int, int, bytes]]) -> None:
        """Save what slim rows show of memories: key, position, and bytes that are only passed on.

        They replace what was saved before. Does nothing for erased sessions.
        """


class Outbox(Protocol):
    """Deliveries: webhook notices on their way to endpoints.

    The journal's transactions make them: at a start or reopening (event type 101) and at a close (102, 103, 111, 112;
    only 102 at the idle close of a session that nobody joined), one for each endpoint that subscribed to it and is not
    disabled: the session's own, its project's, and the operator's, which gets 103 only. A delivery is `pending` with a
    time at which it is due, then `delivered` or `failed`.
    """

    async def claim_deliveries(
        self, now_ms: int, lease_ms: int, busy: Sequence[str], limit: int
    ) -> list[ClaimedDelivery]:
        """Lease due deliveries, the longest due first, except those to URLs in `busy`.

        Until its lease is over a delivery is claimed by no other process. Deliveries of erased sessions and disabled
        endpoints are not claimed. A receiver that is down must not delay the claims of others, however many deliveries
        wait for it.
        """

    async def release_deliveries(self, now_ms: int) -> None:
        """End all leases, and make due now what was never attempted, except deliveries that wait for something.

        Called at the start of a process that has the store to itself: the leases are of processes that are gone, and
        a due time in the future may be of a clock that was ahead.
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
        Also keeps `failing_since_ms` of a project's endpoint: the first failed attempt since the last success.
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
        """The operator's endpoint; None when the last start had none."""

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


class SetAsides(Protocol):
    """Streams whose memory could not be made. Entries of another `version` count as not there."""

    async def set_aside(self, key: int, entry: SetAside) -> Stream | None:
        """Note that a stream is set aside; its row, or None when it is erased or was set aside by this version."""

    async def find_set_aside(self, key: int, version: str) -> SetAside | None:
        """Why a stream is set aside; None when it is not, and for an erased one. Asked at each first read."""

    async def put_back(self, key: int, now_ms: int) -> None:
        """Forget that a stream is set aside, and make its deliveries due that have waited for it."""

    async def count_set_aside(self, version: str) -> int:
        """How many streams are set aside."""

    async def list_set_aside(self, version: str, limit: int) -> list[Stream]:
        """Sessions that are set aside, the newest entry first."""


class Retention(Protocol):
    """What happens to sessions after their end. Every step is short, so that appends never wait for long.

    Several workers may call these methods at a time.
    """

    async def find_expired(self, now_ms: int, limit: int) -> list[int]:
        """Keys of sessions whose `ttl_seconds`, counted from their end, are over; the earliest expiry first."""

    async def expire(self, key: int, now_ms: int) -> bool:
        """Erase a session if its `ttl_seconds` are over; whether it was erased."""

    async def find_erased(self, limit: int) -> list[int]:
        """Keys of erased sessions whose content is not deleted yet, the oldest erasure first."""

    async def delete_erased(self, keys: Sequence[int]) -> bool:
        """Delete a portion of their content: journal, deliveries, snapshots, secrets, endpoints, producers.

        Returns False when none is left.
        """

    async def finish_erased(self) -> bool:
        """Remove what deletion leaves behind outside of tables, such as free pages and logs.

        Returns False when that cannot be done now, and must be tried again.
        """

    async def find_compactable(self, now_ms: int, limit: int) -> list[int]:
        """Keys of ended sessions that can no longer be reopened, and whose journals are not compacted."""

    async def compact(self, key: int) -> bool:
        """Do a portion of compacting a journal; False when nothing is left to do. Reads and duplicates stay as before.

        A damaged journal is left as it is. An engine that does not compact returns nothing from `find_compactable`.
        """


class Directory(Protocol):
    """API keys, apps of Agora's, the operator's endpoint, and the store's own identity."""

    @property
    def incarnation(self) -> str:
        """Identifies the store until it is restored from a backup: positions and seqs of another one do not hold."""

    @property
    def cursor_secret(self) -> bytes:
        """Signs the cursors that callers get."""

    async def list_keys(self) -> list[ApiKey]:
        """The keys of all projects, revoked ones included, the oldest first."""

    async def find_key(self, key_id: str) -> ApiKey | None:
        """A key, also a revoked one; None when the id is unknown. Asked for every request."""

    async def has_keys(self) -> bool:
        """Whether any key or app of Agora's was ever made, revoked and removed ones included.

        Asked for every request while there is none.
        """

    async def add_key(self, key: ApiKey) -> None:
        """Store a new key."""

    async def revoke_key(self, key_id: str, now_ms: int) -> bool:
        """Revoke a key; False when it is unknown or revoked already."""

    async def revoked_keys(self, key_ids: Collection[str]) -> frozenset[str]:
        """Which of these keys are revoked, also by another process."""

    async def list_agora_apps(self) -> list[AgoraApp]:
        """The apps of all projects, the oldest first."""

    async def find_agora_app(self, app_id: str) -> AgoraApp | None:
        """An app; None when the id is unknown. Asked for every request on Agora's paths."""

    async def add_agora_app(self, app: AgoraApp) -> bool:
        """Store a new app; False when there is one with its id, in whatever project."""

    async def change_agora_app(self, app_id: str, change: Callable[[AgoraApp], AgoraApp]) -> AgoraApp | None:
        """Replace the certificates of an app by those that `change` returns for it; None when the id is unknown.

        `change` is pure, and may run more than once.
        """

    async def remove_agora_app(self, app_id: str) -> bool:
        """Delete an app and its certificates; False when the id is unknown."""

    async def set_operator_endpoint(self, url: str | None, secret: str | None, contents: str = "full") -> None:
        """Set the receiver of every session's history, and enable it; without a URL it is taken away.

        `contents` holds for all payloads that are not frozen yet.
        """


class Operations(Protocol):
    """What the service's operator sees of the store, and how the service notices that the store is back."""

    @property
    def healthy(self) -> bool:
        """Whether the last commit succeeded."""

    async def read_figures(self, now_ms: int) -> Figures:
        """Counts and sizes over all projects."""

    def set_quotas(self, quotas: Quotas, count_refusal: Callable[[str], None] | None = None) -> None:
        """Bound the sessions and bytes of each project; to be called before anything else.

        What begins a session too many, or one in a project whose bytes are used up, raises `QuotaExceeded`. Events of
        such a project, but for ends, are journaled as refused (`quota_exceeded`). `count_refusal` is
        called with the name of the quota for each of them, on any thread. Raises `CannotStart`.
        The limits of the key that begins one (`key_id`) hold as well, and always.
        """

    async def probe(self) -> None:
        """Commit something of a usual size that leaves nothing behind, to see whether the store works again.

        Raises `StoreUnavailable`, and `StoreRuined` when this process cannot use the store any more.
        """

    async def close_store(self) -> None:
        """Finish what was begun, and release the store."""


class Store(Journal, Overviews, Outbox, Endpoints, SetAsides, Retention, Directory, Operations, Protocol):
    """The whole port: one object per engine."""
