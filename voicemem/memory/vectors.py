"""Vectors of queries, messages and memories.

A search waits a little for the vector of its query, and uses words alone if it is late. The vectors of texts are made
in the background: no ack, read or search waits for them.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from voicemem.backoff import exponential_s, spread
from voicemem.errors import LlmFailed, StoreUnavailable
from voicemem.llm.embeddings import MAX_BATCH, Embedder
from voicemem.redaction.digit_runs import START
from voicemem.redaction.texts import Rules, redact_text
from voicemem.runtime import NodeIdentity, Runtime, cancel_all
from voicemem.store.port import Store
from voicemem.store.vectors import TextToEmbed, VectorSupport
from voicemem.store.vectors import Vectors as StoredVectors

LOG = logging.getLogger("voicemem")
ROUND_S = 0.5
CHECKED_AT_ONCE = 200
SAVED_AT_ONCE = 16
"""Vectors of one transaction: 100 KB."""
CHECK_INTERVAL_S = 300.0
"""The time between two checks of all sessions, and of the store's support for vectors."""
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
REJECTED = (400, 413, 422)
"""Statuses with which embedders refuse a text, such as one that is too long for them."""
PROBE = "Hello."
"""A text that every working embedder takes."""
MAX_CACHED = 500
"""Vectors of queries that are kept for further pages of a search and for repeated queries: about 3 MB."""
MAX_ASKED = 32
"""Concurrent requests; a search beyond that does not wait, and goes by words."""
MAX_LATE = 3
QUIET_S = 5.0
"""After `MAX_LATE` late or failed answers in a row, no search waits for `QUIET_S` seconds."""
Vector = bytes | None


class QueryVectors:
    """Asks an embedder for the vectors of queries; equal queries share a request.

    Queries are redacted first, as the texts are that they are compared with.
    """

    def __init__(self, embedder: Embedder, wait_ms: int, rules: Rules | None = None) -> None:
        self.embedder = embedder
        self.rules = rules
        self.wait_s = wait_ms / 1000
        self.cached: OrderedDict[str, Vector] = OrderedDict()
        self.pending: dict[str, asyncio.Task[Vector]] = {}
        self.late = 0
        """Answers in a row that were late or failed."""
        self.quiet_until = 0.0

    def begin(self, query: str) -> Callable[[], Awaitable[Vector]]:
        """Request a vector. Return a function that waits for it, and returns None if it does not come in time."""
        if self.rules is not None:
            query = redact_text(query, START, self.rules)[0]
        if query in self.cached:
            self.cached.move_to_end(query)
            return lambda: asyncio.sleep(0, self.cached.get(query))
        loop = asyncio.get_running_loop()
        task, deadline = self.pending.get(query), loop.time() + self.wait_s
        if task is None and len(self.pending) < MAX_ASKED:
            task = self.pending[query] = loop.create_task(self.ask(query))
            task.add_done_callback(lambda _: self.pending.pop(query, None))
        if task is None or loop.time() < self.quiet_until:
            return lambda: asyncio.sleep(0, None)
        return lambda: self.wait_for(task, deadline)

    async def wait_for(self, task: asyncio.Task[Vector], deadline: float) -> Vector:
        """Return the answer if it comes by the deadline; a later one is kept for the next search."""
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
        vector = task.result() if done and not task.cancelled() else None
        self.late = 0 if vector is not None else self.late + 1
        if self.late >= MAX_LATE:
            self.late, self.quiet_until = 0, loop.time() + QUIET_S
        return vector

    async def ask(self, query: str) -> Vector:
        try:
            (vector,) = await self.embedder.embed([query], "query")
        except LlmFailed:
            return None
        self.cached[query] = vector
        if len(self.cached) > MAX_CACHED:
            self.cached.popitem(last=False)
        return vector

    async def close(self) -> None:
        await cancel_all(self.pending.values())


class EmbeddingQueue(NamedTuple):
    """The stored vectors of one kind of text, and the streams that changed since."""

    vectors: StoredVectors
    changed: dict[int, None]
    """The keys of the streams with new texts, in order."""

    def note(self, keys: Iterable[int]) -> None:
        self.changed.update(dict.fromkeys(keys))


class VectorMaker:
    """Gives each message of the index, and each memory, a vector. Whatever was missed is found later as without one."""

    def __init__(self, store: Store, embedder: Embedder, runtime: Runtime, node: NodeIdentity) -> None:
        self.store = store
        self.messages = EmbeddingQueue(store.transcript_vectors, {})
        self.memories = EmbeddingQueue(store.memory_vectors, {})
        self.queues = (self.memories, self.messages)
        self.embedder = embedder
        self.runtime = runtime
        self.node = node
        self.support: VectorSupport | None = None
        """The store's support for vectors; None until it was asked."""
        self.failures = 0

    @property
    def can_compare(self) -> bool:
        return self.support is not None and self.support.max_compared > 0

    async def prepare(self) -> None:
        """Ask the store for its support for vectors, and log it for the operator. Raises `StoreUnavailable`."""
        before, self.support = self.support, await self.store.transcript_vectors.prepare_vectors()
        if self.support.note is not None and self.support != before:
            LOG.warning("%s", self.support.note)

    async def find_name(self) -> str:
        """Return the name under which vectors are kept, asking the embedder if necessary. Raises `LlmFailed`."""
        if self.embedder.name is None:
            await self.embedder.embed([PROBE], "embedding")
        assert self.embedder.name is not None
        return self.embedder.name

    async def embed_changed(self) -> None:
        """Make the vectors of the streams that changed. Raises `LlmFailed`, `StoreUnavailable`."""
        name = await self.find_name() if any(queue.changed for queue in self.queues) else ""
        for queue in self.queues:
            while queue.changed:
                keys = list(islice(queue.changed, 50))
                for key in keys:
                    del queue.changed[key]
                try:
                    async for _ in self.embed_streams(queue, name, keys):
                        pass
                except BaseException:
                    queue.changed.update(dict.fromkeys(keys))
                    raise

    async def embed_streams(self, queue: EmbeddingQueue, name: str, keys: Sequence[int]) -> AsyncIterator[int]:
        """Give all texts of these streams vectors; yield the number of each step. Raises as `embed_changed`."""
        while texts := await queue.vectors.find_without_vector(name, keys, MAX_BATCH * 4):
            batches = [texts[first : first + MAX_BATCH] for first in range(0, len(texts), MAX_BATCH)]
            done = await asyncio.gather(*map(self.embed_batch, batches), return_exceptions=True)
            for embedded in done:
                if not isinstance(embedded, BaseException):
                    for first in range(0, len(embedded), SAVED_AT_ONCE):
                        await queue.vectors.save_vectors(name, embedded[first : first + SAVED_AT_ONCE])
                    yield len(embedded)
            for failed in done:
                if isinstance(failed, BaseException):
                    raise failed

    async def embed_batch(self, texts: Sequence[TextToEmbed]) -> list[tuple[TextToEmbed, bytes | None]]:
        """Return a batch with its vectors. A text that the embedder refuses gets None, and is not sent again."""
        try:
            vectors = await self.embedder.embed([one.text for one in texts], "embedding")
        except LlmFailed as failed:
            if failed.why not in REJECTED:
                raise
            if len(texts) > 1:
                half = len(texts) // 2
                return [*await self.embed_batch(texts[:half]), *await self.embed_batch(texts[half:])]
            await self.embedder.embed([PROBE], "embedding")  # it takes other texts, so it refuses this one
            vectors = [None]
        return list(zip(texts, vectors, strict=True))

    async def catch_up(self) -> None:
        """Make the missing vectors, unless another node does. Raises as `embed_changed`."""
        lease_ms = int(CHECK_INTERVAL_S * 1000)
        if await self.store.transcript_index.claim_index_check(self.node.token, self.runtime.clock(), lease_ms):
            async for _ in self.check_all():
                pass

    async def check_all(self) -> AsyncIterator[int]:
        """Check everything, and make the missing vectors; yield the number of each step."""
        name = await self.find_name()
        for queue in self.queues:
            after: int | None = 0
            while after is not None:
                check = await queue.vectors.check_vectors(name, after, CHECKED_AT_ONCE)
                async for count in self.embed_streams(queue, name, check.behind):
                    yield count
                after = check.through_key
                await asyncio.sleep(0)

    async def count_missing(self) -> int:
        """Count the missing vectors. Raises as `embed_changed`."""
        name = await self.find_name()
        messages = await self.store.transcript_vectors.count_without_vector(name)
        return messages + await self.store.memory_vectors.count_without_vector(name)

    def retry_after(self, failed: LlmFailed) -> float:
        """Return the seconds until the embedder is asked again; log the first failure in a row."""
        if not self.failures:
            LOG.warning(
                "The embedder fails (%s); searches go by words where vectors are missing. It is tried again.",
                failed.why,
            )
        wait_s = exponential_s(self.failures, MIN_RETRY_S, MAX_RETRY_S)
        self.failures += 1
        return spread(wait_s, self.runtime.random(), 0.5, 1.5)


async def make_vectors_forever(maker: VectorMaker) -> None:
    """Background task: make the missing vectors, then those of new texts."""
    next_check = 0.0
    time = asyncio.get_running_loop().time
    while True:
        pause = ROUND_S
        with suppress(StoreUnavailable):
            if not maker.can_compare:
                await maker.prepare()
            if not maker.can_compare:
                for queue in maker.queues:
                    queue.changed.clear()
                pause = CHECK_INTERVAL_S
            else:
                try:
                    is_due = any(queue.changed for queue in maker.queues) or next_check <= time()
                    await maker.embed_changed()
                    if next_check <= time():
                        await maker.catch_up()
                        next_check = float("inf") if maker.store.is_exclusive else time() + CHECK_INTERVAL_S
                    if is_due:
                        if maker.failures:
                            LOG.warning("The embedder answers again.")
                        maker.failures = 0
                except LlmFailed as failed:
                    pause = maker.retry_after(failed)
        await asyncio.sleep(pause)
