"""The rows of the database under a run of several nodes, and what must hold for them at any moment, or at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg

from bench.crash.history import History
from bench.crash.nodes.members import LEASE_MS
from bench.crash.presence import MARGIN_MS, Trouble
from voicemem.runtime import now_ms

HELD_BY_NODES = ("producers", "deliveries", "claims", "replies", "retention", "lanes")
"""Tables that say which node holds a row."""
SELECT_ORPHANS = " union all ".join(
    f"select '{table}', node, count(*) from {table} where node is not null"
    " and node not in (select token from nodes) group by 2"
    for table in HELD_BY_NODES
)
"""Whoever retires a node frees all that it holds in the same transaction, and nothing may be written for it later."""
SELECT_BROKEN_JOURNALS = """
    select s.id, j.position, j.expected from (
        select stream, position,
        lag(position + count, 1, 1) over (partition by stream order by position) as expected from journal
    ) j join streams s on s.key = j.stream
    where j.position != j.expected and not exists (select 1 from archives a where a.stream = j.stream)
"""
SELECT_BROKEN_STREAMS = """
    select s.id, s.position, (
        select max(j.position + j.count - 1) from journal j where j.stream = s.key
    ) as stored from streams s where s.state = 'ended' and s.position != (
        select max(j.position + j.count - 1) from journal j where j.stream = s.key
    )
"""
SELECT_LEFT_OVER = """
    select 'nodes', count(*) from nodes union all
    select 'producers of running sessions', count(*) from producers p
    join streams s on s.key = p.stream where p.node is not null and s.state = 'running'
"""
SELECT_NODES = "select token, address, expires_ms from nodes"
END_BACKENDS = """
    select count(pg_terminate_backend(pid)) from pg_stat_activity
    where application_name = 'voicemem' and datname = current_database() and random() < 0.6
"""
LOOK_S = 0.2


class Lease(NamedTuple):
    """Until when a node counts as alive, at its address."""

    server: str
    expires_ms: int


class Database:
    """The database as an administrator sees it, past all proxies."""

    def __init__(self, url: str, history: History) -> None:
        self.url = url
        self.history = history
        self.looks = 0
        self.orphans: set[tuple[object, ...]] = set()
        self.leases: dict[str, Lease] = {}
        """Of the nodes that were there at the last look, by token."""

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement; its rows. Raises `psycopg.Error`."""
        with psycopg.connect(self.url, autocommit=True, application_name="crash") as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    async def watch(self) -> None:
        """Look again and again for rows that are held by nodes that are gone."""
        while True:
            with suppress(psycopg.OperationalError):  # it was killed
                self.note_orphans(await asyncio.to_thread(self.execute, SELECT_ORPHANS))
                self.note_leases(await asyncio.to_thread(self.execute, SELECT_NODES))
                self.looks += 1
            await asyncio.sleep(LOOK_S)

    def note_orphans(self, found: Iterable[tuple[Any, ...]]) -> None:
        for table, node, count in set(found) - self.orphans:
            self.orphans.add((table, node, count))
            self.history.find("", f"{count} rows of {table} are held by the node {node}, which is gone")

    def note_leases(self, found: Iterable[tuple[Any, ...]]) -> None:
        """Note the nodes that were retired because their leases had run out: on a busy machine that may happen.

        Who disappears before that has stopped, or was retired wrongly, which shows in its sessions.
        """
        now, before = now_ms(), self.leases
        self.leases = {token: Lease(f"http://{address}", expires_ms) for token, address, expires_ms in found}
        for token in before.keys() - self.leases.keys():
            lapsed = before[token]
            if lapsed.expires_ms < now + MARGIN_MS:
                end_ms = now + LEASE_MS
                self.history.troubles.append(Trouble(lapsed.server, lapsed.expires_ms - LEASE_MS, end_ms))

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
