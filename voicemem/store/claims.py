"""Work that only one node should do at a time."""

from voicemem.store.database import Connection, Port, upsert, writes

SUMMARY, EXTRACTION, INDEX_CHECK = "summary", "extraction", "index"
"""Kinds of work. The look at all sessions for the index is claimed under the key 0, which no stream has."""
CLAIM = """
    insert into claims (work, key, node, until_ms) values (:work, :key, :node, :until_ms)
    on conflict (work, key) do update set node = excluded.node, until_ms = excluded.until_ms
    where claims.node = :node or claims.until_ms <= :now_ms
"""
RELEASE_CLAIM = "delete from claims where work = :work and key = :key and node = :node"
BEGIN_REPLY = upsert("replies", ["stream", "item"], ["node"])
END_REPLY = "delete from replies where stream = :stream and item = :item"
SELECT_REPLIES = "select item from replies where stream = :key"


class Claims(Port):
    """Work that only one node should do at a time.

    A claim holds until it is released, its lease is over, or its node is retired. A node may claim again what it holds,
    which prolongs the lease. Claims only spare work: what is done twice does no harm.
    """

    @writes
    def claim(self, connection: Connection, work: str, key: int, node: str, now_ms: int, lease_ms: int) -> bool:
        """Lease work to a node; False while another node has it."""
        values = {"work": work, "key": key, "node": node, "now_ms": now_ms, "until_ms": now_ms + lease_ms}
        connection.hold_node(node)
        return bool(connection.execute(CLAIM, **values))

    async def release(self, work: str, key: int, node: str) -> None:
        """Give a claim back; does nothing when another node has it."""
        await self.database.execute(RELEASE_CLAIM, work=work, key=key, node=node)

    async def begin_reply(self, key: int, item: str, node: str) -> None:
        """Record that a node is streaming a reply, so that no other node ends it as one that was left open.

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

    async def list_replies(self, key: int) -> set[str]:
        """The items of a session's replies that are under way, on any node."""
        rows = await self.database.read_inline(lambda connection: connection.rows(SELECT_REPLIES, key=key))
        return {item for (item,) in rows}
