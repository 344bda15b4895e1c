"""A store knows who it is, and what it is after its close."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.stores.contract import NOW, append_offers, offer, open_key
from tests.support.stores.engines import DURABLE, ENGINES, Engine
from voicemem.config.session import validate_config
from voicemem.errors import StoreUnavailable
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store


async def test_a_store_knows_itself(two_handles: tuple[Store, Store]) -> None:
    """Incarnation and cursor secret are the store's, the same through every handle, and it begins healthy."""
    one, other = two_handles

    assert (one.directory.incarnation, one.directory.cursor_secret) == (
        other.directory.incarnation,
        other.directory.cursor_secret,
    )
    assert one.directory.incarnation
    assert len(one.directory.cursor_secret) >= 16
    assert one.healthy


async def test_stores_are_not_each_other(engine: Engine, tmp_path: Path) -> None:
    """Two stores share neither their sessions nor their incarnation nor their cursor secret."""
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    async with engine.handles(folders[0]) as open_one, engine.handles(folders[1]) as open_other:
        one, other = await open_one(), await open_other()
        await one.journal.create_session("p", "s", validate_config({}), NOW)

        assert await other.journal.find_session("p", "s") is None
        assert one.directory.incarnation != other.directory.incarnation
        assert one.directory.cursor_secret != other.directory.cursor_secret


async def test_a_closed_store_answers(store: Store) -> None:
    """Reads and writes after the close fail at once, as a store that is unavailable; no caller is left waiting."""
    key = await open_key(store)
    await store.close_store()

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(append_offers(store, key, offer(1)), 5)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(store.journal.find_session("p", "s"), 5)


@pytest.mark.parametrize("name", DURABLE)
async def test_a_reopened_store_is_the_same(name: str, tmp_path: Path) -> None:
    """After a restart the store has its incarnation, its secrets and all of its data."""
    given = {"name": "joker", "llm": {"api_key": "k"}}
    async with ENGINES[name].handles(tmp_path) as open_handle:
        store = await open_handle()
        identity = (store.directory.incarnation, store.directory.cursor_secret)
        key = await open_key(store, given=given)
        await append_offers(store, key, offer(1), offer(2))
        stream, rows = await store.journal.find_session("p", "s"), await store.journal.read_rows(key, 0, 10)

    async with ENGINES[name].handles(tmp_path) as open_handle:
        store = await open_handle()
        assert identity == (store.directory.incarnation, store.directory.cursor_secret)
        assert (stream, rows) == (await store.journal.find_session("p", "s"), await store.journal.read_rows(key, 0, 10))
        assert "same" == (await store.journal.create_session("p", "s", validate_config(given), NOW))[1]
        assert [Outcome(duplicate=True), Outcome(3)] == await append_offers(store, key, offer(2), offer(3))
