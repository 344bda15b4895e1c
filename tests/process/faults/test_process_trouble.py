"""Faults of a process that is not simply killed (list B): stopped, starved of memory or descriptors, left by its
callers, replaced by a newer one."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import time
from contextlib import AsyncExitStack, suppress
from importlib import resources
from pathlib import Path

import aiohttp
import apsw
import pytest
from websockets.exceptions import WebSocketException

from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.events import delta, done, final, final_transcript, session_end
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.servers.webhook_receiver import Reply, WebhookEvent, body_without_send_time, webhook_receiver
from tests.support.transcripts import messages_after
from tests.support.waiting import eventually
from voicemem.protocol.types import JsonObject
from voicemem.store.sqlite.files import APPLICATION_ID
from voicemem.store.sqlite.store import SqliteStore

LEASE_S = 0.5
SHORT_LEASES = (
    f"import voicemem.webhooks.outbox as o; o.LEASE_MS = {LEASE_S * 1000:.0f}; from voicemem.cli import main; main()"
)
MIB = 1024 * 1024
NOW_MS = time.time_ns() // 1_000_000 - 60_000
GONE = (OSError, WebSocketException, TimeoutError, aiohttp.ClientError, AssertionError)
"""How a test's own caller learns that the service is in trouble."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a database may be made."""
    return tmp_path / "calls.db"


# SIGSTOP, longer than any lease


@pytest.mark.fault(22)
async def test_a_process_that_was_stopped_goes_on(store: Path) -> None:
    """It slept longer than its leases: its attempt is made once more, its producers go on, nothing is there twice."""
    gate = asyncio.Event()
    async with (
        webhook_receiver(Reply(gate=gate)) as hook,
        running_process(store, "--webhook-url", hook.url(), program=("-c", SHORT_LEASES)) as process,
        open_producer(process, "talking") as producer,
    ):
        await process.api.create("ended")
        await process.api.end("ended")
        await hook.one()
        await producer.store(final_transcript(1))
        process.signal(signal.SIGSTOP)
        await producer.send(final_transcript(2), final_transcript(3))
        gate.set()
        await asyncio.sleep(3 * LEASE_S)
        process.signal(signal.SIGCONT)
        await producer.expect_ack(3)
        await producer.store(session_end(4))
        await eventually({"ended", "talking"}, lambda: _told(hook.webhook_events))
        await eventually(0, lambda: _waiting(store))
        assert [1, 2, 3, 4, None] == await _seqs(process, "talking")
        assert 0 == await process.stop()
    for session_id in ("ended", "talking"):
        assert 1 == len(
            {
                body_without_send_time(webhook_event.body)
                for webhook_event in hook.webhook_events
                if webhook_event.json["sid"] == session_id
            }
        )


async def _told(webhook_events: list[WebhookEvent]) -> set[str]:
    return {webhook_event.json["sid"] for webhook_event in webhook_events}


async def _waiting(store: Path) -> int:
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        ((count,),) = connection.execute("select count(*) from deliveries where state = 'pending'")
        return int(count)
    finally:
        connection.close()


# Memory


@pytest.mark.fault(23)
async def test_memory_runs_out(store: Path) -> None:
    """With no more memory to be had (RLIMIT_AS) the service may fail or die, but what it acknowledged is there."""
    acked: dict[str, int] = {}

    async def flood(process: ServiceProcess, session_id: str) -> None:
        acked[session_id] = 0
        with suppress(*GONE):
            async with open_producer(process, session_id) as producer:
                for seq in range(1, 60):
                    await producer.send(final_transcript(seq, "x" * 200_000))
                    while acked[session_id] < seq:
                        acked[session_id] = (await producer.expect("ack"))["seq"]

    async with running_process(store) as process:
        await flood(process, "warm")
        limit = virtual_bytes(process.pid) + 24 * MIB
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
        await asyncio.wait_for(asyncio.gather(*(flood(process, f"s{number}") for number in range(12))), 60)
        await process.kill()  # as the kernel does it to whom it finds too big
    assert acked["warm"] == 59
    async with running_process(store) as process:
        for session_id, last in acked.items():
            rows = await process.api.journal(session_id) if last else []
            stored = [row["seq"] for row in rows if row["producer"] is not None]
            assert stored == list(range(1, len(stored) + 1))
            assert len(stored) >= last


def virtual_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


# Descriptors


@pytest.mark.fault(25)
async def test_descriptors_run_out(store: Path) -> None:
    """Without a free descriptor those who are connected are served, others come in again once there are some."""
    async with running_process(store) as process, open_producer(process) as producer:
        await producer.store(final_transcript(1))
        used = len(os.listdir(f"/proc/{process.pid}/fd"))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 8, used + 8))
        async with AsyncExitStack() as crowd:
            came_in = 0
            for _ in range(40):
                with suppress(*GONE):
                    await asyncio.wait_for(
                        crowd.enter_async_context(connected_producer(process, open_timeout=0.3)), 0.3
                    )
                    came_in += 1
            assert came_in < 20
            await producer.store(final_transcript(2))
        async with connected_producer(process) as other:
            await other.open("other")
            await other.store(final_transcript(1))
        await eventually(200, lambda: _ready(process))
        await producer.store(final_transcript(3), session_end(4))
        await eventually([1, 2, 3, 4, None], lambda: _seqs(process))
        assert process.alive


async def _seqs(process: ServiceProcess, session_id: str = "s") -> list[int | None]:
    return [row["seq"] for row in await process.api.journal(session_id)]


async def _ready(process: ServiceProcess) -> int:
    with suppress(*GONE):
        return (await process.api.get("/readyz")).status
    return 0


# A newer program

FIRST_VERSION = """
    insert into meta values ('incarnation', x'00112233'), ('cursor_secret', x'44556677');
    insert into streams (key, project, kind, id, state, position, started_ms, ended_ms, reason, config, due_ms) values
        (1, 'default', 'session', 'on', 'running', 3, :now, null, null, x'7b7d', null),
        (2, 'default', 'session', 'over', 'ended', 4, :now, :now, 'left', x'7b7d', null);
    insert into producers (stream, name, epoch, next_seq, unsequenced, ended)
        values (1, 'main', 3, 4, 0, 0), (2, 'main', 1, 4, 0, 1);
    insert into journal (stream, position, received_ms, payload) values (2, 4, :now, :closed);
    insert into endpoints (key, url, contents, public_only) values (1, :hook, 'full', 0);
    insert into deliveries (key, stream, endpoint, notice_id, event_type, position, header, state, attempts, due_ms,
        lease, leased_until_ms) values (1, 2, 1, 'n1', 103, 4, :header, 'pending', 1, :now, 1, :now);
    insert into attempts values (1, 1, :now, 10, 500, null, 'no');
"""


def older_database(path: Path, hook: str) -> None:
    """A file as the first version left it: a session that goes on, one that ended, and its delivery half done."""
    schema = (resources.files("voicemem.store.sqlite") / "migrations" / "0001_begin.sql").read_text()
    header: JsonObject = {"session_id": "over", "name": None, "channel": None, "labels": {}, "started_ms": 1}
    closed = {"type": "session.closed", "ts": 9000, "reason": "left"}
    values = {"now": NOW_MS, "hook": hook, "closed": json.dumps(closed).encode()}
    values["header"] = json.dumps(header | {"stopped_ms": 9000}).encode()
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", APPLICATION_ID)
    connection.execute("pragma journal_mode = wal")
    connection.execute(schema)
    connection.execute("pragma user_version = 1")
    connection.execute(FIRST_VERSION, values)
    for key in (1, 2):
        for seq, event in enumerate(HELLO, 1):
            row = (key, seq, "main", seq, 1000 + seq, json.dumps({**event, "seq": seq}).encode())
            connection.execute(
                "insert into journal (stream, position, producer, seq, received_ms, payload) values (?, ?, ?, ?, ?, ?)",
                row,
            )
    connection.close()


HELLO: list[JsonObject] = [final(1, "Hi.", 1001), delta(1, "Good day.", 1002), done(1, 1003)]


@pytest.mark.fault(26)
async def test_a_file_of_the_first_version(store: Path) -> None:
    """A program goes on with it, whatever its own version: memories, seqs, epochs and the delivery under way."""
    async with webhook_receiver() as hook:
        older_database(store, hook.url())
        async with running_process(store, "--webhook-url", hook.url()) as process:
            webhook_event = await hook.one()
            assert ("n1", messages_after(*HELLO)) == (webhook_event.id, webhook_event.payload["contents"])
            assert messages_after(*HELLO) == await process.api.contents("on")
            await goes_on(process)
            assert 0 == await process.stop()
    opened = SqliteStore(str(store))
    stream = await opened.journal.find_session("default", "over")
    assert stream is not None
    assert [("delivered", [500, 200])] == [
        (one.state, [attempt.status for attempt in one.attempts])
        for one in await opened.deliveries.list_deliveries(stream.key)
    ]
    await opened.close_store()


async def goes_on(process: ServiceProcess) -> None:
    async with connected_producer(process) as producer:
        ready = await producer.open("on")
        assert (4, 4, "running") == (ready["next_seq"], ready["epoch"], ready["state"])
        await resend_and_end(producer)
    await eventually([1, 2, 3, 4, 5, None], lambda: _seqs(process, "on"))


async def resend_and_end(producer: Producer) -> None:
    await producer.send({**HELLO[2], "seq": 3}, final_transcript(4), session_end(5))
    await producer.expect_ack(5)
