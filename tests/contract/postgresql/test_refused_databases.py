"""What a store refuses when it is opened, in a sentence that an operator understands."""

from __future__ import annotations

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from voicemem.errors import CannotStart  # noqa: E402
from voicemem.store.postgresql import schema  # noqa: E402
from voicemem.store.postgresql.connection import connect  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402
from voicemem.store.upkeep import Migration, migrations_of  # noqa: E402

pytestmark = pytest.mark.postgresql


def refusal(url: str) -> str:
    """Why a store is not opened."""
    with pytest.raises(CannotStart) as refused:
        PostgresqlStore(url)
    return refused.value.detail


@pytest.mark.parametrize("setting", ["off", "local", "remote_write"])
def test_commits_that_are_not_durable_are_refused(database: str, setting: str) -> None:
    """An ack would prove nothing."""
    assert "synchronous_commit" in refusal(
        postgresql.server().url(database, options=f"-csynchronous_commit%3D{setting}")
    )


def test_a_database_of_another_program_is_refused(database: str) -> None:
    """Nothing is written into it."""
    url = postgresql.server().url(database)
    with_tables = "create schema theirs authorization voicemem; create table theirs.orders (key integer)"
    postgresql.server().execute(with_tables, database)
    assert "another program" in refusal(f"{url}&options=-csearch_path%3Dtheirs")
    unmarked = "create table theirs.meta (name text, value bytea); insert into theirs.meta values ('schema', '11')"
    postgresql.server().execute(f"{unmarked}; alter table theirs.meta owner to voicemem", database)
    assert "before the first release" in refusal(f"{url}&options=-csearch_path%3Dtheirs")
    postgresql.server().execute("drop schema theirs cascade", database)


def test_other_schemas_are_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer one is of a newer program, unless that says that it has only added; an older one waits for a command."""
    steps = migrations_of("voicemem.store.postgresql")
    server, newest = postgresql.server(), steps[-1].version

    def set_schema(version: int, compatible_from: int) -> None:
        for name, value in (("schema", version), ("compatible_from", compatible_from)):
            server.execute(f"delete from meta where name = '{name}'", database)
            server.execute(f"insert into meta values ('{name}', '{value}')", database)

    set_schema(999, 998)
    assert "newer than this program's" in refusal(server.url(database))
    server.execute("delete from meta where name = 'compatible_from'", database)
    assert "newer than this program's" in refusal(server.url(database))
    set_schema(newest, 1)
    with monkeypatch.context() as newer:
        newer.setattr(
            schema, "migrations_of", lambda engine: [*steps, Migration(newest + 1, "create table added (name text)")]
        )
        assert "voicemem migrate" in refusal(server.url(database))
    for usable in (999, newest):
        set_schema(usable, newest)
        PostgresqlStore(server.url(database)).database.close()


def test_what_may_only_be_read_is_refused(database: str) -> None:
    """A standby, or a role that may only read."""
    url = postgresql.server().url(database, options="-cdefault_transaction_read_only%3Don")
    assert "read-only" in refusal(url)


def test_what_cannot_be_reached_is_refused(database: str) -> None:
    """With the sentence of the library that tried."""
    assert refusal("postgresql:///voicemem?host=/nowhere&user=voicemem").startswith("PostgreSQL cannot be used: ")
    assert "does not exist" in refusal(postgresql.server().url("nothing"))


def test_a_pooler_is_named_in_the_url(database: str) -> None:
    """Then no statement is prepared."""
    url = postgresql.server().url(database)
    for pooled in (f"{url}&pooled=1", url.replace("?", "?pooled=1&")):
        session = connect(pooled)
        assert session.raw.prepare_threshold is None
        session.close()
