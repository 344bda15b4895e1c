"""The client for synchronous code; it runs on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from voicemem.client.buffer import Ack
from voicemem.client.client import Client
from voicemem.client.errors import Closed, Unacknowledged
from voicemem.client.memories import ForgetParams, ListParams, Memories, MemoryFields
from voicemem.client.options import Options
from voicemem.client.session import ContextParams, Documents, HistoryParams, ProducerSession, SearchParams, SessionFacts
from voicemem.client.transport.rest import CallFilters

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="voicemem-client", daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, which bounds its time itself. Raises `Closed`, and what it raises."""
        if self.loop.is_closed():
            work.close()
            raise Closed
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError:
            raise Closed from None
        finally:
            future.cancel()

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Wait for each item of an asynchronous generator, which ends with the iterator."""
        try:
            while True:
                try:
                    yield self.run(anext_of(items))
                except StopAsyncIteration:
                    return
        finally:
            if not self.loop.is_closed():
                self.run(items.aclose())

    def stop(self) -> None:
        """Cancel what is still running, and end the thread."""
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(cancel_others(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def anext_of(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


async def cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class SyncAck:
    """The outcome of one event."""

    def __init__(self, ack: Ack, thread: LoopThread) -> None:
        self._ack = ack
        self._thread = thread

    @property
    def seq(self) -> int:
        return self._ack.seq

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._ack.done()

    def result(self, timeout: float | None = None) -> int:
        """The event's seq once it is on disk; waits at most `timeout` seconds. Raises `TimedOut` and `ClientError`."""
        if self._ack.done():
            return self._ack.outcome()
        return self._thread.run(self._ack.result(timeout))


class SyncProducerSession(SessionFacts):
    """`ProducerSession` for synchronous code. Its methods may be called from any thread; all but `send` block."""

    def __init__(self, session: ProducerSession, thread: LoopThread) -> None:
        super().__init__(session._producer)
        self._session = session
        self._thread = thread

    def send(self, event: Mapping[str, Any]) -> SyncAck:
        """As `ProducerSession.send`: returns at once, and never raises."""
        return SyncAck(self._session.send(event), self._thread)

    def flush(self, timeout: float | None = None) -> None:
        """As `ProducerSession.flush`."""
        self._thread.run(self._session.flush(timeout))

    def end(self, reason: str | None = None, timeout: float | None = None) -> int:
        """As `ProducerSession.end`. After `TimedOut` the end is sent all the same."""
        return self._thread.run(self._session.end(reason, timeout))

    def history(self, *, timeout: float | None = None, **params: Unpack[HistoryParams]) -> dict[str, Any]:
        """As `ProducerSession.history`."""
        return self._thread.run(self._session.history(timeout=timeout, **params))

    def context(self, *, timeout: float | None = None, **params: Unpack[ContextParams]) -> dict[str, Any]:
        """As `ProducerSession.context`."""
        return self._thread.run(self._session.context(timeout=timeout, **params))

    def turns(self, *, marks: bool = False, timeout: float | None = None) -> list[dict[str, Any]]:
        """As `ProducerSession.turns`."""
        return self._thread.run(self._session.turns(marks=marks, timeout=timeout))

    def add(self, *messages: Mapping[str, Any]) -> dict[str, Any]:
        """As `ProducerSession.add`."""
        return self._thread.run(self._session.add(*messages))

    def forget(
        self, *, through_turn: int | None = None, keep_last: int | None = None, everything: bool = False
    ) -> dict[str, Any]:
        """As `ProducerSession.forget`."""
        forgetting = self._session.forget(through_turn=through_turn, keep_last=keep_last, everything=everything)
        return self._thread.run(forgetting)

    def memory(self) -> dict[str, Any]:
        """As `ProducerSession.memory`."""
        return self._thread.run(self._session.memory())

    @property
    def working_memory(self) -> SyncDocuments:
        """As `ProducerSession.working_memory`."""
        return SyncDocuments(self._session.working_memory, self._thread)

    def data(self) -> dict[str, Any]:
        """As `ProducerSession.data`."""
        return self._thread.run(self._session.data())

    def update_data(self, **patch: Any) -> dict[str, Any]:
        """As `ProducerSession.update_data`."""
        return self._thread.run(self._session.update_data(**patch))


class SyncDocuments:
    """`Documents` for synchronous code; its methods block."""

    def __init__(self, documents: Documents, thread: LoopThread) -> None:
        self._documents = documents
        self._thread = thread

    def read(self, version: int | None = None) -> dict[str, Any]:
        """As `Documents.read`."""
        return self._thread.run(self._documents.read(version))

    def append(self, content: str | Mapping[str, Any], expected: int | None = None) -> dict[str, Any]:
        """As `Documents.append`."""
        return self._thread.run(self._documents.append(content, expected))

    def replace(self, content: str | Mapping[str, Any], expected: int | None = None) -> dict[str, Any]:
        """As `Documents.replace`."""
        return self._thread.run(self._documents.replace(content, expected))

    def clear(self, expected: int | None = None) -> dict[str, Any]:
        """As `Documents.clear`."""
        return self._thread.run(self._documents.clear(expected))

    def tools(self) -> list[dict[str, Any]]:
        """As `Documents.tools`."""
        return self._thread.run(self._documents.tools())

    def execute(self, tool_call: Mapping[str, Any]) -> dict[str, Any]:
        """As `Documents.execute`."""
        return self._thread.run(self._documents.execute(tool_call))


class SyncMemories:
    """`Memories` for synchronous code; its methods block."""

    def __init__(self, memories: Memories, thread: LoopThread) -> None:
        self._memories = memories
        self._thread = thread

    def add(self, text: str, **fields: Unpack[MemoryFields]) -> dict[str, Any]:
        """As `Memories.add`."""
        return self._thread.run(self._memories.add(text, **fields))

    def read(self, memory_id: str, evidence: bool = False) -> dict[str, Any]:
        """As `Memories.read`."""
        return self._thread.run(self._memories.read(memory_id, evidence))

    def change(self, memory_id: str, **fields: Any) -> dict[str, Any]:
        """As `Memories.change`."""
        return self._thread.run(self._memories.change(memory_id, **fields))

    def remove(self, memory_id: str) -> None:
        """As `Memories.remove`."""
        self._thread.run(self._memories.remove(memory_id))

    def of_user(self, user_id: str, **params: Unpack[ListParams]) -> dict[str, Any]:
        """As `Memories.of_user`."""
        return self._thread.run(self._memories.of_user(user_id, **params))

    def of_session(self, session_id: str, **params: Unpack[ListParams]) -> dict[str, Any]:
        """As `Memories.of_session`."""
        return self._thread.run(self._memories.of_session(session_id, **params))

    def forget(self, user_id: str, **params: Unpack[ForgetParams]) -> dict[str, Any]:
        """As `Memories.forget`."""
        return self._thread.run(self._memories.forget(user_id, **params))


class SyncClient:
    """`Client` for synchronous code, as a context manager. Its methods may be called from any thread, and block."""

    def __init__(
        self, ingest_url: str, rest_url: str | None = None, key: str | None = None, *, options: Options | None = None
    ) -> None:
        self._client = Client(ingest_url, rest_url, key, options=options)
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Unacknowledged:
            if error is None:
                raise

    @property
    def transport(self) -> str | None:
        """As `Client.transport`."""
        return self._client.transport

    @property
    def dropped(self) -> dict[str, int]:
        """As `Client.dropped`."""
        return self._client.dropped

    def metrics(self) -> str:
        """As `Client.metrics`."""
        return self._client.metrics()

    def open(
        self,
        session_id: str | None = None,
        *,
        producer: str = "main",
        config: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> SyncProducerSession:
        """As `Client.open`."""
        opening = self._client.open(session_id, producer=producer, config=config, timeout=timeout)
        return SyncProducerSession(self._thread.run(opening), self._thread)

    def search(self, query: str, **params: Unpack[SearchParams]) -> dict[str, Any]:
        """As `Client.search`."""
        return self._thread.run(self._client.search(query, **params))

    @property
    def memories(self) -> SyncMemories:
        """As `Client.memories`."""
        return SyncMemories(self._client.memories, self._thread)

    def export_user(self, user_id: str, *, events: bool = False) -> Iterator[dict[str, Any]]:
        """As `Client.export_user`."""
        return self._thread.iterate(self._client.export_user(user_id, events=events))

    def export(self, session_id: str, format: str = "vcon") -> str:
        """As `Client.export`."""
        return self._thread.run(self._client.export(session_id, format))

    def export_calls(self, format: str = "vcon", **filters: Unpack[CallFilters]) -> Iterator[dict[str, Any]]:
        """As `Client.export_calls`."""
        return self._thread.iterate(self._client.export_calls(format, **filters))

    def close(self, timeout: float | None = None) -> None:
        """As `Client.close`; may be called again."""
        if self._thread.loop.is_closed():
            return
        try:
            self._thread.run(self._client.close(timeout))
        finally:
            self._thread.stop()
