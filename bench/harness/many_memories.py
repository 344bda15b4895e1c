"""How long memories take: to write, to find among many, to remove; and what a write costs an append beside it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence
from itertools import accumulate

from bench.harness.report import Measured, at_most, percentile
from voicemem.config.session import validate_config
from voicemem.search.words import query_words
from voicemem.store.append_rules import Batch
from voicemem.store.memories import MAX_ROWS, MemoryRow, tombstone
from voicemem.store.memory_filters import AnyOf, MemoryFilter
from voicemem.store.port import Store
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.streams import Stream

USERS = 170
NOW = 1_778_390_400_000
INDEX_US, P50_MS, P99_MS = 110, 5, 25
TIMES = 400
EVENT = b'{"type":"memory.added","memory_id":"mem_aaaaaaaaaaaaaaaaaaaaaaaaaa","kind":"fact"}'
Taken = list[tuple[float, int]]


async def speed_of_memories(store: Store, count: int, lots: random.Random, words: Sequence[str]) -> list[Measured]:
    """With `count` memories of about twelve words each in the store."""
    weights = list(accumulate(1 / (rank + 5) for rank in range(len(words))))
    users = [await store.journal.ensure_user("p", f"user{number}", NOW) for number in range(USERS)]
    begun, cpu, writer = time.perf_counter(), time.process_time(), await writer_cpu(store)
    for number in range(0, count, MAX_ROWS):
        user = users[number // MAX_ROWS % USERS]
        rows = [
            memory(
                user,
                f"m{number + place}",
                " ".join(lots.choices(words, cum_weights=weights, k=lots.randint(4, 20))),
                place,
            )
            for place in range(min(MAX_ROWS, count - number))
        ]
        users[number // MAX_ROWS % USERS] = await write(store, user, rows)
    each_us = (time.perf_counter() - begun) / count * 1e6
    cpu_us = (time.process_time() - cpu) / count * 1e6
    writer_us = (await writer_cpu(store) - writer) / count * 1e6

    cpu = time.process_time()
    finding: Taken = []
    for _ in range(TIMES):
        asked = query_words(" ".join(lots.choices(words, cum_weights=weights, k=6)))
        wanted = MemoryFilter(project="p", user_ids=AnyOf((f"user{lots.randrange(USERS)}",)), unexpired_at_ms=NOW)
        await timed(finding, store.memories.find_memories_by_words(wanted, asked, 10))
    search_ms = (time.process_time() - cpu) / TIMES * 1e3
    listing: Taken = []
    for _ in range(TIMES):
        wanted = MemoryFilter(project="p", user_ids=AnyOf((f"user{lots.randrange(USERS)}",)), limit=50)
        await timed(listing, store.memories.list_memories(wanted))

    alone, beside, writing = await appends_beside_writes(store, users, lots, words)
    removing: Taken = []
    for number in lots.sample(range(count), TIMES // 4):
        (row,) = await store.memories.find_memories("p", [f"m{number}"])
        user = await store.journal.ensure_user("p", row.user_id or "", NOW)
        gone = tombstone(row, user.position + 1, NOW)
        await timed(removing, store.memories.write_memories(user.key, [EVENT], user.position, [gone], NOW))
    goal = at_most(writer_us, INDEX_US) if isinstance(store, SqliteStore) else None
    return [
        Measured("memory_index_us", "writing a memory, in writes of 20", each_us, "us", None),
        Measured("memory_index_cpu_us", "writing a memory, CPU of this process", cpu_us, "us"),
        Measured("memory_writer_cpu_us", "writing a memory, CPU of SQLite's writer", writer_us, "us", None, goal),
        Measured("memory_search_cpu_ms", "a search, CPU of this process", search_ms, "ms"),
        *shares("memory_search", f"search among {count} memories", finding, P50_MS, P99_MS),
        *shares("memory_list", "list of 50", listing),
        *shares("memory_write", "a write of 20", writing),
        *shares("memory_remove", "removing one", removing),
        *shares("append_alone", "an append alone", alone),
        *shares("append_beside", "an append that comes with a write of 20", beside),
    ]


async def appends_beside_writes(
    store: Store, users: Sequence[Stream], lots: random.Random, words: Sequence[str]
) -> tuple[Taken, Taken, Taken]:
    """How long appends take alone, and just behind a write of memories; and how long those writes take."""
    opened = await store.journal.open_producer("p", "call", "main", validate_config({}), None, NOW)
    alone, beside, writing = Taken(), Taken(), Taken()
    for number in range(1, TIMES + 1):
        event = b'{"type":"llm.delta","turn_id":1,"text":"word ","seq":%d}' % number
        appending = store.journal.append([Batch(opened.stream.key, "main", opened.epoch, NOW, [event], number)], NOW)
        if number % 2:
            await timed(alone, appending)
            continue
        user = await store.journal.ensure_user("p", users[number % USERS].id, NOW)
        rows = [
            memory(user, f"beside{number}-{place}", " ".join(lots.choices(words, k=12)), place) for place in range(20)
        ]
        await asyncio.gather(timed(writing, write(store, user, rows)), timed(beside, appending))
    return alone, beside, writing


async def writer_cpu(store: Store) -> float:
    """The CPU seconds that the writing thread of SQLite has taken; 0 on another store."""
    return await store.database.write(lambda connection: time.thread_time()) if isinstance(store, SqliteStore) else 0.0


async def timed(taken: Taken, call: Awaitable[object]) -> None:
    begun = time.perf_counter()
    await call
    taken.append(((time.perf_counter() - begun) * 1e3, 1))


def memory(user: Stream, memory_id: str, text: str, place: int) -> MemoryRow:
    return MemoryRow(
        key=user.key,
        position=user.position + 1 + place,
        id=memory_id,
        project="p",
        user_id=user.id,
        kind="fact",
        text=text,
        created_ms=NOW,
        updated_ms=NOW,
        said_ms=NOW,
        topics=("food", "family"),
        entities=("Ann",),
        details=b'{"confidence":0.9,"from":[{"session_id":"call-1","first":7,"last":9,"turn_ids":[3]}]}',
    )


async def write(store: Store, user: Stream, rows: Sequence[MemoryRow]) -> Stream:
    written = await store.memories.write_memories(user.key, [EVENT] * len(rows), user.position, rows, NOW)
    assert written is not None
    return written


def shares(name: str, what: str, taken: Taken, p50: float | None = None, p99: float | None = None) -> list[Measured]:
    """The median and the 99th percentile, in ms; with goals, where there are any."""
    found = percentile(taken, 0.5), percentile(taken, 0.99)
    goals = [at_most(value, goal) if goal else None for value, goal in zip(found, (p50, p99), strict=True)]
    return [
        Measured(f"{name}_{share}_ms", f"{what}, {share}", value, "ms", None, goal)
        for share, value, goal in zip(("p50", "p99"), found, goals, strict=True)
    ]
