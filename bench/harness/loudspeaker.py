"""A loudspeaker that plays 24 kHz PCM in steps, with a caller who listens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

STEP_MS = 20
PCM_BYTES_PER_MS = 48


class Loudspeaker:
    """Plays one reply after another. The caller breaks into the first, and hangs up after the second.

    It counts what it has played by steps and not by a clock, so that a busy machine changes nothing.
    """

    def __init__(
        self, breaks_in_at_ms: int, break_in: Callable[[], Awaitable[None]], at_end: Callable[[], Awaitable[None]]
    ) -> None:
        self.breaks_in_at_ms: int | None = breaks_in_at_ms
        self.break_in = break_in
        self.at_end = at_end
        self.item = ""
        """The reply that plays; empty while none does."""
        self.total_ms = 0
        self.played_ms = 0
        self.is_complete = False
        self.playing: asyncio.Task[None] | None = None

    def play(self, item: str, audio: str) -> None:
        """Play base64 audio after what came before it."""
        if not self.item:
            self.item, self.total_ms, self.played_ms, self.is_complete = item, 0, 0, False
            self.playing = asyncio.create_task(self.run())
        self.total_ms += len(audio) * 3 // 4 // PCM_BYTES_PER_MS

    def has_all(self) -> None:
        """The reply has all of its audio."""
        self.is_complete = True

    def stop(self) -> tuple[str, int]:
        """Stop at once; which reply it was, and how much of it was played, in ms."""
        item, self.item = self.item, ""
        return item, self.played_ms

    async def run(self) -> None:
        item = self.item
        while self.item == item and not (self.is_complete and self.played_ms >= self.total_ms):
            await asyncio.sleep(STEP_MS / 1_000)
            if self.item == item:
                self.played_ms = min(self.played_ms + STEP_MS, self.total_ms)
            if self.breaks_in_at_ms is not None and self.played_ms >= self.breaks_in_at_ms:
                self.breaks_in_at_ms = None
                await self.break_in()
        if self.item == item:
            self.item = ""
            await self.at_end()
