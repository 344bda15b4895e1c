"""Faults of the process (list B): it is killed, stopped, starved and replaced, and nothing acknowledged is lost or
doubled."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from bench.crash.proof import prove
from tests.support.callers.producer import connected_producer, open_producer
from tests.support.events import final_transcript, session_end
from tests.support.paths import ROOT
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.servers.faulty_receivers import web_receiver
from tests.support.servers.webhook_receiver import WebhookReceiver, body_without_send_time, webhook_receiver
from tests.support.stores.sqlite import WAIT_S, offer, opened_session, send, stored_seqs
from tests.support.waiting import eventually
from voicemem.store.append_rules import Outcome
from voicemem.store.sqlite.store import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a database may be made."""
    return tmp_path / "calls.db"


async def seqs(process: ServiceProcess, session_id: str = "s") -> list[int | None]:
    return [row["seq"] for row in await process.api.journal(session_id)]


async def is_ended(process: ServiceProcess, session_id: str = "s") -> bool:
    return bool((await process.api.session(session_id)).get("state") == "ended")


async def delivered(store: Path, session_id: str = "s") -> list[str]:
    """How the deliveries of a session stand, in a file that no process has open."""
    opened = SqliteStore(str(store))
    try:
        stream = await opened.journal.find_session("default", session_id)
        assert stream is not None
        return [one.state for one in await opened.deliveries.list_deliveries(stream.key)]
    finally:
        await opened.close_store()


# kill -9


@pytest.mark.fault(17)
def test_kills_at_random_points() -> None:
    """A few rounds of `bench.crash`: kills while sessions stream and end, and nothing is found."""
    command = [sys.executable, "-m", "bench.crash", "--rounds", "5", "--sessions", "10", "--seed", "3"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (5, []) == (told["results"]["rounds"], told["found"])
    counts = ("kills", "sessions", "events_acknowledged", "reads", "closes", "notices")
    assert all(told["results"][name] > 0 for name in counts), told


@pytest.mark.fault(17)
def test_the_checker_of_kills_finds_planted_faults() -> None:
    """Every planted fault is found, and nothing in a history where all is well."""
    assert [] == [name for name, right in prove() if not right]


def traced(process: ServiceProcess, fault: str) -> subprocess.Popen[bytes]:
    """strace on a running process, which tampers with its syncs until it ends."""
    command = [
        "strace",
        "-f",
        "-p",
        str(process.pid),
        "-e",
        "trace=fdatasync,fsync",
        "-e",
        f"inject=fdatasync,fsync:{fault}",
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.fault(18)
@pytest.mark.needs("strace")
async def test_a_kill_between_commit_and_ack(store: Path) -> None:
    """What was on disk and not acknowledged is there once; its resend is acknowledged and changes nothing."""
    async with running_process(store) as process, open_producer(process) as producer:
        await producer.store(final_transcript(1))
        with traced(process, "delay_exit=3000000") as tracer:
            assert tracer.stderr is not None
            assert b"attached" in await asyncio.to_thread(tracer.stderr.readline)
            before = wal_size(store)
            await producer.send(final_transcript(2))
            await eventually(True, lambda: grown(store, before))
            await asyncio.sleep(0.3)  # from the write to the sync, whose return the tracer then holds back
            await process.kill()
        frames = (await producer.closed())[1]
    assert [] == frames
    async with running_process(store) as process, connected_producer(process) as producer:
        ready = await producer.open()
        assert 3 == ready["next_seq"]
        await producer.store(final_transcript(2), final_transcript(3))
        assert [1, 2, 3] == await seqs(process)


def wal_size(store: Path) -> int:
    return store.with_name(store.name + "-wal").stat().st_size


async def grown(store: Path, before: int) -> bool:
    return wal_size(store) > before


@pytest.mark.fault(19)
async def test_a_kill_between_the_end_and_the_close(store: Path) -> None:
    """An end was acknowledged while another producer still had 2 s: the next process closes the session, and tells."""
    async with webhook_receiver() as hook:
        arguments = ("--webhook-url", hook.url())
        async with (
            running_process(store, *arguments) as process,
            open_producer(process, producer="asr") as asr,
            open_producer(process, producer="llm"),
        ):
            await asr.store(final_transcript(1), session_end(2, reason="left"))
            await process.kill()
        assert [] == hook.webhook_events
        async with running_process(store, *arguments) as process:
            webhook_event = await hook.one()
            assert ("s", ["Line 1."]) == (
                webhook_event.json["sid"],
                [one["content"] for one in webhook_event.payload["contents"]],
            )
            assert ["asr", "session.end", "session.closed"] == [
                row["event"]["type"] for row in await process.api.journal()
            ]


@pytest.mark.fault(19)
async def test_a_kill_right_after_the_end_was_acknowledged(store: Path) -> None:
    """Whether the close was still to come or the webhook was: the receiver hears of it from the next process."""
    async with webhook_receiver() as hook:
        arguments = ("--webhook-url", hook.url())
        async with running_process(store, *arguments) as process:
            for number in range(5):
                async with open_producer(process, f"s{number}") as producer:
                    await producer.store(final_transcript(1), session_end(2))
            await process.kill()
        async with running_process(store, *arguments):
            await eventually({f"s{number}" for number in range(5)}, lambda: sessions_told(hook))
    by_session: dict[str, set[bytes]] = {}
    for webhook_event in hook.webhook_events:
        by_session.setdefault(webhook_event.json["sid"], set()).add(body_without_send_time(webhook_event.body))
    assert [1] * 5 == [len(bodies) for bodies in by_session.values()]


async def sessions_told(hook: WebhookReceiver) -> set[str]:
    return {webhook_event.json["sid"] for webhook_event in hook.webhook_events}


@pytest.mark.fault(20)
async def test_a_kill_between_the_answer_and_its_marking(store: Path) -> None:
    """A success that the service could not note is followed by one more attempt: the same noticeId, the same bytes."""
    bodies: list[bytes] = []
    ids: set[str | None] = set()
    victim: list[ServiceProcess] = []

    async def take(request: web.Request) -> web.Response:
        bodies.append(body_without_send_time(await request.read()))
        ids.add(request.headers.get("webhook-id"))
        if len(bodies) == 1:
            victim[0].signal(signal.SIGSTOP)  # so that the answer reaches its kernel, and not the service
        return web.Response()

    async with web_receiver(take) as url, AsyncExitStack() as first:
        process = await first.enter_async_context(running_process(store, "--webhook-url", url))
        victim.append(process)
        async with connected_producer(process) as producer:
            await producer.open()
            await producer.send(final_transcript(1), session_end(2))
            await eventually(1, lambda: count(bodies))
            await asyncio.sleep(0.1)
            await process.kill()
        async with running_process(store, "--webhook-url", url) as process:
            await eventually(2, lambda: count(bodies))
            assert 0 == await process.stop()
    assert (1, 1) == (len(set(bodies)), len(ids))
    assert ["delivered"] == await delivered(store)


async def count(things: list[bytes]) -> int:
    return len(things)


RECORDER = """
import asyncio, sys
from voicemem.config.session import validate_config
from voicemem.store.append_rules import Batch, Offer
from voicemem.store.sqlite.store import SqliteStore

async def record(store, name):
    opened = await store.journal.open_producer("p", name, "main", validate_config({}), None, 1)
    seq = 1
    while True:
        batch = [Offer(n, 1, b'{"type":"metric","seq":%d}' % n) for n in range(seq, seq + 3)]
        await store.journal.append([Batch(opened.stream.key, "main", opened.epoch, 1, offers=batch)], 1)
        seq += 3
        print(name, seq - 1, flush=True)

async def main():
    store = SqliteStore(sys.argv[1])
    await asyncio.gather(*(record(store, name) for name in "abc"))

asyncio.run(main())
"""
"""A server that says what it acknowledges, until it is killed."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database may be made; nothing is there yet."""
    return str(tmp_path / "voicemem.db")


# Faults


@pytest.mark.fault(17)
async def test_what_was_acknowledged_survives_a_kill(path: str) -> None:
    """A server killed in the middle of its work has everything that it acknowledged, whole and in order."""
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", RECORDER, path, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            told = b"".join([await server.stdout.readline() for _ in range(200)])
    finally:
        server.kill()
    told += await server.stdout.read()
    await server.wait()
    lines = told.decode().split("\n")[:-1]  # the last one may have been cut short
    acknowledged = {name: int(seq) for name, seq in map(str.split, lines)}

    async with opened_session(path) as store:
        assert [("ok",)] == store.database.writer.execute("pragma integrity_check").fetchall()
        assert set("abc") == set(acknowledged)
        for name, last in acknowledged.items():
            stream = await store.journal.find_session("p", name)
            assert stream is not None
            assert stream.position >= last
            assert list(range(1, stream.position + 1)) == await stored_seqs(store, stream.key)
            assert [Outcome(stream.position + 1)] == await send(store, stream.key, offer(stream.position + 1))
