"""Callers and producers that vanish in the middle of a request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.services import Serve


@pytest.mark.fault(24)
async def test_callers_that_leave_in_the_middle(serve: Serve, tmp_path: Path) -> None:
    """Whoever cancels a request while its transaction runs finds it done or not done: never half, never twice."""
    app = await serve(store=f"sqlite:{tmp_path}/calls.db")
    api = RestClient(app)
    await api.create()
    batches = [[final_transcript(seq) for seq in range(first, first + 10)] for first in range(1, 301, 10)]
    for number, batch in enumerate(batches):
        request = asyncio.create_task(api.send(*batch))
        for _ in range(number % 15):
            await asyncio.sleep(0.0005)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await api.send(*batch)
    assert list(range(1, 301)) == [row["seq"] for row in await api.journal()]
    assert [f"Line {seq}." for seq in range(1, 301)] == [one["content"] for one in await api.contents()]


@pytest.mark.fault(24)
async def test_producers_that_vanish_in_the_middle(serve: Serve, tmp_path: Path) -> None:
    """A connection that breaks off while its events are committed leaves a beginning of them, each once."""
    app = await serve(store=f"sqlite:{tmp_path}/calls.db")
    for number in range(20):
        async with connected_producer(app) as producer:
            await producer.open(f"s{number}")
            await producer.send_together(*(final_transcript(seq) for seq in range(1, 51)))
            await asyncio.sleep(number * 0.0005)
            producer.socket.transport.abort()
    for number in range(20):
        async with open_producer(app, f"s{number}") as producer:
            await producer.store(*(final_transcript(seq) for seq in range(1, 51)))
        assert list(range(1, 51)) == [row["seq"] for row in await RestClient(app).journal(f"s{number}")]
