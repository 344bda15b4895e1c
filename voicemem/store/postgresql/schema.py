"""The schema: migrations, which databases are refused, partitions; and how a failover or a restored backup is noticed.

A promoted standby, and a server that was restored to a point in time, is on a timeline of its own; a server that was
made from a dump is another system. A copy of the disk is neither, so a process also compares with what it has seen
committed itself. Whether anything that was acknowledged may be missing decides whether the store goes on as it is.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from voicemem.errors import CannotStart
from voicemem.store.keys import first_key, month_after, month_of, month_start_ms
from voicemem.store.postgresql.connection import Server, Session, why
from voicemem.store.postgresql.rows import CachedVersions
from voicemem.store.stream_rows import POSITION
from voicemem.store.upkeep import Migration, migrations_of, not_ours

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


MARK = "voicemem 1"
"""The row `mark` of `meta`, which says that a schema is voicemem's; it is read before anything else."""
COMPATIBLE_FROM = 1
"""The oldest schema whose programs can use the newest one as well: since then, migrations have only added. So nodes of
both versions run side by side, and an operator may step back."""
SELECT_TABLES = """
    select relname from pg_class where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p', 'v')
"""
SELECT_META_COLUMNS = """
    select 1 from pg_attribute where attrelid = to_regclass('meta') and attname in ('name', 'value')
    having count(*) = 2
"""
INSERT_IDENTITY = "insert into meta values ($1, $2) on conflict do nothing"
LOCK_SCHEMA = "select pg_advisory_xact_lock(hashtext('voicemem schema'))"
WAIT_FOR_SCHEMA_MS, WAIT_FOR_TABLE_MS = 0, 3_000
"""For another that changes the schema without end, since that ends by itself; for the users of a table not so long that
calls notice, but for longer than the second after which PostgreSQL stops a vacuum that is in the way."""
SET_WAIT = "select set_config('lock_timeout', $1, true)"
SELECT_MISSING_RIGHT = """
    select c.relname, r.name from pg_class c, unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as r (name)
    where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    and not has_table_privilege(c.oid, r.name) order by 1, 2
"""
CREATED_TABLE = re.compile(r"create table (?:if not exists )?(\w+)")


def migrations() -> list[Migration]:
    """Every migration, in order."""
    return migrations_of("voicemem.store.postgresql")


def migrate(session: Session, upgrade: bool) -> tuple[int, dict[str, bytes]]:
    """Make the schema in an empty database, and check that of any other. Raises `CannotStart`.

    Returns the version before, 0 of an empty one, and the rows of `meta`.

    An older one is brought to this version only with `upgrade`, since nodes of the older program may run on it.
    """
    with one_at_a_time(session):
        return make_schema(session, upgrade), identity_of(session)


@contextmanager
def one_at_a_time(session: Session) -> Iterator[None]:
    """A transaction for which others wait: two nodes may start on an empty database at once."""
    session.execute("begin")
    try:
        limit_waits(session, WAIT_FOR_SCHEMA_MS)
        session.execute(LOCK_SCHEMA)
        limit_waits(session, WAIT_FOR_TABLE_MS)
        yield
    except BaseException:
        session.execute("rollback")
        raise
    session.execute("commit")


def limit_waits(session: Session, ms: int) -> None:
    """How long the statements of this transaction wait for a lock; 0 for as long as it takes."""
    session.execute(SET_WAIT, (str(ms),))


def make_schema(session: Session, upgrade: bool) -> int:
    """The version before."""
    steps = migrations()
    version, newest = check_version(session, upgrade), steps[-1].version
    for step in steps:
        if step.version > version:
            session.connection.execute(step.sql.encode(), prepare=False)
    if version < newest:
        session.execute(SAVE_META, ("mark", MARK.encode()))
        session.execute(SAVE_META, ("schema", str(newest).encode()))
        session.execute(SAVE_META, ("compatible_from", str(COMPATIBLE_FROM).encode()))
    for name in ("incarnation", "cursor_secret"):
        session.execute(INSERT_IDENTITY, (name, secrets.token_bytes(IDENTITY_BYTES)))
    return version


def check_version(session: Session, upgrade: bool = False, exactly: bool = False) -> int:
    """The version of a database, 0 of an empty one. Raises `CannotStart` for one that this program cannot use.

    With `exactly` that is also one of a newer program that lets this one use it.
    """
    tables = {name for (name,) in session.rows(SELECT_TABLES)}
    if tables and not has_mark(session, tables):
        raise CannotStart(not_ours("The database"))
    refuse_missing_rights(session)
    version, newest = schema_version(session) if tables else 0, migrations()[-1].version
    if version > newest and (exactly or oldest_program(session, version) > newest):
        raise CannotStart(
            f"The database has schema version {version}, newer than this program's version {newest};"
            " start a newer program."
        )
    if 0 < version < newest and not upgrade:
        raise CannotStart(f"The database has schema version {version}; bring it to {newest} with voicemem migrate.")
    return version


def has_mark(session: Session, tables: set[str]) -> bool:
    """Whether a schema with tables is one that this program made."""
    if "meta" not in tables or session.row(SELECT_META_COLUMNS) is None:
        return False
    if not session.one("select has_table_privilege('meta', 'select')")[0]:
        return True  # the right that is missing is what has to be said
    return session.row("select value from meta where name = 'mark'") == (MARK.encode(),)


def refuse_missing_rights(session: Session) -> None:
    """Raise `CannotStart` for a role that may not read or write a table: it would find out in the midst of a call."""
    ours = {name for step in migrations() for name in CREATED_TABLE.findall(step.sql)}
    missing = next((one for one in session.rows(SELECT_MISSING_RIGHT) if one[0] in ours), None)
    if missing is not None:
        raise CannotStart(
            f"The role lacks {missing[1]} on the table {missing[0]}; let it own the tables, or grant it SELECT, INSERT,"
            " UPDATE and DELETE on all of them."
        )


def schema_version(session: Session) -> int:
    row = session.row("select value from meta where name = 'schema'")
    if row is None:
        raise CannotStart(not_ours("The database"))
    return int(row[0])


def oldest_program(session: Session, version: int) -> int:
    """The schema that a program must know at least, to use this database; every program but its own where none says."""
    row = session.row("select value from meta where name = 'compatible_from'")
    return version if row is None else int(row[0])


MONTHS_AHEAD = 12
"""For how many months there are partitions."""
MONTHS_NEEDED = 2
"""For how many there must be some: with fewer, sessions could soon not be created any more."""
LOOK_AGAIN_S = 86_400.0
SELECT_PARTITIONS = """
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'journal'::regclass
"""
MAKE = "create table {} (like journal including defaults including constraints including storage)"
ATTACH = "alter table journal attach partition {} for values from ({}) to ({})"
"""Made so, a partition waits for no reader of the journal, such as a dump, and holds up no append."""


class Upkeep:
    """Makes partitions once a day, so that a process may run for years."""

    def __init__(self) -> None:
        self.due = time.monotonic() + LOOK_AGAIN_S

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.due

    def run(self, connect: Callable[[], Session], now_ms: int) -> None:
        """Make what is missing; what cannot be made is logged, and tried again the next day. Raises `psycopg.Error`."""
        self.due = time.monotonic() + LOOK_AGAIN_S
        session = connect()
        try:
            ensure_partitions(session, now_ms)
        except CannotStart as error:
            LOG.error("%s", error.detail)
        finally:
            session.close()


def ensure_partitions(session: Session, now_ms: int) -> None:
    """Make the partitions of this month and those that follow, unless the role may not, and there are enough.

    Raises `CannotStart` where there are not.
    """
    try:
        add_partitions(session, now_ms)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
        name, *_ = missing_partitions(session, now_ms)[0]
        told = f"The journal's partition {name} cannot be made: {why(error)}."
        if missing_partitions(session, now_ms, months=MONTHS_NEEDED):
            raise CannotStart(f"{told} voicemem migrate makes it, as the role that owns the tables.") from None
        LOG.warning("%s Run voicemem migrate as the role that owns the tables before that month.", told)


def add_partitions(session: Session, now_ms: int, since_ms: int | None = None, lowest: int = 0) -> None:
    """Make the partitions of this month and those that follow, and of those since a time.

    None of them takes keys below `lowest`.
    """
    if missing_partitions(session, now_ms, since_ms):
        with one_at_a_time(session):
            for name, first, last in missing_partitions(session, now_ms, since_ms):
                session.execute(MAKE.format(name))
                session.execute(ATTACH.format(name, max(first, lowest), last))


def missing_partitions(
    session: Session, now_ms: int, since_ms: int | None = None, months: int = MONTHS_AHEAD
) -> list[tuple[str, int, int]]:
    """Name, first key, and the key behind the last one of each partition that is still to be made."""
    known = {name for (name,) in session.rows(SELECT_PARTITIONS)}
    end = month_of(now_ms)
    for _ in range(months):
        end = month_after(*end)
    year, month = month_of(now_ms if since_ms is None else since_ms)
    missing = []
    while (year, month) < end:
        name, after = f"journal_{year}_{month:02}", month_after(year, month)
        if name not in known:
            missing.append((name, first_key(month_start_ms(year, month)), first_key(month_start_ms(*after))))
        year, month = after
    return missing
