"""The bytes of projects: counted in the transactions that change them, and never otherwise."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.sqlite import NOW, begin, offer, opened_session, send
from voicemem.store.records import Quotas
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.store import SqliteStore

TRUTH = """
    select ifnull((select sum(length(payload)) from journal), 0) + ifnull((select sum(length(runs)) from archives), 0)
        + (select sum(length(config) - 2) from streams) + ifnull((select sum(length(value)) from secrets), 0)
"""


async def counted_and_true(store: SqliteStore) -> tuple[int, int]:
    """What is counted for the project `p`, and what is there."""

    def job(connection: SqliteConnection) -> tuple[int, int]:
        ((counted,),) = connection.rows("select ifnull(sum(bytes), 0) from stored_bytes")
        ((true,),) = connection.rows(TRUTH)
        return counted, true

    return await store.database.write(job)


async def test_the_count_follows_the_journal(path: str) -> None:
    """Also of what was there before, through compaction and erasure, and over a start without the quota."""
    async with opened_session(path) as store:
        key = await begin(store)
        await send(store, key, *(offer(seq, 1000) for seq in range(1, 20)))
        counted, true = await counted_and_true(store)
        assert (0, True) == (counted, true > 19_000)
    for quota in (10**6, 10**6, 0, 10**6):
        async with opened_session(path) as store:
            store.set_quotas(Quotas(stored_bytes=quota))
            await send(store, key, *(offer(seq, 1000) for seq in range(20, 30)))
            counted, true = await counted_and_true(store)
            assert (true if quota else 0) == counted
    async with opened_session(path) as store:
        store.set_quotas(Quotas(stored_bytes=10**6))
        await store.journal.close_session(key, None, "n", NOW + 10**9)
        while await store.compaction.compact(key):
            pass
        counted, true = await counted_and_true(store)
        assert (True, True) == (counted == true, 0 < true < 10_000)
        await store.retention.erase(key, NOW)
        while await store.retention.delete_erased([key]):
            pass
        assert (0, 0) == await counted_and_true(store)
