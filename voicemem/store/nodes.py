"""Nodes: the processes that work on one store, what they hold, and how it is freed."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import asdict

from voicemem.errors import StoreUnavailable
from voicemem.store.database import Connection, NodeRetired, Port, Row, columns, reads_inline, upsert, writes
from voicemem.store.records import Node
from voicemem.store.stream_changes import POSITION, STORED_COLUMNS, to_stream
from voicemem.store.streams import EXPECTED_BACK_MS, SESSION_KIND, break_off

INSERT_NODE = upsert("nodes", ["token"], Node.__struct_fields__[1:])
RENEW_NODE = "update nodes set expires_ms = :expires_ms where token = :token"
SELECT_NODES = f"select {columns(Node.__struct_fields__)} from nodes order by started_ms, token"
SELECT_LIVING_NODE = "select 1 from nodes where expires_ms > :now_ms and token <> :token limit 1"
SELECT_LOST_NODES = "select token from nodes where expires_ms <= :now_ms"
LOCK_LOST_NODE = f"{SELECT_LOST_NODES} and token = :token for update"
DELETE_NODE = "delete from nodes where token = :token"
DELETE_ALL_NODES = "delete from nodes"
SELECT_RUNNING = f"select {STORED_COLUMNS} from streams s where s.state = 'running' and s.kind = '{SESSION_KIND}'"
SELECT_LEFT = f"""
    {SELECT_RUNNING} and s.key in (select stream from producers where node = :node)
    and not exists (select 1 from producers p where p.stream = s.key and p.node is not null and p.node <> :node)
"""
"""Sessions without a producer that is connected to another node."""
SELECT_EXPECTED_NOT_ENDED = """
    select 1 from producers where stream = :key and not ended
    and (node is not null or expected_until_ms > :now_ms) limit 1
"""
UPDATE_TIMES = "update streams set silent_since_ms = :silent, ending_ms = :ending, due_ms = :due where key = :key"
MAX_WAITING_MS = 600_000
"""How long after a start deliveries that wait for their session may be due: there may be thousands."""
RELEASE_DELIVERIES = """
    update deliveries set leased_until_ms = 0, due_ms = least(due_ms, :now_ms), node = null
    where due_ms is not null and node = :node
"""
RELEASE_ALL_DELIVERIES = f"""
    update deliveries set leased_until_ms = 0, node = null,
    due_ms = least(due_ms, case when waiting_for is null then :now_ms else :now_ms + {MAX_WAITING_MS} end)
    where due_ms is not null and (leased_until_ms > 0 or (attempts = 0 and due_ms > :now_ms))
"""
DISCONNECT = "update producers set node = null, expected_until_ms = :until_ms where {held}"
RELEASES = (
    "update retention set node = null, leased_until_ms = 0 where {held}",
    "delete from claims where {held}",
    "update observations set node = null where {held}",
    "delete from replies where {held}",
)
SELECT_POSITIONS = f"select s.key, {POSITION} from streams s where s.key in :keys and s.state <> 'erased'"
SELECT_EPOCHS = "select stream, name, epoch from producers where stream in :streams"
"""By stream alone, which has few producers: by names too, each would be looked up in each stream."""


class Nodes(Port):
    """The running processes that serve a store, each under a token that is never used again.

    Everything that a node holds names its token: connected producers, leases of deliveries, claims, replies under way.
    A node that stops releases all of it (`retire_node`); another node does that for one that died
    (`retire_lost_nodes`). A process that is not a node, such as the library, uses the empty token.
    """

    async def start_node(self, node: Node, now_ms: int) -> None:
        """Register a node; its lease runs until `node.expires_ms`.

        If no other node lives (an exclusive store has none), what all others held is freed first, and time without a
        server does not count as silence: every running session is silent from now on. Deliveries that were never
        attempted are then due now, except those that wait for something: a due time in the future may be of a clock
        that was ahead. If another node lives, nothing else changes.
        """

        def job(connection: Connection) -> None:
            is_same = self.database.adopt(connection)
            living = connection.row(SELECT_LIVING_NODE, now_ms=now_ms, token=node.token)
            if not is_same or living is None or self.database.is_exclusive:
                free(connection, None, now_ms)
            connection.execute(INSERT_NODE, **asdict(node))

        await self.database.register_node(node.token, job)

    @property
    def is_displaced(self) -> bool:
        """True if another server answers, or one that lacks commits that this process has seen.

        That is so after a failover, or if a backup was restored. Until `settle` nothing is read or written. An
        exclusive store is never displaced.
        """
        return self.database.is_displaced

    async def settle(self, now_ms: int) -> None:
        """Continue with the server that answers now, as a node; forget everything that was known of the store.

        If acknowledged events may be missing, the store becomes another incarnation, as by `renew_incarnation`.
        Raises `StoreUnavailable`.
        """
        await self.database.settle(lambda connection: free(connection, None, now_ms))

    @writes
    def renew_incarnation(self, connection: Connection, now_ms: int) -> None:
        """Make the store another incarnation, in which the positions and seqs that clients know are not valid.

        Every node is retired, so it starts again under another token; what all of them held is freed, as at a first
        start (`start_node`).
        """
        self.database.renew_incarnation(connection)
        free(connection, None, now_ms)

    async def renew_node(self, token: str, expires_ms: int) -> bool:
        """Renew a node's lease; False if it was retired, and must start again under another token.

        An exclusive store writes nothing.
        """
        if self.database.is_exclusive:
            return True
        try:
            await self.database.keep_up()
            return bool(await self.database.execute(RENEW_NODE, token=token, expires_ms=expires_ms))
        except NodeRetired:
            return False

    async def retire_node(self, token: str, now_ms: int) -> bool:
        """Delete a node and free what it holds, in one transaction; False when it is unknown.

        - Its producers are not connected any more, and expected back for `streams.EXPECTED_BACK_MS`. A session falls
          silent if none of its producers is connected to another node.
        - Of those sessions that have a committed `session.end`, one whose expected producers have all ended is due now;
          for the others the grace (`streams.END_GRACE_MS`) starts again.
        - Deliveries that it leased are due now. Its claims and its replies under way are gone, and what
          it observes is free.
        """
        return await self.database.write(lambda connection: retire(connection, token, now_ms))

    async def retire_lost_nodes(self, now_ms: int) -> list[str]:
        """Do the same for every node whose lease is over; return their tokens, each to one caller only.

        Called once a second: it writes only when there is such a node.
        """
        retired = []
        for (token,) in await self.database.rows(SELECT_LOST_NODES, now_ms=now_ms):
            with suppress(NodeRetired):  # this one was lost itself
                if await self.database.write(partial(retire, token=token, now_ms=now_ms, only_lost=True)):
                    retired.append(token)
        return retired

    async def list_nodes(self) -> list[Node]:
        """Return the registered nodes, the oldest first, those with an expired lease included."""
        return [Node(*row) for row in await self.database.rows(SELECT_NODES)]

    # What changed elsewhere

    async def read_positions(self, keys: Sequence[int]) -> dict[int, int]:
        """Return the ends of the journals of these streams, without erased and unknown ones.

        Called many times a second on a store that is not exclusive, for the followed streams.
        """
        return dict(await self.database.rows(SELECT_POSITIONS, keys=list(keys)))

    async def find_superseded(self, leases: Sequence[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
        """Return those of these leases (key, producer, epoch) that are no longer the newest of their producer."""
        rows = await self.database.rows(SELECT_EPOCHS, streams=[key for key, *_ in leases])
        newest = {(key, name): epoch for key, name, epoch in rows}
        return [(key, name, epoch) for key, name, epoch in leases if epoch < newest.get((key, name), 0)]


def retire(connection: Connection, token: str, now_ms: int, only_lost: bool = False) -> bool:
    """Free what a node holds, unless another has done it; with `only_lost` only if its lease is over.

    Its row is deleted first, then it is fenced off. Only then is everything that it held read.
    """
    if only_lost and connection.row(LOCK_LOST_NODE, now_ms=now_ms, token=token) is None:
        return False  # it was renewed since someone looked
    if not connection.execute(DELETE_NODE, token=token):
        return False
    free(connection, token, now_ms)
    return True


def free(connection: Connection, token: str | None, now_ms: int) -> None:
    """Free what a deleted node held, or, with None, what all nodes held, and delete them.

    Sessions without a connection to another node are silent from now on.
    """
    held, select_left, release_deliveries = "node = :node", SELECT_LEFT, RELEASE_DELIVERIES
    if token is None:
        held, select_left, release_deliveries = "node is not null", SELECT_RUNNING, RELEASE_ALL_DELIVERIES
        connection.execute(DELETE_ALL_NODES)
    connection.fence(token)
    left = connection.rows(select_left, node=token)
    connection.execute(DISCONNECT.format(held=held), until_ms=now_ms + EXPECTED_BACK_MS, node=token)
    mark_disconnected(connection, left, now_ms)
    connection.execute(release_deliveries, now_ms=now_ms, node=token)
    for release in RELEASES:
        connection.execute(release.format(held=held), node=token)


def mark_disconnected(connection: Connection, rows: Iterable[Row], now_ms: int) -> None:
    """Note that running sessions have no connection any more; their producers are disconnected already.

    A committed end waits for the producers that are expected back, as if it had just been committed.
    """

    def is_awaited(key: int) -> bool:
        return connection.row(SELECT_EXPECTED_NOT_ENDED, key=key, now_ms=now_ms) is not None

    changes: list[dict[str, Any]] = []
    for row in rows:
        with suppress(StoreUnavailable):  # a damaged row concerns its own session only
            stream = to_stream(row)
            due = break_off(stream, now_ms, is_awaited)
            times = {"silent": stream.silent_since_ms, "ending": stream.ending_ms, "due": due}
            changes.append({"key": stream.key, **times})
    connection.many(UPDATE_TIMES, changes)


SUMMARY, EXTRACTION, INDEX_CHECK = "summary", "extraction", "index"
"""Kinds of work. The check of all sessions for the index is claimed under the key 0, which no stream has."""
CLAIM = f"""
    {upsert("claims", ["work", "key"], ["node", "until_ms"])} where claims.node = :node or claims.until_ms <= :now_ms
"""
RELEASE_CLAIM = "delete from claims where work = :work and key = :key and node = :node"
BEGIN_REPLY = upsert("replies", ["stream", "item"], ["node"])
END_REPLY = "delete from replies where stream = :stream and item = :item"
SELECT_REPLIES = "select item from replies where stream = :key"


class Claims(Port):
    """Work that only one node should do at a time.

    A claim holds until it is released, its lease is over, or its node is retired. A node may claim again what it holds,
    which renews the lease. Claims only save work: work that is done twice does no harm.
    """

    @writes
    def claim(self, connection: Connection, work: str, key: int, node: str, now_ms: int, lease_ms: int) -> bool:
        """Lease work to a node; False while another node has it."""
        values = {"work": work, "key": key, "node": node, "now_ms": now_ms, "until_ms": now_ms + lease_ms}
        connection.hold_node(node)
        return bool(connection.execute(CLAIM, **values))

    async def release(self, work: str, key: int, node: str) -> None:
        """Release a claim; do nothing if another node has it."""
        await self.database.execute(RELEASE_CLAIM, work=work, key=key, node=node)

    async def begin_reply(self, key: int, item: str, node: str) -> None:
        """Record that a node is streaming a reply, so that no other node ends it as abandoned.

        An exclusive store does not keep it: a node knows its own.
        """

        def job(connection: Connection) -> None:
            connection.hold_node(node)
            connection.execute(BEGIN_REPLY, stream=key, item=item, node=node)

        if not self.database.is_exclusive:
            await self.database.write(job)

    async def end_reply(self, key: int, item: str) -> None:
        if not self.database.is_exclusive:
            await self.database.execute(END_REPLY, stream=key, item=item)

    @reads_inline
    def list_replies(self, connection: Connection, key: int) -> set[str]:
        """The items of a session's replies that are under way, on any node."""
        return {item for (item,) in connection.rows(SELECT_REPLIES, key=key)}
