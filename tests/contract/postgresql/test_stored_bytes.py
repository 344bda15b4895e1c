"""The bytes of projects on PostgreSQL: counted by each node, and added to one row now and then."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support.documentation import code_blocks  # noqa: E402
from tests.support.paths import DOCS  # noqa: E402
from tests.support.stores.contract import (  # noqa: E402
    NOW,
    REOPEN_MS,
    append_offers,
    begin_node,
    close,
    mixed_call,
    offers,
    open_key,
)
from tests.support.stores.engines import OpenHandle  # noqa: E402
from tests.support.stores.postgresql import opened  # noqa: E402
from voicemem.errors import StoreUnavailable  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = pytest.mark.postgresql
COUNTED = "select coalesce(sum(bytes), 0)::bigint from stored_bytes where project = 'p'"
TRUTH = """
    select ((select coalesce(sum(octet_length(payload)), 0) from journal)
    + (select coalesce(sum(octet_length(runs)), 0) from archives)
    + (select coalesce(sum(octet_length(value)), 0) from secrets)
    + (select coalesce(sum(octet_length(payload)), 0) from payloads)
    + (select coalesce(sum(octet_length(config) - 2), 0) from streams))::bigint
"""


async def counted_and_true(store: PostgresqlStore) -> tuple[int, int]:
    """What is counted for the project `p`, and what is there."""
    (counted,), (true,) = await store.database.read(lambda session: (session.one(COUNTED), session.one(TRUTH)))
    return counted, true


async def test_the_count_follows_the_journal(open_handle: OpenHandle) -> None:
    """Through appends on lanes and others, events of the server, compaction and erasure, with every heartbeat."""
    store = await opened(open_handle)
    await begin_node(store, "a")
    key = await open_key(store, "plain")
    for first in range(1, 200, 10):
        await append_offers(store, key, *offers(first, first + 9))
    assert 0 == (await counted_and_true(store))[0]
    await store.nodes.renew_node("a", NOW + 1)
    counted, true = await counted_and_true(store)
    assert true == counted > 10_000
    mixed = await mixed_call(store)
    await close(store, key)
    await store.nodes.renew_node("a", NOW + 2)
    counted, true = await counted_and_true(store)
    assert true == counted > 1_000_000
    for each in await store.compaction.claim_compactable("a", NOW + 2 * REOPEN_MS, 1_000, 10):
        while await store.compaction.compact(each):
            pass
    await store.nodes.renew_node("a", NOW + 3)
    counted, true = await counted_and_true(store)
    assert (True, True) == (counted == true, 0 < true < 100_000)
    for each in (mixed, key):
        await store.retention.erase(each, NOW)
    while await store.retention.delete_erased([mixed, key]):
        pass
    await store.nodes.renew_node("a", NOW + 4)
    assert (0, 0) == await counted_and_true(store)


async def test_what_is_left_is_counted_when_a_store_is_closed(open_handle: OpenHandle) -> None:
    """So a program that is no node counts as well, and a node that has left."""
    store, other, node = [await opened(open_handle) for _ in range(3)]
    await append_offers(store, await open_key(store), *offers(1, 50))
    await store.close_store()
    await begin_node(node, "a")
    await append_offers(node, await open_key(node, "t"), *offers(1, 50))
    assert await node.nodes.retire_node("a", NOW)
    await node.close_store()
    counted, true = await counted_and_true(other)
    assert true == counted > 1_000


async def test_a_count_that_could_not_be_added_is_kept(
    open_handle: OpenHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next heartbeat adds it."""
    store = await opened(open_handle)
    await begin_node(store, "a")
    await append_offers(store, await open_key(store), *offers(1, 50))

    async def fail(job: object) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(store.database, "register", fail)
        with pytest.raises(StoreUnavailable):
            await store.nodes.renew_node("a", NOW + 1)
    await append_offers(store, await open_key(store, "t"), *offers(1, 50))
    await store.nodes.renew_node("a", NOW + 2)
    counted, true = await counted_and_true(store)
    assert true == counted > 2_000


async def test_the_documented_recount_counts_what_is_there(open_handle: OpenHandle) -> None:
    """The statement in docs/postgresql.md, whatever was lost before."""
    store = await opened(open_handle)
    await mixed_call(store)
    (recount,) = (block for block in code_blocks((DOCS / "postgresql.md").read_text(), "sql") if "sum(" in block)
    await store.database.read(lambda session: session.raw.execute(recount.encode(), prepare=False))
    counted, true = await counted_and_true(store)
    assert true == counted > 1_000_000
