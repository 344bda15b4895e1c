"""Expiry, erasure and compaction of sessions.

A mark makes a session unreadable at once, then its content is deleted a portion at a time. Last, an engine clears the
traces outside of its tables (docs/storage.md, docs/postgresql.md).
"""

import asyncio
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import msgspec

from voicemem.errors import DamagedEntry
from voicemem.protocol.events import UserUnlinked
from voicemem.store.database import Connection, Database, Port, insert, writes
from voicemem.store.memories import SELECT_IS_EXPIRED, Memories
from voicemem.store.runs import RUN_COLUMNS, RunRow, compress_runs, to_run
from voicemem.store.stream_changes import StreamRows, config_bytes
from voicemem.store.streams import ERASED_USER_KIND, USER_KIND, Stream, mark_erased
from voicemem.store.transcript_index import TranscriptIndex
from voicemem.store.upkeep import Portion
from voicemem.store.users import lock_with_linked_user, unlink_other


class ContentTable(NamedTuple):
    name: str
    key: str
    """The column that identifies a row within a session."""
    size: str
    """The bytes of a row; a key may have several rows."""
    is_counted: bool = False
    """True for bytes that count as stored by a project."""

    @property
    def select(self) -> str:
        return f"select {self.key}, {self.size} from {self.name} where stream = :stream order by {self.key} limit :rows"

    @property
    def delete(self) -> str:
        return f"delete from {self.name} where stream = :stream and {self.key} in :keys"


ATTEMPTS = """
    select x.key, 0 from deliveries x where x.stream = :stream
    and exists (select 1 from attempts a where a.delivery = x.key) limit :rows
"""
DELETE_ATTEMPTS = "delete from attempts where delivery in :keys"
CONTENT_TABLES = (
    ContentTable("payloads", "key", "octet_length(payload)", is_counted=True),
    ContentTable("deliveries", "key", "octet_length(header)"),
    ContentTable("superseded", "by_id", "octet_length(old_id)"),
    ContentTable("journal", "position", "octet_length(payload)", is_counted=True),
    ContentTable("archives", "position", "octet_length(runs)", is_counted=True),
    ContentTable("snapshots", "version", "octet_length(state)"),
    ContentTable("overviews", "stream", "coalesce(octet_length(figures), 0)"),
    ContentTable("extracted", "stream", "0"),
    ContentTable("observations", "stream", "octet_length(call)"),
    ContentTable("quarantined", "stream", "0"),
    ContentTable("secrets", "name", "octet_length(value)", is_counted=True),
    ContentTable("replies", "item", "octet_length(item)"),
    ContentTable("endpoints", "key", "octet_length(url)"),
    ContentTable("producers", "name", "octet_length(name)"),
)
"""The tables in the order of deletion; attempts are found by their deliveries, so they are deleted first."""
INDEX_TABLES = (
    ContentTable("transcript_messages", "turn", "octet_length(text) + octet_length(before)"),
    ContentTable("transcript_sessions", "stream", "0"),
)
MEMORIES = 5
"""Memories in a portion: each may take milliseconds where its indexed words must be overwritten."""
CLAIMABLE = """
    select stream from retention where {is_due} and (node is null or node = :node or leased_until_ms <= :now_ms)
    order by {column} limit :limit
"""
EXPIRED = CLAIMABLE.format(is_due="expires_ms <= :now_ms", column="expires_ms")
ERASED = CLAIMABLE.format(is_due="erased_ms is not null", column="erased_ms")
LEASE = "update retention set node = :node, leased_until_ms = :until_ms where stream in :keys"
FORGET_FIGURES = """
    update streams set interruptions = null, slowest_ms = null, outcome = null
    where key = :key and (coalesce(interruptions, slowest_ms) is not null or outcome is not null)
"""
RENAME_STREAM = "update streams set kind = :kind, id = :id where key = :key"
MARK_ERASED = """
    insert into retention (stream, erased_ms) values (:key, :now_ms)
    on conflict (stream) do update set compact_ms = null, expires_ms = null, erased_ms = excluded.erased_ms,
    node = null, leased_until_ms = 0
"""
DELETE_PLANS = "delete from retention where stream in :keys and erased_ms is not null"


class Residue:
    """The residue of deleted content outside of tables, such as in a log: here, none that could be cleared."""

    def note(self, connection: Connection) -> None:
        """Record that content was deleted."""

    async def clear(self) -> bool:
        """Remove the traces of deleted content; return False if that is not possible now, and must be tried again."""
        return True


class Retention(Port):
    """Expiry and erasure of sessions. Every step is short, so that appends never wait for long.

    Several workers may call these methods at a time. A session that one of them claims for a node is not given to other
    nodes until it is done, the lease is over or the node is retired; the node itself may claim it again. A claim with
    nothing to do writes nothing.
    """

    def __init__(self, database: Database, memories: Memories, index: TranscriptIndex, residue: Residue) -> None:
        super().__init__(database)
        self.memories = memories
        self.transcript_index = index
        self.residue = residue
        self.tables = CONTENT_TABLES if index.index.has_own_database else (*INDEX_TABLES, *CONTENT_TABLES)
        names = "memories", "deliveries", *(table.name for table in self.tables)
        self.select_filled = (
            f"select {', '.join(f'exists (select 1 from {one} where stream in :keys)' for one in names)}"
        )
        """Selects in one step which tables have rows of some sessions: most have none."""

    @writes
    def erase(self, connection: Connection, key: int, now_ms: int) -> None:
        """Make everything of a session unreadable, in one step.

        Its row stays without content, in the state `erased`, so that a producer that comes back late cannot create it
        again. The content itself is deleted through `delete_erased`. The row of a user's stream loses the id too, since
        it identifies a person, and its link goes from both rows; a later user of that id gets a new stream.
        """
        stream = lock_with_linked_user(connection.streams, key)
        if stream is not None:
            erase(connection.streams, stream, now_ms)

    async def claim_expired(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        """Claim sessions whose `ttl_seconds`, counted from their end, are over; the earliest expiry first."""
        return await claim(self.database, EXPIRED, node, now_ms, lease_ms, limit)

    @writes
    def expire(self, connection: Connection, key: int, now_ms: int) -> bool:
        """Erase a session if its `ttl_seconds` are over; return whether it was erased."""
        stream = connection.streams.stream(key)
        if stream is None or connection.row(SELECT_IS_EXPIRED, key=key, now_ms=now_ms) is None:
            return False
        erase(connection.streams, stream, now_ms)
        return True

    async def claim_erased(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        """Claim erased sessions whose content is not deleted yet, the oldest erasure first."""
        return await claim(self.database, ERASED, node, now_ms, lease_ms, limit)

    async def delete_erased(self, keys: Sequence[int]) -> Sequence[int]:
        """Delete a portion of the sessions' content: index entries, memories, and the rows of all `CONTENT_TABLES`.

        Return the sessions that may have content left.
        """

        def job(connection: Connection) -> Sequence[int]:
            connection.streams.flush()
            left = self.delete_portion(connection, keys)
            done = list(keys[: len(keys) - len(left)])
            if done and connection.execute(DELETE_PLANS, keys=done):
                self.residue.note(connection)
            return left

        return keys if await self.transcript_index.delete_portion(keys) else await self.database.write(job)

    async def finish_erased(self) -> bool:
        """Clear the traces of deleted content outside of tables; return False if that must be tried again."""
        return await self.residue.clear()

    def delete_portion(self, connection: Connection, keys: Sequence[int]) -> Sequence[int]:
        """Delete a portion of the content of erased sessions; return those that may have content left.

        A job that deleted a journal of a million events at once would stop all calls.
        """
        portion = Portion()
        has_memories, has_attempts, *filled = map(bool, connection.one(self.select_filled, keys=list(keys)))
        if has_memories and any(self.memories.delete_portion(connection, key, MEMORIES) for key in keys):
            return keys
        for number, key in enumerate(keys):
            if has_attempts and (selected := portion.select(connection.rows(ATTEMPTS, stream=key, rows=portion.rows))):
                connection.execute(DELETE_ATTEMPTS, keys=selected)
            for table in compress(self.tables, filled):
                if selected := portion.select(connection.rows(table.select, stream=key, rows=portion.rows)):
                    connection.execute(table.delete, stream=key, keys=selected)
                    if table.is_counted:
                        connection.streams.count_stored(key, -portion.selected_bytes)
                if portion.is_over:
                    return keys[number:]
        return ()


async def claim(database: Database, query: str, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
    """Claim the sessions that a query finds for a node. If it finds none, nothing is written."""
    values = {"now_ms": now_ms, "node": node, "limit": limit}

    def job(connection: Connection) -> list[int]:
        connection.hold_node(node)
        keys = [key for (key,) in connection.rows(f"{query} for no key update skip locked", **values)]
        connection.execute(LEASE, node=node, until_ms=now_ms + lease_ms, keys=keys)
        return keys

    return await database.write(job) if await database.read(lambda connection: connection.rows(query, **values)) else []


def erase(rows: StreamRows, stream: Stream, now_ms: int) -> None:
    if stream.state == "erased":
        return
    key, connection = stream.key, rows.connection
    if stream.kind == USER_KIND and stream.config:
        unlink_other(rows, stream, UserUnlinked(link_id=stream.config["link_id"], reason="erased"), now_ms)
    rows.count_stored(key, -config_bytes(stream.config))
    mark_erased(stream, now_ms)
    rows.save_stream(stream)
    rows.save_overview(stream)
    connection.execute(FORGET_FIGURES, key=key)
    if stream.kind == USER_KIND:  # its id identifies a person, and the next user of this id is a new one
        rows.forget_name(stream)
        stream.kind, stream.id = ERASED_USER_KIND, str(key)
        connection.execute(RENAME_STREAM, kind=stream.kind, id=stream.id, key=key)
    connection.execute(MARK_ERASED, key=key, now_ms=now_ms)


ARCHIVE_RUNS = 500
ARCHIVE_BYTES = 1024 * 1024
"""Payload bytes in one archive: a page of a long journal can be read without unpacking all of it."""
SELECT_RUNS_AFTER = f"""
    select {RUN_COLUMNS} from journal j where j.stream = :stream and j.position > :after
    order by j.position limit {ARCHIVE_RUNS}
"""
SELECT_LAST_ARCHIVED = "select coalesce(max(last), 0) from archives where stream = :stream"
INSERT_ARCHIVE = insert("archives", ["stream", "position", "last", "seqs", "runs"])
COMPACTABLE = CLAIMABLE.format(is_due="compact_ms <= :now_ms", column="compact_ms")
LOCK_COMPACT_MS = "select compact_ms from retention where stream = :stream for no key update"
SELECT_ARCHIVED_ROWS = """
    select position, octet_length(payload) from journal where stream = :stream and position <= :last
    order by position limit :rows
"""
DELETE_ROWS = "delete from journal where stream = :stream and position in :positions"
MARK_COMPACTED = "update retention set compact_ms = null, node = null, leased_until_ms = 0 where stream = :stream"
DELETE_FINISHED_PLAN = """
    delete from retention where stream = :stream and compact_ms is null and expires_ms is null and erased_ms is null
"""


class Compaction(Port):
    """Moves the runs of ended journals into compressed archives, from which they are read (docs/storage.md).

    A journal is append-only, so its first part can be copied into an archive, and its rows deleted afterwards, a few at
    a time. Runs that are in both are equal, so a crash at any moment needs no repair.
    """

    async def claim_compactable(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        """Claim ended sessions that can no longer be reopened, and whose journals are not compacted."""
        return await claim(self.database, COMPACTABLE, node, now_ms, lease_ms, limit)

    async def compact(self, key: int) -> bool:
        """Do a part of compacting a journal; False when nothing is left to do. Reads and duplicates are not affected.

        A damaged journal is left as it is.
        """
        try:
            begun, runs = await self.database.read(lambda connection: next_runs(connection, key))
        except DamagedEntry:  # tried again and again, it would keep all others from being compacted
            await self.database.write(lambda connection: mark_compacted(connection, key))
            return False
        if runs:
            packed = await asyncio.to_thread(compress_runs, runs)
            return await self.database.write(lambda connection: add_archive(connection, key, begun, runs, packed))
        return await self.database.write(lambda connection: delete_archived(connection, key))


def last_archived(connection: Connection, key: int) -> int:
    return int(connection.one(SELECT_LAST_ARCHIVED, stream=key)[0])


def next_runs(connection: Connection, key: int) -> tuple[int, list[RunRow]]:
    """Return the position up to which a journal is archived, and the runs of its next archive."""
    begun = after = last_archived(connection, key)
    size = 0
    runs: list[RunRow] = []
    while size < ARCHIVE_BYTES and (rows := connection.rows(SELECT_RUNS_AFTER, stream=key, after=after)):
        for row in rows:
            runs.append(to_run(key, row))
            size += len(runs[-1].payload)
            if size >= ARCHIVE_BYTES:
                break
        after = runs[-1].last
    return begun, runs


def add_archive(connection: Connection, key: int, begun: int, runs: list[RunRow], packed: bytes) -> bool:
    """Add an archive; False when another worker did in between, or the session was erased or reopened."""
    planned = connection.row(LOCK_COMPACT_MS, stream=key)
    if planned is None or planned[0] is None or last_archived(connection, key) != begun:
        return False
    seqs: dict[str, tuple[int, int]] = {}  # the first and the last of each producer
    for run in runs:
        if run.producer is not None and run.seq is not None:
            first, _ = seqs.get(run.producer, (run.seq, 0))
            seqs[run.producer] = first, run.seq + run.events - 1
    place = {"position": runs[0].position, "last": runs[-1].last}
    connection.execute(INSERT_ARCHIVE, stream=key, **place, seqs=msgspec.json.encode(seqs), runs=packed)
    connection.streams.count_stored(key, len(packed))
    return True


def delete_archived(connection: Connection, key: int) -> bool:
    """Delete a portion of the archived rows; when none is left, record that and return False."""
    portion = Portion()
    connection.row(LOCK_COMPACT_MS, stream=key)
    last = last_archived(connection, key)
    rows = connection.rows(SELECT_ARCHIVED_ROWS, stream=key, last=last, rows=portion.rows)
    if positions := portion.select(rows):
        connection.execute(DELETE_ROWS, stream=key, positions=positions)
        connection.streams.count_stored(key, -portion.selected_bytes)
        return True
    mark_compacted(connection, key)
    return False


def mark_compacted(connection: Connection, key: int) -> None:
    connection.execute(MARK_COMPACTED, stream=key)
    connection.execute(DELETE_FINISHED_PLAN, stream=key)
