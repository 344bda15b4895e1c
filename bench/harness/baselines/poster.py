"""Bare POSTs by aiohttp's client: the least work that delivering webhooks can be, as the baseline of `bench.webhooks`.

python -m bench.harness.baselines.poster < PLAN     a `Plan` as JSON; prints a `Posted` as JSON
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import count

import aiohttp
import msgspec
import uvloop
from msgspec import Struct


class Plan(Struct, kw_only=True):
    urls: list[str]
    posts: int
    """Requests in flight, in all."""
    in_flight: int
    """Requests in flight, per URL."""
    body: str
    """`SESSION` in it stands for the number of the POST."""
    gap: float = 0.0
    """Seconds to wait after each POST."""


class Posted(Struct, kw_only=True):
    """When each POST began, by the clock of `time.monotonic`, and CPU seconds of this process meanwhile."""

    sent: dict[str, float]
    cpu_s: float


async def main(plan: Plan) -> Posted:
    sent: dict[str, float] = {}
    begin = time.process_time()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as session:

        async def post(url: str, number: int) -> None:
            sent[str(number)] = time.monotonic()
            body = plan.body.replace("SESSION", str(number), 1).encode()
            async with session.post(url, data=body, headers={"webhook-id": str(number)}) as answer:
                await answer.read()

        async def worker(url: str, numbers: count[int]) -> None:
            while (number := next(numbers)) < plan.posts:
                await post(url, number)
                await asyncio.sleep(plan.gap)

        async with asyncio.TaskGroup() as group:
            for at, url in enumerate(plan.urls):
                numbers = count(at, len(plan.urls))
                for _ in range(plan.in_flight):
                    group.create_task(worker(url, numbers))
    return Posted(sent=sent, cpu_s=time.process_time() - begin)


if __name__ == "__main__":
    told = uvloop.run(main(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
    sys.stdout.buffer.write(msgspec.json.encode(told))
