"""Which server answers, and what of a store it has: how a failover or a restored backup is noticed.

A promoted standby, and a server that was restored to a point in time, is on a timeline of its own; a server that was
made from a dump is another system. A copy of the disk is neither, so a process also compares with what it has seen
committed itself. Whether anything that was acknowledged may be missing decides whether the store goes on as it is.
"""

from __future__ import annotations

import logging
import secrets
from typing import NamedTuple

from voicemem.store.postgresql.database.connection import Server, Session
from voicemem.store.postgresql.journal.cached_versions import CachedVersions
from voicemem.store.stream_rows import POSITION

LOG = logging.getLogger("voicemem.nodes")
IDENTITY_BYTES = 16
DISPLACED = "Another server has taken over, or a backup was restored: this node reads the store again."
OLD_PRIMARY = (
    "PostgreSQL has another primary already, and this is the old one; after a backup of it was restored, restart all"
    " nodes."
)
COMPARED_VERSIONS = 1_000
"""At each new connection, at most."""
LOCK_META = "select 1 from meta where name = 'schema' for update"
"""Held by whoever changes what a store is, or begins to work on it."""
SELECT_META = "select name, value from meta"
SAVE_META = "insert into meta values ($1, $2) on conflict (name) do update set value = excluded.value"
COUNT_MISSING = f"""
    select count(*) from unnest($1::bigint[], $2::bigint[]) as seen (key, position)
    left join streams s on s.key = seen.key
    where s.key is null or (s.state != 'erased' and {POSITION} < seen.position)
"""
"""How many journals are shorter than this process has seen them after a commit."""


class Lineage(NamedTuple):
    """What is to be decided when a node begins to work with a server."""

    server: Server | None
    """The server that answers, as far as it says."""
    trusted: bool
    """Whether the operator promises that only synchronous standbys are promoted."""
    is_missing: bool
    """Whether anything is missing that this process has seen committed."""

    def goes_on(self, before: Server | None) -> bool:
        """Whether the store is what it was on the server before: nothing that was acknowledged is missing."""
        if self.is_missing:
            return False
        if self.server is None or before is None or self.server == before:
            return True
        return self.trusted and self.server.is_after(before)


def identity_of(session: Session) -> dict[str, bytes]:
    """What the store says of itself."""
    return dict(session.rows(SELECT_META))


def misses_any(session: Session, cached_versions: CachedVersions, at_most: int | None = None) -> bool:
    """Whether journals are shorter than this process has seen them; the newest `at_most` of them."""
    seen = cached_versions.newest_positions(at_most)
    for first in range(0, len(seen), COMPARED_VERSIONS):
        keys, positions = zip(*seen[first : first + COMPARED_VERSIONS], strict=True)
        if session.one(COUNT_MISSING, (list(keys), list(positions))) != (0,):
            return True
    return False


def adopt(session: Session, lineage: Lineage) -> bool:
    """Note in a transaction, which holds `LOCK_META`, which server has the store; whether it is still the same store.

    If not, it gets a new incarnation, and the caller frees what all nodes held.
    """
    row = session.row("select value from meta where name = 'server'")
    before = None if row is None else Server.parse(row[0])
    goes_on = lineage.goes_on(before)
    if not goes_on:
        LOG.error(
            "The store is not what it was: %s. It gets a new incarnation, and producers are told",
            "events that were acknowledged are missing" if lineage.is_missing else "another server or timeline has it",
        )
        renew_incarnation(session)
    elif lineage.server not in (None, before) and before is not None:
        LOG.warning("The store has failed over, and goes on")
    note_server(session, lineage.server)
    return goes_on


def note_server(session: Session, server: Server | None) -> None:
    if server is not None:
        session.execute(SAVE_META, ("server", server.text.encode()))


def renew_incarnation(session: Session) -> None:
    session.execute(SAVE_META, ("incarnation", secrets.token_bytes(IDENTITY_BYTES)))
