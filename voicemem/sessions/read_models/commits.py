"""What becomes of read models when events are committed: the hot path of the fold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from voicemem.protocol.events import IncomingEvent, JournaledEvent
from voicemem.runtime import Clock
from voicemem.sessions.read_models.kept import UNCHARGED_SHARE
from voicemem.sessions.read_models.read_model import LARGE_BYTES, SLOW_S, ReadModel, took_long
from voicemem.sessions.read_models.work import ReadModelWork
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.port import Store
from voicemem.transcript.fold import fold_event

UNPACK_MIN = 8
"""A packed read model is unpacked for this many entries at a time; fewer wait in the journal."""
LARGE_PACKED = 16 * 1024
"""Bytes of a packed read model that is unpacked off the event loop."""
MAX_LAG = 64
"""Entries that a packed read model may be behind its journal."""
WATCHED_FOLDS = 2_000
"""Folds on the event loop that are measured after a commit that was slow: a commit has up to 1,000."""
USUAL_FOLD_S = 0.000_1
"""What the fold of a batch takes at most, as a rule; a commit of many batches is not slow for their number."""


class CommitFolds(ReadModelWork):
    """Folds events as they are committed, where that is little work.

    `count_ignored` is called with a bound and how many events the fold has left out because of it.
    """

    def __init__(
        self,
        journal: Store,
        budget: MemoryBudget,
        capacity: int,
        cpu_budget_s: float,
        clock: Clock,
        count_ignored: Callable[[str, int], None],
    ) -> None:
        super().__init__(journal, budget, capacity, cpu_budget_s, clock)
        self.count_ignored = count_ignored
        self.lagging: set[int] = set()
        """Keys of read models that are to be folded further in the background."""
        self.failed: dict[int, int] = {}
        """By key, the position up to which a fold has just failed; the background looks whether it fails again."""
        self.watched_folds = 0
        """How many of the next folds on the event loop are measured."""

    def fold_committed(
        self,
        key: int,
        position: int,
        received_ms: int,
        events: Sequence[IncomingEvent | JournaledEvent],
        producer: str | None,
        size: int = 0,
    ) -> None:
        """Fold events that were just committed, the first at `position`, if nothing is missing before them.

        A packed read model is not unpacked for a few events, and many bytes are not folded on the event loop: a read or
        a round of maintenance folds them later. `size` is that of their payloads in bytes. It never raises: they are
        acknowledged already. This is the hot path: it runs for every commit, in the recorder's task.
        """
        read_model = self.cached.get(key)
        if read_model is None:
            return
        worth = read_model.unpacked is not None or (
            len(events) >= UNPACK_MIN and len(read_model.packed) <= LARGE_PACKED
        )
        large = size > LARGE_BYTES or read_model.slow_fold
        if worth and not large and read_model.position == position - 1 and not read_model.lock.locked():
            began = time.thread_time() if self.watched_folds else None
            try:
                state, read_model.last_round = read_model.state, self.rounds
                read_model.folded_bytes += size
                self.uncharged += size
                for place, event in enumerate(events, position):
                    fold_event(state, place, received_ms, event, producer)
            except Exception:  # read again off the loop, it fails there too, and is quarantined
                self.drop(key, read_model)
                self.failed[key] = position + len(events) - 1
                return
            if began is not None:
                self.watched_folds -= 1
                read_model.slow_fold = took_long(time.thread_time() - began, len(events))
            if state.ignored:
                self.note_ignored(read_model)
            return
        read_model.known_position = position + len(events) - 1
        if large or read_model.known_position - read_model.position > MAX_LAG:
            self.lagging.add(key)

    def note_commit(self, seconds: float, batches: int) -> None:
        """Note a whole commit, and how long folding its batches took by the wall's clock.

        After one that was long for its batches it is measured who is slow: the CPU time of every fold would cost more
        than many a fold does.
        After many bytes the weights of read models are brought up to date.
        """
        if self.uncharged > self.budget.limit // UNCHARGED_SHARE:
            self.under_pressure.set()
        if seconds > SLOW_S + batches * USUAL_FOLD_S:
            self.watched_folds = WATCHED_FOLDS

    def note_ignored(self, read_model: ReadModel) -> None:
        """Count the events that the fold has left out since the last time."""
        counted = read_model.counted = read_model.counted or {}
        for bound, count in read_model.state.ignored.items():
            if count > counted.get(bound, 0):
                self.count_ignored(bound, count - counted.get(bound, 0))
                counted[bound] = count
