"""Several workers that erase, sweep and compact do each thing once."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

from voicemem.config.session import validate_config
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.retention import SESSIONS_PER_ROUND, RetentionWorker
from voicemem.store.append_rules import Batch
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.store.streams import SessionEnding

NOW = 1_778_390_400_000


async def ended_sessions(store: InMemoryStore, count: int, **config: object) -> list[int]:
    """Keys of sessions with a few events each, which have ended."""
    keys = []
    for number in range(count):
        opened = await store.journal.open_producer("p", f"s{number}", "main", validate_config(config), None, NOW)
        keys.append(opened.stream.key)
        await store.journal.append(
            [Batch(keys[-1], "main", None, NOW, [b'{"type":"llm.done","seq":1,"turn_id":1}'], 1)], NOW
        )
        assert await store.journal.close_session(keys[-1], SessionEnding(NOW, "left"), f"n{number}", NOW) is not None
    return keys


async def test_two_workers_expire_sweep_and_compact_each_session_once() -> None:
    """More sessions than one batch; the counts of both workers add up to all of them."""
    store = InMemoryStore()
    keys = await ended_sessions(store, SESSIONS_PER_ROUND + 5, ttl_seconds=10, reopen_window=0)
    times = iter([NOW] * 2 + [NOW + 10_000] * 100)
    workers = [RetentionWorker(store, ReadModelCache(store), lambda: next(times)) for _ in range(2)]
    assert [0, 0] == [await worker.expire() for worker in workers]
    counts = await asyncio.gather(*(worker.expire() for worker in workers))
    counts += await asyncio.gather(*(worker.expire() for worker in workers))
    assert len(keys) == sum(counts)
    await asyncio.gather(*(worker.purge_erased() for worker in workers))
    assert ([], True) == (await store.retention.claim_erased("", NOW, 1, 1000), await store.retention.finish_erased())
    assert [[]] * len(keys) == [await store.journal.read_rows(key, 0, 10) for key in keys]
    await store.close_store()


async def test_an_erased_memory_is_forgotten() -> None:
    """The sweep takes it out of the process too."""
    store = InMemoryStore()
    (key,) = await ended_sessions(store, 1)
    read_models = ReadModelCache(store)
    retention = RetentionWorker(store, read_models, lambda: NOW)
    stream = await store.journal.find_session("p", "s0")
    assert stream is not None
    await read_models.get(stream)
    await store.retention.erase(key, NOW)
    assert (1, {}) == (await retention.purge_erased(), dict(read_models.cached))
    await store.close_store()
