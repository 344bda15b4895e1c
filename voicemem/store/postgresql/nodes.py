"""`voicemem.store.port.Nodes` and `Claims` on PostgreSQL.

Whoever retires a node deletes its row and then its lanes: that waits for what still commits there, and keeps out what
would come later. Only then does it look at what the node held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from voicemem.errors import StoreUnavailable
from voicemem.store.copying import why_not_served
from voicemem.store.database import Row
from voicemem.store.postgresql.connection import NodeRetired, Session
from voicemem.store.postgresql.driver import Database
from voicemem.store.postgresql.rows import Rows
from voicemem.store.postgresql.schema import (
    LOCK_META,
    Lineage,
    adopt,
    identity_of,
    note_server,
    renew_incarnation,
)
from voicemem.store.records import Node
from voicemem.store.stream_rows import POSITION, STORED_COLUMNS, to_stream
from voicemem.store.streams import AWAITED_MS, SESSION_KIND, break_off

NODE_COLUMNS = ", ".join(Node.__struct_fields__)
INSERT_NODE = f"""
    insert into nodes ({NODE_COLUMNS}) values ($1, $2, $3, $4, $5, $6) on conflict (token) do update
    set expires_ms = excluded.expires_ms
"""
RENEW_NODE = "update nodes set expires_ms = $1 where token = $2"
SELECT_NODES = f"select {NODE_COLUMNS} from nodes order by started_ms, token"
SELECT_LIVING_NODE = "select 1 from nodes where expires_ms > $1 and token != $2 limit 1"
SELECT_LOST_NODES = "select token from nodes where expires_ms <= $1"
DELETE_NODE = "delete from nodes where token = $1"
DELETE_ALL_NODES = "delete from nodes"
FENCE = "delete from lanes where node = $1"
FENCE_ALL = "delete from lanes where node is not null"
FORGET_OUTCOMES = "delete from commit_markers o where not exists (select 1 from lanes l where l.token = o.token)"
JOIN_LANES = """
    with alive as (select token from nodes where token = $1 for share)
    update lanes set node = alive.token from alive where lanes.token = $2
"""

SELECT_RUNNING = f"select {STORED_COLUMNS} from streams s where s.state = 'running' and s.kind = '{SESSION_KIND}'"
SELECT_LEFT = f"""
    {SELECT_RUNNING} and s.key in (select stream from producers where node = $1)
    and not exists (
        select 1 from producers p where p.stream = s.key and p.node is not null and p.node != $1
    )
"""
"""Sessions of which no producer is connected to another node."""
LOCK_HEADS = """
    select 1 from stream_locks where stream in (select stream from producers where node = $1)
    order by stream for no key update
"""
RAISE_GENS = """
    update stream_locks set version = version + 1
    where stream in (select stream from producers where node = $1)
"""
RAISE_ALL_GENS = """
    update stream_locks h set version = version + 1 from streams s
    where s.key = h.stream and s.state = 'running'
"""
DISCONNECT = "update producers set node = null, expected_until_ms = $2 where node = $1"
DISCONNECT_ALL = "update producers set node = null, expected_until_ms = $1 where node is not null"
SELECT_EXPECTED_NOT_ENDED = """
    select 1 from producers where stream = $1 and not ended
    and (node is not null or expected_until_ms > $2) limit 1
"""
UPDATE_TIMES = """
    update streams set silent_since_ms = $2, ending_ms = $3, due_ms = $4 where key = $1
"""
MAX_WAITING_MS = 600_000
"""How much later than a start a delivery is due that waits for its session: there may be thousands."""
RELEASE_DELIVERIES = """
    update deliveries set leased_until_ms = 0, due_ms = least(due_ms, $2), node = null
    where due_ms is not null and node = $1
"""
RELEASE_ALL_DELIVERIES = f"""
    update deliveries set leased_until_ms = 0, node = null,
    due_ms = least(due_ms, case when waiting_for is null then $1 else $1 + {MAX_WAITING_MS} end)
    where due_ms is not null and (leased_until_ms > 0 or (attempts = 0 and due_ms > $1))
"""
RELEASE_CLAIMS = (
    "update retention set node = null, leased_until_ms = 0 where node = $1",
    "delete from claims where node = $1",
    "update observations set node = null where node = $1",
    "delete from replies where node = $1",
)
RELEASE_ALL_CLAIMS = (
    "update retention set node = null, leased_until_ms = 0 where node is not null",
    "delete from claims",
    "update observations set node = null where node is not null",
    "delete from replies",
)
SELECT_POSITIONS = f"""
    select s.key, {POSITION} from unnest($1::bigint[]) as wanted (key)
    join streams s on s.key = wanted.key where s.state != 'erased'
"""
SELECT_SUPERSEDED = """
    select l.stream, l.name, l.epoch from unnest($1::bigint[], $2::text[], $3::bigint[]) as l (stream, name, epoch)
    join producers p on p.stream = l.stream and p.name = l.name where p.epoch > l.epoch
"""


class PostgresqlNodes:
    """The methods are documented in `voicemem.store.port.Nodes`."""

    database: Database

    @property
    def is_exclusive(self) -> bool:
        return False

    async def start_node(self, node: Node, now_ms: int) -> None:
        token, *texts = node.token, node.address, node.version
        values = (token, *texts, node.snapshot_version, node.started_ms, node.expires_ms)

        def job(rows: Rows) -> dict[str, bytes]:
            session = rows.session
            session.execute(LOCK_META)  # of two that start at once on an empty store only one finds no other
            if reason := why_not_served(identity_of(session)):
                raise StoreUnavailable(reason)  # it was moved while this node was away
            lineage = Lineage(session.server, self.database.trusted, is_missing=False)
            if not adopt(session, lineage) or session.row(SELECT_LIVING_NODE, (now_ms, token)) is None:
                free_everything(session, now_ms)
            session.execute(INSERT_NODE, values)
            return identity_of(session)

        self.database.identity = await self.database.register(job)
        self.database.node = node.token  # from now on lanes are opened for it
        await self.database.register(lambda rows: rows.session.change(JOIN_LANES, (token, self.database.token)))
        self.database.cached_versions.clear()

    @property
    def is_displaced(self) -> bool:
        return self.database.displaced

    async def settle(self, now_ms: int) -> None:
        # Not one of the threads of jobs: these wait for this, to find out what became of their commits.
        await asyncio.to_thread(self.database.settle, partial(free_everything, now_ms=now_ms))
        self.database.go_on()  # on the loop, so that nothing is read before the caller has returned

    async def renew_incarnation(self, now_ms: int) -> None:
        def job(rows: Rows) -> None:
            rows.session.execute(LOCK_META)
            renew_incarnation(rows.session)
            note_server(rows.session, rows.session.server)
            free_everything(rows.session, now_ms)

        await self.database.write(job)

    async def renew_node(self, token: str, expires_ms: int) -> bool:
        try:
            await self.database.save_stored_bytes()
            await self.database.keep_partitions()
            return bool(await self.database.write(lambda rows: rows.session.change(RENEW_NODE, (expires_ms, token))))
        except NodeRetired:
            return False

    async def retire_node(self, token: str, now_ms: int) -> bool:
        return await self.database.write(lambda rows: retire(rows.session, token, now_ms))

    async def retire_lost_nodes(self, now_ms: int) -> list[str]:
        retired = []
        for (token,) in await self.database.read(lambda session: session.rows(SELECT_LOST_NODES, (now_ms,))):
            with suppress(NodeRetired):  # this one was lost itself
                if await self.database.write(partial(retire_lost, token, now_ms)):
                    retired.append(token)
        return retired

    async def list_nodes(self) -> list[Node]:
        rows = await self.database.read(lambda session: session.rows(SELECT_NODES))
        return [to_node(row) for row in rows]

    async def read_positions(self, keys: Sequence[int]) -> dict[int, int]:
        rows = await self.database.read(lambda session: session.rows(SELECT_POSITIONS, (list(keys),)))
        return dict(rows)

    async def find_superseded(self, leases: Sequence[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
        if not leases:
            return []
        streams, names, epochs = (list(values) for values in zip(*leases, strict=True))
        values = (streams, names, epochs)
        rows = await self.database.read(lambda session: session.rows(SELECT_SUPERSEDED, values))
        return [(stream, name, epoch) for stream, name, epoch in rows]


def free_everything(session: Session, now_ms: int) -> None:
    """Free what all nodes held; every running session is silent from now on."""
    session.execute(DELETE_ALL_NODES)
    session.execute(FENCE_ALL)
    session.execute(FORGET_OUTCOMES)
    session.execute(RAISE_ALL_GENS)
    session.execute(DISCONNECT_ALL, (now_ms + AWAITED_MS,))
    fall_silent(session, session.rows(SELECT_RUNNING), now_ms)
    session.execute(RELEASE_ALL_DELIVERIES, (now_ms,))
    for release in RELEASE_ALL_CLAIMS:
        session.execute(release)


def retire_lost(token: str, now_ms: int, rows: Rows) -> bool:
    """Retire a node if its lease is still over: it may have been renewed since somebody looked."""
    found = rows.session.rows(f"{SELECT_LOST_NODES} and token = $2 for update", (now_ms, token))
    return bool(found) and retire(rows.session, token, now_ms)


def retire(session: Session, token: str, now_ms: int) -> bool:
    """Free what a node holds, unless another has done it."""
    node = token
    if not session.change(DELETE_NODE, (node,)):
        return False
    session.execute(FENCE, (node,))
    session.execute(FORGET_OUTCOMES)
    session.rows(LOCK_HEADS, (node,))
    left = session.rows(SELECT_LEFT, (node,))
    session.execute(RAISE_GENS, (node,))
    session.execute(DISCONNECT, (node, now_ms + AWAITED_MS))
    fall_silent(session, left, now_ms)
    session.execute(RELEASE_DELIVERIES, (node, now_ms))
    for release in RELEASE_CLAIMS:
        session.execute(release, (node,))
    return True


def fall_silent(session: Session, rows: Iterable[Row], now_ms: int) -> None:
    """Let running sessions fall silent whose connections have broken; their producers are disconnected already.

    The end of one that has committed it waits for those that are expected back, as if it had just been committed.
    """

    def is_awaited(key: int) -> bool:
        return session.row(SELECT_EXPECTED_NOT_ENDED, (key, now_ms)) is not None

    for row in rows:
        with suppress(StoreUnavailable):  # a damaged row concerns its own session only
            stream = to_stream(row)
            due = break_off(stream, now_ms, is_awaited)
            session.execute(UPDATE_TIMES, (stream.key, stream.silent_since_ms, stream.ending_ms, due))


def to_node(row: Row) -> Node:
    token, address, version, snapshot_version, started_ms, expires_ms = row
    return Node(
        token=token,
        address=address,
        version=version,
        snapshot_version=snapshot_version,
        started_ms=started_ms,
        expires_ms=expires_ms,
    )
