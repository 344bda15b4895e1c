"""The schema of a database: older ones are migrated, newer ones are refused."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tests.support.stores.sqlite import begin, offer, opened_session, send, set_version, stored_seqs
from voicemem.errors import CannotStart
from voicemem.store.sqlite import files as schema
from voicemem.store.sqlite.files import APPLICATION_ID, migrations, newest_version
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.upkeep import Migration


async def test_a_newer_schema_is_refused(path: str) -> None:
    """A database that a newer program has written is refused."""
    async with opened_session(path):
        pass
    set_version(path, +1)

    with pytest.raises(CannotStart, match=r"schema version \d+, newer than this program's version \d+\."):
        SqliteStore(path)


@pytest.fixture
def newer_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this program a newer one, whose schema has two more versions."""
    steps = [
        *migrations(),
        Migration(newest_version() + 1, "create table added (name text) strict"),
        Migration(newest_version() + 2, "alter table added add column more text; insert into added values ('a', 'b')"),
    ]
    return lambda: monkeypatch.setattr(schema, "migrations", lambda: steps)


async def test_an_older_schema_is_migrated(path: str, newer_program: Callable[[], None]) -> None:
    """What the file holds stays, and each migration is made once, in order."""
    version = newest_version()
    async with opened_session(path) as store:
        await send(store, await begin(store), offer(1))
    newer_program()
    for _ in range(2):
        async with opened_session(path) as store:
            writer = store.database.writer
            assert version + 2 == writer.pragma("user_version")
            assert [("a", "b")] == writer.execute("select name, more from added").fetchall()
            assert [1] == await stored_seqs(store, 1)


def test_an_unmarked_file_is_refused_and_stays_as_it_was(path: str) -> None:
    """A file of another program, or of a version before the first release, even where that left a log beside it."""
    connection = apsw.Connection(path)
    connection.execute("pragma journal_mode = wal; create table meta (name text); create table streams (key integer)")
    connection.execute("create table journal (stream integer); pragma user_version = 18")
    before = {file.name: file.read_bytes() for file in Path(path).parent.iterdir()}
    for exclusive in (True, False):
        with pytest.raises(CannotStart, match="not a store that this version of voicemem made"):
            SqliteStore(path, exclusive)
    assert before == {file.name: file.read_bytes() for file in Path(path).parent.iterdir()}
    connection.close()


def test_the_mark_is_in_the_file_before_the_log(path: str) -> None:
    """So a store whose first start was cut short is known for what it is."""
    store = SqliteStore(path)
    assert APPLICATION_ID.to_bytes(4, "big") == Path(path).read_bytes()[68:72]
    store.database.close()
