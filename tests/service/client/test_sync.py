"""The client for synchronous code, from threads of its own, against a running service."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.callers.client_sessions import numbered_transcript, options, stored_transcripts, transcripts_up_to
from tests.support.callers.rest import RestClient
from tests.support.servers.network_proxy import NetworkProxy
from voicemem.app import App
from voicemem.client import (
    BufferFull,
    Closed,
    EventRefused,
    RequestRefused,
    SessionEnded,
    SyncClient,
    TimedOut,
    Unacknowledged,
)
from voicemem.config.service import Address


def client_to(app: App, ingest: Address | None = None, **more: Any) -> SyncClient:
    return SyncClient(f"ws://{ingest or app.ingest_address}", f"http://{app.rest_address}", options=options(**more))


async def elsewhere(work: Callable[[], Any]) -> Any:
    """Run synchronous code in another thread, so that the service goes on meanwhile."""
    return await asyncio.wait_for(asyncio.to_thread(work), 30)


def threads_left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "voicemem-client"]


async def test_a_call_from_synchronous_code(app: App) -> None:
    """Open, send, acknowledge, read, end; afterwards no thread is left."""

    def call() -> None:
        with client_to(app) as client:
            session = client.open("s", config={"llm": {"model": "m"}}, timeout=10)
            assert ("s", "main", 1, 1, 1) == (
                *(session.session_id, session.producer, session.epoch),
                *(session.next_seq, session.next_turn),
            )
            acks = [session.send(numbered_transcript(number)) for number in range(1, 501)]
            assert [*range(1, 501)] == [ack.seq for ack in acks]
            assert [*range(1, 501)] == [ack.result(10) for ack in acks]
            assert acks[0].done()
            session.flush(10)
            assert 0 == session.unacknowledged
            assert "Line 500." == session.history(limit=1)["contents"][0]["content"]
            assert "m" == session.context(style="anthropic")["model"]
            assert 501 == session.end("hangup", timeout=10)
            with pytest.raises(SessionEnded):
                session.send(numbered_transcript(1)).result(10)
            assert "websocket" == client.transport

    await elsewhere(call)
    assert [] == threads_left()
    assert [*transcripts_up_to(500), (501, None)] == await stored_transcripts(app)


async def test_many_threads_send_at_once(app: App) -> None:
    """Events of several threads are numbered without holes, and each thread's stay in its order."""

    def call() -> None:
        with client_to(app) as client, ThreadPoolExecutor(4) as pool:
            session = client.open("s")

            def speak(user: str) -> None:
                for number in range(1, 201):
                    session.send(numbered_transcript(number, user=user))

            for future in [pool.submit(speak, user) for user in "abcd"]:
                future.result()
            session.flush(20)

    await elsewhere(call)
    events = [row["event"] for row in await RestClient(app).journal() if row["seq"]]
    assert [*range(1, 801)] == [event["seq"] for event in events]
    for user in "abcd":
        assert [*range(1, 201)] == [event["turn_id"] for event in events if event["user"] == user]


async def test_errors_come_through(app: App) -> None:
    """What is refused raises in the thread that asks, with everything that is known."""

    def call() -> None:
        with client_to(app) as client:
            with pytest.raises(RequestRefused):
                client.open("s", config={"no_such_setting": 1}, timeout=10)
            session = client.open("s")
            with pytest.raises(EventRefused) as refused:
                session.send({"type": "no.such.type"}).result(10)
            assert ("unknown_type", 1) == (refused.value.code, refused.value.seq)
            with pytest.raises(RequestRefused):
                session.context(enrich=["no_such_enricher"])

    await elsewhere(call)


async def test_nothing_waits_for_the_network(app: App) -> None:
    """While nothing gets through `send` takes what there is room for, and a result may time out; then all goes on."""
    loop = asyncio.get_running_loop()
    async with NetworkProxy(app.ingest_address) as proxy:

        def call() -> None:
            with client_to(app, proxy.address, max_events=10) as client:
                session = client.open("s")
                asyncio.run_coroutine_threadsafe(proxy.down(), loop).result(10)
                acks = [session.send(numbered_transcript(number)) for number in range(1, 11)]
                with pytest.raises(BufferFull):
                    session.send(numbered_transcript(11)).result(10)
                with pytest.raises(TimedOut, match="Event 1 was not acknowledged"):
                    acks[0].result(0.05)
                with pytest.raises(TimeoutError, match="events up to 10 were not acknowledged"):
                    session.flush(0.05)
                assert not acks[0].done()
                asyncio.run_coroutine_threadsafe(proxy.up(), loop).result(10)
                assert [*range(1, 11)] == [ack.result(10) for ack in acks]

        await elsewhere(call)
    assert transcripts_up_to(10) == await stored_transcripts(app)


async def test_an_event_goes_out_by_itself(app: App) -> None:
    """A sent event is delivered while no one waits for anything."""

    def call() -> None:
        with client_to(app, ping_after_s=60.0) as client:
            ack = client.open("s").send(numbered_transcript(1))
            deadline = time.monotonic() + 10
            while not ack.done() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert ack.done()

    await elsewhere(call)


async def test_close_says_what_was_not_acknowledged(app: App) -> None:
    """A close that could not deliver says so, ends the thread, and lets no one wait any longer."""
    loop = asyncio.get_running_loop()
    async with NetworkProxy(app.ingest_address) as proxy:

        def call() -> None:
            client = client_to(app, proxy.address)
            session = client.open("s")
            asyncio.run_coroutine_threadsafe(proxy.down(), loop).result(10)
            ack = session.send(numbered_transcript(1))
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(ack.result)
                with pytest.raises(Unacknowledged) as told:
                    client.close(timeout=0.1)
                assert {"s": 1} == told.value.events
                with pytest.raises(Closed):
                    waiting.result(10)
            for late in (
                ack.result,
                session.flush,
                session.history,
                lambda: session.send(numbered_transcript(2)).result(),
                session.end,
            ):
                with pytest.raises(Closed):
                    late()
            client.close()

        await elsewhere(call)
    assert [] == threads_left()
