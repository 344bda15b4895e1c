"""Failover: how another server, or a restored backup, is noticed, and when the store gets another incarnation.

A promoted standby, and a server that was restored to a point in time, is on a timeline of its own. A server that was
made from a dump is another system. A copy of the disk is neither, so a process also compares with what it has seen
committed itself. Where an acknowledged event may be missing, the store becomes another incarnation.
"""

import logging
import secrets

from voicemem.store.database import SAVE_META, SELECT_META
from voicemem.store.postgresql.connection import PostgresqlConnection, Server
from voicemem.store.postgresql.rows import CachedVersions
from voicemem.store.stream_changes import POSITION

LOG = logging.getLogger("voicemem.nodes")
IDENTITY_BYTES = 16
DISPLACED = "Another server has taken over, or a backup was restored: this node reads the store again."
OLD_PRIMARY = (
    "PostgreSQL has another primary already, and this is the old one; after a backup of it was restored, restart all"
    " nodes."
)
COMPARED_VERSIONS = 1_000
"""The most versions that are compared at each new connection."""
LOCK_META = "select 1 from meta where name = 'schema' for update"
"""Held by a transaction that changes the identity of the store, or begins to work on it."""
SELECT_VALUE = "select value from meta where name = :name"
COUNT_MISSING = f"""
    select count(*) from unnest(:keys::bigint[], :positions::bigint[]) as seen (key, position)
    left join streams s on s.key = seen.key
    where s.key is null or (s.state != 'erased' and {POSITION} < seen.position)
"""
"""The number of journals that are shorter than this process has seen them after a commit."""


def identity_of(connection: PostgresqlConnection) -> dict[str, bytes]:
    return dict(connection.rows(SELECT_META))


def misses_any(connection: PostgresqlConnection, cached_versions: CachedVersions, at_most: int | None = None) -> bool:
    """Return whether any of the newest `at_most` journals is shorter than this process has seen it."""
    seen = cached_versions.newest_positions(at_most)
    for first in range(0, len(seen), COMPARED_VERSIONS):
        keys, positions = zip(*seen[first : first + COMPARED_VERSIONS], strict=True)
        if connection.one(COUNT_MISSING, keys=list(keys), positions=list(positions)) != (0,):
            return True
    return False


def adopt(connection: PostgresqlConnection, trusted: bool, is_missing: bool) -> bool:
    """Record which server has the store, in a transaction that holds `LOCK_META`; return whether the store is the same.

    It is the same if nothing is missing that this process has seen committed, and either the server and its timeline
    are the same, or only synchronous standbys are promoted, which the operator promises (`trusted`).
    If not, it gets a new incarnation, and the caller frees what all nodes held.
    """
    row = connection.row(SELECT_VALUE, name="server")
    server, before = connection.server, None if row is None else Server.parse(row[0])
    is_same = server is None or before is None or server == before
    is_promoted = server is not None and before is not None and server.is_after(before)
    is_kept = not is_missing and (is_same or (trusted and is_promoted))
    if not is_kept:
        LOG.error(
            "The store is not what it was: %s. It gets a new incarnation, and producers are notified",
            "events that were acknowledged are missing" if is_missing else "another server or timeline has it",
        )
        renew_incarnation(connection)
    elif server not in (None, before) and before is not None:
        LOG.warning("The store has failed over, and continues")
    if server is not None:
        connection.execute(SAVE_META, name="server", value=server.text.encode())
    return is_kept


def renew_incarnation(connection: PostgresqlConnection) -> None:
    connection.execute(SAVE_META, name="incarnation", value=secrets.token_bytes(IDENTITY_BYTES))
