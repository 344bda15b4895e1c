"""Requests of a client, for code with asyncio and without it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from voicemem.client import Client, SyncClient

T = TypeVar("T")


class ClientCalls:
    """Runs requests where their client runs: in place, or on the event loop of a `SyncClient`."""

    def __init__(self, client: Client | SyncClient) -> None:
        self.client = client._wrapped if isinstance(client, SyncClient) else client
        self.thread = client._thread if isinstance(client, SyncClient) else None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.thread is None:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.thread.loop))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """`run` for code without asyncio. Raises `RuntimeError` unless there is a `SyncClient`."""
        if self.thread is None:
            work.close()
            raise RuntimeError("Calls without asyncio need a SyncClient; a Client serves those with it, such as aget.")
        return self.thread.run(work)
