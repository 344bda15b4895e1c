"""The schema: migrations, which databases are refused, and partitions."""

import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg

from voicemem.errors import CannotStart
from voicemem.store.database import SAVE_META, first_key
from voicemem.store.postgresql.connection import PostgresqlConnection, why
from voicemem.store.postgresql.failover import IDENTITY_BYTES, SELECT_VALUE, identity_of
from voicemem.store.upkeep import migrations_of, not_ours

LOG = logging.getLogger("voicemem.nodes")
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
INSERT_IDENTITY = "insert into meta values (:name, :value) on conflict do nothing"
LOCK_SCHEMA = "select pg_advisory_xact_lock(hashtext('voicemem schema'))"
WAIT_FOR_SCHEMA_MS, WAIT_FOR_TABLE_MS = "0", "3000"
"""How long statements wait for a lock: without limit for another migration, which ends by itself; for users of a table
so briefly that calls do not notice, but longer than the second after which PostgreSQL stops a vacuum in the way."""
SET_WAIT = "select set_config('lock_timeout', :ms, true)"
SELECT_MISSING_RIGHT = """
    select c.relname, r.name from pg_class c, unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as r (name)
    where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    and not has_table_privilege(c.oid, r.name) order by 1, 2
"""
CREATED_TABLE = re.compile(r"create table (?:if not exists )?(\w+)")


def migrate(connection: PostgresqlConnection, upgrade: bool) -> tuple[int, dict[str, bytes]]:
    """Create the schema in an empty database, or check it; return its version before, and the rows of `meta`.

    An older one is changed only with `upgrade`, since nodes of the older program may run on it. Raises `CannotStart`.
    """
    with one_at_a_time(connection):
        steps = migrations_of(__package__)
        version, newest = check_version(connection, upgrade), steps[-1].version
        for step in steps:
            if step.version > version:
                connection.raw.execute(step.sql.encode(), prepare=False)
        if version < newest:
            values = {"mark": MARK, "schema": str(newest), "compatible_from": str(COMPATIBLE_FROM)}
            for name, value in values.items():
                connection.execute(SAVE_META, name=name, value=value.encode())
        for name in ("incarnation", "cursor_secret"):
            connection.execute(INSERT_IDENTITY, name=name, value=secrets.token_bytes(IDENTITY_BYTES))
        return version, identity_of(connection)


@contextmanager
def one_at_a_time(connection: PostgresqlConnection) -> Iterator[None]:
    """A transaction that others wait for: two nodes may start on an empty database at once."""
    with connection.transaction():
        connection.execute(SET_WAIT, ms=WAIT_FOR_SCHEMA_MS)
        connection.execute(LOCK_SCHEMA)
        connection.execute(SET_WAIT, ms=WAIT_FOR_TABLE_MS)
        yield


def check_version(connection: PostgresqlConnection, upgrade: bool = False, exactly: bool = False) -> int:
    """Return the version of a database, 0 of an empty one. Raises `CannotStart` for one that this program cannot use.

    With `exactly` it also refuses a newer version that this program could use.
    """
    tables = {name for (name,) in connection.rows(SELECT_TABLES)}
    if tables and not has_mark(connection, tables):
        raise CannotStart(not_ours("The database"))
    refuse_missing_rights(connection)
    version, newest = 0, migrations_of(__package__)[-1].version
    if tables:
        values = identity_of(connection)
        if "schema" not in values:
            raise CannotStart(not_ours("The database"))
        version = int(values["schema"])
        oldest = int(values.get("compatible_from", version))  # the oldest schema whose programs can use it
    if version > newest and (exactly or oldest > newest):
        raise CannotStart(
            f"The database has schema version {version}, newer than this program's version {newest};"
            " start a newer program."
        )
    if 0 < version < newest and not upgrade:
        raise CannotStart(f"The database has schema version {version}; bring it to {newest} with voicemem migrate.")
    return version


def has_mark(connection: PostgresqlConnection, tables: set[str]) -> bool:
    if "meta" not in tables or connection.row(SELECT_META_COLUMNS) is None:
        return False
    if not connection.one("select has_table_privilege('meta', 'select')")[0]:
        return True  # the missing right is what has to be reported
    return connection.row(SELECT_VALUE, name="mark") == (MARK.encode(),)


def refuse_missing_rights(connection: PostgresqlConnection) -> None:
    """Raise `CannotStart` for a role that may not read or write a table, before a call depends on it."""
    ours = {name for step in migrations_of(__package__) for name in CREATED_TABLE.findall(step.sql)}
    missing = next((one for one in connection.rows(SELECT_MISSING_RIGHT) if one[0] in ours), None)
    if missing is not None:
        raise CannotStart(
            f"The role lacks {missing[1]} on the table {missing[0]}; let it own the tables, or grant it SELECT, INSERT,"
            " UPDATE and DELETE on all of them."
        )


MONTHS_AHEAD = 12
MONTHS_NEEDED = 2
"""With partitions for fewer months, new sessions could soon no longer be created."""
SELECT_PARTITIONS = """
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'journal'::regclass
"""
MAKE = "create table {} (like journal including defaults including constraints including storage)"
ATTACH = "alter table journal attach partition {} for values from ({}) to ({})"
"""A partition is made, then attached: it waits for no reader of the journal, such as a dump, and blocks no append."""


def ensure_partitions(connection: PostgresqlConnection, now_ms: int) -> None:
    """Make the partitions of this month and of those that follow. Raises `CannotStart` if too few can be made."""
    try:
        add_partitions(connection, now_ms)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
        name, *_ = missing_partitions(connection, now_ms)[0]
        problem = f"The journal's partition {name} cannot be made: {why(error)}."
        if missing_partitions(connection, now_ms, months=MONTHS_NEEDED):
            raise CannotStart(f"{problem} voicemem migrate makes it, as the role that owns the tables.") from None
        LOG.warning("%s Run voicemem migrate as the role that owns the tables before that month.", problem)


def add_partitions(connection: PostgresqlConnection, now_ms: int, since_ms: int | None = None, lowest: int = 0) -> None:
    """Make the partitions from this month on, or from `since_ms`; none of them takes keys below `lowest`."""
    if missing_partitions(connection, now_ms, since_ms):
        with one_at_a_time(connection):
            for name, first, last in missing_partitions(connection, now_ms, since_ms):
                connection.execute(MAKE.format(name))
                connection.execute(ATTACH.format(name, max(first, lowest), last))


def missing_partitions(
    connection: PostgresqlConnection, now_ms: int, since_ms: int | None = None, months: int = MONTHS_AHEAD
) -> list[tuple[str, int, int]]:
    """Return name, first key, and the key after the last one of each missing partition."""
    known = {name for (name,) in connection.rows(SELECT_PARTITIONS)}
    missing = []
    for month in range(month_of(now_ms if since_ms is None else since_ms), month_of(now_ms) + months):
        name = f"journal_{month // 12}_{month % 12 + 1:02}"
        if name not in known:
            missing.append((name, first_key_of(month), first_key_of(month + 1)))
    return missing


def month_of(ms: int) -> int:
    """Return the month of a time in Unix ms, as a number that counts up."""
    time = datetime.fromtimestamp(ms / 1000, UTC)
    return 12 * time.year + time.month - 1


def first_key_of(month: int) -> int:
    return first_key(int(datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp() * 1000))
