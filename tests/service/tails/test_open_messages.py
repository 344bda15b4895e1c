"""Tails of memories with what is in progress: each message says whether it may still change."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.callers.rest import RestClient
from tests.support.callers.tail_reader import ONE, open_tail
from tests.support.events import delta, done, final, interrupt, partial, resume, tts
from tests.support.samples.history_reader import HistoryReader, exact_json
from voicemem.protocol.types import JsonObject

CALL = [
    partial(1, "How", 1000), final(1, "How are you?", 1400), delta(1, "Fine, ", 1700), delta(1, "thank you.", 1750),
    done(1, 1800), tts(1, 1900, heard_text="Fine, "), partial(2, "Mhm", 2100), interrupt(1, 2200),
    resume(1, 2500), tts(1, 2600, heard_text="Fine, thank "), final(2, "Good.", 2900), delta(2, "Yes.", 3100),
    tts(2, 3300, audio_ms=100), done(2, 3400), tts(2, 3900, done=True),
]  # fmt: skip


async def test_a_reader_has_the_open_history_after_each_event(api: RestClient) -> None:
    """What ends being open by an event of another turn is told too: a reply that plays no more, a noise."""
    reader = HistoryReader()
    async with open_tail(api, f"{ONE}?view=messages&open=true") as tail:
        for one in CALL:
            await api.send(one)
            history = await api.contents(query="?open=true")
            while exact_json(history) != exact_json(reader.shown()):
                (told,) = await tail.some(1)
                reader.take(told.data)
    assert not any("open" in one["metadata"] for one in reader.shown())


async def test_the_history_tells_what_is_open(api: RestClient) -> None:
    """Only with open=true: whoever does not ask has the messages of the contract."""
    await api.send(*CALL[:6])
    expected: list[JsonObject] = [{"source": "asr"}, {"source": "llm", "open": True, "heard_so_far": "Fine, "}]
    assert expected == [one["metadata"] for one in await api.contents(query="?open=true")]
    assert [{"source": "asr"}, {"source": "llm"}] == [one["metadata"] for one in await api.contents()]
