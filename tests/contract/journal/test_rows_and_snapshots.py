"""Rows are read in pages; a snapshot belongs to a version."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import append_offers, offer, open_key
from voicemem.store.port import Store
from voicemem.store.records import Snapshot


async def test_rows_come_in_pages(store: Store) -> None:
    """Entries above a position come in order, at most as many as asked for."""
    key = await open_key(store)
    other = await open_key(store, "other")
    for seq in range(1, 8):
        await append_offers(store, key, offer(seq))
        await append_offers(store, other, offer(seq))

    assert [1, 2, 3] == [row.position for row in await store.journal.read_rows(key, 0, 3)]
    assert [4, 5, 6] == [row.position for row in await store.journal.read_rows(key, 3, 3)]
    assert [7] == [row.position for row in await store.journal.read_rows(key, 6, 3)]
    assert [] == await store.journal.read_rows(key, 7, 3)
    assert [] == await store.journal.read_rows(99, 0, 3)


async def test_snapshots_are_of_a_version(store: Store) -> None:
    """A snapshot is found by its session and fold version, unless it is of too late a position."""
    key, other = await open_key(store), await open_key(store, "other")
    snapshot = Snapshot(7, 3, b"\x00state")
    await store.journal.save_snapshot(key, snapshot)

    assert snapshot == await store.journal.load_snapshot(key, 3, 7) == await store.journal.load_snapshot(key, 3, 10**9)
    assert await store.journal.load_snapshot(key, 3, 6) is None
    assert await store.journal.load_snapshot(key, 2, 7) is None
    assert await store.journal.load_snapshot(other, 3, 7) is None


async def test_a_later_snapshot_replaces_an_earlier(store: Store) -> None:
    """The snapshot that was saved last is found."""
    key = await open_key(store)
    await store.journal.save_snapshot(key, Snapshot(7, 3, b"old"))
    await store.journal.save_snapshot(key, Snapshot(9, 3, b"new"))

    assert Snapshot(9, 3, b"new") == await store.journal.load_snapshot(key, 3, 100)
