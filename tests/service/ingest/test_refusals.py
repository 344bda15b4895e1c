"""Events and frames that are refused, and how."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.ingest import MIB, journaled
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient, fresh_id
from tests.support.events import final_transcript, unknown_event
from tests.support.rows import every_row
from voicemem.app import App
from voicemem.protocol.types import JsonObject

REFUSED: list[tuple[str, JsonObject]] = [
    ("unknown_type", {"type": "no.such.type"}),
    ("invalid_field", {"type": 7}),
    ("missing_field", {"text": "without a type"}),
    ("missing_field", {"type": "asr", "turn_id": 1}),
    ("missing_field", {"type": "tts", "turn_id": 1}),
    ("missing_field", {"type": "metric", "name": "e2e"}),
    ("missing_field", {"type": "llm.cancel"}),
    ("invalid_field", {"type": "asr", "turn_id": -1, "text": "a"}),
    ("invalid_field", {"type": "asr", "turn_id": "1", "text": "a"}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": None}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "ts": 2**53 + 1}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "id": ""}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "item": "i" * 129}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "metadata": []}),
    ("invalid_field", {"type": "message", "turn_id": 1, "role": "system", "text": "a", "source": "command"}),
    ("invalid_field", {"type": "message", "turn_id": 1, "role": "user", "text": "a", "source": "llm"}),
    ("invalid_field", {"type": "session.update", "labels": {"a": 1}}),
    ("invalid_field", {"type": "session.update", "llm": {"no_such_setting": 1}}),
    ("unknown_field", {"type": "session.update", "no_such_setting": 1}),
    ("unknown_field", {"type": "asr", "turn_id": 1, "text": "a", "is_final": True}),
    ("reserved_metadata", {"type": "asr", "turn_id": 1, "text": "a", "metadata": {"interrupted": True}}),
    ("text_too_long", {"type": "llm.delta", "turn_id": 1, "text": "ä" * (128 * 1024 + 1)}),
    ("last_seq_mismatch", {"type": "session.end", "last_seq": 7}),
    ("unknown_type", {"type": "session.closed", "reason": "mine"}),
    ("unknown_type", {"type": "session.gap", "from_seq": 1, "to_seq": 2}),
    ("unknown_type", {"type": "refused", "code": "mine"}),
]
"""Events that no journal takes, whatever their seq is."""
UNREADABLE: list[Any] = [0, -1, 1.0, 1.5, "1", True, [1], {"seq": 1}, 2**53 + 1, 2**64]
"""What is no seq."""
NO_FRAMES: list[tuple[int, str | bytes]] = [
    (1007, ""),
    (1007, "hello"),
    (1007, '"hello"'),
    (1007, "null"),
    (1007, "[null]"),
    (1007, "[[]]"),
    (1007, b'{"type":"asr","text":"\xff"}'),
    (1007, json.dumps([final_transcript(2), final_transcript(3), 3])),
    (1007, json.dumps([final_transcript(2), final_transcript(3)])[:-1]),
    (1007, json.dumps([final_transcript(2), final_transcript(3)]) + json.dumps(final_transcript(4))),
    (1007, json.dumps([final_transcript(2), final_transcript(3, metadata={"a": json.loads("[" * 40 + "]" * 40)})])),
    (1009, json.dumps([final_transcript(2), final_transcript(3, text="x" * MIB)])),
]
"""What is no frame of events, and the code that the connection is closed with."""


def nested(depth: int) -> JsonObject:
    """An event that is nested so deep."""
    return final_transcript(1, metadata={"deep": json.loads("[" * (depth - 2) + "]" * (depth - 2))})


# Refused events


@every_row(("code", "event"), REFUSED)
async def test_a_refused_event_leaves_its_code(app: App, api: RestClient, code: str, event: JsonObject) -> None:
    """It takes its position and seq, without any of its content; the connection lives on."""
    session_id = fresh_id()
    async with open_producer(app, session_id) as producer:
        await producer.store(final_transcript(1))
        await producer.send(event | {"seq": 2})
        await producer.expect_error(code, session_id=session_id, producer="main", seq=2)
        await producer.store(final_transcript(3))
    row = (await api.journal(session_id))[1]
    assert (2, "main", 2, {"type": "refused", "code": code}) == (
        row["position"],
        row["producer"],
        row["seq"],
        row["event"],
    )


async def test_every_resend_repeats_the_error(app: App, api: RestClient) -> None:
    """A seq that was refused stays refused, over new connections and HTTP, even for an event that could be taken."""
    async with open_producer(app) as producer:
        await producer.send(unknown_event(1), unknown_event(1), final_transcript(2), final_transcript(1))
        answers = [(frame["type"], frame["seq"]) for frame in await producer.rest()]
        assert [("ack", 2), ("error", 1), ("error", 1), ("error", 1)] == sorted(answers)
    async with open_producer(app) as again:
        await again.send(unknown_event(1, text="secret"), final_transcript(1))
        await again.expect_error("unknown_type", seq=1)
        await again.expect_error("unknown_type", seq=1)
    assert [(1, "unknown_type")] == [(one["seq"], one["code"]) for one in (await api.send(unknown_event(1)))["errors"]]
    assert [1, 2] == [row["seq"] for row in await api.journal()]


async def test_an_error_counts_as_an_ack(producer: Producer) -> None:
    """A later ack covers the refused event, and a resume goes on behind it."""
    await producer.send_together(final_transcript(1), unknown_event(2), final_transcript(3))
    await producer.expect_error("unknown_type", seq=2)
    await producer.expect("ack", seq=3)
    await producer.send(unknown_event(4))
    await producer.expect_error("unknown_type", seq=4)
    assert 5 == (await producer.open())["next_seq"]


@every_row("seq", UNREADABLE, ids=str)
async def test_what_has_no_readable_seq_consumes_nothing(app: App, api: RestClient, seq: Any) -> None:
    """The error names no seq, nothing is stored, and the producer counts on."""
    session_id = fresh_id()
    async with open_producer(app, session_id) as producer:
        await producer.send(final_transcript(1) | {"seq": seq})
        error = await producer.expect_error("invalid_field", session_id=session_id, producer="main")
        assert "seq" not in error
        assert [] == await api.journal(session_id)
        await producer.store(final_transcript(1))


async def test_a_refused_event_without_seq_consumes_nothing(producer: Producer, api: RestClient) -> None:
    """Who does not count hears of the error, and nothing of it is stored."""
    await producer.send(final_transcript(), unknown_event(), final_transcript())
    (error,) = await producer.rest()
    assert ("unknown_type", None) == (error["code"], error.get("seq"))
    assert [final_transcript(), final_transcript()] == await journaled(api)


async def test_no_content_of_a_refused_event_is_kept(on_file: App, tmp_path: Path) -> None:
    """Neither the journal nor the error nor the file holds a word of it."""
    async with open_producer(on_file) as producer:
        await producer.send(unknown_event(1, text="geheim", geheim={"geheim": 1}), final_transcript(2, user=["geheim"]))
        assert "geheim" not in json.dumps(await producer.rest())
    files = [path.read_bytes() for path in tmp_path.iterdir()]  # noqa: ASYNC240 (they are small)
    assert not any(b"geheim" in file for file in files)


# What is no frame of events


@every_row(("code", "frame"), NO_FRAMES, ids=lambda value: str(value)[:24])
async def test_what_is_no_frame_closes(app: App, api: RestClient, code: int, frame: str | bytes) -> None:
    """The connection is closed with the code; what came before is stored, nothing of the frame is."""
    session_id = fresh_id()
    async with open_producer(app, session_id) as producer:
        await producer.send(final_transcript(1))
        await producer.send_raw(frame)
        assert code == (await producer.closed())[0]
    async with open_producer(app, session_id) as again:
        await again.store(final_transcript(1), final_transcript(2))
    assert [final_transcript(1), final_transcript(2)] == await journaled(api, session_id)


async def test_binary_frames_close(app: App, api: RestClient) -> None:
    """Bytes are no text, even when they would be good events."""
    async with open_producer(app) as producer:
        await producer.socket.send(json.dumps(final_transcript(1)).encode())
        assert 1003 == (await producer.closed())[0]
    assert [] == await api.journal()


async def test_a_frame_may_have_one_mebibyte(producer: Producer, api: RestClient) -> None:
    """The bound counts bytes, and is itself allowed."""
    frame = json.dumps(final_transcript(1, metadata={"more": ""}))
    frame = frame.replace('"more": ""', '"more": "' + "ä" * ((MIB - len(frame)) // 2) + '"', 1)
    await producer.send_raw(frame + " " * (MIB - len(frame.encode())))
    await producer.expect_ack(1)


async def test_a_frame_may_not_have_one_byte_more(producer: Producer) -> None:
    """One byte over the bound closes."""
    await producer.send_raw(json.dumps(final_transcript(1)).ljust(MIB + 1))
    assert 1009 == (await producer.closed())[0]


@pytest.mark.parametrize("together", [False, True])
async def test_an_event_may_be_32_levels_deep(app: App, together: bool) -> None:
    """The array around events is no level of theirs; one level more closes."""
    for depth in (32, 33):
        async with open_producer(app, str(depth)) as producer:
            await producer.send_raw(json.dumps([nested(depth)] if together else nested(depth)))
            if depth == 32:
                await producer.expect_ack(1)
            else:
                assert 1007 == (await producer.closed())[0]


async def test_brackets_in_texts_are_no_levels(producer: Producer) -> None:
    """What a user says may look like JSON."""
    await producer.store(final_transcript(1, text='[{"' * 100), final_transcript(2, text="\\" + "[" * 100))


async def test_a_flood_closes(app: App) -> None:
    """Who sends nothing but what cannot be stored is sent away."""
    async with connected_producer(app) as producer:
        await producer.send_together(*([final_transcript(1)] * 1100))
        code, frames = await producer.closed()
    assert 1008 == code
    assert {"not_open", "flood"} == {frame["code"] for frame in frames}


async def test_a_flood_is_not_answered_to_its_end(producer: Producer) -> None:
    """A small frame of many bad events does not make the server write and write."""
    await producer.send_raw("[" + ",".join(["{}"] * 20_000) + "]")
    code, frames = await producer.closed()
    assert 1008 == code
    assert len(frames) < 5_000


async def test_good_events_end_a_flood(producer: Producer) -> None:
    """A producer whose every frame has one bad event beside a good one is no flood."""
    for _ in range(1_100):
        await producer.send_together(final_transcript(), unknown_event())
    errors = await producer.rest()
    assert {"unknown_type"} == {frame["code"] for frame in errors}
    assert 1_100 == len(errors)
