"""What read models are counted for is near what Python really takes for them, whatever the call is made of."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.support.rows import every_row
from voicemem.memory.statistics import made_figures
from voicemem.protocol.codec import decode_journaled
from voicemem.runtime import MemoryBudget
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import EMPTY_BYTES, PACKED_BYTES, ReadModel
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.state import State

NOW = 1_778_390_400_000
COUNT = 1_000
SOME = {"a": [1_000, {"b": "some text"}], "c": 1.5}
WORDS = [{"text": "word", "start_ms": n * 300, "end_ms": n * 300 + 250} for n in range(50)]


def plain_call() -> Iterator[dict[str, Any]]:
    for turn in range(COUNT // 10):
        for count in range(5):
            yield {"type": "asr", "turn_id": turn, "text": "Where is my order? " * count}
        yield {"type": "asr", "turn_id": turn, "text": "Where is my order? " * 5, "final": True}
        for _ in range(5):
            yield {"type": "llm.delta", "turn_id": turn, "text": "It was sent to you on Monday. "}
        yield {"type": "tts", "turn_id": turn, "audio_ms": 2_000, "done": True}


def numbered(count: int = COUNT, **fields: Any) -> list[dict[str, Any]]:
    """Events that differ in their number: `{n}` stands for it, and `n` in a field's value means the number itself."""
    return [
        {name: n if value == "n" else value.format(n=n) if isinstance(value, str) else value
         for name, value in fields.items()}
        for n in range(count)
    ]  # fmt: skip


CALLS: dict[str, Any] = {
    "plain": list(plain_call()),
    "short": list(plain_call())[:60],
    "playback by item": numbered(type="tts", item="i{n}", heard_text="a"),
    "replies by item": numbered(type="llm.delta", item="i{n}", text="a"),
    "users": numbered(type="asr", turn_id=1, item="i{n}", user="u{n}", text="a", final=True),
    "finals": numbered(type="asr", turn_id="n", text="Hello there.", final=True),
    "words": numbered(300, type="tts", turn_id="n", words=WORDS),
    "metadata": numbered(type="asr", turn_id="n", text="a", final=True, metadata=SOME),
    "tools": numbered(type="tool.call", turn_id="n", call_id="c{n}", name="find", arguments=SOME),
    "long text": numbered(20, type="llm.delta", turn_id="n", text="x" * 100_000),
    "wide text": numbered(20, type="llm.delta", turn_id="n", text="x" * 100_000 + "\N{SLIGHTLY SMILING FACE}"),
    "event ids": numbered(type="asr", turn_id=1, id="e{n}", text="a"),
    "a document": numbered(1, type="memory.data", operation="replace", content={"rows": [SOME] * 2_000}),
}


@pytest.fixture(autouse=True)
def _only_what_is_new() -> Iterator[None]:
    """Collections of garbage look at what a test makes, and not through all that is imported."""
    gc.freeze()
    yield
    gc.unfreeze()


def decode(events: list[dict[str, Any]]) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events]


def fold_call(texts: list[bytes], is_read: bool) -> ReadModel:
    """A memory of the call, whose messages someone asked for where `is_read`."""
    read_model = ReadModel(State())
    rows = (DecodedRow(n, NOW + n, decode_journaled(text), "main") for n, text in enumerate(texts, 1))
    fold_all(read_model.state, rows)
    if is_read:
        read_model.encode_messages()
    return read_model


@pytest.mark.long
@every_row("is_read", [False, True], ids=["folded", "read"])
@every_row("name", CALLS)
def test_the_weight_is_near_what_python_takes(name: str, is_read: bool) -> None:
    """Never much less, and at most two and a half times as much."""
    texts = decode(CALLS[name])
    fold_call(texts[:60], is_read)  # what a process makes once, like its decoders, is no memory's
    gc.collect()
    tracemalloc.start()
    read_model = fold_call(texts, is_read)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    read_model.folded_bytes = sum(map(len, texts))
    read_model.weigh()
    assert 0.7 * taken < read_model.weight < 2.5 * taken


def test_growth_is_assumed_to_go_on_as_before() -> None:
    """Between two weighings a memory counts in proportion to its journal, and much growth makes it worth another."""
    read_model = ReadModel(State())
    fold_all(read_model.state, [DecodedRow(1, NOW, decode_journaled(decode(CALLS["long text"])[0]), "main")])
    read_model.folded_bytes = 100_000
    assert read_model.has_grown
    read_model.weigh()
    assert not read_model.has_grown
    before = read_model.weight - EMPTY_BYTES
    read_model.folded_bytes *= 2
    assert 2 * before - 1 <= read_model.weight - EMPTY_BYTES <= 2 * before + 1
    read_model.folded_bytes *= 2
    assert read_model.has_grown
    read_model.pack()
    assert (PACKED_BYTES + len(read_model.packed), False) == (read_model.weight, read_model.has_grown)


@pytest.mark.long
@pytest.mark.parametrize("has_figures", [False, True], ids=["alone", "with figures"])
def test_the_weight_of_packed_memories_is_near_what_python_takes(has_figures: bool) -> None:
    """Many short calls that have ended count for what they take, as they are kept."""
    rows = [(n, decode_journaled(text)) for n, text in enumerate(decode(CALLS["short"]), 1)]
    kept = ReadModelCache(InMemoryStore(), MemoryBudget(1 << 30), capacity=1_000)
    gc.collect()
    tracemalloc.start()
    for key in range(1_000, 1_500):
        read_model = kept.keep(key, "default")
        fold_all(read_model.state, [DecodedRow(n, NOW + n, event, "main") for n, event in rows])
        if has_figures:
            made_figures(1, read_model)
        read_model.pack()
        kept.ended[key] = None
        kept.charge(key, read_model)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.8 * taken < kept.budget.memories_packed < 1.5 * taken


def test_many_queries_keep_no_more_than_a_few() -> None:
    """A message is kept as JSON at most twice, whichever messages of a call are asked for and however often."""
    read_model = fold_call(decode(CALLS["plain"]), is_read=True)
    read_model.encode_messages("standard")
    kept, count = read_model.weight, len(read_model.current_messages())
    assert kept > len(read_model.encode_messages()) + len(read_model.encode_messages("standard"))
    for first in range(count):
        read_model.encode_messages("full", first)
        read_model.encode_messages("standard", first)
        read_model.encoded_contents(range(first, count))
        read_model.encoded_contents([0, first])
    assert kept == read_model.weight
    read_model.pack()
    assert read_model.encoded_bytes == 0
