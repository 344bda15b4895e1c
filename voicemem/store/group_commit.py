"""A thread that does all jobs together that wait: while one commit is on its way to the disk, the next jobs queue up.

So throughput grows with load, and a lone job never waits for company.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from voicemem.errors import StoreUnavailable

J = TypeVar("J")
CLOSED = "The store was closed."


class Queued(NamedTuple):
    """A job, the future that gets its result, and the future's loop."""

    job: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class GroupCommit(Generic[J]):
    """The thread. `commit` gets jobs and returns the result of each, an exception where it failed."""

    def __init__(
        self, name: str, commit: Callable[[list[J]], list[Any]], most: int, size: Callable[[J], int] = lambda job: 1
    ) -> None:
        """At most jobs of the size `most` are done together: it bounds how long a commit takes."""
        self.commit = commit
        self.most = most
        self.size = size
        self.is_busy = False
        self.jobs: queue.SimpleQueue[Queued | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, name=name, daemon=True)
        self.thread.start()

    async def run(self, job: J) -> Any:
        """Return the result of a job once its commit is on disk."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self.jobs.put(Queued(job, future, loop))
        return await future

    def close(self) -> None:
        """Finish the jobs that wait, and end the thread."""
        self.jobs.put(None)
        self.thread.join()
        while not self.jobs.empty():  # jobs that were queued while it closed
            if (late := self.jobs.get()) is not None:
                deliver([late], [StoreUnavailable(CLOSED)])

    def work(self) -> None:
        last = False
        while not last and (first := self.jobs.get()) is not None:
            together, size = [first], self.size(first.job)
            while size < self.most and not last and not self.jobs.empty():
                more = self.jobs.get()
                last = more is None
                if more is not None:
                    together.append(more)
                    size += self.size(more.job)
            self.is_busy = True
            deliver(together, self.commit([queued.job for queued in together]))
            self.is_busy = False


def deliver(together: list[Queued], results: list[Any]) -> None:
    """Give each job its result, with one wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for queued, result in zip(together, results, strict=True):
        by_loop.setdefault(queued.loop, []).append((queued.future, result))
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and nothing waits in it
            loop.call_soon_threadsafe(set_results, pairs)


def set_results(pairs: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
