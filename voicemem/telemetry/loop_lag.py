"""How late the event loop runs: what holds it up holds up every caller."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Histogram

MEASURE_EVERY_S = 0.25


async def measure_loop_lag_forever(lag_seconds: Histogram) -> None:
    """Background task: sleep for a moment, again and again, and observe how much later than asked it wakes up."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(MEASURE_EVERY_S)
        lag_seconds.observe(max(0.0, time.monotonic() - began - MEASURE_EVERY_S))
