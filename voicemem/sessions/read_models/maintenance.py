"""The upkeep of the cache of read models: packing, catching up, and snapshots at the end."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from itertools import islice

from voicemem.errors import SessionSetAside, StoreUnavailable
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel, compress_state

SNAPSHOTS_PER_COMMIT = 200
"""Snapshots saved at a time, in one commit."""
MAINTENANCE_S = 1.0
"""Pause between two rounds of maintenance."""
REPORT_ROUNDS = 10
"""Rounds between two looks at what other processes have set aside."""
PACK_SLICE = 10
"""Read models packed before other tasks get their turn."""
IDLE_ROUNDS, PRESSURE_ROUNDS = 10, 2
"""Rounds without use after which a read model is packed: usually, and while those in use take half the budget."""
WEIGHING_S = 0.01
"""CPU time of a round in which read models are weighed. Those that were not are taken to be like the others."""
CATCH_UP_SLICE = 50
"""Read models that catch up in one round, at most."""


async def maintain(memories: ReadModelCache) -> None:
    """One round of maintenance: pack what is not used, evict what is too much."""
    memories.rounds += 1
    await pack_idle(memories)
    await relieve(memories)
    if memories.rounds % REPORT_ROUNDS == 1:
        with suppress(StoreUnavailable):
            await memories.set_aside.refresh()


async def relieve(memories: ReadModelCache) -> None:
    """Bring the weights of read models up to date, and evict what is too much."""
    weigh_grown(memories)
    await memories.evict()


async def catch_up_lagging(memories: ReadModelCache) -> None:
    """Fold what was too much for the event loop, and look again at what has failed there."""
    failed, memories.failed = memories.failed, {}
    for key, position in failed.items():
        with suppress(StoreUnavailable, SessionSetAside):
            await memories.compute_as_of(key, position, ReadModel.refresh, background=True)
    for key in list(islice(memories.lagging, CATCH_UP_SLICE)):
        memories.lagging.discard(key)
        memory = memories.cached.get(key)
        if memory is not None:
            memory.last_round = memories.rounds
            with suppress(StoreUnavailable, SessionSetAside):  # the next read reports it
                async with memory.lock:
                    if memories.cached.get(key) is memory:
                        await memories.prepare(key, memory, memory.known_position, background=True)


async def pack_idle(memories: ReadModelCache) -> None:
    """Pack the read models that were not used for a while, a few at a time so that other tasks get their turn."""
    used = [memory for memory in memories.cached.values() if memory.unpacked is not None]
    rounds = PRESSURE_ROUNDS if memories.is_pressed else IDLE_ROUNDS
    idle = [memory for memory in used if memories.rounds - memory.last_round >= rounds]
    for count, memory in enumerate(idle, 1):
        if memories.rounds - memory.last_round >= rounds and not memory.lock.locked():
            await pack(memories, memory)
        if count % PACK_SLICE == 0:
            await asyncio.sleep(0)


def weigh_grown(memories: ReadModelCache) -> None:
    """Bring up to date what read models are counted for, and weigh those that have grown, for a short time."""
    memories.uncharged = 0
    grown: list[tuple[int, int]] = []
    for key, memory in memories.cached.items():
        if memory.charged != memory.weight:
            memories.charge(key, memory)
        if memory.has_grown and not memory.lock.locked():
            grown.append((memory.folded_bytes - memory.weighed_bytes, key))
    until = time.thread_time() + WEIGHING_S
    for _, key in sorted(grown, reverse=True):
        memories.weigh(key, memories.cached[key])
        if time.thread_time() > until:
            return


async def pack(memories: ReadModelCache, memory: ReadModel) -> None:
    """Pack a read model, unless it is used meanwhile."""
    state = memory.unpacked
    if state is None:
        return
    position = state.position
    packed = await memories.encode(memory, partial(compress_state, state))
    if packed is not None and memory.unpacked is state and state.position == position:
        memory.replace_state(packed)


async def save_all(memories: ReadModelCache, timeout_s: float) -> None:
    """Save as many snapshots as there is time for, at drain, so that the next process has little to fold."""
    waiting = list(memories.cached.items())
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            for first in range(0, len(waiting), SNAPSHOTS_PER_COMMIT):
                together = waiting[first : first + SNAPSHOTS_PER_COMMIT]
                await asyncio.gather(
                    *(memories.save_snapshot_if_due(key, memory, every=100) for key, memory in together)
                )


async def maintain_forever(memories: ReadModelCache) -> None:
    """Background task: keep the cache in bounds, once a second."""
    while True:
        await asyncio.sleep(MAINTENANCE_S)
        await maintain(memories)


async def relieve_forever(memories: ReadModelCache) -> None:
    """Background task: keep the cache in bounds between two rounds of maintenance, while events come in fast."""
    while True:
        await memories.under_pressure.wait()
        memories.under_pressure.clear()
        await relieve(memories)


async def catch_up_forever(memories: ReadModelCache) -> None:
    """Background task: fold what is too much for the event loop. It has a task of its own, since it may take long."""
    while True:
        await asyncio.sleep(MAINTENANCE_S)
        await catch_up_lagging(memories)
