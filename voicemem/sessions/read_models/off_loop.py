"""Threads for work that would hold up the event loop, with a bound on the CPU time of each piece of work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
BUDGET_S = 5.0
"""CPU seconds of one piece of work."""
THREADS, BACKGROUND_THREADS = 2, 1
"""How many pieces of work run at a time: those that a caller waits for, and others, such as those of exports."""
MAX_LOOK_S = 0.05
"""How often the CPU time of a piece of work is looked at, at least."""
LOST_AFTER = 1.1
"""Budgets after which work that does not check its own is left behind on its thread."""
HAS_THREAD_CLOCKS = hasattr(time, "pthread_getcpuclockid")
CURRENT = threading.local()
"""Its `work` is the piece of work that this thread does."""


class BudgetExhausted(Exception):
    """A piece of work has used up its CPU time, or no one waits for it any more."""


def check_budget() -> None:
    """Raise `BudgetExhausted` on a thread whose work has used up its CPU time; long work calls this now and then."""
    work: Work[Any] | None = getattr(CURRENT, "work", None)
    if work is not None and (work.is_unwanted or time.thread_time() > work.budget_s):
        raise BudgetExhausted


class OffLoop:
    """Runs work off the event loop: each piece on a thread of its own, a few at a time, in the order of their coming.

    `budget_s` is in seconds of the thread's own CPU time, so that a busy machine does not matter.
    """

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self.budget_s = budget_s
        self.slots = asyncio.Semaphore(THREADS)
        self.background_slots = asyncio.Semaphore(BACKGROUND_THREADS)

    async def run(self, work: Callable[[], T], background: bool = False) -> T:
        """The result of some work. Raises what it raises, and `BudgetExhausted`.

        Work that is cancelled stops at its next check of the budget: what it changes must not be used then. Work that
        checks nothing is left behind, and its place is free for others.
        """
        async with self.background_slots if background else self.slots:
            piece = Work(work, asyncio.get_running_loop(), self.budget_s)
            look_s = min(MAX_LOOK_S, self.budget_s)
            piece.thread.start()
            try:
                while True:
                    done, _ = await asyncio.wait((piece.ended,), timeout=look_s)
                    if done:
                        return piece.ended.result()
                    if piece.cpu_s() > self.budget_s * LOST_AFTER:
                        raise BudgetExhausted
            finally:
                piece.is_unwanted = True


class Work(Generic[T]):
    """One piece of work on its thread. `ended` gets its result, or what it raised."""

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop, budget_s: float) -> None:
        self.work = work
        self.loop = loop
        self.budget_s = budget_s
        self.ended: asyncio.Future[T] = loop.create_future()
        self.thread = threading.Thread(target=self.run, name="voicemem-off-loop", daemon=True)
        self.clock: int | None = None
        """The clock of the thread's CPU time, once it runs."""
        self.started_s = time.monotonic()
        self.is_unwanted = False

    def cpu_s(self) -> float:
        """The CPU time that it has used, in seconds; the time that has passed where threads have no clocks (macOS)."""
        if not HAS_THREAD_CLOCKS:
            return time.monotonic() - self.started_s
        with suppress(OSError):  # it has just ended
            return 0.0 if self.clock is None else time.clock_gettime(self.clock)
        return 0.0

    def run(self) -> None:
        CURRENT.work = self
        value: Any = None
        error: BaseException | None = None
        try:
            if HAS_THREAD_CLOCKS:
                self.clock = time.pthread_getcpuclockid(threading.get_ident())
            value = self.work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop was closed, and nothing waits in it
            self.loop.call_soon_threadsafe(self.end, value, error)

    def end(self, value: Any, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(value)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # it counts as seen, also when no one waits any more
