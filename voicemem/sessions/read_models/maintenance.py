"""The upkeep of the cache of read models: packing, catching up, and snapshots at the end."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush

from voicemem.errors import SessionQuarantined, StoreUnavailable
from voicemem.runtime import TimeSlicer, entries_of
from voicemem.sessions.read_models.cache import FLOOD, SNAPSHOT_EVERY, ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel, compress_state

SNAPSHOTS_PER_COMMIT = 50
"""Snapshots made and saved at a time, in one commit: more would hold the event loop up."""
WORTH_SAVING = 100
"""Entries after which a snapshot is worth its cost when the process stops."""
ROUND_S = 1.0
"""Pause between two rounds of maintenance."""
REPORT_ROUNDS = 10
"""Rounds between two looks at what other processes have quarantined."""
IDLE_ROUNDS, PRESSURE_ROUNDS = 10, 2
"""Rounds without use after which a read model is packed: usually, and while those in use take half the budget."""
PACKED_UP_TO = 16 * 1024 * 1024
"""Bytes of a journal up to which its read model is packed: for a larger one the snapshot would take as much again, so
it leaves the cache, and is folded again when needed."""
WEIGHING_S = 0.004
"""CPU seconds of a round for weighing read models. The weights of the others are estimated from those."""
MOST_WEIGHED = 200
"""Read models that may be weighed in a round: those that have grown most."""
FOLD_S = 1.0
"""Pause between two rounds in which committed events are folded: a call has about ten in that time."""
CATCH_UP_S = 0.25
"""Pause between two looks at what waits in the journal: a flood that is over by then is folded at once."""
CATCH_UP_SLICE = 50
"""Read models that catch up before the cache is checked against its budget."""


async def maintain(read_models: ReadModelCache) -> None:
    """Do one round of maintenance: pack idle read models, and evict those that exceed the budget."""
    read_models.rounds += 1
    await pack_idle(read_models)
    await relieve(read_models)
    if read_models.rounds % REPORT_ROUNDS == 1:
        with suppress(StoreUnavailable):
            await read_models.quarantined.refresh()


async def relieve(read_models: ReadModelCache) -> None:
    await weigh_grown(read_models)
    await read_models.evict()


async def fold_committed(read_models: ReadModelCache) -> None:
    """Fold committed events: several events of a call together cost much less than each by itself."""
    async for key, read_model in entries_of(read_models.to_fold):
        read_models.fold_waiting(key, read_model)


async def catch_up_lagging(read_models: ReadModelCache) -> None:
    """Fold what was too much for the event loop, and retry what has failed there."""
    failed, read_models.failed = read_models.failed, {}
    for key, position in failed.items():
        with suppress(StoreUnavailable, SessionQuarantined):
            await read_models.compute_as_of(key, position, ReadModel.refresh, background=True)
    for count, (key, seen) in enumerate(list(read_models.lagging.items()), 1):
        read_model = read_models.cached.get(key)
        if read_model is not None and read_model.known_position - seen > FLOOD * CATCH_UP_S:
            read_models.lagging[key] = read_model.known_position
            continue
        with suppress(StoreUnavailable, SessionQuarantined):  # the next read reports it
            await catch_up(read_models, key)
        if count % CATCH_UP_SLICE == 0:
            await relieve(read_models)


async def catch_up(read_models: ReadModelCache, key: int, every: int = SNAPSHOT_EVERY) -> None:
    """Fold what waits in the journal for a session, and save a snapshot of it if one is due. Raises as `get`."""
    read_models.lagging.pop(key, None)
    read_model = read_models.cached.get(key)
    if read_model is None:
        return
    read_model.last_round = read_models.rounds
    async with read_model.lock:
        if read_models.cached.get(key) is not read_model:
            return
        await read_models.prepare(key, read_model, read_model.known_position, background=True)
    await read_models.save_snapshot_if_due(key, read_model, every)


async def pack_idle(read_models: ReadModelCache) -> None:
    """Pack the read models that were not used for a while."""
    budget = read_models.budget
    rounds = PRESSURE_ROUNDS if budget.memories_in_use > budget.room_for_memories // 2 else IDLE_ROUNDS
    async for key, read_model in entries_of(read_models.cached):
        state = read_model.unpacked
        if state is None or read_models.rounds - read_model.last_round < rounds or read_model.lock.locked():
            continue
        if read_model.folded_bytes > PACKED_UP_TO:
            read_models.keep_beside(key)
            continue
        position = state.position
        packed = await read_models.encode(read_model, partial(compress_state, state))
        if packed is not None and read_model.unpacked is state and state.position == position:
            read_model.replace_state(packed)


async def weigh_grown(read_models: ReadModelCache) -> None:
    """Update the estimates of read models, and weigh those that have grown, for a short time."""
    read_models.uncharged = 0
    grown, slicer = list[tuple[int, int]](), TimeSlicer()
    async for key, read_model in entries_of(read_models.cached):
        if read_model.charged != read_model.weight:
            read_models.charge(key, read_model)
        if read_model.has_grown:
            heappush(grown, (read_model.folded_bytes - read_model.weighed_bytes, key))
        if len(grown) > MOST_WEIGHED:
            heappop(grown)
    spent = 0.0
    for _, key in sorted(grown, reverse=True):
        await slicer.pause()
        grown_model = read_models.cached.get(key)
        if grown_model is not None and grown_model.has_grown and not grown_model.lock.locked():
            began = time.thread_time()
            read_models.weigh(key, grown_model)
            spent += time.thread_time() - began
            if spent > WEIGHING_S:
                return


async def save_all(read_models: ReadModelCache, timeout_s: float) -> None:
    """Save as many snapshots as there is time for, at drain, so that the next process has little to fold."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await fold_committed(read_models)
            waiting = list(read_models.cached.items())
            for first in range(0, len(waiting), SNAPSHOTS_PER_COMMIT):
                together = waiting[first : first + SNAPSHOTS_PER_COMMIT]
                await asyncio.gather(
                    *(read_models.save_snapshot_if_due(key, read_model, WORTH_SAVING) for key, read_model in together)
                )
            for key in list(read_models.lagging):
                with suppress(StoreUnavailable, SessionQuarantined):
                    await catch_up(read_models, key, every=WORTH_SAVING)


async def relieve_forever(read_models: ReadModelCache) -> None:
    """Background task: keep the cache in bounds between two rounds of maintenance, while events come in fast."""
    while True:
        await read_models.under_pressure.wait()
        read_models.under_pressure.clear()
        await relieve(read_models)
