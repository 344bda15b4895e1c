"""What other nodes do to what this one serves: one look at the store for all open tails and all connections.

A store that this process has to itself needs none: there the commits of the own recorder tell everything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from voicemem.errors import StoreUnavailable
from voicemem.sessions.tails.hub import TailHub
from voicemem.store.port import Nodes

TAILS_INTERVAL_S = 0.04
"""Between the starts of two looks at the journals that are followed, for up to `KEYS_PER_LOOK` of them; it is half of
that for few, whose look costs next to nothing, and longer for more."""
FEW_KEYS, KEYS_PER_LOOK = 100, 1_000
LEASES_INTERVAL_S = 1.0
"""Between two looks at which producers were opened elsewhere: their next event would tell them too."""
HeldLease = tuple[int, str, int]
"""Session key, producer and epoch."""


class Watcher:
    """Looks for what has changed on other nodes, and reports it here."""

    def __init__(self, store: Nodes, tails: TailHub) -> None:
        self.store = store
        self.tails = tails
        self.positions: dict[int, int] = {}
        """Where the journals that are followed ended at the last look."""

    async def look_at_journals(self) -> int:
        """Wake the tails of journals that have grown, or are gone; returns how many are followed.

        Tails rely on it (`Tail.poll`): after a look that failed all of them are woken. Raises `StoreUnavailable`.
        """
        keys = sorted(self.tails.followed_keys())
        before, self.positions = self.positions, {}
        for first in range(0, len(keys), KEYS_PER_LOOK):
            self.positions |= await self.store.read_positions(keys[first : first + KEYS_PER_LOOK])
        changed = {key for key in keys if key not in self.positions or before.get(key) != self.positions[key]}
        if changed:
            self.tails.notify_keys(changed)
        return len(keys)

    async def find_superseded(self, held: Iterable[HeldLease]) -> list[HeldLease]:
        """Which of these leases are outdated. Raises `StoreUnavailable`."""
        leases, superseded = list(held), list[HeldLease]()
        for first in range(0, len(leases), KEYS_PER_LOOK):
            superseded += await self.store.find_superseded(leases[first : first + KEYS_PER_LOOK])
        return superseded


def interval_s(followed: int) -> float:
    """Seconds from the start of a look at so many journals to that of the next one."""
    return TAILS_INTERVAL_S * (0.5 if 0 < followed <= FEW_KEYS else max(1, -(-followed // KEYS_PER_LOOK)))


async def watch_journals_forever(watcher: Watcher) -> None:
    """Background task: wake tails of what was journaled on other nodes."""
    while True:
        began, followed = time.monotonic(), 0
        if not watcher.store.is_exclusive:
            with suppress(StoreUnavailable):
                followed = await watcher.look_at_journals()
        interval = interval_s(followed)
        await asyncio.sleep(max(began + interval - time.monotonic(), interval / 2))  # a slow store gets its rest


async def watch_leases_forever(
    watcher: Watcher, held: Callable[[], Iterable[HeldLease]], supersede: Callable[[HeldLease], None]
) -> None:
    """Background task: report the leases that were superseded on other nodes, of those that this one holds."""
    while True:
        if not watcher.store.is_exclusive:
            with suppress(StoreUnavailable):
                for lease in await watcher.find_superseded(held()):
                    supersede(lease)
        await asyncio.sleep(LEASES_INTERVAL_S)
