"""A service that drains sends every producer away, with everything acknowledged."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.callers.ingest import ADMIN_KEY, clogged, refusal
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import bearer_header
from tests.support.events import final_transcript, unknown_event
from tests.support.services import Serve
from tests.support.stores.failing import locked_database
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.server.ingest import server
from voicemem.server.ingest.websocket import MOST_PING_S, PING_SPREAD_MS

MANY = 20


@pytest.fixture
async def locked(serve: Serve) -> App:
    """An empty service that needs keys."""
    return await serve(admin_key=ADMIN_KEY)


async def taken_in(app: App) -> bool:
    """Whether something is received that is not answered yet."""
    return any(one.unanswered for one in app.ingest.connections)


async def opening_in(app: App) -> bool:
    """Whether an open is under way."""
    return any(one.frame_task is not None for one in app.ingest.connections)


async def drain_during_open(app: App, producer: Producer) -> asyncio.Task[None]:
    """Begin to drain while a producer's open waits for the store."""
    await producer.send({"type": "session.open", "session_id": "call-1"})
    await eventually(True, lambda: opening_in(app))
    return asyncio.create_task(app.ingest.drain())


async def test_drain_says_goodbye_and_flushes_the_acks(serve: Serve, tmp_path: Path) -> None:
    """Goaway comes first, then the acks of everything received, then 1012."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with open_producer(app) as producer:
        with locked_database(f"{tmp_path}/db"):
            await producer.send_together(final_transcript(1), unknown_event(2), final_transcript(3))
            await eventually(True, lambda: taken_in(app))
            draining = asyncio.create_task(app.ingest.drain())
            await producer.expect("goaway")
        code, frames = await producer.closed()
        await draining
    assert (1012, [("error", 2), ("ack", 3)]) == (code, [(frame["type"], frame["seq"]) for frame in frames])


async def test_drain_answers_an_open_before_its_goodbye(serve: Serve, tmp_path: Path) -> None:
    """An open that is under way is answered first: later it would supersede the client's next one, on another node."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with connected_producer(app) as producer:
        with locked_database(f"{tmp_path}/db"):
            draining = await drain_during_open(app, producer)
            await asyncio.sleep(0.1)
        await producer.expect("session.ready")
        await producer.expect("goaway")
        await asyncio.gather(draining, producer.closed())


async def test_drain_does_not_wait_for_an_open_for_long(serve: Serve, tmp_path: Path) -> None:
    """A client whose open waits for the store is sent away before it is answered."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    app.ingest.open_wait_s = 0.1
    async with connected_producer(app) as producer:
        with locked_database(f"{tmp_path}/db"):
            draining = await drain_during_open(app, producer)
            await producer.expect("goaway")
        await producer.expect("session.ready")
        await asyncio.gather(draining, producer.closed())


async def test_drain_sends_everybody_home(locked: App) -> None:
    """Goaway and 1012 reach those who opened nothing, or have not said who they are."""
    async with connected_producer(locked, bearer_header(ADMIN_KEY)) as one, connected_producer(locked) as other:
        await one.rest()
        await other.socket.ping()
        await asyncio.gather(locked.ingest.drain(), one.closed(), other.closed())
        assert [1012, 1012] == [producer.socket.close_code for producer in (one, other)]


async def test_of_many_a_few_are_sent_home_at_a_time(app: App) -> None:
    """A drain of a thousand connections leaves the event loop to others in between."""
    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(open_producer(app, f"s{number}")) for number in range(MANY)]
        connections, found = [*app.ingest.connections], [0]
        draining = asyncio.create_task(app.ingest.drain())
        while found[-1] < MANY:
            await asyncio.sleep(0)
            found.append(sum(connection.draining for connection in connections))
        assert server.ENDINGS_A_ROUND >= max(later - earlier for earlier, later in pairwise(found))
        await asyncio.gather(draining, *(producer.closed() for producer in producers))


async def test_connections_are_not_pinged_together(app: App) -> None:
    """Each has an interval of its own, so that a thousand that were opened together do not share a turn of the loop."""
    async with AsyncExitStack() as stack:
        for number in range(MANY):
            await stack.enter_async_context(open_producer(app, f"s{number}"))
        intervals = {connection.websocket.ping_interval or 0.0 for connection in app.ingest.connections}
        assert MANY / 2 < len(intervals)
        assert min(intervals) > MOST_PING_S - PING_SPREAD_MS / 1000
        assert MOST_PING_S >= max(intervals)


async def test_nobody_comes_in_while_draining(serve: Serve, tmp_path: Path) -> None:
    """A new connection is told to come to the next server."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with open_producer(app) as producer:
        with locked_database(f"{tmp_path}/db"):
            await producer.send(final_transcript(1))
            await eventually(True, lambda: taken_in(app))
            draining = asyncio.create_task(app.ingest.drain())
            await producer.expect("goaway")
            assert (503, "draining") == await refusal(app)
        await draining
        assert 1012 == (await producer.closed())[0]


async def test_drain_waits_for_nobody_for_long(app: App) -> None:
    """A peer that reads nothing does not keep the service from its end."""
    app.ingest.drain_timeout_s = 0.5
    async with clogged(app):
        draining = asyncio.create_task(app.ingest.drain())
        done, _ = await asyncio.wait({draining}, timeout=0.5 + server.CLOSE_TIMEOUT_S + 1)
    await draining
    assert done
