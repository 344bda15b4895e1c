"""The read models that are kept in memory, and what they weigh in the memory budget."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain

from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.memory_budget import MemoryBudget
from voicemem.transcript.state import State

UNCHARGED_SHARE = 192
"""One part of this many of the budget is what may be folded unseen; it takes up to thirty times its bytes."""
FIRST_RATIO = 4.0
"""Until any read model was weighed."""
RATIO_MEMORY = 16
"""How many weighings the typical ratio goes back."""


class KeptReadModels:
    """Read models by the key of their session, the least recently read first; ended sessions give way first.

    What each of them weighs is added to the budget whenever it is read, and in each round of maintenance.
    """

    def __init__(self, budget: MemoryBudget, capacity: int) -> None:
        self.budget = budget
        self.capacity = capacity
        self.cached: OrderedDict[int, ReadModel] = OrderedDict()
        self.ended: OrderedDict[int, None] = OrderedDict()
        """The keys of those whose sessions have ended, in the same order."""
        self.rounds = 0
        """Rounds of maintenance so far."""
        self.typical_ratio = FIRST_RATIO
        """How many bytes read models take for each byte of their journals; for those that were not weighed yet."""
        self.uncharged = 0
        """Bytes of journals that were folded on the event loop since the weights were brought up to date."""
        self.under_pressure = asyncio.Event()
        """Set when these may be so much that it should be done again at once."""

    def keep(self, key: int) -> ReadModel:
        """The read model of a session, as the one that was used last; a new one is still to be loaded."""
        read_model = self.cached.get(key)
        if read_model is None:
            read_model = self.cached[key] = new_read_model()
            read_model.ratio = self.typical_ratio
        self.cached.move_to_end(key)
        read_model.last_round = self.rounds
        return read_model

    def note_state(self, key: int, is_ended: bool) -> None:
        """Note whether a session has ended, when it is read."""
        if is_ended:
            self.ended[key] = None
            self.ended.move_to_end(key)
        else:
            self.ended.pop(key, None)

    def note_ended(self, key: int) -> None:
        """A session has just ended; its read model may go before those of running ones."""
        if key in self.cached:
            self.ended[key] = None

    def drop(self, key: int, read_model: ReadModel | None) -> None:
        """Forget a read model, if it is the one that is kept."""
        if read_model is not None and self.cached.get(key) is read_model:
            self.discard(key)

    def discard(self, key: int) -> None:
        read_model = self.cached.pop(key, None)
        self.ended.pop(key, None)
        if read_model is not None:
            self.discharge(read_model)

    def discard_all(self, may_differ: Callable[[int], bool] = lambda key: True) -> None:
        """Drop all whose key `may_differ`: after a commit of unknown outcome nothing kept of them can be trusted."""
        for key in [key for key in self.cached if may_differ(key)]:
            self.discard(key)

    # Weights

    @property
    def is_full(self) -> bool:
        """Whether read models must go."""
        return self.budget.memories > self.budget.room_for_memories or len(self.cached) > self.capacity

    @property
    def is_pressed(self) -> bool:
        """Whether those that are not packed take so much that more should be."""
        return self.budget.memories_in_use > self.budget.room_for_memories // 2

    def charge(self, key: int, read_model: ReadModel) -> None:
        """Bring up to date what the budget knows of a read model."""
        if self.cached.get(key) is read_model:
            self.discharge(read_model)
            read_model.charged = read_model.weight
            read_model.charged_packed = read_model.unpacked is None
            if read_model.charged_packed:
                self.budget.memories_packed += read_model.charged
            else:
                self.budget.memories_in_use += read_model.charged

    def discharge(self, read_model: ReadModel) -> None:
        if read_model.charged_packed:
            self.budget.memories_packed -= read_model.charged
        else:
            self.budget.memories_in_use -= read_model.charged
        read_model.charged = 0

    def weigh(self, key: int, read_model: ReadModel) -> None:
        """Look at what a read model takes. It must not be in use by a thread."""
        read_model.weigh()
        self.typical_ratio += (read_model.ratio - self.typical_ratio) / RATIO_MEMORY
        self.charge(key, read_model)

    def oldest(self, but: Iterable[int]) -> int | None:
        """The key of the read model that is to go next, other than some; None when all are in use."""
        return next(
            (key for key in chain(self.ended, self.cached) if key not in but and not self.cached[key].lock.locked()),
            None,
        )


def new_read_model() -> ReadModel:
    """A read model that is still to be loaded."""
    read_model = ReadModel(State())
    read_model.loaded = False
    return read_model
