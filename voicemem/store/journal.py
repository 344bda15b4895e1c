"""The journal: streams (sessions and users' own), their producers, and their append-only lists of events."""

import asyncio
import sys
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Literal

import msgspec

from voicemem.config.session import SessionPatch, apply_patch
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.comparison import SORTED
from voicemem.store import stream_changes as changes
from voicemem.store import streams
from voicemem.store.append_rules import AppendResult, Batch
from voicemem.store.database import Connection, Port, reads, reads_inline, scans, writes
from voicemem.store.outbox import enqueue_start
from voicemem.store.quotas import SELECT_KEY_ID, admit_session, may_run_again
from voicemem.store.records import (
    LIST_BYTES,
    MAX_COUNTED,
    DisconnectedProducer,
    JournalRow,
    OpenResult,
    RestoredSession,
    Snapshot,
)
from voicemem.store.runs import IS_READABLE, group_runs, page_of, runs_after
from voicemem.store.session_filters import SessionFilter, conditions_of, in_order, is_scan, with_linked
from voicemem.store.stream_changes import STREAM_COLUMNS, StreamRows
from voicemem.store.streams import SESSION_KIND, USER_KIND, ClosedSession, SessionEnding, Stream
from voicemem.store.users import refuse_erased_user

DISCONNECT = "update producers set node = null, expected_until_ms = :until_ms where stream in :keys and name = :name"
SELECT_CONNECTED = "select stream from producers where stream in :keys and node is not null"
FALL_SILENT = "update streams set silent_since_ms = :now_ms, due_ms = :due_ms where key in :keys"
SELECT_STREAM_BY_NAME = f"""
    select {STREAM_COLUMNS} from streams s where s.project = :project and s.kind = :kind and s.id = :id
"""
SELECT_DUE_SESSIONS = "select key from streams where due_ms <= :now_ms order by due_ms limit :limit"
SELECT_SECRETS = "select name, value from secrets where stream = :stream"
SELECT_READABLE_SECRETS = f"{SELECT_SECRETS} and {IS_READABLE}"
SELECT_STREAMS_BY_KEYS = f"""
    select {STREAM_COLUMNS} from streams s where s.project = :project and s.kind = :kind and s.key in :keys
    order by s.key
"""
SELECT_NEWEST_KEYS = "select key from streams where project = :project and kind = :kind order by key desc limit :limit"
SELECT_KEYS_AFTER = """
    select key from streams where project = :project and kind = :kind and key > :after order by key limit :limit
"""
LIST_STREAMS = f"""
    select {STREAM_COLUMNS} from streams s where {{conditions}} order by s.started_ms desc, s.key desc limit :limit
"""
WITHIN_BYTES = """
    select * from (
        select p.*, sum(octet_length(p.config)) over (order by p.started_ms desc, p.key desc)
        - octet_length(p.config) as before from ({listed}) p
    ) q where before < :bytes order by started_ms desc, key desc
"""
"""It ends with the session at which the configurations reach the bytes."""
COUNT_STREAMS = "select count(*) from (select 1 from streams s where {conditions} limit :most) c"
SELECT_SNAPSHOT = f"""
    select position, version, state from snapshots where stream = :stream and version = :version
    and position <= :at_most and {IS_READABLE}
"""
SAVE_SNAPSHOT = """
    insert into snapshots (stream, version, position, state)
    select key, cast(:version as bigint), cast(:position as bigint), :state from streams
    where key = :stream and state <> 'erased'
    on conflict (stream, version) do update set position = excluded.position, state = excluded.state
"""
DELETE_UNREAD_SNAPSHOTS = """
    delete from snapshots where stream = :stream and version <> :version
    and version not in (select snapshot_version from nodes)
"""
COPY_SECRETS = "insert into secrets select cast(:key as bigint), name, value from secrets where stream = :source"
CHANGED_AFTER_END = frozenset({"labels", "recording", "user_id"})
AFTER_END = "The session has ended: only `labels` and `recording` can change, and `user_id` be set where none was."
SET_ALREADY = "The session has ended with another `user_id`, which it keeps; link the two ids if they are one person's."
INLINE_BYTES = 64 * 1024
"""A larger snapshot is compressed on a thread."""


class Journal(Port):
    """Streams and their append-only lists of events.

    A stream is a session or a user's own; it is unique by project, kind and id. Positions of its entries are 1, 2, 3 …
    without holes, and become visible in that order. A `session_patch` has the configuration without secrets, which goes
    into the stream, and the secrets, which are kept apart and never journaled.
    """

    @property
    def commit_shards(self) -> int:
        """The appends that may be under way at once: one in each commit shard, which does not wait for the others."""
        return self.database.commit_shards

    def shard_of(self, key: int) -> int:
        return key % self.database.commit_shards

    # Sessions

    @writes
    def create_session(
        self,
        connection: Connection,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        now_ms: int,
        key_id: str | None = None,
        takes_name: bool = False,
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        """Create a session, or return the existing one and whether its configuration is the same.

        A new session gets its start deliveries (see `Outbox`). With `takes_name` it is created only if no running
        session of the project has the `name` in its configuration: of several clients at once, on any node, one gets
        the name, which is free again when the session closes. Raises `Refused` (`session_erased`; `session_exists`
        with `streams.NAME_TAKEN`).
        """
        rows: StreamRows = connection.streams
        stream = rows.session_of(project, session_id)
        if stream is None:
            created = changes.create_session(rows, project, session_id, session_patch, now_ms, key_id, takes_name)
            return created, "created"
        changes.refuse_erased(stream)
        stored = [stream.config, dict(connection.rows(SELECT_SECRETS, stream=stream.key))]
        secrets = {name: value for name, value in session_patch.secrets.items() if value is not None}
        new = [apply_patch({}, session_patch.public), secrets]
        same = SORTED.encode(stored) == SORTED.encode(new)  # as JSON: in Python 1 == True
        return stream, "same" if same else "different"

    @writes
    def restore_session(
        self,
        connection: Connection,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        restored: RestoredSession,
        now_ms: int,
        key_id: str | None = None,
    ) -> Stream | None:
        """Create a session together with its journal so far; None when the id is taken.

        A session that has ended gets no deliveries, any other its start deliveries. Raises `QuotaExceeded`, `Refused`
        (`session_erased`; `unknown_session` when the session named by `restored.secrets_of` does not exist or is
        erased).
        """
        rows: StreamRows = connection.streams
        existing = rows.session_of(project, session_id)
        if existing is not None:
            changes.refuse_erased(existing)
            return None
        source = None if restored.secrets_of is None else changes.find(rows, restored.secrets_of)
        admit_session(rows, project, key_id, now_ms)
        stream = changes.new_stream(project, SESSION_KIND, session_id, apply_patch({}, session_patch.public), now_ms)
        set_restored(stream, restored, now_ms)
        rows.add_stream(stream, key_id)
        if source is not None:
            connection.execute(COPY_SECRETS, key=stream.key, source=source.key)
            if rows.counts_stored:
                rows.count_stored(stream.key, connection.one(changes.SUM_SECRETS, stream=stream.key, name=None)[0])
        changes.save_secrets(rows, stream, session_patch, now_ms)
        connection.execute(changes.SAVE_RESTORED, key=stream.key, now_ms=now_ms)
        for run in group_runs(stream.key, restored.rows):
            rows.add_run(run)
        for producer in restored.producers:
            rows.save_producer(stream.key, producer)
        if stream.state == "ended":
            changes.plan_retention(rows, stream)
        else:
            enqueue_start(connection, stream, now_ms)
        return stream

    @writes
    def open_producer(
        self,
        connection: Connection,
        project: str,
        session_id: str,
        producer: str,
        session_patch: SessionPatch,
        from_seq: int | None,
        now_ms: int,
        key_id: str | None = None,
        node: str = "",
    ) -> OpenResult:
        """Open a producer: raise its epoch, so that appends under an older one are refused.

        The producer is connected to `node` from now on, until `leave`, a later open, or the end of that node. So an
        engine finds out whether its commit happened before it raises `StoreUnavailable`: no `leave` would follow.

        A missing session is created; an existing one keeps its configuration, and is reopened after an idle close
        (`streams.may_reopen`). On a running session, a `from_seq` above `next_seq` is journaled as `session.gap`, and
        `next_seq` becomes `from_seq`. The session is not silent any more. Raises `Refused` (`session_erased`).
        """
        connection.hold_node(node)
        rows: StreamRows = connection.streams
        stream = rows.session_of(project, session_id)
        created = stream is None
        if stream is None:
            stream = changes.create_session(rows, project, session_id, session_patch, now_ms, key_id)
        changes.refuse_erased(stream)
        reopened = streams.may_reopen(stream, now_ms) and may_run_again(rows, project, stream.key)
        if reopened:
            changes.reopen(rows, stream, now_ms)
        lease = rows.producer(stream.key, producer)
        if not created and lease == streams.ProducerState(producer):  # a new one
            rows.admit_bytes(project)
        lease.epoch += 1
        lease.node, lease.expected_until_ms = node, None
        if from_seq is not None and from_seq > lease.next_seq and stream.state == "running":
            changes.declare_gap(rows, stream, lease, from_seq, now_ms)
        if stream.state == "running":
            stream.silent_since_ms = None
        rows.save_producer(stream.key, lease)
        rows.save_stream(stream)
        return OpenResult(stream, lease.epoch, lease.next_seq, created, reopened)

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        """Append producers' events, all batches in one transaction; return the result of each at its index.

        Each event is stored or refused alone, by `append_rules.admit`. One that repeats a stored seq is compared with
        the stored event: equal as JSON is a duplicate, anything else `seq_conflict`. This is the hot path: a batch of
        plain events in order (`append_rules.admits_all`) should write the journal only, and read nothing.

        A batch's `from_seq` is declared first, as by `open_producer`, unless its epoch is outdated, or the producer has
        ended or sends events without seq.

        A batch with `expected_until_ms` has come without a connection: if any of its events with a seq is stored, or
        was before, its producer is expected back until then. The time is written if it is at least
        `append_rules.EXPECT_AGAIN_MS` later than the stored one.

        A batch with an `expected_position` is stored only if the journal ends there; otherwise nothing changes, and its
        result says `position_taken`.

        Raises `Refused` (`unknown_session`); erased sessions are an outcome of each event.
        """
        return await self.database.append(batches, now_ms)

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        """Append batches of one commit shard, if that needs no waiting for others and few reads.

        The result is None for a batch that is left out, and for later ones of its stream: `append` takes them.
        """
        return await self.database.try_append(batches, now_ms)

    @writes
    def change_config(
        self,
        connection: Connection,
        key: int,
        session_patch: SessionPatch,
        payload: bytes,
        now_ms: int,
        after_end: bool = False,
        is_first_user: bool = False,
    ) -> Stream:
        """Merge a patch into the configuration, and journal `payload` as the server's own event.

        With `is_first_user`, a patch that sets the user changes nothing if there is a user.

        A session that has ended accepts a patch only with `after_end`, and then only of labels, and of the user if it
        has none. Raises `Refused` (`unknown_session`, `session_ended`, `user_conflict`, `user_erased`; `invalid_field`
        when the result exceeds a limit).
        """
        rows: StreamRows = connection.streams
        stream = changes.find(rows, key)
        if is_first_user and stream.config.get("user_id") is not None:
            return stream
        if stream.state == "ended":
            if not after_end or not session_patch.public.keys() <= CHANGED_AFTER_END:
                raise Refused("session_ended", AFTER_END)
            self.check_user(rows, stream, session_patch.public.get("user_id", stream.config.get("user_id")))
        rows.admit_bytes(stream.project)
        changes.apply_session_patch(rows, stream, session_patch, now_ms)
        rows.append_server_event(stream, now_ms, payload)
        rows.save_stream(stream)
        return stream

    def check_user(self, rows: StreamRows, stream: Stream, user_id: str | None) -> None:
        """Raise `Refused` if a session that has ended may not have this user from now on."""
        known = stream.config.get("user_id")
        if user_id == known:
            return
        if known is not None or user_id is None:
            raise Refused("user_conflict", SET_ALREADY)
        refuse_erased_user(rows, stream, user_id, self.database.identity)

    @writes
    def append_server_event(
        self,
        connection: Connection,
        key: int,
        payload: bytes,
        expected: int,
        now_ms: int,
        for_caller: bool = False,
    ) -> Stream | None:
        """Journal an event of the server's own at position `expected` + 1; None when that position is taken.

        Also on a session that has ended, and on a user's stream. Raises `Refused` (`unknown_session`), and
        `QuotaExceeded` for a client's content (`for_caller`).
        """
        rows: StreamRows = connection.streams
        stream = changes.find(rows, key)
        if stream.position != expected:
            return None
        if for_caller:
            rows.admit_bytes(stream.project)
        rows.append_server_event(stream, now_ms, payload)
        rows.save_stream(stream)
        return stream

    async def list_producers(self, key: int) -> list[str]:
        """Return the names of the producers that have a row: all that have opened, or sent events without a seq."""
        return [name for (name,) in await self.database.rows(changes.SELECT_PRODUCER_NAMES, stream=key)]

    # When sessions end

    @writes
    def leave(self, connection: Connection, leaving: Iterable[DisconnectedProducer], now_ms: int) -> list[Stream]:
        """Note which connections have ended; return the streams in which one had the newest epoch of its producer.

        Nothing changes in the others. So it does not matter whether a late `leave` comes before or after the open that
        replaces the connection, nor on which node. A running session is silent without a connected producer. Nothing
        changes in an erased session. A thousand may end at once, so some share each statement.
        """
        rows: StreamRows = connection.streams
        left = dict[int, Stream]()
        gone, silent = defaultdict[tuple[str, int | None], list[int]](list), defaultdict[int | None, list[int]](list)
        for key, producer, epoch, until_ms in sorted(leaving, key=itemgetter(0)):  # no two nodes wait for each other
            with suppress(StoreUnavailable):  # a damaged row concerns its own session only
                stream = rows.stream(key)
                lease = None if stream is None or stream.state == "erased" else rows.producer(key, producer)
                if stream is not None and lease is not None and lease.epoch == epoch and lease.node is not None:
                    lease.node, lease.expected_until_ms, left[key] = None, until_ms, stream
                    gone[producer, until_ms].append(key)
        for (producer, until_ms), keys in gone.items():
            connection.execute(DISCONNECT, keys=keys, name=producer, until_ms=until_ms)
        connected = {key for (key,) in connection.rows(SELECT_CONNECTED, keys=[*left])} if left else set()
        for key, stream in left.items():
            if stream.state == "running" and key not in connected:
                stream.silent_since_ms = now_ms
                silent[streams.close_due_ms(stream)].append(key)
        for due_ms, keys in silent.items():
            connection.execute(FALL_SILENT, keys=keys, now_ms=now_ms, due_ms=due_ms)
        rows.note_changed(left)
        return [*left.values()]

    async def find_due(self, now_ms: int, limit: int) -> list[int]:
        """Return the keys of sessions that are due to close now (`streams.close_due_ms`), the longest due first."""
        return [key for (key,) in await self.database.rows(SELECT_DUE_SESSIONS, now_ms=now_ms, limit=limit)]

    @writes
    def close_session(
        self,
        connection: Connection,
        key: int,
        ending: SessionEnding | None,
        notice_id: str,
        now_ms: int,
        if_silent: bool = False,
    ) -> ClosedSession | None:
        """Journal `session.closed` and add the close deliveries, in one transaction; None if nothing was closed.

        With an `ending`, a running session is closed at once; with `if_silent`, only if no producer is connected.
        Without one it is closed if it is due, with the ending of `streams.ending_if_due`, or as by `close_ended`.
        `notice_id` becomes the id of the history's delivery.
        """
        rows: StreamRows = connection.streams
        stream = rows.stream(key)
        due = ending or (None if stream is None else streams.ending_if_due(stream, now_ms))
        return changes.close(rows, key, due, notice_id, now_ms, if_silent)

    @writes
    def close_ended(self, connection: Connection, key: int, notice_id: str, now_ms: int) -> ClosedSession | None:
        """Close a session with a committed `session.end` if no producer is awaited; return None otherwise.

        A producer that has not ended is awaited while it is connected to any node, or expected back
        (`streams.is_expected`).
        """
        return changes.close(connection.streams, key, None, notice_id, now_ms)

    # Reads

    async def find_session(self, project: str, session_id: str) -> Stream | None:
        """Return a session's row, including everything that was acknowledged; None for an unknown or erased session."""
        return await self.find_by_name(project, SESSION_KIND, session_id)

    async def get_session(self, project: str, session_id: str) -> Stream:
        """Return a session's row likewise. Raises `Refused` (`unknown_session`)."""
        stream = await self.find_by_name(project, SESSION_KIND, session_id)
        if stream is None:
            raise Refused("unknown_session")
        return stream

    def find_kept_session(self, project: str, session_id: str) -> Stream | None:
        """Return a session's committed row, if it is in the engine's cache."""
        stream = self.database.find_kept_stream(project, SESSION_KIND, session_id)
        return None if stream is None or stream.state == "erased" else stream

    async def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        """Return the committed stream of a name; one in the engine's cache needs no switch of threads."""
        stream = self.database.find_kept_stream(project, kind, name) or await self.load_by_name(project, kind, name)
        return None if stream is None or stream.state == "erased" else stream

    async def load_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        rows = await self.database.rows(SELECT_STREAM_BY_NAME, project=project, kind=kind, id=name)
        return changes.to_stream(rows[0]) if rows else None

    async def was_erased(self, project: str, session_id: str) -> bool:
        """Return whether there was a session of this id that is erased."""
        stream = await self.load_by_name(project, SESSION_KIND, session_id)
        return stream is not None and stream.state == "erased"

    async def find_creator(self, key: int) -> str | None:
        row = await self.database.row(SELECT_KEY_ID, key=key)
        return None if row is None else row[0]

    @reads_inline
    def load_secrets(self, connection: Connection, key: int) -> dict[str, str]:
        """The secrets of a session's configuration, by dotted path (`llm.api_key`); empty for an erased one."""
        return dict(connection.rows(SELECT_READABLE_SECRETS, stream=key))

    async def list_sessions(self, session_filter: SessionFilter) -> list[Stream]:
        """Return the sessions that match, by start and key, the newest first; erased ones never match."""
        return (await self.list_page(session_filter, sys.maxsize))[0]

    async def list_pages(self, session_filter: SessionFilter) -> AsyncIterator[list[Stream]]:
        """Yield the same page by page, to the end."""
        has_more = True
        while has_more:
            page, has_more = await self.list_page(session_filter)
            yield page
            if page:
                session_filter = msgspec.structs.replace(session_filter, after=(page[-1].started_ms, page[-1].key))

    async def list_page(self, session_filter: SessionFilter, max_bytes: int = LIST_BYTES) -> tuple[list[Stream], bool]:
        """Return a page of them, and whether more of them match.

        The list may be shorter than its limit: it ends with the session at which the configurations reach `max_bytes`
        of JSON.
        """

        def job(connection: Connection) -> tuple[list[Stream], bool]:
            chosen = with_linked(connection, session_filter)
            conditions, values = conditions_of(chosen, self.database.engine)
            listed = in_order(LIST_STREAMS.format(conditions=conditions), chosen, "limit")
            query = WITHIN_BYTES.format(listed=listed)
            rows = connection.rows(query, **values, limit=session_filter.limit, bytes=max_bytes)
            count = COUNT_STREAMS.format(conditions=conditions)
            (matching,) = connection.one(count, **values, most=len(rows) + 1)
            return [changes.to_stream(row[:-1]) for row in rows], matching > len(rows)

        return await (self.database.scan(job) if is_scan(session_filter) else self.database.read(job))

    @scans
    def count_sessions(self, connection: Connection, session_filter: SessionFilter, most: int = MAX_COUNTED) -> int:
        """Count the sessions that match, whatever `after` and `limit` say; `most` if there are more."""
        chosen = with_linked(connection, msgspec.structs.replace(session_filter, after=None))
        conditions, values = conditions_of(chosen, self.database.engine)
        return int(connection.one(COUNT_STREAMS.format(conditions=conditions), **values, most=most)[0])

    async def find_sessions(self, project: str, keys: Sequence[int]) -> list[Stream]:
        """Return the project's sessions with these keys, by key, erased ones included."""
        values = {"project": project, "kind": SESSION_KIND, "keys": list(keys)}
        return [changes.to_stream(row) for row in await self.database.rows(SELECT_STREAMS_BY_KEYS, **values)]

    async def find_stream(self, key: int) -> Stream | None:
        """Return the stream of a key; None for one that was erased."""
        rows = await self.database.rows(changes.SELECT_READABLE_STREAMS, keys=[key])
        return changes.to_stream(rows[0]) if rows else None

    async def list_newest_keys(self, project: str, limit: int) -> list[int]:
        """Return the highest keys of the project's sessions, erased ones included, highest first; at most `limit`."""
        values = {"project": project, "kind": SESSION_KIND, "limit": limit}
        return [key for (key,) in await self.database.rows(SELECT_NEWEST_KEYS, **values)]

    async def list_keys_after(self, project: str, key: int, limit: int) -> list[int]:
        """Return the lowest keys above `key` of the project's sessions, erased ones included; at most `limit`."""
        values = {"project": project, "kind": SESSION_KIND, "after": key, "limit": limit}
        return [key for (key,) in await self.database.rows(SELECT_KEYS_AFTER, **values)]

    async def read_rows(self, key: int, after: int, limit: int) -> list[JournalRow]:
        """Return entries at positions above `after`, at most `limit`; none only at the end, or when erased.

        A page may be shorter than `limit`, when its payloads are large.
        """
        return await self.database.read(lambda connection: page_of(runs_after(connection, key, after), after, limit))

    # Users

    async def find_user(self, project: str, user_id: str) -> Stream | None:
        """Return the row of a user's own stream; None for an unknown or erased user."""
        return await self.find_by_name(project, USER_KIND, user_id)

    async def find_person(self, project: str, user_id: str) -> list[Stream]:
        """Return the rows of a user's own stream and of the other id of the same person, as far as there are any."""
        user = await self.find_user(project, user_id)
        linked_id = None if user is None else user.config.get("user_id")
        linked = None if linked_id is None else await self.find_user(project, linked_id)
        return [one for one in (user, linked) if one is not None]

    @writes
    def ensure_user(self, connection: Connection, project: str, user_id: str, now_ms: int) -> Stream:
        """Return a user's own stream, created if missing; no session: never due, closed, listed or counted."""
        rows: StreamRows = connection.streams
        stream = rows.find_by_name(project, USER_KIND, user_id)
        if stream is None:
            rows.admit_bytes(project)
            stream = rows.add_user(project, user_id, now_ms)
        return stream

    # Snapshots

    @reads
    def load_snapshot(self, connection: Connection, key: int, version: int, at_most: int) -> Snapshot | None:
        """Return the stored fold state, if it is of this version and of a position up to `at_most`.

        A damaged snapshot, and one of an erased session, is None: it saves time, and the journal gives the same state.
        """
        values = {"stream": key, "version": version, "at_most": at_most}
        row = connection.row(SELECT_SNAPSHOT, **values)
        try:
            return None if row is None else Snapshot(row[0], row[1], zlib.decompress(row[2]))
        except zlib.error:
            return None  # damaged: the journal is folded again instead

    async def save_snapshot(self, key: int, snapshot: Snapshot) -> None:
        """Replace a stream's snapshot of this version; do nothing for an erased one.

        Snapshots of other versions stay while a node that reads them is registered (`Node.snapshot_version`), so that
        two versions of the program do not undo each other's work.
        """
        position, version, state = snapshot
        is_large = len(state) > INLINE_BYTES  # zlib works without the interpreter's lock
        packed = await asyncio.to_thread(zlib.compress, state, 1) if is_large else zlib.compress(state, 1)

        def job(connection: Connection) -> None:
            connection.execute(SAVE_SNAPSHOT, stream=key, version=version, position=position, state=packed)
            connection.execute(DELETE_UNREAD_SNAPSHOTS, stream=key, version=version)

        await self.database.write(job)


def set_restored(stream: Stream, restored: RestoredSession, now_ms: int) -> None:
    """Set the values of a new stream that a restored session brings along."""
    stream.started_ms, stream.position = restored.started_ms, len(restored.rows)
    if restored.ended_ms is not None:
        stream.state, stream.silent_since_ms = "ended", None
        stream.ended_ms, stream.reason, stream.provisional = restored.ended_ms, restored.reason, restored.provisional
    elif restored.ending is not None:
        stream.ending_ms, (stream.ending_ts, stream.ending_reason, *_) = now_ms, restored.ending
