"""When subtitles are shown."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from hypothesis import given

from tests.support.events import final
from tests.support.profiles import examples
from tests.support.samples.exported_calls import EVENTS, START, call_after, call_from
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import entries
from voicemem.exports.cues import cues_of
from voicemem.protocol.events import JournaledEvent
from voicemem.transcript.fold import fold_all
from voicemem.transcript.state import State


def test_times_count_from_the_first_that_was_heard() -> None:
    """Where the end is not known, a text is shown as long as it takes to say, a second at least."""
    assert [(0, 1_000), (2_000, 5_000), (6_000, 7_000)] == [one[:2] for one in cues_of(call_after(*EVENTS))]


def test_a_guessed_end_is_not_after_the_next_beginning() -> None:
    """Who is interrupted has stopped by then, as far as anybody knows."""
    call = call_after(final(1, "word " * 60, START), final(2, "Yes.", START + 3_000))
    assert [(0, 3_000), (3_000, 4_000)] == [one[:2] for one in cues_of(call)]


@examples(0.2)
@given(PRODUCER_JOURNALS)
def test_cues_are_in_order_and_end_after_they_begin(journal: list[JournaledEvent]) -> None:
    """As players want them, whatever the turns are; none begins before the call."""
    cues = cues_of(call_from(fold_all(State(), entries(journal))))
    assert [one.start for one in cues] == sorted(one.start for one in cues)
    assert all(0 <= one.start < one.end for one in cues)
