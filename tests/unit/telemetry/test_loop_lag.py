"""How late the event loop runs."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry

from tests.support.waiting import eventually
from voicemem.telemetry.metrics import Metrics
from voicemem.telemetry.recent import MEASURE_EVERY_S, measure_loop_lag_forever


def hold_up(seconds: float) -> None:
    """Work that gives way to nothing else."""
    time.sleep(seconds)


async def test_work_that_holds_the_loop_up_is_seen() -> None:
    """The histogram counts each measurement, and the time for which the loop did nothing else."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)

    async def measurements() -> float | None:
        return registry.get_sample_value("voicemem_loop_lag_seconds_count")

    task = asyncio.create_task(measure_loop_lag_forever(metrics.loop_lag_seconds))
    await asyncio.sleep(0)
    hold_up(MEASURE_EVERY_S + 0.3)
    await eventually(1.0, measurements)
    task.cancel()
    held_up_s = registry.get_sample_value("voicemem_loop_lag_seconds_sum")
    assert held_up_s is not None
    assert held_up_s >= 0.3
