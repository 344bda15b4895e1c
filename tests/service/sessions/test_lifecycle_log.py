"""What the log says of the life of sessions, at the level `info`."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final, final_transcript, session_end
from tests.support.services import Serve
from tests.support.waiting import eventually

FIELDS = ("project", "session_id", "reason", "producer")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """Sentence and fields of each line about a session, in their order."""
    records = [record for record in caplog.records if record.name == "voicemem.sessions"]
    return [
        (record.getMessage(), *(vars(record)[name] for name in FIELDS if name in vars(record))) for record in records
    ]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    """The level at which these lines are shown."""
    caplog.set_level("INFO", "voicemem")


async def test_a_session_over_a_websocket(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """One line for the opening, none for a resume or for events, one for the close."""
    app = await serve()
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1))
    async with open_producer(app) as producer:
        await producer.store(final_transcript(2), session_end(3))
    await eventually("ended", lambda: RestClient(app).state())
    opened, closed = told(caplog)
    assert ("Session opened", "default", "s") == opened
    assert ("Session closed", "default", "s") == closed[:3]


async def test_a_session_over_rest(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """One that exists already is not opened again, and one that is over not closed again."""
    api = RestClient(await serve())
    await api.create()
    assert 200 == (await api.post("/v1/sessions", {"session_id": "s"})).status
    await api.end()
    await api.end()
    assert [("Session opened", "default", "s"), ("Session closed", "default", "s", "api")] == told(caplog)


@pytest.mark.parametrize("way", ["websocket", "http"])
async def test_a_session_that_comes_back(serve: Serve, caplog: pytest.LogCaptureFixture, way: str) -> None:
    """An idle close is logged with its reason, and that an open or an event takes it back."""
    app = await serve()
    api = RestClient(app)
    await api.create(idle_timeout=0.01)
    await eventually("ended", lambda: api.state())
    caplog.clear()
    if way == "http":
        await api.send(final(1, "Hi."))
    else:
        async with connected_producer(app) as producer:
            await producer.open()
            assert [("Session reopened", "default", "s")] == told(caplog)
    assert ("Session reopened", "default", "s") == told(caplog)[0]
    await eventually(("Session closed", "default", "s", "idle"), lambda: last(caplog))


async def last(caplog: pytest.LogCaptureFixture) -> tuple[Any, ...]:
    return told(caplog)[-1]


async def test_a_producer_that_was_superseded(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Its name is there, once, also if it goes on sending."""
    app = await serve()
    async with open_producer(app, producer="asr") as old, open_producer(app, producer="asr"):
        await old.expect_error("superseded")
        await old.send(final_transcript(1))
        assert ("Session superseded", "default", "s", "asr") == told(caplog)[-1]
    assert 1 == sum(line[0] == "Session superseded" for line in told(caplog))


async def test_a_reason_that_was_given_is_not_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """It is a text of the caller."""
    api = RestClient(await serve())
    await api.create()
    await api.end(reason="hush")
    assert ("Session closed", "default", "s", "given") == told(caplog)[-1]
    assert "hush" not in caplog.text
