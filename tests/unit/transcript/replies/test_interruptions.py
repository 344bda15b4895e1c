"""Interruptions that name their reply, early and late."""

from __future__ import annotations

from tests.support.events import JOKE, delta, done, interrupt
from tests.support.rows import every_row
from tests.support.samples.folds import KINDS
from tests.support.transcripts import heard_text_of, only_message


def test_interruption_of_a_reply() -> None:
    """The content becomes the heard text, and the metadata tells when it was cut and what was generated."""
    expected = {"interrupted": True, "interrupt_timestamp": 50, "original": JOKE, "source": "llm"}
    message = only_message(delta(2, JOKE, 10), interrupt(2, 50, heard_text="Why did the scarecrow "))
    assert (message["content"], message["metadata"]) == ("Why did the scarecrow ", expected)


def test_what_arrives_after_an_interruption_grows_the_original_only() -> None:
    """Late deltas and a late done do not change what was heard."""
    call = [delta(1, "One ", 10), interrupt(1, 20, heard_text="One "), delta(1, "two ", 30), delta(1, "three.", 40)]
    single = only_message(*call, done(1, 50, text="One two three. Four."))
    assert (single["content"], single["metadata"]["original"]) == ("One ", "One two three. Four.")


@every_row("kind", KINDS)
def test_deltas_after_an_interruption_never_change_the_content(kind: str) -> None:
    """Whatever the evidence was, what is generated later does not change what was heard, not even by a space."""
    call = [delta(1, "Why did", 10), *KINDS[kind]]
    assert heard_text_of(*call, delta(1, " the scarecrow", 60)) == heard_text_of(*call)


def test_interrupt_by_turn_may_overtake_its_reply() -> None:
    """An interrupt that names its turn may overtake the whole reply."""
    assert heard_text_of(interrupt(1, 50, heard_text="One "), done(1, 60, text="One two.")) == ("One ", None)


def test_interrupt_by_item_may_overtake_its_reply() -> None:
    """An interrupt that names its item waits for the reply."""
    call = [interrupt(None, 50, item="a", heard_text="One "), delta(1, "One two.", 10, item="a"), done(1, 60, item="a")]
    assert heard_text_of(*call) == ("One ", None)


def test_late_delta_of_an_earlier_time_was_generated_before_the_cut() -> None:
    """The order of arrival does not matter for what was generated until the interruption."""
    call = [delta(1, "One ", 10), delta(1, "two ", 20), delta(1, "three.", 40)]
    cut = interrupt(1, 30, audio_end_ms=60_000)
    assert heard_text_of(*call, cut) == ("One two ", "estimated")
    assert heard_text_of(cut, *call) == ("One two ", "estimated")
