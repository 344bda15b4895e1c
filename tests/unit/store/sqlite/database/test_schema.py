"""The schema of a database: older ones are migrated, newer ones are refused."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import apsw
import msgspec
import pytest

from tests.support.stores.sqlite import NOW, begin, offer, opened_session, send, set_version, stored_seqs
from voicemem.errors import CannotStart
from voicemem.store.records import SessionFilter
from voicemem.store.sqlite import SqliteStore
from voicemem.store.sqlite.database import schema
from voicemem.store.sqlite.database.files import lock_file
from voicemem.store.sqlite.database.schema import migrations, newest_version
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


ADD_SESSION = """
    insert into streams (project, kind, id, state, position, started_ms, config, name)
    values ('p', 'session', ?1, 'running', 0, ?2, ?3, json_extract(?4, '$.name'))
"""
ADD_OVERVIEWS = """
    insert into overviews (stream, user_id) select key, json_extract(cast(config as text), '$.user_id') from streams
"""
EARLIER_SESSIONS = f"""
    insert into streams (key, project, kind, id, state, position, started_ms, ended_ms, reason, config)
    values (1, 'p', 'session', 'a', 'running', 0, {NOW}, null, null, x'7b7d'),
        (2, 'p', 'session', 'b', 'ended', 0, {NOW}, {NOW}, 'over', x'7b7d');
    insert into producers (stream, name, epoch, next_seq, unsequenced, ended) values (1, 'main', 1, 2, 0, 0);
    insert into journal (stream, position, producer, seq, received_ms, payload, waypoint)
    values (1, 1, 'main', 1, {NOW}, cast('{{"type":"metric","seq":1,"name":"x"}}' as blob), 1);
    insert into snapshots (stream, position, version, state) values (1, 1, 9, x'00');
"""
"""What a program of any earlier version had in its file."""


@pytest.mark.parametrize("version", [step.version for step in migrations()[:-1]])
async def test_a_database_of_every_earlier_version_is_migrated(
    path: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a program of that version made is read as before, lists included, and has the newest schema."""
    with monkeypatch.context() as earlier:
        steps = [step for step in migrations() if step.version <= version]
        earlier.setattr(schema, "migrations", lambda: steps)
        async with opened_session(path) as store:
            await store.database.write(lambda connection: connection.execute(EARLIER_SESSIONS).fetchall())
    async with opened_session(path) as store:
        assert newest_version() == store.database.writer.pragma("user_version")
        assert [1] == await stored_seqs(store, 1)
        for state, found in (("running", ["a"]), ("ended", ["b"])):
            listed = await store.list_sessions(SessionFilter(project="p", state=state))
            assert found == [stream.id for stream in listed]


async def test_a_database_of_the_earlier_numbering_is_migrated(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose seven first steps are step 1 of today is read as before, not taken for one of today's version 7."""
    with monkeypatch.context() as earlier:
        steps = migrations()[:1]
        earlier.setattr(schema, "migrations", lambda: steps)
        async with opened_session(path) as store:
            await store.database.write(lambda connection: connection.execute(EARLIER_SESSIONS).fetchall())
    set_version(path, +6)
    async with opened_session(path) as store:
        assert newest_version() == store.database.writer.pragma("user_version")
        assert [1] == await stored_seqs(store, 1)


def test_a_database_from_the_middle_of_the_earlier_numbering_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell what such a file lacks; the program says so and changes nothing."""
    with monkeypatch.context() as earlier:
        steps = migrations()[:1]
        earlier.setattr(schema, "migrations", lambda: steps)
        SqliteStore(path).database.close()
    set_version(path, +3)
    for _ in range(2):
        with pytest.raises(CannotStart, match="early version 4, which this program cannot read"):
            SqliteStore(path)


async def test_slim_rows_of_earlier_sessions_are_filled(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They repeat, in their bounds, what the configurations say; one that is damaged does not stop the start."""
    configs: list[Any] = [
        {"name": "n" * 200, "user_id": "ann", "labels": {"a": "1"}},
        {"labels": {"a": "x" * 3000}},
        {},
        b"\xff damaged",
    ]
    with monkeypatch.context() as earlier:
        steps = migrations()[:4]
        earlier.setattr(schema, "migrations", lambda: steps)
        async with opened_session(path) as store:
            for number, config in enumerate(configs):
                value = config if isinstance(config, bytes) else msgspec.json.encode(config)
                await store.database.write(partial(add_session, session_id=f"s{number}", config=value))
    async with opened_session(path) as store:
        rows, _ = await store.list_overviews(SessionFilter(project="p"))
        shown = {row.session_id: (row.name, row.user_id, row.labels) for row in rows}
        nothing = (None, None, None)
        assert {"s0": ("n" * 160, "ann", '{"a":"1"}'), "s1": nothing, "s2": nothing, "s3": nothing} == shown


def add_session(connection: apsw.Connection, session_id: str, config: bytes) -> None:
    readable = config if b"damaged" not in config else b"{}"
    connection.execute(ADD_SESSION, (session_id, NOW, config, readable))


def test_a_schema_is_not_changed_under_an_older_server(path: str, newer_program: Callable[[], None]) -> None:
    """A command that opens an older file while its server runs is refused; without a server the file is migrated."""
    version = newest_version()
    SqliteStore(path).database.close()
    newer_program()
    lock = lock_file(path)
    try:
        with pytest.raises(CannotStart, match="older version"):
            SqliteStore(path, exclusive=False)
    finally:
        os.close(lock)
    store = SqliteStore(path, exclusive=False)
    try:
        assert version + 2 == store.database.writer.pragma("user_version")
        os.close(lock_file(path))
    finally:
        store.database.close()


async def test_the_users_of_earlier_sessions_are_found(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a version without an index by user is searched like a new one, and an erased session leaves no user."""
    with monkeypatch.context() as earlier:
        steps = migrations()[:7]
        earlier.setattr(schema, "migrations", lambda: steps)
        async with opened_session(path) as store:
            for name, config in (("a", b'{"user_id":"ann"}'), ("b", b'{"user_id":"bob"}')):
                await store.database.write(partial(add_session, session_id=name, config=config))
            await store.database.write(lambda connection: connection.execute(ADD_OVERVIEWS).fetchall())
    async with opened_session(path) as store:
        await begin(store, "c", {"user_id": "ann"})
        found = await store.list_sessions(SessionFilter(project="p", user_id="ann"))
        assert ["c", "a"] == [stream.id for stream in found]
        for stream in found:
            await store.erase(stream.key, NOW)
        users = store.database.writer.execute("select user_id from streams order by key").fetchall()
        assert [(None,), ("bob",), (None,)] == users
