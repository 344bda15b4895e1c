"""The rows of the database under a run of several nodes, and what must hold for them at any moment, or at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import psycopg

from bench.crash.history import History

HELD_BY_NODES = ("producers", "exports", "claims", "replies", "retention", "lanes")
"""Tables that say which node holds a row."""
SELECT_ORPHANS = " union all ".join(
    f"select '{table}', node, count(*) from {table} where node is not null"
    " and node not in (select token from nodes) group by 2"
    for table in HELD_BY_NODES
)
"""Whoever retires a node frees all that it holds in the same transaction, and nothing may be written for it later."""
SELECT_BROKEN_JOURNALS = """
    select convert_from(s.id, 'utf8'), j.position, j.expected from (
        select stream, position,
        lag(position + count, 1, 1) over (partition by bucket, stream order by position) as expected from journal
    ) j join streams s on s.key = j.stream
    where j.position != j.expected and not exists (select 1 from archives a where a.stream = j.stream)
"""
SELECT_BROKEN_STREAMS = """
    select convert_from(s.id, 'utf8'), s.position, (
        select max(j.position + j.count - 1) from journal j where j.bucket = s.bucket and j.stream = s.key
    ) as stored from streams s where s.state = 'ended' and s.position != (
        select max(j.position + j.count - 1) from journal j where j.bucket = s.bucket and j.stream = s.key
    )
"""
SELECT_LEFT_OVER = """
    select 'nodes', count(*) from nodes union all
    select 'producers of running sessions', count(*) from producers p
    join streams s on s.bucket = p.bucket and s.key = p.stream where p.node is not null and s.state = 'running'
"""
END_BACKENDS = """
    select count(pg_terminate_backend(pid)) from pg_stat_activity
    where application_name = 'voicemem' and datname = current_database() and random() < 0.6
"""
LOOK_S = 0.2


class Database:
    """The database as an administrator sees it, past all proxies."""

    def __init__(self, url: str, history: History) -> None:
        self.url = url
        self.history = history
        self.looks = 0
        self.orphans: set[tuple[object, ...]] = set()

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement; its rows. Raises `psycopg.Error`."""
        with psycopg.connect(self.url, autocommit=True, application_name="crash") as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    async def watch(self) -> None:
        """Look again and again for rows that are held by nodes that are gone."""
        while True:
            with suppress(psycopg.OperationalError):  # it was killed
                for orphan in set(await asyncio.to_thread(self.execute, SELECT_ORPHANS)) - self.orphans:
                    self.orphans.add(orphan)
                    table, node, count = orphan
                    self.history.find("", f"{count} rows of {table} are held by the node {node}, which is gone")
                self.looks += 1
            await asyncio.sleep(LOOK_S)

    async def end_backends(self) -> None:
        """End some of the nodes' connections, in the server."""
        with suppress(psycopg.OperationalError):
            await asyncio.to_thread(self.execute, END_BACKENDS)

    async def check(self) -> None:
        """Check the rows once all nodes have stopped."""
        for what in await asyncio.to_thread(lambda: [*self.faults()]):
            self.history.find("", what)

    def faults(self) -> Iterator[str]:
        for session, position, expected in self.execute(SELECT_BROKEN_JOURNALS):
            yield f"the journal of {session} goes on at {position} where {expected} should be"
        for session, position, stored in self.execute(SELECT_BROKEN_STREAMS):
            yield f"{session} has ended at {position}, its journal at {stored}"
        for table, count in self.execute(SELECT_LEFT_OVER):
            if count:
                yield f"there are {count} {table} after all nodes have stopped"
