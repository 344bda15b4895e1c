"""Messages become reduced frames, in order, whatever crosses the connection."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import Sized
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, Recording
from tests.support.rows import every_row
from tests.support.waiting import eventually
from voicemem.dialects.caller_fields import CALLER
from voicemem.dialects.registry import DIALECTS
from voicemem.integrations.tee.memory import FrameQueue, ReducedMessage
from voicemem.protocol.types import JsonObject

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "item_id", "x"]), inner),
    max_leaves=5,
)


def queue_for(dialect: str, keep_typed: bool = True) -> tuple[FrameQueue, list[ReducedMessage]]:
    handed: list[ReducedMessage] = []
    return FrameQueue(DIALECTS[dialect], keep_typed, handed.append), handed


@every_row("recording", RECORDINGS, ids=str)
async def test_recorded_calls(recording: Recording) -> None:
    """What is handed on is what the dialect keeps, in order, and who calls; only counts of audio are added up."""
    queue, handed = queue_for(recording.dialect)
    expected: list[JsonObject] = []
    for envelope in recording.envelopes():
        frame = envelope["frame"]
        side = envelope.get("from", "vendor")
        queue.put(frame if isinstance(frame, str) else json.dumps(frame), side)
        kept = DIALECTS[recording.dialect].reduce(frame, side)
        if kept is not None:
            expected.append(kept.content)
    queue.finish()
    assert audio_added_up(expected) == audio_added_up([without_caller(one.frame.content) for one in handed])
    assert len(recording.envelopes()) == queue.counts["taken"] + queue.counts["ignored"]
    assert 0 == queue.queued_bytes


def without_caller(content: JsonObject) -> JsonObject:
    """A frame without what it carries about who calls."""
    return {name: value for name, value in content.items() if name != CALLER}


def audio_added_up(contents: list[JsonObject]) -> tuple[list[JsonObject], int]:
    """All that is not a count of audio, and the sum of those."""
    others = [one for one in contents if "audio_bytes" not in one]
    return others, sum(one["audio_bytes"] for one in contents if "audio_bytes" in one)


async def test_counts_of_audio_are_added_up() -> None:
    """Those of one item that follow each other are one, of the first's time; another frame comes after them."""
    queue, handed = queue_for("openai-realtime")

    def put(item: str, size: int) -> None:
        audio: JsonObject = {"type": "response.output_audio.delta", "item_id": item, "delta": "AAAA" * size}
        queue.put(json.dumps(audio), "vendor")

    for item, size in (("a", 1), ("a", 2), ("b", 3)):
        put(item, size)
    queue.put('{"type": "response.output_text.delta", "item_id": "b", "delta": "Hi"}', "vendor")
    put("b", 4)
    assert [] == handed
    await eventually(0, lambda: waiting(queue.queued))
    sizes = [one.frame.content.get("audio_bytes", one.frame.content.get("delta")) for one in handed]
    assert [9, 9, "Hi"] == sizes
    await eventually(4, lambda: waiting(handed))
    assert 12 == handed[-1].frame.content["audio_bytes"]


async def waiting(some: Sized) -> int:
    return len(some)


async def test_typed_text_can_be_left_out() -> None:
    """As with `?typed=ignore`."""
    item = {"type": "message", "role": "user", "id": "i", "content": [{"type": "input_text", "text": "Context."}]}
    for keep_typed, count in ((True, 1), (False, 0)):
        queue, handed = queue_for("openai-realtime", keep_typed)
        queue.put(json.dumps({"type": "conversation.item.added", "item": item}), "vendor")
        queue.finish()
        assert count == len(handed)


@given(st.lists(st.tuples(JSON | st.binary(max_size=9) | st.text(max_size=9), st.booleans()), max_size=9))
def test_nothing_raises(messages: list[tuple[Any, bool]]) -> None:
    """Any JSON, text and bytes, in every dialect, from both sides: each is counted once."""

    async def put() -> None:
        for dialect in DIALECTS:
            queue, _ = queue_for(dialect)
            for message, is_text in messages:
                whole = message if isinstance(message, str | bytes) else json.dumps(message)
                queue.put(whole, "app" if is_text else "vendor", is_text)
            queue.finish()
            assert len(messages) == queue.counts.total()

    asyncio.run(put())


async def test_buffers_that_are_used_again() -> None:
    """A bytearray and a memoryview are copied at once."""
    queue, handed = queue_for("conversation-relay")
    text = bytearray(b'{"type": "text", "token": "One"}')
    queue.put(text, "app")
    queue.put(memoryview(text), "app")
    text[:] = b"x" * len(text)
    queue.finish()
    assert ["One", "One"] == [one.frame.content["token"] for one in handed]
