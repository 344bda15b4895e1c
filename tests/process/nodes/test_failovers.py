"""Two nodes as processes of their own on two PostgreSQL servers, of which the primary dies under a call."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from bench.harness.standby import Pair  # noqa: E402
from tests.support.callers.producer import connected_producer, open_producer  # noqa: E402
from tests.support.events import final_transcript  # noqa: E402
from tests.support.postgresql_pairs import DATABASE, running_pair  # noqa: E402
from tests.support.processes.service_process import ServiceProcess, running_process  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402
from voicemem.client import Client  # noqa: E402

pytestmark = pytest.mark.postgresql
EVENTS = 40


async def is_ready(node: ServiceProcess) -> bool:
    return (await node.api.get("/readyz")).status == 200


async def fail_over(pair: Pair, *nodes: ServiceProcess) -> None:
    """Promote the standby, and wait until the nodes serve again."""
    await asyncio.to_thread(pair.fail_over)
    for node in nodes:
        await eventually(True, lambda node=node: is_ready(node), timeout_s=40)  # type: ignore[misc]


async def test_a_synchronous_standby_has_what_was_acknowledged(tmp_path: Path) -> None:
    """Producers on two nodes send on through the failover, and each event is in the journal once, in its order."""
    with running_pair() as pair:
        url = pair.url(DATABASE, failover="trusted")
        async with running_process(tmp_path / "a", url=url) as one, running_process(tmp_path / "b", url=url) as other:
            acked = asyncio.Event()

            async def call(node: ServiceProcess, producer: str) -> str | None:
                address = node.ingest_address
                async with Client(f"ws://{address}") as client:
                    session = await client.open("s", producer=producer)
                    for number in range(1, EVENTS + 1):
                        session.send(final_transcript(None, f"{producer} {number}", turn_id=number, user=producer))
                        if number == EVENTS // 2:
                            await session.flush()
                            acked.set()
                            await failed_over
                    await session.flush()
                    return session.incarnation

            failed_over = asyncio.get_running_loop().create_future()
            calls = [asyncio.create_task(call(node, name)) for node, name in ((one, "asr"), (other, "llm"))]
            await acked.wait()
            failing = asyncio.create_task(fail_over(pair, one, other))
            failed_over.set_result(None)
            incarnations = {await one for one in (*calls,)}
            await failing
            assert 1 == len(incarnations)
            stored: dict[str, list[int]] = {"asr": [], "llm": []}
            for entry in await other.api.journal(query="?limit=1000"):
                stored[entry["producer"]].append(entry["seq"])
            assert {key: [*range(1, EVENTS + 1)] for key in stored} == stored


async def test_a_standby_that_lacks_something_leaves_a_visible_gap(tmp_path: Path) -> None:
    """Its producer is told by another incarnation, and by a lower seq; what it cannot send again is a gap."""
    with running_pair(synchronous=False) as pair:
        async with running_process(tmp_path / "a", url=pair.url(DATABASE)) as node:
            async with open_producer(node) as producer:
                await producer.store(final_transcript(1, "Where is my order?", turn_id=1))
                await asyncio.to_thread(pair.standby.stop, "fast")
                await producer.store(final_transcript(2, "Hello?", turn_id=2))
                pair.primary.kill()
                await asyncio.to_thread(pair.standby.start)
                await asyncio.to_thread(pair.promote)
                assert 1012 == (await asyncio.wait_for(producer.closed(), 40))[0]
            await eventually(True, lambda: is_ready(node), timeout_s=40)
            async with connected_producer(node) as producer:
                assert 3 == (await producer.open("s", from_seq=3))["next_seq"]
                await producer.store(final_transcript(3, "Are you there?", turn_id=3))
            events = [entry["event"] for entry in await node.api.journal()]
            assert ["asr", "session.gap", "asr"] == [event["type"] for event in events]
            assert (2, 2) == (events[1]["from_seq"], events[1]["to_seq"])
