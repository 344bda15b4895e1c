"""Waiting for what a service does in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(expected: Any, ask: Callable[[], Awaitable[Any]], timeout_s: float = 10.0) -> None:
    """Ask again and again, until the answer is the expected one."""
    async with asyncio.timeout(timeout_s):
        while await ask() != expected:  # noqa: ASYNC110 (it happens in the service, which tells no one)
            await asyncio.sleep(0.01)


async def all_connections_handled() -> None:
    """Wait until the service, in this process, is through with all that came over websockets that have closed."""

    async def handlers() -> int:
        coroutines = [task.get_coro() for task in asyncio.all_tasks()]
        return sum("protocol_handler" in getattr(one, "__qualname__", "") for one in coroutines)

    await eventually(0, handlers)
