"""Sentences and clauses in audio of which nothing is known but the text."""

from __future__ import annotations

import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicemem.integrations.pipecat.audio import Sound, Span, spans_of

RATE = 16_000


def pcm(*parts: tuple[int, int]) -> bytes:
    """Parts of audio: ms, and how loud."""
    return b"".join(array.array("h", [peak] * (ms * RATE // 1000)).tobytes() for ms, peak in parts)


def sound(*parts: tuple[int, int]) -> Sound:
    made = Sound()
    made.add(pcm(*parts), RATE, 1)
    return made


def test_silence_around_a_sentence_is_not_spoken() -> None:
    """The words share the time in which something sounds."""
    found = spans_of("Hello there.", sound((200, 0), (900, 9000), (400, 0)))
    assert found == [Span("", 200), Span("Hello there.", 900), Span("", 400)]


def test_a_pause_is_where_a_mark_is() -> None:
    """Also if one sentence is spoken more slowly than the other."""
    text = "Take the first door. Then the second one."
    found = spans_of(text, sound((1000, 9000), (300, 0), (900, -9000)))
    assert found == [Span("Take the first door. ", 1000), Span("", 300), Span("Then the second one.", 900)]


def test_a_pause_far_from_any_mark_divides_nothing() -> None:
    """Voices also breathe between words."""
    text = "One. Then comes a much longer sentence that goes on and on without a mark"
    found = spans_of(text, sound((2000, 9000), (300, 0), (2000, 9000)))
    assert [span.text for span in found] == [text]


def test_short_gaps_between_words_are_no_pauses() -> None:
    """A stretch goes on over them."""
    found = spans_of("Hello, you.", sound((300, 9000), (30, 0), (300, 9000)))
    assert found == [Span("Hello, you.", 630)]


def test_silent_audio_is_shared_by_all_text() -> None:
    """Nothing else is known of it."""
    assert spans_of("Hello there.", sound((500, 10))) == [Span("Hello there.", 500)]


@pytest.mark.parametrize("text", ["今天很好。明天下雨，后天也是。", "Hi! How are you? Fine…"])
@given(st.lists(st.tuples(st.integers(10, 800), st.sampled_from([0, 9000])), min_size=1, max_size=12))
def test_all_text_and_all_audio_are_in_the_spans(text: str, parts: list[tuple[int, int]]) -> None:
    """Once each, in order."""
    made = sound(*parts)
    found = spans_of(text, made)
    assert "".join(span.text for span in found) == text
    assert sum(span.audio_ms for span in found) == pytest.approx(made.end_ms)
    assert all(span.audio_ms >= 0 for span in found)
