"""The client's producer process, and its server, are killed and come back."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import random
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.callers.client_sessions import (
    acknowledged_seqs,
    client_for,
    send_transcripts,
    stored_transcripts,
    transcripts_up_to,
)
from tests.support.processes.service_process import running_process
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.services import running_service
from voicemem.config.service import Address

UNUSED = Address("127.0.0.1", 1)


async def test_kills_at_random_points(tmp_path: Path) -> None:
    """A server that is killed again and again while sessions stream has each acknowledged event once and in order."""
    names = [f"s{n}" for n in range(8)]
    async with NetworkProxy(UNUSED) as proxy, client_for(proxy.address) as client:
        opening = asyncio.gather(*(client.open(name) for name in names))
        acks: dict[str, list[Any]] = {name: [] for name in names}
        acked = dict.fromkeys(names, 0)
        for _ in range(3):
            async with running_process(tmp_path / "calls.db") as process:
                proxy.target = process.ingest_address
                sessions = await asyncio.wait_for(opening, 20)
                for session, name in zip(sessions, names, strict=True):
                    held = [row["seq"] for row in await process.api.journal(name) if row["seq"]]
                    assert [*range(1, len(held) + 1)] == held
                    assert acked[name] <= len(held)
                    acks[name] += send_transcripts(session, range(session.next_seq, session.next_seq + 100))
                await asyncio.sleep(random.uniform(0, 0.15))
                await process.kill()
                acked = {name: sum(ack.done() for ack in acks[name]) for name in names}
        async with running_process(tmp_path / "calls.db") as process:
            proxy.target = process.ingest_address
            assert [*range(1, 301)] * 8 == await acknowledged_seqs(ack for name in names for ack in acks[name])
            for name in names:
                rows = await process.api.journal(name)
                assert transcripts_up_to(300) == [(row["seq"], row["event"]["text"]) for row in rows if row["seq"]]


async def test_a_drain_is_a_change_of_servers(tmp_path: Path) -> None:
    """On SIGTERM what was received is acknowledged, and the client goes on with the next process by itself."""
    async with NetworkProxy(UNUSED) as proxy, client_for(proxy.address) as client:
        async with running_process(tmp_path / "calls.db") as process:
            proxy.target = process.ingest_address
            session = await client.open("s")
            acks = send_transcripts(session, range(1, 1001))
            await acks[0]
            process.signal(signal.SIGTERM)
            acks += send_transcripts(session, range(1001, 1101))
            assert 0 == await process.ended()
        async with running_process(tmp_path / "calls.db") as process:
            proxy.target = process.ingest_address
            assert [*range(1, 1101)] == await acknowledged_seqs(acks)
            rows = await process.api.journal()
            assert transcripts_up_to(1100) == [(row["seq"], row["event"]["text"]) for row in rows if row["seq"]]


PROGRAM = """
import sys
from voicemem.client import SyncClient
with SyncClient(sys.argv[1]) as client:
    session = client.open("s")
    print(session.next_seq, flush=True)
    while True:
        n = session.next_seq
        print(session.send({"type": "asr", "turn_id": n, "text": f"Line {n}.", "final": True}).result(10), flush=True)
"""


async def test_a_producer_that_is_killed(tmp_path: Path) -> None:
    """A producer without a buffer of its own goes on, after each kill, behind all that was acknowledged to it."""
    async with running_service(store=f"sqlite:{tmp_path}/db") as app:
        last = 0
        for _ in range(3):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROGRAM, f"ws://{app.ingest_address}"), stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            began = int(await asyncio.wait_for(process.stdout.readline(), 20))
            assert began in (last + 1, last + 2)  # the one whose ack was not read may be stored
            for _ in range(20):
                last = int(await asyncio.wait_for(process.stdout.readline(), 20))
            process.kill()
            rest, _ = await process.communicate()
            last = max([last, *(int(number) for number in rest.split())])
        assert transcripts_up_to(last) == (await stored_transcripts(app))[:last]
