"""What a run needs: PostgreSQL servers of its own, an empty database, and nodes on it."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from bench.harness.postgresql import Cluster
from bench.harness.report import disk_folder
from bench.harness.servers import Server, command, listening, started, stop
from voicemem.config.service import SQLITE_PREFIX

SETTINGS = {"shared_buffers": "128MB", "max_wal_size": "1GB"}
"""PostgreSQL's own defaults."""
HELD = "begin isolation level repeatable read; select count(*) from pg_class"
numbers = itertools.count(1)


class Database:
    """A PostgreSQL server, with a synchronous standby if that is wanted."""

    def __init__(self, with_standby: bool = False) -> None:
        self.primary = Cluster(SETTINGS)
        self.clusters = [self.primary]
        if with_standby:
            self.clusters.append(Cluster(standby_of=self.primary))
            self.primary.execute("alter system set synchronous_standby_names = '*'")
            self.primary.execute("select pg_reload_conf()")

    @property
    def pids(self) -> list[int]:
        """The first process of each server."""
        return [int((Path(one.data) / "postmaster.pid").read_text().split()[0]) for one in self.clusters]

    def empty(self) -> str:
        """The URL of an empty database; what was written before is on disk."""
        name = f"bench_{next(numbers)}"
        self.primary.execute(f"create database {name}")
        self.primary.execute("checkpoint")
        return self.primary.url(name)

    def remove(self) -> None:
        for one in reversed(self.clusters):
            one.remove()


@contextlib.contextmanager
def database(with_standby: bool = False) -> Iterator[Database]:
    """Servers for the time of the block."""
    made = Database(with_standby)
    try:
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def sqlite_store() -> Iterator[str]:
    """The setting of a store on a new file."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        yield f"{SQLITE_PREFIX}{folder}/bench.db"


@contextlib.contextmanager
def nodes(store: str, number: int) -> Iterator[list[Server]]:
    """So many nodes on a store. Raises `RuntimeError` if one does not end well that was not killed."""
    with contextlib.ExitStack() as stack:
        module, *arguments = command("voicemem", store)
        processes = [stack.enter_context(started(module, *arguments)) for _ in range(number)]
        servers = [listening(process, with_rest=True) for process in processes]
        yield servers
        for process in processes:
            if process.poll() is None and stop(process).code != 0:
                raise RuntimeError("A node did not end well.")


@contextlib.contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """A transaction that keeps what it sees, as a dump of the database does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(HELD)
        yield
