"""`voicemem.store.port.Nodes` and `Claims` on SQLite.

One process at a time serves a file, so only one of its nodes lives. In tests a store in memory is given to several.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import apsw
from msgspec.structs import astuple

from voicemem.errors import StoreUnavailable
from voicemem.store.records import Node
from voicemem.store.sqlite.driver import Database
from voicemem.store.sqlite.files import IDENTITY_BYTES, SELECT_IDENTITY, UPDATE_INCARNATION
from voicemem.store.sqlite.session_queries import POSITION, STORED_COLUMNS
from voicemem.store.stream_rows import to_stream
from voicemem.store.streams import AWAITED_MS, SESSION_KIND, break_off

NODE_COLUMNS = ", ".join(Node.__struct_fields__)
INSERT_NODE = f"insert or replace into nodes ({NODE_COLUMNS}) values (?, ?, ?, ?, ?, ?)"
RENEW_NODE = "update nodes set expires_ms = ? where token = ?"
DELETE_NODE = "delete from nodes where token = ?"
DELETE_ALL_NODES = "delete from nodes"
SELECT_NODES = f"select {NODE_COLUMNS} from nodes order by started_ms, token"
SELECT_LIVING_NODE = "select 1 from nodes where expires_ms > ? and token != ? limit 1"
SELECT_LOST_NODES = "select token from nodes where expires_ms <= ?"

DISCONNECT = "update producers set node = null, expected_until_ms = ? where node = ?"
DISCONNECT_ALL = "update producers set node = null, expected_until_ms = ? where node is not null"
SELECT_RUNNING = f"select {STORED_COLUMNS} from streams where state = 'running' and kind = '{SESSION_KIND}'"
SELECT_LEFT = f"""
    {SELECT_RUNNING} and key in (select stream from producers where node = ?1)
    and not exists (
        select 1 from producers where stream = streams.key and node is not null and node != ?1
    )
"""
"""Sessions of which no producer is connected to another node."""
SELECT_EXPECTED_NOT_ENDED = """
    select 1 from producers where stream = ? and not ended and (node is not null or expected_until_ms > ?) limit 1
"""
UPDATE_TIMES = "update streams set silent_since_ms = ?, ending_ms = ?, due_ms = ? where key = ?"

MAX_WAITING_MS = 600_000
"""How much later than a start a delivery is due that waits for its session: there may be thousands."""
RELEASE_DELIVERIES = """
    update deliveries set leased_until_ms = 0, due_ms = min(due_ms, ?1), node = null
    where due_ms is not null and node = ?2
"""
RELEASE_ALL_DELIVERIES = f"""
    update deliveries set leased_until_ms = 0, node = null,
    due_ms = min(due_ms, iif(waiting_for is null, ?1, ?1 + {MAX_WAITING_MS}))
    where due_ms is not null and (leased_until_ms > 0 or (attempts = 0 and due_ms > ?1))
"""
RELEASE_RETENTION = "update retention set node = null, leased_until_ms = 0 where node is not null and ?1 in (node, '*')"
RELEASE_WORK = "delete from claims where ?1 in (node, '*')"
FORGET_REPLIES = "delete from replies where ?1 in (node, '*')"
RELEASE_OBSERVATIONS = "update observations set node = null where node is not null and ?1 in (node, '*')"
RELEASE_CLAIMS = (RELEASE_RETENTION, RELEASE_WORK, RELEASE_OBSERVATIONS, FORGET_REPLIES)
EVERY_NODE = "*"

SELECT_POSITIONS = f"""
    select key, {POSITION} from streams where key in (select value from json_each(?)) and state != 'erased'
"""
SELECT_SUPERSEDED = """
    select value ->> 0, value ->> 1, value ->> 2 from json_each(?) join producers
    on stream = value ->> 0 and name = value ->> 1 where epoch > value ->> 2
"""


class SqliteNodes:
    """The methods are documented in `voicemem.store.port.Nodes`."""

    database: Database

    @property
    def is_exclusive(self) -> bool:
        return self.database.is_exclusive

    async def start_node(self, node: Node, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> dict[str, bytes]:
            living = connection.execute(SELECT_LIVING_NODE, (now_ms, node.token)).fetchone()
            if living is None or self.is_exclusive:
                self.free_everything(connection, now_ms)
            connection.execute(INSERT_NODE, astuple(node))
            return dict(connection.execute(SELECT_IDENTITY))

        self.database.identity = await self.database.write(job)

    def free_everything(self, connection: apsw.Connection, now_ms: int) -> None:
        """Free what all nodes held; every running session is silent from now on."""
        connection.execute(DELETE_ALL_NODES)
        connection.execute(DISCONNECT_ALL, (now_ms + AWAITED_MS,))
        fall_silent(connection, connection.execute(SELECT_RUNNING), now_ms)
        connection.execute(RELEASE_ALL_DELIVERIES, (now_ms,))
        release_claims(connection, EVERY_NODE)
        self.database.rows.invalidate()

    @property
    def is_displaced(self) -> bool:
        return False

    async def settle(self, now_ms: int) -> None:
        return

    async def renew_incarnation(self, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            connection.execute(UPDATE_INCARNATION, (secrets.token_bytes(IDENTITY_BYTES),))
            self.free_everything(connection, now_ms)

        await self.database.write(job)

    async def renew_node(self, token: str, expires_ms: int) -> bool:
        if self.is_exclusive:
            return True

        def job(connection: apsw.Connection) -> bool:
            connection.execute(RENEW_NODE, (expires_ms, token))
            return bool(connection.changes())

        return await self.database.write(job)

    async def retire_node(self, token: str, now_ms: int) -> bool:
        return await self.database.write(lambda connection: self.retire(connection, token, now_ms))

    async def retire_lost_nodes(self, now_ms: int) -> list[str]:
        if not await self.database.read(lambda connection: lost_nodes(connection, now_ms)):
            return []

        def job(connection: apsw.Connection) -> list[str]:
            return [token for token in lost_nodes(connection, now_ms) if self.retire(connection, token, now_ms)]

        return await self.database.write(job)

    def retire(self, connection: apsw.Connection, token: str, now_ms: int) -> bool:
        """Free what a node holds, unless another has done it."""
        connection.execute(DELETE_NODE, (token,))
        if not connection.changes():
            return False
        left = connection.execute(SELECT_LEFT, (token,)).fetchall()
        connection.execute(DISCONNECT, (now_ms + AWAITED_MS, token))
        fall_silent(connection, left, now_ms)
        connection.execute(RELEASE_DELIVERIES, (now_ms, token))
        release_claims(connection, token)
        self.database.rows.invalidate()
        return True

    async def list_nodes(self) -> list[Node]:
        return await self.database.read(lambda connection: [Node(**row) for row in named_rows(connection)])

    async def read_positions(self, keys: Sequence[int]) -> dict[int, int]:
        values = (json.dumps(list(keys)),)
        return await self.database.read(lambda connection: dict(connection.execute(SELECT_POSITIONS, values)))

    async def find_superseded(self, leases: Sequence[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
        values = (json.dumps(list(leases)),)
        return await self.database.read(lambda connection: list(connection.execute(SELECT_SUPERSEDED, values)))


def fall_silent(connection: apsw.Connection, rows: Iterable[tuple[Any, ...]], now_ms: int) -> None:
    """Let running sessions fall silent whose connections have broken; their producers are disconnected already.

    The end of one that has committed it waits for those that are expected back, as if it had just been committed.
    """

    def is_awaited(key: int) -> bool:
        return connection.execute(SELECT_EXPECTED_NOT_ENDED, (key, now_ms)).fetchone() is not None

    changes = []
    for row in rows:
        with suppress(StoreUnavailable):  # a damaged row concerns its own session only
            stream = to_stream(row)
            due = break_off(stream, now_ms, is_awaited)
            changes.append((stream.silent_since_ms, stream.ending_ms, due, stream.key))
    connection.executemany(UPDATE_TIMES, changes)


def release_claims(connection: apsw.Connection, token: str) -> None:
    for release in RELEASE_CLAIMS:
        connection.execute(release, (token,))


def lost_nodes(connection: apsw.Connection, now_ms: int) -> list[str]:
    return [token for (token,) in connection.execute(SELECT_LOST_NODES, (now_ms,))]


def named_rows(connection: apsw.Connection) -> list[dict[str, Any]]:
    return [dict(zip(Node.__struct_fields__, row, strict=True)) for row in connection.execute(SELECT_NODES)]
