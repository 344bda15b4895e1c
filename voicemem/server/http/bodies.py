"""How many large bodies of a project are received at a time: hundreds of them may come at once, and never end."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

AT_ONCE = 16
FREE_BYTES = 64 * 1024
"""Of each body, so that small ones never wait."""


class BodySlots:
    """A slot is held for each large body until it has come; those of a project that find none wait, unread."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.at_once = at_once
        self.slots: WeakValueDictionary[str | None, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, project: str | None) -> asyncio.Semaphore:
        """The slots of a project; None for callers without a key."""
        slots = self.slots.get(project)
        if slots is None:
            slots = self.slots[project] = asyncio.Semaphore(self.at_once)
        return slots
