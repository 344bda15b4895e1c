"""The vectors of queries: a search waits a little for its own, and goes by words alone when it is late."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from voicemem.errors import LlmFailed
from voicemem.llm.embeddings import Embedder
from voicemem.redaction.rules import Rules
from voicemem.redaction.runs import START
from voicemem.redaction.texts import redact_text

MAX_CACHED = 500
"""Vectors of queries that are kept for the next pages of a search, and for who asks the same: about 3 MB."""
MAX_ASKED = 32
"""Requests at a time; a search that comes on top of them does not wait."""
MAX_LATE = 3
QUIET_S = 5.0
"""After so many late or failed answers in a row, no search waits for so long."""
USE = "query"
Vector = bytes | None


class QueryVectors:
    """Asks an embedder for the vectors of queries, each at most once at a time.

    It gets them redacted, as the texts are that they are compared with.
    """

    def __init__(self, embedder: Embedder, wait_ms: int, rules: Rules | None = None) -> None:
        self.embedder = embedder
        self.rules = rules
        self.wait_s = wait_ms / 1000
        self.cached: OrderedDict[str, Vector] = OrderedDict()
        self.asked: dict[str, asyncio.Task[Vector]] = {}
        self.late = 0
        """Answers in a row that were late or failed."""
        self.quiet_until = 0.0

    def begin(self, query: str) -> Callable[[], Awaitable[Vector]]:
        """Ask for a vector; what is returned waits for it, and gives None when it did not come in time."""
        if self.rules is not None:
            query = redact_text(query, START, self.rules)[0]
        if query in self.cached:
            self.cached.move_to_end(query)
            return lambda: asyncio.sleep(0, self.cached.get(query))
        loop = asyncio.get_running_loop()
        task, deadline = self.asked.get(query), loop.time() + self.wait_s
        if task is None and len(self.asked) < MAX_ASKED:
            task = self.asked[query] = loop.create_task(self.ask(query))
            task.add_done_callback(lambda _: self.asked.pop(query, None))
        if task is None or loop.time() < self.quiet_until:
            return lambda: asyncio.sleep(0, None)
        return lambda: self.wait_for(task, deadline)

    async def wait_for(self, task: asyncio.Task[Vector], deadline: float) -> Vector:
        """The answer, if it is there by the deadline; it is kept for the next search if it comes later."""
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
        vector = task.result() if done and not task.cancelled() else None
        self.late = 0 if vector is not None else self.late + 1
        if self.late >= MAX_LATE:
            self.late, self.quiet_until = 0, loop.time() + QUIET_S
        return vector

    async def ask(self, query: str) -> Vector:
        try:
            (vector,) = await self.embedder.embed([query], USE)
        except LlmFailed:
            return None
        self.cached[query] = vector
        if len(self.cached) > MAX_CACHED:
            self.cached.popitem(last=False)
        return vector

    async def close(self) -> None:
        """Give up what is still asked for."""
        tasks = [*self.asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
