"""Work on read models that may fail or take too long, snapshots, and eviction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from voicemem.errors import DamagedEntry, SessionQuarantined, StoreUnavailable, VoicememError
from voicemem.runtime import Clock
from voicemem.sessions.read_models.kept import KeptReadModels
from voicemem.sessions.read_models.off_loop import BudgetExhausted, OffLoop
from voicemem.sessions.read_models.quarantine import QuarantinedSessions
from voicemem.sessions.read_models.read_model import LARGE_BYTES, ReadModel
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.port import Store
from voicemem.store.records import Snapshot
from voicemem.transcript.state import SNAPSHOT_VERSION

LOG = logging.getLogger("voicemem")
T = TypeVar("T")
SNAPSHOT_EVERY = 2_000
"""Entries after which a new snapshot is worth its cost."""


class ReadModelWork(KeptReadModels):
    """Read models that are worked on, with the CPU time of each piece of work bounded."""

    def __init__(self, journal: Store, budget: MemoryBudget, capacity: int, cpu_budget_s: float, clock: Clock) -> None:
        super().__init__(budget, capacity)
        self.journal = journal
        self.off_loop = OffLoop(cpu_budget_s)
        self.quarantined = QuarantinedSessions(journal.quarantine, clock)

    async def perform(
        self,
        key: int,
        read_model: ReadModel | None,
        work: Callable[[], T],
        off_loop: bool,
        background: bool = False,
    ) -> T:
        """The result of work on a session's read model; when it fails or takes too long the session is quarantined.

        Whatever stops the work half-way, the read model is dropped, and never shown. Raises `SessionQuarantined`.
        """
        try:
            return await self.off_loop.run(work, background) if off_loop else work()
        except (Exception, BudgetExhausted) as error:
            if isinstance(error, VoicememError) and not isinstance(error, DamagedEntry):
                raise
            raise await self.give_up(key, read_model, error) from None
        except BaseException:
            self.drop(key, read_model)
            raise

    async def give_up(self, key: int, read_model: ReadModel | None, error: BaseException) -> SessionQuarantined:
        """Quarantine a session; the error to raise."""
        self.drop(key, read_model)
        await self.quarantined.add(key, error)
        return SessionQuarantined()

    # Snapshots

    def is_worth_saving(self, read_model: ReadModel, every: int) -> bool:
        return read_model.position - read_model.saved_position >= every

    async def save_snapshot_if_due(self, key: int, read_model: ReadModel, every: int = SNAPSHOT_EVERY) -> None:
        if self.is_worth_saving(read_model, every):
            position = read_model.saved_position = read_model.position
            encoded = await self.encode(read_model, read_model.encode_state)
            if encoded is not None and read_model.position == position:
                with suppress(StoreUnavailable):  # a snapshot only saves time
                    await self.journal.save_snapshot(key, Snapshot(position, SNAPSHOT_VERSION, encoded))

    async def encode(self, read_model: ReadModel, work: Callable[[], bytes]) -> bytes | None:
        """The result of work that only saves time or space; None if it fails, which harms nobody."""
        try:
            if read_model.folded_bytes <= LARGE_BYTES:
                return None if read_model.lock.locked() else work()
            async with read_model.lock:
                return await self.off_loop.run(work)
        except (Exception, BudgetExhausted) as error:
            LOG.warning("A snapshot could not be made: %s", type(error).__name__)
            return None

    # Eviction

    async def evict(self, but: int | None = None) -> None:
        """Drop read models while they are too many or too much together, but not one that is about to be read.

        Those on which a thread works at the moment stay. One that grew is weighed first, since it may be less than it
        is counted for.
        """
        others = () if but is None else (but,)
        while self.is_full and (key := self.oldest(others)) is not None:
            read_model = self.cached[key]
            if read_model.has_grown:
                self.weigh(key, read_model)
                await asyncio.sleep(0)
                continue
            self.discard(key)
            self.budget.evicted_memories += 1
            await self.save_snapshot_if_due(key, read_model, every=100)
