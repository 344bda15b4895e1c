"""Audio between the TTS and the caller."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from voicemem.integrations.pipecat.audio import AudioTimeline


def test_audio_is_played_in_the_order_in_which_it_was_made() -> None:
    """A chunk of the output may hold the end of one reply and the beginning of the next."""
    timeline = AudioTimeline(0)
    timeline.made("a", "c1", 100, True)
    timeline.made("b", "c2", 100, True)
    assert [timeline.played(60, at) for at in (10, 20)] == ["a", "b"]
    assert (timeline.heard_ms("a", 20), timeline.heard_ms("b", 20)) == (100, 20)


def test_what_is_on_its_way_to_the_ear_is_not_heard_yet() -> None:
    """Positions are those of the time at which what is heard now was handed out."""
    timeline = AudioTimeline(200)
    timeline.made("a", "c", 1000, True)
    for at in range(0, 400, 40):
        timeline.played(40, at)
    assert timeline.heard_ms("a", 360) == 200
    assert timeline.heard_ms("a", 100) == 0
    assert timeline.heard_ms("a", 10_000) == 400


def test_a_position_between_two_chunks_is_found() -> None:
    """While a chunk is played, the position goes on."""
    timeline = AudioTimeline(0)
    timeline.made("a", "c", 1000, True)
    timeline.played(40, 0)
    timeline.played(40, 40)
    assert timeline.heard_ms("a", 30) == 70


def test_an_interruption_throws_away_what_may_be_interrupted() -> None:
    """The rest is played."""
    timeline = AudioTimeline(0)
    timeline.made("a", "c1", 100, True)
    timeline.made("b", "c2", 100, False)
    timeline.interrupted()
    assert timeline.played(50, 10) == "b"


def test_audio_that_never_came_out_is_dropped_with_its_context() -> None:
    """A client that is gone takes nothing; what comes after is not taken for it."""
    timeline = AudioTimeline(0)
    timeline.made("a", "c1", 5000, True)
    timeline.context_done("c1", 10)
    timeline.made("b", "c2", 100, True)
    assert timeline.played(50, 20) == "b"
    assert timeline.heard_ms("a", 20) == 0


def test_rounding_is_no_missing_audio() -> None:
    """The last few ms of a context count as played when the output is done with it."""
    timeline = AudioTimeline(0)
    timeline.made("a", "c1", 1000, True)
    timeline.played(960, 10)
    timeline.context_done("c1", 20)
    assert timeline.heard_ms("a", 20) == 1000


@given(st.lists(st.floats(0, 500), max_size=40), st.floats(0, 300))
def test_a_position_never_exceeds_what_was_made(chunks: list[float], delay_ms: float) -> None:
    """Whatever the output says."""
    timeline = AudioTimeline(delay_ms)
    timeline.made("a", "c", 2000, True)
    positions = []
    for number, chunk in enumerate(chunks):
        timeline.played(chunk, number * 37)
        positions.append(timeline.heard_ms("a", number * 37))
    assert all(0 <= one <= 2000.001 for one in positions)
    assert all(earlier <= later + 0.001 for earlier, later in pairwise(positions))
