"""Bad input 47 to 60: events that come in no order, or belong to someone else."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.callers.bad_input import SECRET, BadFrame, check_refusal, event, over_websocket_and_http
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript, session_end
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

SOCKET, HTTP = ("websocket",), ("http",)
CASES = [
    BadFrame("49 seq 0", event(seq=0), "invalid_field", False),
    BadFrame("50 negative seq", event(seq=-1), "invalid_field", False),
    BadFrame("51 seq gap", event(seq=4), "seq_gap", False),
    BadFrame("51 the largest gap", event(seq=2**53), "seq_gap", False),
    BadFrame("52 old seq same body", json.dumps(final_transcript(1)), None),
    BadFrame("53 old seq other body", event(seq=1), "seq_conflict", False),
    BadFrame(
        "56 end with a last_seq too high", json.dumps(session_end(2, last_seq=2, reason=SECRET)), "last_seq_mismatch"
    ),
    BadFrame(
        "56 end with a last_seq too low", json.dumps(session_end(2, last_seq=0, reason=SECRET)), "last_seq_mismatch"
    ),
    BadFrame(
        "56 end with a last_seq and no seq",
        json.dumps(session_end(last_seq=1, reason=SECRET)),
        "last_seq_mismatch",
        False,
    ),
    BadFrame("58 another session's id", event(session_id="other"), "not_open", False, SOCKET),
    BadFrame("58 another session's id", event(session_id="other"), "invalid_field", True, HTTP),
    BadFrame("58 another producer", event(session_id="s", producer="other"), "not_open", False, SOCKET),
    BadFrame("58 another producer", event(session_id="s", producer="other"), "invalid_field", True, HTTP),
    BadFrame("59 a time in the far future", event(ts=2**53), None),
    BadFrame("59 a time in the far past", event(ts=-(2**53)), None),
    BadFrame("59 a time before the one before", event(ts=1), None),
    BadFrame(
        "60 a turn's id for another role", json.dumps({"type": "llm.done", "turn_id": 1, "text": "Hi.", "seq": 2}), None
    ),
]


@over_websocket_and_http(CASES)
async def test_bad_order(app: App, caplog: pytest.LogCaptureFixture, bad: BadFrame, way: str) -> None:
    """Each has its documented code, leaves nothing of its content in journal and log, and all goes on."""
    await check_refusal(app, bad, way, caplog)


# What takes more than one event


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with a session of someone else."""
    app = await serve()
    await RestClient(app).create("other")
    return app


@pytest.fixture
async def producer(app: App) -> AsyncIterator[Producer]:
    """A producer of session "s", which has one event."""
    async with open_producer(app) as one:
        await one.store(final_transcript(1))
        yield one


async def types(app: App) -> list[str]:
    """The types of the events in the journal."""
    return [row["event"]["type"] for row in await RestClient(app).journal()]


async def codes(app: App, *events: JsonObject, query: str = "") -> list[str]:
    """The errors of events that are sent over HTTP."""
    return [error["code"] for error in (await RestClient(app).send(*events, query=query))["errors"]]


async def test_47_an_event_before_the_hello(app: App) -> None:
    """Nothing is taken before an open, not even for a session that exists; then the open is as good as ever."""
    async with connected_producer(app) as producer:
        for early in (final_transcript(1, session_id="other"), final_transcript(1), session_end(1, session_id="other")):
            await producer.send(early)
            await producer.expect_error("not_open", seq=1)
        assert 1 == (await producer.open("other"))["next_seq"]
    assert [] == await RestClient(app).journal("other")


async def test_48_a_second_hello(app: App, producer: Producer) -> None:
    """A second open on one connection is a new epoch, and the call goes on."""
    ready = await producer.open()
    assert (2, 2) == (ready["epoch"], ready["next_seq"])
    await producer.store(final_transcript(2))
    assert ["asr", "asr"] == await types(app)


async def test_54_an_event_after_the_end(app: App, producer: Producer) -> None:
    """What comes after a producer's own end is refused on every way in, and commits nothing."""
    await producer.store(session_end(2))
    await producer.send(final_transcript(3, text=SECRET))
    await producer.expect_error("session_ended", seq=3)
    assert ["session_ended"] == await codes(app, final_transcript(3, text=SECRET))
    assert ["asr", "session.end", "session.closed"] == await types(app)


async def test_55_the_end_twice(app: App, producer: Producer) -> None:
    """The same end is acknowledged again, another one is refused; there is one close."""
    await producer.store(session_end(2), session_end(2))
    await producer.send(session_end(3))
    await producer.expect_error("session_ended", seq=3)
    assert [] == await codes(app, session_end(2))
    assert ["session_ended"] == await codes(app, session_end(3))
    assert ["asr", "session.end", "session.closed"] == await types(app)


@pytest.mark.parametrize(("epoch", "code"), [(1, "superseded"), (3, "superseded"), (2**53, "superseded"), (2, None)])
async def test_57_a_stale_epoch_over_http(app: App, producer: Producer, epoch: int, code: str | None) -> None:
    """Only the newest epoch writes, neither an old one nor one that was never given."""
    await producer.open()
    assert ([] if code is None else [code]) == await codes(app, final_transcript(2), query=f"?epoch={epoch}")
    assert (2 if code is None else 1) == len(await types(app))


async def test_57_a_stale_connection(app: App, producer: Producer) -> None:
    """What an older connection still sends stores nothing; it was told, once."""
    async with open_producer(app) as newer:
        await producer.expect_error("superseded")
        await producer.send(final_transcript(2, text=SECRET), session_end(2, reason=SECRET))
        await producer.send({"type": "session.open", "session_id": "other"})
        await producer.expect("session.ready", session_id="other")
        assert ["asr"] == await types(app)
        await newer.store(final_transcript(2))


async def test_60_a_turn_of_two_roles(app: App, producer: Producer) -> None:
    """In one turn the user and the agent may both speak, in any order; each has a message of their own."""
    await producer.store(
        {"type": "llm.done", "seq": 2, "turn_id": 7, "text": "Agent."},
        final_transcript(3, "User.", turn_id=7),
        {"type": "message", "seq": 4, "turn_id": 7, "role": "user", "text": "Typed.", "source": "message"},
    )
    messages = [(one["role"], one["content"]) for one in await RestClient(app).contents("s", "?after_turn=6")]
    assert sorted(messages) == [("assistant", "Agent."), ("user", "Typed."), ("user", "User.")]
    assert "user" == messages[0][0]


HALVES: list[JsonObject] = [{}, {"interrupt_timestamp": 5}, {"original": "Agent. And more."}]


@pytest.mark.parametrize("half", HALVES, ids=str)
async def test_a_restored_interruption_is_whole(app: App, producer: Producer, half: JsonObject) -> None:
    """A restored message that was interrupted says when, and what it would have been; without either it is refused."""
    restored = {"type": "message", "seq": 2, "turn_id": 7, "role": "assistant", "text": "Agent.", "source": "llm"}
    await producer.send(restored | {"metadata": {"interrupted": True, **half}})
    await producer.expect_error("invalid_field", seq=2)
