"""A service that was killed comes back with everything that it acknowledged."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import json
import signal
from pathlib import Path

import pytest

from tests.support.callers.gateway import ask, openai_client_at, role_and_text, user_message
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.events import final_transcript, session_end
from tests.support.paths import FIXTURES
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.servers.llm_server import Script, llm_server
from tests.support.waiting import eventually
from voicemem.protocol.types import JsonObject


async def generated(process: ServiceProcess) -> list[str]:
    rows = await process.api.journal()
    return [row["event"]["text"] for row in rows if row["event"]["type"] == "llm.delta"]


async def test_a_reply_that_a_killed_process_left_is_closed(tmp_path: Path) -> None:
    """By the next call of the gateway, as it was generated; an open reply of the engine's own stays open."""
    store = tmp_path / "calls.db"
    async with llm_server(Script(["One. ", "Two. ", "Three."], hold_after=3)) as llm:
        async with running_process(store, "--llm-url", llm.url) as process:
            api = process.api
            await api.create()
            begun = {"type": "llm.delta", "turn_id": 0, "item": "own", "text": "Welcome to "}
            await api.post("/v1/sessions/s/events", [begun])
            async with openai_client_at(process.rest) as client:
                stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
                await anext(stream)
                await eventually(["Welcome to ", "One. ", "Two. "], lambda: generated(process))
                await process.kill()
                await stream.close()
        llm.then(Script(["Yes?"]))
        async with running_process(store, "--llm-url", llm.url) as process:
            api = process.api
            async with openai_client_at(process.rest) as client:
                assert "Yes?" == await ask(client, "Are you there?")
            heard = [("user", "Hi."), ("assistant", "One. Two. "), ("user", "Are you there?")]
            assert heard == role_and_text(llm.last["messages"])
            contents = await api.contents()
            assert [*heard, ("assistant", "Yes?")] == role_and_text(contents)
            assert {"source": "llm"} == contents[1]["metadata"]
            rows = [row for row in await api.journal() if row["event"]["type"] in ("llm.delta", "llm.done")]
            assert rows[3]["event"]["ts"] == rows[2]["event"]["ts"]
            assert {"gateway"} == {row["producer"] for row in rows[3:]}
            assert "own" not in [row["event"]["item"] for row in rows[1:]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a database may be made."""
    return tmp_path / "calls.db"


def recorded(name: str) -> list[JsonObject]:
    """The events of a recorded call."""
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_bytes().splitlines()]


def remembered(name: str) -> list[JsonObject]:
    """The memory that a recorded call must give."""
    return list(json.loads((FIXTURES / f"{name}.contents.json").read_bytes())["contents"])


async def stream_until(producer: Producer, events: list[JsonObject], enough: int) -> int:
    """Send events, and read acks meanwhile until this many are covered; the seq of the last one read."""
    sending = asyncio.create_task(producer.send(*events))
    acked = 0
    while acked < enough:
        acked = (await producer.expect("ack"))["seq"]
    sending.cancel()
    await asyncio.wait({sending})
    return acked


async def test_a_call_survives_kills(path: Path) -> None:
    """A producer that resumes by next_seq after every kill gets the memory of an undisturbed call."""
    call, acked = recorded("long_call"), 0
    for enough in (300, 1200):
        async with running_process(path) as process, connected_producer(process) as producer:
            ready = await producer.open()
            assert ready["next_seq"] > acked
            assert newest_turn(call[: ready["next_seq"] - 1]) + 1 == ready["next_turn"]
            acked = await stream_until(producer, call[ready["next_seq"] - 1 : enough + 300], enough)
            await process.kill()
    async with running_process(path) as process, connected_producer(process) as producer:
        await producer.store(*call[(await producer.open())["next_seq"] - 1 :])
        await eventually("ended", process.api.state)
        assert list(range(1, len(call) + 1)) == [row["seq"] for row in (await process.api.journal())[:-1]]
        assert remembered("long_call") == await process.api.contents()


def newest_turn(events: list[JsonObject]) -> int:
    """The highest turn of these events."""
    return max([event.get("turn_id", 0) for event in events], default=0)


async def test_many_calls_survive_a_kill(path: Path) -> None:
    """Of every session what was acknowledged is there after the kill, in order and once."""
    names = [f"s{number}" for number in range(20)]
    async with running_process(path) as process, connected_producer(process) as producer:
        for name in names:
            await producer.open(name)
        sending = asyncio.create_task(send_all(producer, names))
        acked = dict.fromkeys(names, 0)
        while min(acked.values()) < 20:
            ack = await producer.expect("ack")
            acked[ack["session_id"]] = ack["seq"]
        await process.kill()
        sending.cancel()
        await asyncio.wait({sending})
    async with running_process(path) as process:
        for name in names:
            seqs = [row["seq"] for row in await process.api.journal(name)]
            assert list(range(1, len(seqs) + 1)) == seqs
            assert len(seqs) >= acked[name]


async def send_all(producer: Producer, names: list[str]) -> None:
    """Events of all sessions in turn, for ever."""
    for seq in itertools.count(1):
        await producer.send_together(*(final_transcript(seq, session_id=name) for name in names))


async def test_an_end_survives_a_kill(path: Path) -> None:
    """A session whose end was committed, but not its close, is closed by the restart as that end said."""
    async with (
        running_process(path) as process,
        open_producer(process, producer="llm") as llm,
        connected_producer(process) as asr,
    ):
        await llm.store(final_transcript(1))
        await asr.open(producer="asr")
        await asr.store(session_end(1, ts=77, reason="hangup"))
        assert "running" == await process.api.state()
        await process.kill()
    async with running_process(path) as process:
        await eventually("ended", process.api.state)
        assert {"type": "session.closed", "ts": 77, "reason": "hangup"} == (await process.api.journal())[-1]["event"]
        assert ["Line 1."] == [message["content"] for message in await process.api.contents()]


async def test_sigterm_drains(path: Path) -> None:
    """Everything that was sent is acknowledged, everybody is told, and the process exits with 0."""
    async with running_process(path) as process, open_producer(process) as producer:
        await producer.store(final_transcript(1))
        process.signal(signal.SIGTERM)
        code, frames = await producer.closed()
        assert (1012, [{"type": "goaway"}]) == (code, frames)
        assert 0 == await process.ended()
    async with running_process(path) as process, connected_producer(process) as producer:
        assert 2 == (await producer.open())["next_seq"]
