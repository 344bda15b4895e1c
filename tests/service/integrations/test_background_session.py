"""A session in the background: what a call waits for, and what becomes of its events when there is no memory."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.callers.client_sessions import FAR_S, SHORT_S, client_for, client_to, in_time, numbered_transcript
from tests.support.services import Serve
from voicemem.config.service import Address
from voicemem.integrations.background_session import BackgroundSession
from voicemem.protocol.types import JsonObject

NOBODY = Address("127.0.0.1", 1)
RETURNING: JsonObject = {"user_id": "ann", "memory_from": {"sessions": 1}}


async def test_the_first_request_of_a_call_waits_for_its_session(serve: Serve) -> None:
    """It has what an earlier call of the user left, although no one waited for the session before."""
    app = await serve()
    async with client_to(app) as client:
        earlier = BackgroundSession(client, "monday", "bot", RETURNING)
        earlier.send(numbered_transcript(1))
        earlier.send({"type": "session.end"})
        await earlier.aclose(FAR_S)
        body = await BackgroundSession(client, "tuesday", "bot", RETURNING).context()
    assert body is not None
    assert ["system"] == [message["role"] for message in body["messages"]]
    assert "Line 1." in body["messages"][0]["content"]


async def test_a_session_that_does_not_open_holds_up_one_request() -> None:
    """The first one waits, for at most half of the time that a context may take; those after it do not wait."""
    client = client_for(NOBODY, NOBODY, context_timeout_s=2 * SHORT_S)
    session = BackgroundSession(client, "call", "bot", None)
    async with in_time():
        assert await session.context() is None
    began = time.monotonic()
    for _ in range(100):
        assert await session.context() is None
    assert time.monotonic() - began < SHORT_S * 100
    assert not session.opening.done()
    await session.aclose(0)
    await client.close(0)


async def test_events_that_are_lost_with_the_process_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """When a call ends before its session was ever open, the log says how many events no one has."""
    client = client_for(NOBODY, NOBODY)
    session = BackgroundSession(client, "call", "bot", None)
    for number in range(3):
        session.send(numbered_transcript(number))
    await session.aclose(0)
    await asyncio.gather(session.opening, return_exceptions=True)
    await client.close(0)
    assert "3 events of a call are lost. Session call: it was never open." in caplog.messages


async def test_a_session_that_has_ended_is_not_recorded_again(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """The log says why, once, and the agent goes on with the framework's own messages."""
    async with client_to(await serve()) as client:
        await (await client.open("call")).end()
        again = BackgroundSession(client, "call", "bot", None)
        for number in range(3):
            again.send(numbered_transcript(number))
        assert await again.context() is None
        await again.aclose(FAR_S)
    (line,) = [one for one in caplog.messages if one.startswith("This call is not remembered.")]
    assert "The session call has ended; it takes no new events." in line
