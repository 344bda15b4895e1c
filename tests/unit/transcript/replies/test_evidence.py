"""The text that the LLM generated of a reply, and how long it is."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from voicemem.transcript.replies.evidence import Generation

TIMES = st.integers(0, 4) | st.sampled_from([-(2**53), 2**31, 2**53])
EVENTS = st.lists(st.tuples(st.sampled_from(["delta", "delta", "whole", "final"]), TIMES, st.text("ab ")))


@given(events=EVENTS)
def test_the_length_is_that_of_the_text(events: list[tuple[str, int, str]]) -> None:
    """However deltas, whole texts and final ones arrive, the length of the text is known without it."""
    generation = Generation()
    for order, (kind, ts, text) in enumerate(events):
        if kind == "delta":
            generation.add(ts, text)
        elif kind == "whole":
            generation.add_whole(ts, text)
        else:
            generation.finish(ts, order, text)
        assert generation.length() == len(generation.text())


@given(deltas=st.lists(st.tuples(TIMES, st.text("ab "))), until=TIMES)
def test_the_text_until_a_time_ends_before_the_first_later_delta(deltas: list[tuple[int, str]], until: int) -> None:
    """Deltas may come out of order, and years apart."""
    generation = Generation()
    for ts, text in deltas:
        generation.add(ts, text)
    expected = "".join(text for _, text in takewhile(lambda one: one[0] <= until, deltas))
    assert generation.text_until(until) == expected


def test_the_length_of_a_text_that_grows_joins_nothing() -> None:
    """Also after a whole text, asking for the length leaves the deltas as they came, so it costs nothing to ask."""
    generation = Generation()
    generation.add_whole(1, "Hello")
    for ts in range(2, 6):
        generation.add(ts, " you")
        assert generation.length() == len("Hello") + (ts - 1) * len(" you")
    assert len(generation.deltas.pieces) == 4
