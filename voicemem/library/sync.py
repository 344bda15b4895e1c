"""The library for synchronous code, on an event loop in its own thread."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any

from voicemem.client.errors import Closed
from voicemem.client.sync import LoopThread
from voicemem.errors import StoreUnavailable
from voicemem.library.sessions import Documents, Library, LibrarySession, Memories, open_library

WRAPPED = (Library, LibrarySession, Documents, Memories)


@contextmanager
def open_library_sync(store: str = "memory:", **options: Any) -> Iterator[SyncProxy]:
    """As `open_library`: the same options and methods, without `await`. Raises `CannotStart`."""
    thread = LoopThread()
    try:
        opened = open_library(store, **options)
        library = thread.run(opened.__aenter__())
        try:
            yield SyncProxy(library, thread)
        finally:
            thread.run(opened.__aexit__(None, None, None))
            thread.run(thread.loop.shutdown_default_executor())  # ends the executor's threads
    finally:
        thread.stop()


class SyncProxy:
    """A library, session or document for synchronous code. Its methods may be called from any thread, and block.

    Coroutine functions run on the loop: their coroutine is created in the caller's thread, and `LoopThread.run` closes
    it if the library is closed. Other methods do no I/O, so they run in the caller's thread.
    """

    def __init__(self, wrapped: Library | LibrarySession | Documents | Memories, thread: LoopThread) -> None:
        self._wrapped = wrapped
        self._thread = thread

    def __repr__(self) -> str:
        return f"<SyncProxy of {self._wrapped!r}>"

    def __dir__(self) -> list[str]:
        return dir(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        if not callable(value):
            return self._wrap(value)

        @functools.wraps(value)
        def method(*args: Any, **options: Any) -> Any:
            if isasyncgenfunction(value):
                return self._thread.iterate(value(*args, **options))
            if not iscoroutinefunction(value):
                return self._wrap(value(*args, **options))
            try:
                return self._wrap(self._thread.run(value(*args, **options)))
            except Closed:
                raise StoreUnavailable("The library is closed.") from None

        return method

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(item) for item in value]
        return SyncProxy(value, self._thread) if isinstance(value, WRAPPED) else value
