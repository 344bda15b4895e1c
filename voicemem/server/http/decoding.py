"""Large bodies and frames are decoded in threads of their own, so that others are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
LARGE_BYTES = 16 * 1024
"""Anything up to this size is decoded at once: within a millisecond or two, and mostly within a tenth of one."""
THREADS = 2
"""So few that a flood of large bodies waits for itself, and not the small ones, the store or name servers."""


class Decoding:
    """Decodes what has come in on one port, until it is closed."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(THREADS, "decoding")  # makes its threads when they are needed
        self.turn = asyncio.Lock()

    async def decode(self, size: int, decode: Callable[[], T]) -> T:
        """What `decode` returns or raises, for something of this size in bytes."""
        if size <= LARGE_BYTES:
            return decode()
        return await self.run(decode)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, in a thread.

        Callers go on one at a time, each in a round of the event loop of its own: what they do with so much next may
        take some milliseconds, and dozens of them in one round would hold up everybody for their sum.
        """
        done = await asyncio.get_running_loop().run_in_executor(self.pool, work)
        async with self.turn:
            await asyncio.sleep(0)
        return done

    def close(self) -> None:
        """Let the threads end; what is being decoded is not waited for."""
        self.pool.shutdown(wait=False, cancel_futures=True)
