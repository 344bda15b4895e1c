"""Threads for work that would hold up the event loop, with a bound on the CPU time of each piece of work."""

from __future__ import annotations

import asyncio
import ctypes
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
LOOKS_PER_BUDGET = 20
"""How often the CPU time of a piece of work is looked at until its budget is used up."""
MAX_LOOK_S = 0.05
HAS_THREAD_CLOCKS = hasattr(time, "pthread_getcpuclockid")
STEPS_TO_ARRIVE = 10_000
"""Steps of a thread in which an interruption arrives that is on its way when the work has just ended; one is enough."""
LOST_AFTER = 2
"""Budgets after which work that does not end is left behind: it is in C code that cannot be interrupted."""
INTERRUPTIONS = 8
"""How often work is interrupted until it is over, each time after twice as long as before."""


class BudgetExhausted(BaseException):
    """Raised inside work that has used up its CPU time; no `except Exception` in there may catch it."""


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

        Work that is cancelled is interrupted too, but may go on for a moment: what it changes must not be used then.
        """
        async with self.background_slots if background else self.slots:
            piece = Work(work, asyncio.get_running_loop())
            try:
                return await self.finish(piece)
            finally:
                self.stop(piece)

    def stop(self, piece: Work[T]) -> None:
        """Interrupt work that nobody waits for any more, again and again if need be."""
        if piece.interrupt():
            asyncio.get_running_loop().call_later(MAX_LOOK_S, self.stop, piece)

    async def finish(self, piece: Work[T]) -> T:
        """Wait for a piece of work; interrupt it once its budget is used up."""
        look_s = min(MAX_LOOK_S, self.budget_s / LOOKS_PER_BUDGET)
        piece.thread.start()
        while True:
            done, _ = await asyncio.wait((piece.ended,), timeout=look_s)
            if done:
                return piece.ended.result()
            used_s = piece.cpu_s()
            if used_s > self.budget_s:
                piece.interrupt()
            if used_s > self.budget_s * LOST_AFTER:
                raise BudgetExhausted


class Work(Generic[T]):
    """One piece of work on its thread. `ended` gets its result, or what it raised."""

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.ended: asyncio.Future[T] = loop.create_future()
        self.thread = threading.Thread(target=self.run, name="voicemem-off-loop", daemon=True)
        self.worker: int | None = None
        """The thread, once it can be interrupted."""
        self.clock: int | None = None
        """The clock of the thread's CPU time, once it runs."""
        self.started_s = time.monotonic()
        self.lock = threading.Lock()
        """Held to interrupt the thread, and by it to note that its work is over: then nothing may interrupt it."""
        self.is_over = False
        self.interruptions = 0
        self.interrupt_again_s = 0.0
        """When the next interruption may follow, by the monotonic clock."""

    def cpu_s(self) -> float:
        """The CPU time that it has used, in seconds; the time that has passed where threads have no clocks (macOS)."""
        if not HAS_THREAD_CLOCKS:
            return time.monotonic() - self.started_s
        with suppress(OSError):  # it has just ended
            return 0.0 if self.clock is None else time.clock_gettime(self.clock)
        return 0.0

    def interrupt(self) -> bool:
        """Raise `BudgetExhausted` in the thread, wherever in Python code it is; False once its work is over.

        Python drops what is raised in a finaliser or in the callback of a weak reference. So it is raised again, after
        a while in which the work may come to its end.
        """
        with self.lock:
            if self.is_over or self.interruptions == INTERRUPTIONS:
                return False
            now_s = time.monotonic()
            if now_s >= self.interrupt_again_s:
                self.interrupt_again_s = now_s + MAX_LOOK_S * 2**self.interruptions
                self.interruptions += 1
                if self.worker is not None:
                    raise_in(self.worker, BudgetExhausted)
            return True

    def run(self) -> None:
        """The thread. An interruption may come at any moment until the work is over; hardly ever two at once."""
        value: Any = None
        error: BaseException | None = None
        try:
            try:
                self.begin()
                if HAS_THREAD_CLOCKS:
                    self.clock = time.pthread_getcpuclockid(threading.get_ident())
                value = self.work()
            except BaseException as raised:
                error = raised
            with self.lock:
                self.is_over = True
            if self.interruptions:
                for _ in range(STEPS_TO_ARRIVE):
                    pass
        except BudgetExhausted as late:
            self.is_over, error = True, late
        with suppress(RuntimeError):  # the loop was closed, and nothing waits in it
            self.loop.call_soon_threadsafe(self.end, value, error)

    def begin(self) -> None:
        """Note that the thread may be interrupted from now on."""
        with self.lock:
            if self.interruptions:
                raise BudgetExhausted
            self.worker = threading.get_ident()

    def end(self, value: Any, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(value)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # it counts as seen, also when nobody waits any more


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in a thread at its next step in Python code.

    It cannot be taken back: CPython 3.11 would then look for it at every step of every thread, and a profiler that is
    started later would never return.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
