"""Work off the event loop: each piece on a thread of its own, a few at a time, in fair turns of projects."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from voicemem.runtime import FairQueue

T = TypeVar("T")
BUDGET_S = 5.0
"""CPU seconds of one piece of work, besides those for its size."""
BUDGET_S_PER_BYTE = 0.2 / 1024**2
"""CPU seconds for each byte of the journal that is worked on: several times what everything made of it takes."""
THREADS, BACKGROUND_THREADS = 2, 1
"""How many pieces of work run at a time: those that a client waits for, and others, such as exports."""
SLICE_S = 0.05
"""CPU seconds after which a piece of work gives its slot to another project that waits, and continues behind it."""
PIECE_BYTES = 64 * 1024
"""Bytes of a large answer that are made at a time, if its parts are not larger."""
MAX_LOOK_S = 0.05
"""How often the CPU time of a piece of work is looked at, at least."""
LOST_AFTER = 1.1
"""Work that never checks its budget is abandoned on its thread after this many budgets."""
HAS_THREAD_CLOCKS = hasattr(time, "pthread_getcpuclockid")
CURRENT = threading.local()
"""Its `work` is the piece of work that this thread does."""


class BudgetExhausted(Exception):
    """A piece of work has used up its CPU time, or no one waits for it any more."""


def check_budget() -> None:
    """Raise `BudgetExhausted` on a thread whose work has used up its CPU time; long work calls this now and then.

    After each slice, the thread waits while it is the others' turn.
    """
    work: Work[Any] | None = getattr(CURRENT, "work", None)
    if work is None:
        return
    used_s = time.thread_time()
    if used_s > work.slice_ends_s:
        work.slice_ends_s = used_s + SLICE_S
        if work.queue.has_others(work.owner):
            work.pause()
    if work.is_unwanted or used_s > work.budget_s:
        raise BudgetExhausted


class OffLoop:
    """Runs work off the event loop: each piece on a thread of its own, a few at a time, projects in turn.

    `budget_s` is in seconds of the thread's own CPU time, so that a busy machine does not matter; a piece of work may
    use that, and more in proportion to its bytes.
    """

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self.budget_s = budget_s
        self.queue = FairQueue(THREADS)
        self.background_queue = FairQueue(BACKGROUND_THREADS)

    async def run(self, work: Callable[[], T], background: bool = False, owner: str | None = None, size: int = 0) -> T:
        """Return the result of a project's work on `size` bytes. Raises what it raises, and `BudgetExhausted`.

        Cancelled work stops at its next check of the budget; do not use what it has changed. Work that never checks is
        abandoned, and its slot is free for others.
        """
        queue = self.background_queue if background else self.queue
        await queue.enter(owner)
        budget_s = self.budget_s + size * BUDGET_S_PER_BYTE
        piece = Work(work, asyncio.get_running_loop(), budget_s, queue, owner)
        look_s = min(MAX_LOOK_S, budget_s)
        piece.thread.start()
        try:
            while True:
                done, _ = await asyncio.wait((piece.ended,), timeout=look_s)
                if done:
                    return piece.ended.result()
                if piece.cpu_s() > budget_s * LOST_AFTER:
                    raise BudgetExhausted
        finally:
            piece.stop()

    async def pieces(
        self, parts: Iterator[bytes], owner: str | None, background: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Join the parts of a large text to pieces, each made on a thread when it is asked for. Raises as `run`."""
        piece = None
        while piece is None or len(piece) >= PIECE_BYTES:  # a shorter one is the last
            piece = await self.run(partial(next_piece, parts), background, owner)
            if piece:
                yield piece


def next_piece(parts: Iterator[bytes], least: int = PIECE_BYTES) -> bytes:
    """Return the next parts of a text, joined: `least` bytes or a little more; nothing at its end."""
    joined, size = [], 0
    for part in parts:
        check_budget()
        joined.append(part)
        size += len(part)
        if size >= least:
            break
    return b"".join(joined)


class Work(Generic[T]):
    """One piece of work on its thread. `ended` gets its result, or what it raised."""

    def __init__(
        self,
        work: Callable[[], T],
        loop: asyncio.AbstractEventLoop,
        budget_s: float,
        queue: FairQueue,
        owner: str | None,
    ) -> None:
        """Create the work of an owner that has just entered the queue; nothing runs before its thread is started."""
        self.work = work
        self.loop = loop
        self.budget_s = budget_s
        self.queue = queue
        self.owner = owner
        self.has_slot = True
        self.slice_ends_s = SLICE_S
        self.resumed = threading.Event()
        self.resuming: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[T] = loop.create_future()
        self.thread = threading.Thread(target=self.run, name="voicemem-off-loop", daemon=True)
        self.clock: int | None = None
        """The clock of the thread's CPU time, once it runs."""
        self.started_s = time.monotonic()
        self.is_unwanted = False

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used; the time that has passed where threads have no clocks (macOS)."""
        if not HAS_THREAD_CLOCKS:
            return time.monotonic() - self.started_s
        with suppress(OSError):  # it has just ended
            return 0.0 if self.clock is None else time.clock_gettime(self.clock)
        return 0.0

    def pause(self) -> None:
        """Give the slot to another project, and wait for the next; called on its thread."""
        self.resumed.clear()
        with suppress(RuntimeError):  # the loop was closed, and nothing waits in it
            self.loop.call_soon_threadsafe(self.give_way)
            self.resumed.wait()

    def give_way(self) -> None:
        if self.is_unwanted:
            self.resumed.set()
            return
        self.resuming = self.loop.create_task(self.resume())
        self.has_slot = False
        self.queue.leave()

    async def resume(self) -> None:
        await self.queue.enter(self.owner, is_resumed=True)
        self.has_slot = True
        self.resumed.set()

    def stop(self) -> None:
        """Free the slot, since no one waits for the result, and let the thread find out at its next check."""
        self.is_unwanted = True
        if self.has_slot:
            self.queue.leave()
        elif self.resuming is not None:
            self.resuming.cancel()
        self.resumed.set()

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
