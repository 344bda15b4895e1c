"""Waiting for what a service does in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(expected: Any, ask: Callable[[], Awaitable[Any]], timeout_s: float = 10.0) -> None:
    """Ask again and again, until the answer is the expected one."""
    async with asyncio.timeout(timeout_s):
        while await ask() != expected:  # noqa: ASYNC110 (it happens in the service, which tells nobody)
            await asyncio.sleep(0.01)
