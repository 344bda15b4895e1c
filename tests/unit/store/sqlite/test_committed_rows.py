"""Rows kept at hand share the memory budget by what they weigh; ended sessions go first, and none is ever lost."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from voicemem.config.session import validate_config
from voicemem.runtime import ROWS_SHARE, MemoryBudget
from voicemem.store.sqlite.connection import weigh_config
from voicemem.store.sqlite.store import InMemoryStore

NOW = 1_778_390_400_000
CONFIG = {"llm": {"params": {"numbers": list(range(1_000, 2_000))}}}
CONFIG_BYTES = weigh_config(CONFIG)


@pytest.fixture
def budget() -> MemoryBudget:
    """Room for about eight of the configurations."""
    return MemoryBudget(ROWS_SHARE * 8 * CONFIG_BYTES)


@pytest.fixture
async def store(budget: MemoryBudget) -> AsyncIterator[InMemoryStore]:
    """An empty store."""
    store = InMemoryStore(budget)
    yield store
    await store.close_store()


async def create(store: InMemoryStore, name: str, config: Any = None) -> int:
    """A session with a configuration; its key."""
    patch = validate_config(CONFIG if config is None else config)
    return (await store.journal.create_session("p", name, patch, NOW))[0].key


def kept(store: InMemoryStore) -> set[str]:
    return {name for _, _, name in store.database.streams.committed.by_name}


CONFIGS: list[tuple[str, Callable[[], Any]]] = [
    ("numbers", lambda: {"a": list(range(1_000, 20_000))}),
    ("short texts", lambda: {"a": [f"word {n}" for n in range(10_000)]}),
    ("long texts", lambda: {"a": ["x" * 1_000 for _ in range(200)]}),
    ("lists", lambda: {"a": [[] for _ in range(50_000)]}),
    ("objects", lambda: {"a": [{} for _ in range(50_000)]}),
    ("fields", lambda: {f"field {n}": n for n in range(10_000)}),
    ("objects with fields", lambda: {"a": [{"b": n, "c": 1.5} for n in range(5_000)]}),
]


@pytest.mark.long
@pytest.mark.parametrize("make", [make for _, make in CONFIGS], ids=[name for name, _ in CONFIGS])
def test_the_weight_is_near_what_python_takes(make: Callable[[], Any]) -> None:
    """Rather too much than too little, whatever is in a configuration."""
    text = msgspec.json.encode(make())
    gc.collect()
    tracemalloc.start()
    config = msgspec.json.decode(text)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.8 * taken < weigh_config(config) < 4 * taken


async def test_rows_stay_within_their_share(store: InMemoryStore, budget: MemoryBudget) -> None:
    """The oldest go, and are read again where they are needed."""
    keys = [await create(store, f"s{n}") for n in range(20)]
    assert 0 < budget.rows <= budget.room_for_rows
    assert {"s19", "s18", "s17"} < kept(store) < {f"s{n}" for n in range(5, 20)}
    assert 20 - len(kept(store)) == budget.evicted_rows
    stream = await store.journal.find_session("p", "s0")
    assert stream is not None
    assert (keys[0], CONFIG) == (stream.key, stream.config)


async def test_ended_sessions_go_first(store: InMemoryStore) -> None:
    """A running session stays though it is older than others that have ended."""
    await create(store, "running")
    for number in range(20):
        key = await create(store, f"s{number}")
        await store.journal.close_session(key, None, f"n{number}", NOW + 10**12)
    assert "running" in kept(store)


async def test_a_configuration_that_changes_is_weighed_again(store: InMemoryStore, budget: MemoryBudget) -> None:
    """What is counted follows the row, and an erased one counts for little."""
    key = await create(store, "s", {})
    small = budget.rows
    await store.journal.change_config(key, validate_config(CONFIG), b"{}", NOW)
    assert CONFIG_BYTES < budget.rows - small + 1_000
    await store.retention.erase(key, NOW)
    assert small >= budget.rows


async def test_one_row_above_the_share_is_served_and_not_kept(budget: MemoryBudget) -> None:
    """A configuration larger than all the room for rows works like any other."""
    budget.limit = ROWS_SHARE * CONFIG_BYTES // 2
    store = InMemoryStore(budget)
    await create(store, "s")
    assert (set(), 0) == (kept(store), budget.rows)
    stream = await store.journal.find_session("p", "s")
    assert stream is not None
    assert CONFIG == stream.config
    await store.close_store()


async def test_a_producer_goes_on_after_its_session_was_dropped(store: InMemoryStore) -> None:
    """Epochs and seqs of a producer are those of the journal, at hand or not."""
    opened = await store.journal.open_producer("p", "s", "main", validate_config({}), None, NOW)
    for number in range(20):
        await create(store, f"s{number}")
    assert "s" not in kept(store)
    again = await store.journal.open_producer("p", "s", "main", validate_config({}), None, NOW)
    assert (opened.stream.key, opened.epoch + 1, 1) == (again.stream.key, again.epoch, again.next_seq)
