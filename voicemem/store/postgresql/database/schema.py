"""The schema: numbered migrations, and which databases are refused."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from voicemem.errors import CannotStart
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.lineage import IDENTITY_BYTES, SAVE_META, identity_of
from voicemem.store.upkeep import Migration, migrations_of, not_ours

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
