"""Streams, their producers and their journals; and slim rows of sessions. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from voicemem.config.secrets import SessionPatch
from voicemem.store.admission import AppendResult, Batch
from voicemem.store.looks import OverviewPage
from voicemem.store.records import (
    MAX_COUNTED,
    JournalRow,
    OpenResult,
    RestoredSession,
    SavedFigures,
    SessionFilter,
    Snapshot,
)
from voicemem.store.streams import SessionEnding, Stream


class Journal(Protocol):
    """Streams and their append-only lists of events.

    A stream is a session or a user's own; it is unique by project, kind and id. Positions of its entries are 1, 2, 3 …
    without holes, and become visible in that order. A `session_patch` has the configuration without secrets, which goes
    into the stream, and the secrets, which are kept apart and never journaled.
    """

    @property
    def commit_shards(self) -> int:
        """How many appends may be under way at once: one in each commit shard, which does not wait for the others."""

    def shard_of(self, key: int) -> int:
        """The commit shard of a stream, from 0 on."""

    # Sessions

    async def create_session(
        self,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        now_ms: int,
        key_id: str | None = None,
        takes_name: bool = False,
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        """Create a session, or return the existing one and whether its configuration is the same.

        A new session gets its start deliveries (see `Outbox`). With `takes_name` it is created only if no running
        session of the project has the `name` in its configuration: of several callers at once, on any node, one takes
        a name. The name is free again when the session closes. Raises `Refused` (`session_erased`; `session_exists`
        with `streams.NAME_TAKEN`).
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
        node: str = "",
    ) -> OpenResult:
        """Open a producer's line: raise its epoch, so that appends under an older one are refused.

        The producer is connected to `node` from now on, until `leave`, a later open, or the end of that node. So an
        engine finds out whether its commit happened before it raises `StoreUnavailable`: nobody would leave.

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

        A batch with `expected_until_ms` has come without a connection: if any of its events with a seq is stored, or
        was before, its producer is expected back until then. It is written when it is `admission.EXPECT_AGAIN_MS` or
        more later than what is stored.

        A batch with an `expected_position` is stored only if the journal ends there; otherwise nothing changes, and its
        result says `position_taken`.

        Raises `Refused` (`unknown_session`); erased sessions are an outcome of each event.
        """

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        """Append batches of one commit shard, as far as that is possible without waiting for others or looking at much.

        None for a batch that is left out, and for those of its stream that come after it: `append` takes them.
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

    async def leave(
        self, key: int, producer: str, epoch: int, expected_until_ms: int | None, now_ms: int
    ) -> Stream | None:
        """Note that a producer's connection is gone; None, with nothing changed, if that was not its newest epoch.

        So it does not matter whether a late `leave` comes before or after the open that replaces the connection, nor on
        which node. A running session falls silent with its last connected producer. `expected_until_ms` says until when
        a producer whose connection broke is expected back; None for one that left on purpose. Does nothing to a
        session that is erased.
        """

    async def find_due(self, now_ms: int, limit: int) -> list[int]:
        """Keys of sessions that are due to close by now (`streams.close_due_ms`), the longest due first."""

    async def close_session(
        self, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool = False
    ) -> Stream | None:
        """Journal `session.closed` and add the close deliveries, in one transaction; None when nothing was closed.

        With an `ending`, a running session is closed at once; with `if_silent`, only if no producer is connected.
        Without one it is closed if it is due, with the ending of `streams.ending_if_due`, or as by `close_ended`.
        `notice_id` becomes the id of the history notice.
        """

    async def close_ended(self, key: int, notice_id: str, now_ms: int) -> Stream | None:
        """Close a session with a committed `session.end` if nobody's last words are awaited; None otherwise.

        They are while a producer that has not ended is connected to any node, or expected back
        (`streams.is_expected`).
        """

    # Reads

    async def find_session(self, project: str, session_id: str) -> Stream | None:
        """A session's row, including everything that was acknowledged; None for an unknown or erased session."""

    async def was_erased(self, project: str, session_id: str) -> bool:
        """Whether there was a session of this id that is erased."""

    async def load_secrets(self, key: int) -> dict[str, str]:
        """The secrets of a session's configuration, by dotted path (`llm.api_key`); empty for an erased one."""

    async def list_sessions(self, wanted: SessionFilter) -> list[Stream]:
        """Sessions that match, by start and key, the newest first; erased ones never match."""

    async def list_page(self, wanted: SessionFilter, max_bytes: int) -> tuple[list[Stream], bool]:
        """The same, and whether more of them match.

        The list may be shorter than its limit: it ends with the session with which the configurations are `max_bytes`
        of JSON or more.
        """

    async def count_sessions(self, wanted: SessionFilter, most: int = MAX_COUNTED) -> int:
        """How many sessions match, whatever `after` and `limit` say; `most` if there are more."""

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
        """Replace a stream's snapshot of this version; does nothing for an erased one.

        Snapshots of other versions stay while a node that reads them is registered (`Node.snapshot_version`), so that
        two versions of the program do not undo each other's work.
        """

    # Erasure

    async def erase(self, key: int, now_ms: int) -> None:
        """Make everything of a session unreadable, in one step.

        Its row stays without content, in the state `erased`, so that a producer that comes back late cannot create it
        again. The content itself is deleted through `Retention`. The row of a user's stream loses the id too, since it
        identifies a person; a later user of that id gets a new stream.
        """


class Overviews(Protocol):
    """Slim rows of sessions: a list of a thousand must not read a configuration, nor fold a memory."""

    async def list_overviews(self, wanted: SessionFilter, most_looks: int | None = None) -> OverviewPage:
        """The same sessions as `Journal.list_sessions`, in the same order, and what was saved of their memories.

        A page ends early, with a place to go on from, when so many sessions were looked at (`MAX_LOOKS` unless given).
        """

    async def count_overviews(self, wanted: SessionFilter, most: int) -> int | None:
        """How many sessions match over all pages, up to `most`; None where too many would have to be looked at."""

    async def find_named(self, project: str, beginning: str, limit: int) -> list[int]:
        """The keys of sessions whose id, or whose user's id, begins so: at most `limit` of each kind."""

    async def save_figures(self, made: Sequence[SavedFigures]) -> None:
        """Save what slim rows show of memories.

        They replace what was saved before. Does nothing for erased sessions.
        """
