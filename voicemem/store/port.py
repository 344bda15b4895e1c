"""The port: what voicemem needs of a store (design, section 9).

Three uses, one object per engine: `Journal` (streams and their events), `Outbox` (exports on their way), `Directory`
(keys, endpoints, the store's own identity). One contract suite runs on all engines: `tests/store/test_contract.py`.

Every method that writes returns after its commit is on disk, and raises `StoreUnavailable` when the commit failed or
its outcome is unknown. Times are Unix ms, given by the caller; they come from one clock per service.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

from voicemem.config.secrets import SessionPatch
from voicemem.store.admission import Batch
from voicemem.store.records import (
    Appended,
    Attempt,
    Delivery,
    DeliveryFilter,
    Endpoint,
    EndpointDelivery,
    Export,
    Figures,
    Key,
    Opened,
    Restored,
    Row,
    Snapshot,
    StreamFilter,
)
from voicemem.store.streams import Ending, Stream


class Journal(Protocol):
    """Streams and their append-only lists of events."""

    async def create(
        self, project: str, session_id: str, session_patch: SessionPatch, now_ms: int
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        """A new session; or the one that is there, and whether its configuration is the same."""

    async def restore(
        self, project: str, session_id: str, session_patch: SessionPatch, restored: Restored, now_ms: int
    ) -> Stream | None:
        """A new session with a journal that is there already, from one moment on; None when its id is taken.

        No export is made of what has ended. Raises `Refused` (`session_erased`; `unknown_session` where the session
        that has the secrets is erased).
        """

    async def open(
        self,
        project: str,
        session_id: str,
        producer: str,
        session_patch: SessionPatch,
        from_seq: int | None,
        now_ms: int,
    ) -> Opened:
        """Raise a producer's epoch, on a new session or an existing one (whose configuration then stays).

        Reopens a session after an idle close. A `from_seq` above `next_seq` is journaled as `session.gap`.
        Raises `Refused` (`session_erased`).
        """

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[Appended]:
        """Take producers' events in one transaction, each event alone, by the rules of `voicemem.store.admission`."""

    async def is_numbered(self, key: int, producer: str) -> bool:
        """Whether a producer has given events of a session a seq."""

    async def silence(self, key: int, now_ms: int | None) -> None:
        """Note since when a session has no connection; None when it has one."""

    async def restart(self, now_ms: int) -> None:
        """Time without a server is not silence: every session is silent from now on.

        Those that ended are due; where a producer was connected that has not ended, the grace begins anew.
        """

    async def change(self, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
        """Apply a merge patch of the configuration, and journal it as the server's own event."""

    async def append_own(self, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
        """Journal an event of the server's own right behind position `expected`; None when more is there already.

        Also for a session that has ended. Raises `Refused` (`unknown_session`).
        """

    async def close(self, key: int, ending: Ending | None, notice_id: str, now_ms: int) -> Stream | None:
        """Journal `session.closed` and make its exports, in one transaction; None when the session is not running.

        Without `ending` the session is closed only if it is due (see `admission.due_close`).
        """

    async def close_ended(
        self, key: int, connected: Sequence[str], seen: Collection[str] | None, notice_id: str, now_ms: int
    ) -> Stream | None:
        """Close a session whose end was committed, when every producer that is connected has ended.

        With `seen`, those that were connected at some time and are not among them count as connected.
        """

    async def due(self, now_ms: int, limit: int) -> list[int]:
        """Keys of sessions that are to be closed by now."""

    async def stream(self, project: str, session_id: str) -> Stream | None:
        """A session's row, as it is after everything that was acknowledged; None for none, or an erased one."""

    async def secrets(self, key: int) -> dict[str, str]:
        """What was taken out of a session's configuration, by dotted path; nothing of an erased one."""

    async def user(self, project: str, user_id: str) -> Stream | None:
        """The row of a user's own stream, as `stream` gives that of a session."""

    async def add_user(self, project: str, user_id: str, now_ms: int) -> Stream:
        """The same, made where there is none. It is no session: never due, closed, listed or counted as one."""

    async def streams(self, wanted: StreamFilter) -> list[Stream]:
        """Sessions, the newest first."""

    async def count_streams(self, wanted: StreamFilter) -> int:
        """How many sessions there are to list, whatever `after` and `limit` say."""

    async def is_running(self, project: str, name: str) -> bool:
        """Whether a running session has this name in its configuration."""

    async def streams_of(self, project: str, keys: Sequence[int]) -> list[Stream]:
        """The sessions of the project with these keys, erased ones included."""

    async def rows(self, key: int, after: int, limit: int) -> list[Row]:
        """Entries of positions above `after`, in order; fewer than `limit` when they are large, none at the end."""

    async def load_snapshot(self, key: int, version: int, at_most: int) -> Snapshot | None:
        """The snapshot of this fold version, unless it is of a position above `at_most`."""

    async def save_snapshot(self, key: int, snapshot: Snapshot) -> None: ...

    async def erase(self, key: int, now_ms: int) -> None:
        """Make everything of a session unreadable; its row stays, without content, so that nobody brings it back.

        The content itself leaves the store by the methods of `Retention`. The row of a user's stream loses the user's
        id, which may come back as that of a new one.
        """


class Outbox(Protocol):
    """Exports: made where the journal says what they tell of (start, close), claimed, attempted, finished."""

    async def claim_exports(self, now_ms: int, lease_ms: int, busy: Sequence[str], limit: int) -> list[Export]:
        """Lease due exports, the oldest first, but for URLs that are `busy`; nobody else gets them meanwhile."""

    async def release_exports(self, now_ms: int) -> None:
        """At the start of the only process that works on the store: leases of those before it end, and what was never
        attempted is due at once, whatever the clock said when it was closed."""

    async def freeze(self, export: Export, payload: bytes) -> bytes | None:
        """Keep the body's payload; the one that was kept first is returned, whoever made it. None: it was erased."""

    async def finish_export(
        self, export: Export, attempt: Attempt, state: Literal["pending", "delivered", "failed"], due_ms: int | None
    ) -> bool:
        """Log an attempt, and what comes next; False, and nothing done, when the lease was lost."""

    async def disable_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        """Nothing is sent to this endpoint any more, since it is gone; what waits for it is failed.

        Not when it has moved to another address meanwhile: it is the old one that is gone.
        """

    async def disable_failing(self, key: int, since_ms: int, now_ms: int) -> bool:
        """The same for a project's endpoint, if every attempt since `since_ms` or longer has failed."""

    async def next_export_ms(self) -> int | None:
        """When the next export is due; None when none waits."""

    async def deliveries(self, stream: int) -> list[Delivery]:
        """What became of a session's exports, with every attempt."""


class Endpoints(Protocol):
    """The endpoints that projects made, and what became of what was sent to them."""

    async def add_endpoint(self, endpoint: Endpoint, limit: int) -> Endpoint | None:
        """Keep a project's new endpoint, which gets its key; None when the project has `limit` of them."""

    async def endpoints(self, project: str) -> list[Endpoint]:
        """In the order in which they were made."""

    async def endpoint(self, project: str, endpoint_id: str) -> Endpoint | None: ...

    async def operator_endpoint(self) -> Endpoint | None:
        """The operator's, unless the command line has taken it away."""

    async def change_endpoint(
        self, project: str, endpoint_id: str, change: Callable[[Endpoint], Endpoint]
    ) -> Endpoint | None:
        """Put what `change`, a pure function, makes of an endpoint into its place; None when there is none.

        What waits for one that is disabled by it is failed.
        """

    async def delete_endpoint(self, project: str, endpoint_id: str) -> bool:
        """Forget an endpoint; what waits for it is failed. False when there is none."""

    async def endpoint_deliveries(self, key: int, wanted: DeliveryFilter) -> list[EndpointDelivery]:
        """What was and is to be sent to an endpoint, the newest first; nothing of erased sessions."""

    async def send_again(self, key: int, delivery: int, now_ms: int) -> EndpointDelivery | None:
        """Make a delivery of this endpoint due now, whatever became of it; None when there is none."""

    async def recover(self, key: int, since_ms: int, now_ms: int) -> int:
        """Make all failed deliveries due now that were made at or after a time; how many they are."""


class Retention(Protocol):
    """What happens to sessions after their end, in steps that hold up nobody; several workers do no harm."""

    async def expired(self, now_ms: int, limit: int) -> list[int]:
        """Keys of sessions whose `ttl_seconds` are over."""

    async def expire(self, key: int, now_ms: int) -> bool:
        """Erase a session whose `ttl_seconds` are over; False when they are not, or it is erased."""

    async def erased(self, limit: int) -> list[int]:
        """Keys of sessions that were erased, and whose content is still in tables."""

    async def delete_erased(self, keys: Sequence[int]) -> bool:
        """Delete some of their content; False when none is left."""

    async def finish_erased(self) -> bool:
        """Clear away what is left of deleted content outside of tables; False when that cannot be now: call again."""

    async def to_compact(self, now_ms: int, limit: int) -> list[int]:
        """Keys of sessions that cannot be reopened any more, and whose journals are not compacted."""

    async def compact(self, key: int) -> bool:
        """Do some of the work of compacting a journal; False when nothing is left to do. It reads as before."""


class Directory(Protocol):
    """Keys, endpoints, and the store's own identity."""

    @property
    def incarnation(self) -> str:
        """Changes when the store is restored from a backup: positions and seqs of another one are not trusted."""

    @property
    def cursor_secret(self) -> bytes:
        """Signs the cursors that are given out."""

    async def keys(self) -> list[Key]: ...

    async def key(self, key_id: str) -> Key | None: ...

    async def has_keys(self) -> bool:
        """Whether any key was ever made, revoked ones included."""

    async def add_key(self, key: Key) -> None: ...

    async def revoke_key(self, key_id: str, now_ms: int) -> bool: ...

    async def revoked_keys(self, key_ids: Collection[str]) -> frozenset[str]:
        """Which of these keys are revoked, also by another process."""

    async def set_operator_endpoint(self, url: str | None, secret: str | None) -> None:
        """The receiver of every session's history, from the command line; giving it enables it again."""


class Operations(Protocol):
    """What the operator of the service asks."""

    async def figures(self, now_ms: int) -> Figures:
        """How the store stands, over all projects."""


class Store(Journal, Outbox, Endpoints, Retention, Directory, Operations, Protocol):
    """One object per engine."""

    @property
    def healthy(self) -> bool:
        """Whether the last commit succeeded."""

    async def probe(self) -> None:
        """Commit something of a usual size that leaves nothing behind, to see whether the store is back.

        Raises `StoreUnavailable`, and `StoreRuined` when it cannot come back to this process.
        """

    async def close_store(self) -> None:
        """Finish what waits, and let go of the file."""
