"""Erasure and expiry: a mark makes a session unreadable at once, then its content is deleted a portion at a time.

PostgreSQL keeps deleted rows on its pages until vacuum lets them be used again, and longer in its log, its replicas and
its backups; docs/postgresql.md says what that means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicemem.store.postgresql.driver import Database
from voicemem.store.postgresql.rows import DELETE_LABELS, Rows
from voicemem.store.streams import ERASED_USER_KIND, USER_KIND, Stream, mark_erased
from voicemem.store.upkeep import Portion


class ContentTable(NamedTuple):
    """One table that holds content of a session ($1)."""

    rows: str
    """Selects at most $2 of its rows there: key, and size in bytes."""
    delete: str
    """Deletes those whose keys are given ($2)."""
    is_counted: bool = False
    """Whether its bytes are those that a project has stored."""


def of_stream(table: str, key: str, size: str, cast: str = "bigint", is_counted: bool = False) -> ContentTable:
    """A table with rows of sessions, which are told apart by a column."""
    own = "stream = $1"
    return ContentTable(
        f"select {key}, {size} from {table} where {own} order by {key} limit $2",
        f"delete from {table} where {own} and {key} = any($2::{cast}[])",
        is_counted,
    )


CONTENT_TABLES = (
    ContentTable(
        "select x.key, 0 from deliveries x where x.stream = $1"
        " and exists (select 1 from attempts a where a.delivery = x.key) limit $2",
        "delete from attempts where delivery = any($2::bigint[]) and $1 = $1",
    ),
    ContentTable(
        "select key, octet_length(header) + coalesce(octet_length(payload), 0) from deliveries"
        " where stream = $1 limit $2",
        "delete from deliveries where key = any($2::bigint[]) and stream = $1",
    ),
    of_stream("memories", "id", "octet_length(text) + octet_length(details)", "text"),
    ContentTable(
        "select by_id, sum(octet_length(old_id)) from superseded"
        " where stream = $1 group by by_id order by by_id limit $2",
        "delete from superseded where stream = $1 and by_id = any($2::text[])",
    ),
    of_stream("journal", "position", "octet_length(payload)", is_counted=True),
    of_stream("archives", "position", "octet_length(runs)", is_counted=True),
    of_stream("snapshots", "version", "octet_length(state)"),
    of_stream("overviews", "stream", "coalesce(octet_length(figures), 0)"),
    of_stream("extracted", "stream", "0"),
    of_stream("observations", "stream", "octet_length(call)"),
    of_stream("quarantined", "stream", "0"),
    ContentTable(
        "select turn, sum(octet_length(text) + octet_length(before)) from transcript_messages"
        " where stream = $1 group by turn order by turn limit $2",
        "delete from transcript_messages where stream = $1 and turn = any($2::bigint[])",
    ),
    of_stream("transcript_sessions", "stream", "0"),
    of_stream("secrets", "name", "octet_length(value)", "text"),
    of_stream("replies", "item", "octet_length(item)", "text"),
    ContentTable(
        "select key, octet_length(url) from endpoints where stream = $1 limit $2",
        "delete from endpoints where key = any($2::bigint[]) and stream = $1",
    ),
    of_stream("producers", "name", "octet_length(name)", "text"),
)
"""In the order of deletion: attempts are found by their deliveries, so they are deleted before these."""

IS_FREE = "(node is null or node = $2 or leased_until_ms <= $1)"
"""Whether this node ($2) may claim the row of a session now ($1)."""
SELECT_EXPIRED = f"""
    select stream from retention where expires_ms <= $1 and {IS_FREE} order by expires_ms limit $3
"""
SELECT_ERASED = f"""
    select stream from retention where erased_ms is not null and {IS_FREE} order by erased_ms limit $3
"""
CLAIM = """
    with found as ({query} for no key update skip locked)
    update retention r set node = $2, leased_until_ms = $4 from found
    where r.stream = found.stream
"""
SELECT_IS_EXPIRED = "select 1 from retention where stream = $1 and expires_ms <= $2"
FORGET_FIGURES = """
    update streams set interruptions = null, slowest_ms = null where key = $1
"""
RENAME_STREAM = "update streams set kind = $2, id = $3 where key = $1"
MARK_ERASED = """
    insert into retention (stream, erased_ms) values ($1, $2)
    on conflict (stream) do update set compact_ms = null, expires_ms = null, erased_ms = excluded.erased_ms,
    node = null, leased_until_ms = 0
"""
DELETE_PLANS = "delete from retention where stream = any($1::bigint[]) and erased_ms is not null"


class PostgresqlErasure:
    """Erasure and expiry; the methods are documented in `voicemem.store.port`."""

    database: Database

    async def erase(self, key: int, now_ms: int) -> None:
        def job(rows: Rows) -> None:
            stream = rows.stream(key)
            if stream is not None:
                erase(rows, stream, now_ms)

        await self.database.write(job)

    async def claim_expired(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        return await claim(self.database, SELECT_EXPIRED, node, now_ms, lease_ms, limit)

    async def expire(self, key: int, now_ms: int) -> bool:
        def job(rows: Rows) -> bool:
            stream = rows.stream(key)
            if stream is None or rows.session.row(SELECT_IS_EXPIRED, (key, now_ms)) is None:
                return False
            erase(rows, stream, now_ms)
            return True

        return await self.database.write(job)

    async def claim_erased(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        return await claim(self.database, SELECT_ERASED, node, now_ms, lease_ms, limit)

    async def delete_erased(self, keys: Sequence[int]) -> bool:
        def job(rows: Rows) -> bool:
            if delete_portion(rows, keys):
                return True
            rows.session.execute(DELETE_PLANS, (list(keys),))
            return False

        return await self.database.write(job)

    async def finish_erased(self) -> bool:
        return True


async def claim(database: Database, query: str, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
    """Claim sessions that a query finds for a node. Where it finds none, nothing is written."""
    values = (now_ms, node, limit)
    statement = CLAIM.format(query=query) + " returning r.stream"

    def job(rows: Rows) -> list[int]:
        rows.hold_node(node)
        claimed = {key for (key,) in rows.session.rows(statement, (*values, now_ms + lease_ms))}
        return [key for key in found if key in claimed] + sorted(claimed.difference(found))

    found = [key for (key,) in await database.read(lambda session: session.rows(query, values))]
    return await database.write(job) if found else []


def erase(rows: Rows, stream: Stream, now_ms: int) -> None:
    """Make a session unreadable."""
    if stream.state == "erased":
        return
    mark_erased(stream, now_ms)
    rows.save_stream(stream)
    rows.session.execute(FORGET_FIGURES, (stream.key,))
    rows.session.execute(DELETE_LABELS, (stream.key,))
    if stream.kind == USER_KIND:
        drop_name(rows, stream)
    rows.session.execute(MARK_ERASED, (stream.key, now_ms))


def drop_name(rows: Rows, stream: Stream) -> None:
    """Remove a user's id from its row: it identifies a person, and the next user of this id is a new one."""
    stream.kind, stream.id = ERASED_USER_KIND, str(stream.key)
    rows.session.execute(RENAME_STREAM, (stream.key, stream.kind, stream.id))


def delete_portion(rows: Rows, keys: Sequence[int]) -> bool:
    """Delete a portion of the content of erased sessions; False when none is left."""
    portion, session = Portion(), rows.session
    for key in keys:
        for content in CONTENT_TABLES:
            if row_keys := portion.select(session.rows(content.rows, (key, portion.rows))):
                session.execute(content.delete, (key, row_keys))
                if content.is_counted:
                    rows.stored[key] -= portion.selected_bytes
            if portion.is_full:
                return True
    return portion.has_begun
