"""The client for synchronous code, which runs on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from voicemem.client.buffer import Ack
from voicemem.client.client import Client
from voicemem.client.errors import Closed, Unacknowledged
from voicemem.client.memories import Memories
from voicemem.client.options import Options
from voicemem.client.session import Documents, ProducerSession, SessionFacts

T = TypeVar("T")
P = ParamSpec("P")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="voicemem-client", daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, which must limit its own time. Raises `Closed`, and the coroutine's errors."""
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
        """Wait for each item of an asynchronous generator, which is closed with the iterator."""
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
        if self.loop.is_closed():
            return

        async def cancel_others() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel_others(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def anext_of(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a synchronous class that waits for an asynchronous one, with the same arguments."""

    @wraps(method)
    def wait(owner: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        return owner._thread.run(method(owner._wrapped, *arguments, **named))  # type: ignore[no-any-return]

    return wait


def iterating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return a method of a synchronous class that waits for each item of an asynchronous generator."""

    @wraps(method)
    def iterate(owner: Any, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        return owner._thread.iterate(method(owner._wrapped, *arguments, **named))  # type: ignore[no-any-return]

    return iterate


class SyncAck:
    """The outcome of one event."""

    def __init__(self, ack: Ack, thread: LoopThread) -> None:
        self._ack = ack
        self._thread = thread

    @property
    def seq(self) -> int:
        return self._ack.seq

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._ack.done()

    def result(self, timeout: float | None = None) -> int:
        """Return the event's seq once it is on disk, within `timeout` seconds. Raises `TimedOut` and `ClientError`."""
        if self._ack.done():
            return self._ack.outcome()
        return self._thread.run(self._ack.result(timeout))


class SyncProducerSession(SessionFacts):
    """`ProducerSession` for synchronous code. Its methods may be called from any thread; all but `send` block."""

    def __init__(self, session: ProducerSession, thread: LoopThread) -> None:
        super().__init__(session._producer)
        self._wrapped, self._thread = session, thread

    def send(self, event: Mapping[str, Any]) -> SyncAck:
        """As `ProducerSession.send`: returns at once, and never raises."""
        return SyncAck(self._wrapped.send(event), self._thread)

    flush = blocking(ProducerSession.flush)
    end = blocking(ProducerSession.end)  # after `TimedOut` the end is still sent
    history = blocking(ProducerSession.history)
    context = blocking(ProducerSession.context)
    turns = blocking(ProducerSession.turns)
    add = blocking(ProducerSession.add)
    forget = blocking(ProducerSession.forget)
    memory = blocking(ProducerSession.memory)
    data = blocking(ProducerSession.data)
    update_data = blocking(ProducerSession.update_data)

    @property
    def working_memory(self) -> SyncDocuments:
        """As `ProducerSession.working_memory`."""
        return SyncDocuments(self._wrapped.working_memory, self._thread)


class Blocking:
    """An asynchronous object on a thread's event loop, for synchronous code."""

    def __init__(self, wrapped: Documents | Memories, thread: LoopThread) -> None:
        self._wrapped, self._thread = wrapped, thread


class SyncDocuments(Blocking):
    """`Documents` for synchronous code; its methods block."""

    read = blocking(Documents.read)
    append = blocking(Documents.append)
    replace = blocking(Documents.replace)
    clear = blocking(Documents.clear)
    tools = blocking(Documents.tools)
    execute = blocking(Documents.execute)


class SyncMemories(Blocking):
    """`Memories` for synchronous code; its methods block."""

    add = blocking(Memories.add)
    read = blocking(Memories.read)
    change = blocking(Memories.change)
    remove = blocking(Memories.remove)
    of_user = blocking(Memories.of_user)
    of_session = blocking(Memories.of_session)
    forget = blocking(Memories.forget)
    link = blocking(Memories.link)
    unlink = blocking(Memories.unlink)


class SyncClient:
    """`Client` for synchronous code, as a context manager. Its methods may be called from any thread, and block."""

    def __init__(
        self, ingest_url: str, rest_url: str | None = None, key: str | None = None, *, options: Options | None = None
    ) -> None:
        self._wrapped = Client(ingest_url, rest_url, key, options=options)
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
        return self._wrapped.transport

    @property
    def dropped(self) -> dict[str, int]:
        """As `Client.dropped`."""
        return self._wrapped.dropped

    def metrics(self) -> str:
        """As `Client.metrics`."""
        return self._wrapped.metrics()

    def open(
        self,
        session_id: str | None = None,
        *,
        producer: str = "main",
        config: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        allow_ended: bool = False,
    ) -> SyncProducerSession:
        """As `Client.open`."""
        opening = self._wrapped.open(
            session_id, producer=producer, config=config, timeout=timeout, allow_ended=allow_ended
        )
        return SyncProducerSession(self._thread.run(opening), self._thread)

    search = blocking(Client.search)
    export = blocking(Client.export)
    export_user = iterating(Client.export_user)
    export_calls = iterating(Client.export_calls)

    @property
    def memories(self) -> SyncMemories:
        """As `Client.memories`."""
        return SyncMemories(self._wrapped.memories, self._thread)

    def close(self, timeout: float | None = None) -> None:
        """As `Client.close`; may be called again."""
        if self._thread.loop.is_closed():
            return
        try:
            self._thread.run(self._wrapped.close(timeout))
        finally:
            self._thread.stop()
