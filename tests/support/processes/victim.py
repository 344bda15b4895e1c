"""A victim: a process that sends single events to services and reads its own calls, and says how long it waited.

    python -m tests.support.processes.victim REST_URL INGEST_URL KEY …

It takes any number of services, begins at once, ends with its standard input, and prints a pair for each of them: the
longest wait for an ack and for an answer, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import aiohttp

from tests.support.processes.measured_process import MeasuredProcess

READ = ("history", "context", "turns", "stats")
PATHS = (*(f"/v1/sessions/victim/{one}" for one in READ), "/v1/sessions?fields=overview", "/livez")


class Waits(NamedTuple):
    """How long a victim waited, in seconds, for each ack and each answer."""

    acks: list[float]
    answers: list[float]


async def send_events(http: aiohttp.ClientSession, url: str, acks: list[float]) -> None:
    """Send an event every 30 ms."""
    async with http.ws_connect(url, protocols=["voicemem.v1"]) as connection:
        await connection.send_json({"type": "session.open", "session_id": "victim"})
        await connection.receive_json()
        seq = 0
        while True:
            seq += 1
            began = time.monotonic()
            await connection.send_json({"type": "asr", "text": "hello", "turn_id": 1 + seq // 10, "seq": seq})
            assert (await connection.receive_json())["type"] == "ack"
            acks.append(time.monotonic() - began)
            await asyncio.sleep(0.03)


async def read_calls(http: aiohttp.ClientSession, answers: list[float]) -> None:
    while True:
        for path in PATHS:
            began = time.monotonic()
            async with http.get(path) as answer:
                assert answer.status in (200, 404), await answer.text()  # 404 until its first event
            answers.append(time.monotonic() - began)
            await asyncio.sleep(0.05)


async def suffer(arguments: list[str]) -> None:
    """Wait at all services until the end of the standard input. Raises what went wrong at one of them."""
    waits: list[Waits] = []
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        working = []
        for rest, ingest, key in zip(arguments[::3], arguments[1::3], arguments[2::3], strict=True):
            waits.append(Waits([], []))
            client = aiohttp.ClientSession(rest, headers={"Authorization": f"Bearer {key}"})
            http = await stack.enter_async_context(client)
            working.append(group.create_task(send_events(http, ingest, waits[-1].acks)))
            working.append(group.create_task(read_calls(http, waits[-1].answers)))
        await over
        for task in working:
            task.cancel()
    sys.stdout.write(json.dumps([[max(one.acks), max(one.answers)] for one in waits]))


class Longest(NamedTuple):
    """The longest waits at one service, in seconds."""

    ack: float
    answer: float


@asynccontextmanager
async def victim_at(*services: tuple[MeasuredProcess, str]) -> AsyncIterator[list[Longest]]:
    """A victim at services, each with a key, during the block; the list has its longest waits at each, after it."""
    found: list[Longest] = []
    arguments = [[one.url, f"http://{one.ingest_address}/v1/ingest", key] for one, key in services]
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, *(text for some in arguments for text in some)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await asyncio.sleep(2)
        yield found
        printed, _ = await victim.communicate(b"")
        assert victim.returncode == 0
        found += [Longest(*one) for one in json.loads(printed)]
    finally:
        if victim.returncode is None:
            victim.kill()
            await victim.communicate()


if __name__ == "__main__":
    asyncio.run(suffer(sys.argv[1:]))
