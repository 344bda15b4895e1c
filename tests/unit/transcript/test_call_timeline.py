"""The small picture of a call: who was heard when."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

from hypothesis import given

from tests.support.events import delta, done, event, final, interrupt, partial, resume, tts, typed
from tests.support.paths import FIXTURES
from tests.support.rows import every_row
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import closed, entries, folded
from voicemem.transcript.call_timeline import MAX_ENTRIES, PARTS, CallTimeline, call_timeline
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.state import State


def picture(state: State) -> CallTimeline:
    return call_timeline(state, messages(state))


def lanes(*given_events: Any) -> list[Any]:
    """The entries of a call, in ms from its begin, as its length is 1,000 ms or is taken to be."""
    return [list(entry) for entry in picture(folded(*given_events)).lanes]


def test_who_spoke_when() -> None:
    """The caller from the first word to the last, the agent from its first audio until it was played."""
    shown = lanes(
        partial(1, "How", 1000), final(1, "How are you?", 1200), delta(1, "Fine.", 1250), done(1, 1300),
        tts(1, 2000, done=True),
    )  # fmt: skip
    assert [["user", 0, 200], ["agent", 400, 1000]] == shown


def test_the_first_audio_is_when_it_was_reported() -> None:
    """By playback, else by the latency of the speech synthesis."""
    said = partial(1, "How", 1000), final(1, "How are you?", 1200), delta(1, "Fine.", 1250)
    over = tts(1, 2000, done=True)
    by_latency = event("metric", 1, 1300, name="tts_ttfb", latency_ms=50)
    assert ["agent", 300, 1000] == lanes(*said, by_latency, over)[1]
    assert ["agent", 350, 1000] == lanes(*said, by_latency, tts(1, 1350, audio_ms=0), over)[1]


def test_a_cut_reply_shows_what_nobody_heard() -> None:
    """Up to the next reply at most, at 55 ms a character."""
    cut = (
        partial(1, "Hm", 1000), final(1, "Hm?", 1100), delta(1, "123456", 1100), done(1, 1150),
        interrupt(1, 1500, heard_text="1"),
    )  # fmt: skip
    later = final(2, "?", 1900), delta(2, "Yes.", 1500), tts(2, 2000, done=True)
    assert [["cut", 500, 500], ["unheard", 500, 650]] == lanes(*cut, *later)[2:4]
    end = partial(2, "Well", 1600), partial(2, "Well then", 2000)
    assert ["unheard", 500, 775] == lanes(*cut, *end)[3]


def test_a_false_alarm_leaves_nothing() -> None:
    """A reply that went on was heard until it was played."""
    shown = lanes(
        partial(1, "Hm", 1000), final(1, "Hm?", 1100), delta(1, "One two three.", 1100), done(1, 1150),
        interrupt(1, 1500, heard_text="One"), resume(1, 1600), tts(1, 2000, done=True),
    )  # fmt: skip
    assert [["user", 0, 100], ["agent", 250, 1000]] == shown


def test_the_noise_of_a_false_alarm_is_not_drawn() -> None:
    """The caller did not talk over the agent, with items and without."""
    said = partial(1, "Hm", 1000), final(1, "Hm?", 1100), delta(1, "One two three.", 1100), done(1, 1150)
    for first, second in (({}, {}), ({"item": "a"}, {"item": "b"})):
        noise = partial(2, "mhm", 1400, **first), interrupt(1, 1500), resume(1, 1600), tts(1, 1800, done=True)
        words = partial(2, "Book", 1900, **second), final(2, "Book me.", 2000, **second)
        assert [["user", 0, 100], ["agent", 250, 800], ["user", 900, 1000]] == lanes(*said, *noise, *words)


def test_a_final_alone_was_spoken_before() -> None:
    """At 60 ms a character."""
    assert [["user", 0, 600], ["agent", 750, 1000]] == lanes(
        final(1, "0123456789", 2000), delta(1, "Fine.", 2000), tts(1, 2400, done=True)
    )


def test_typed_texts_and_tools() -> None:
    """A typed text is a moment; a tool call lasts until the reply that followed."""
    shown = lanes(
        typed(1, "Weather?", 1000), event("tool.call", 1, 1100, call_id="c", name="weather", arguments="{}"),
        event("tool.result", 1, 1500, call_id="c", result="sun"), delta(1, "Sun.", 1600), tts(1, 2000, done=True),
    )  # fmt: skip
    assert [["user", 0, 0], ["tool", 100, 600], ["agent", 750, 1000]] == shown


def test_a_call_without_words() -> None:
    """There is nothing to show."""
    assert CallTimeline(0, []) == picture(folded())


def test_a_long_call_keeps_its_picture_small() -> None:
    """What stands close together is one entry, and no lane is lost."""
    events = [one for turn in range(1, 500) for one in (
        final(turn, "Go on.", turn * 3000), delta(turn, "Once upon a time", turn * 3000 + 300),
        interrupt(turn, turn * 3000 + 900, heard_text="Once"),
    )]  # fmt: skip
    shown = picture(folded(*events))
    assert {"user", "agent", "unheard", "cut"} == {lane for lane, _, _ in shown.lanes}
    assert len(shown.lanes) <= MAX_ENTRIES


def test_a_long_call_keeps_its_widest_pauses() -> None:
    """As many entries are drawn as there may be, so that sixty turns do not look like one."""
    events, at = [], 0
    for turn in range(1, 61):
        said, pause = 40 + turn % 7 * 9, 400 + turn * 37 % 60 * 40
        events += [final(turn, "a" * said, at := at + pause), tts(turn, at + 300, audio_ms=0)]
        events += [delta(turn, "b" * said, at + 200), tts(turn, at := at + 300 + 55 * said, done=True)]
        at += 60 * said
    assert MAX_ENTRIES * 3 // 4 < len(picture(folded(*events)).lanes) <= MAX_ENTRIES


def is_sound(timeline: CallTimeline) -> bool:
    begins = [begin for _, begin, _ in timeline.lanes]
    return (
        len(timeline.lanes) <= MAX_ENTRIES
        and begins == sorted(begins)
        and all(0 <= begin <= end <= PARTS for _, begin, end in timeline.lanes)
    )


@every_row("path", sorted(FIXTURES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_recorded_calls_have_a_picture(path: Any) -> None:
    """Whatever clock they have."""
    assert is_sound(picture(folded(*map(json.loads, path.read_text("utf-8").splitlines()))))


@given(PRODUCER_JOURNALS)
def test_any_call_has_a_picture(call: list[Any]) -> None:
    """Whatever order its events have, and whatever times."""
    rows = [DecodedRow(position, position * 1000, one) for position, one in enumerate(call, 1)]
    assert is_sound(picture(fold_all(State(), rows)))


def test_a_call_that_the_service_closes_is_as_long_as_its_producers_clock_says() -> None:
    """What the close cuts is cut at the newest time that its producer stated, whatever the service's clock is."""
    said = [final(1, "Hm?", 1000), delta(1, "Once upon a time", 1100), partial(2, "Stop", 1700)]
    sent = [entry._replace(producer="main") for entry in entries(said)]
    close = entries([closed(1_700_000_000_000)])[0]._replace(position=len(sent) + 1)
    shown = picture(fold_all(State(), [*sent, close]))
    assert ["cut"] == [lane for lane, *_ in shown.lanes if lane == "cut"]
    assert 1_000 < shown.length_ms < 3_000
