"""A call that no fold gets through: not one that runs, and not one that is waiting when the service starts."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.support.callers.producer import open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import event, final_transcript
from tests.support.processes.service_process import running_process
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.waiting import eventually

ENDLESS = (
    "-c",
    """
import voicemem.transcript.fold as fold
from voicemem.protocol.events import Metric

def endless(state, event, ts):
    while True:
        state.dirty_turns.add(1)

fold.FOLD_RULES[Metric] = endless
from voicemem.cli import main
main()
""",
)
"""A version whose fold has an unforeseen loop: nothing real is known that does it."""
START_S = 30.0
"""More than any start takes, and less than folding without end."""


async def test_a_poisoned_call_stops_nobody(tmp_path: Path) -> None:
    """The service starts and answers, exports the other call, sets that one aside, and does not try it again."""
    store = tmp_path / "calls.db"
    async with webhook_receiver() as receiver:
        async with running_process(store) as process:
            await record(process.api, "good", 3)
            async with open_producer(process, "bad") as producer:
                lines = [final_transcript(seq) for seq in range(1, 300)]
                await producer.store(*lines, event("metric", 1, seq=300, name="e2e", latency_ms=1))
            await process.kill()
        for start in range(2):
            began = time.monotonic()
            async with running_process(store, "--webhook-url", receiver.url(), program=ENDLESS) as process:
                assert 200 == (await process.api.get("/livez")).status
                assert time.monotonic() - began < START_S
                if not start:
                    await asyncio.gather(*(process.api.end(session_id) for session_id in ("bad", "good")))
                await eventually(["good"], lambda: delivered(receiver), 60)
                assert 3 == len(await process.api.contents("good"))
                await eventually(["bad"], lambda: set_aside(process.api), 60)
                assert (503, "session_set_aside") == (await process.api.get("/v1/sessions/bad/history")).problem
                assert 200 == (await process.api.get("/readyz")).status
                assert 0 == await process.stop()
        async with running_process(store, "--webhook-url", receiver.url()) as process:  # the loop is gone
            assert 200 == (await process.api.post("/v1/sessions/bad/refold")).status
            assert 299 == len(await process.api.contents("bad"))
            await eventually(["bad", "good"], lambda: delivered(receiver), 60)


async def record(api: RestClient, session_id: str, count: int) -> None:
    await api.create(session_id)
    await api.send(*(final_transcript(seq) for seq in range(1, count + 1)), session_id=session_id)


async def delivered(receiver: WebhookReceiver) -> list[str]:
    return sorted({webhook_event.json["sid"] for webhook_event in receiver.webhook_events})


async def set_aside(api: RestClient) -> list[str]:
    found: list[str] = (await api.get("/readyz")).json.get("set_aside", {}).get("sessions", [])
    return found
