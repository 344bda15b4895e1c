"""Words wrong, as bench.heard counts them; and what its conditions do to the events."""

from __future__ import annotations

import msgspec
import pytest

from bench.harness.stretching import stretched
from bench.harness.truth import CONDITIONS, Condition, has_early_done, journal, load_calls, score, scores, words_in
from tests.support.paths import TRUTH
from tests.support.rows import every_row
from tests.support.samples.true_calls import BEGAN, call, reply
from voicemem.cli.truth import KINDS, Synthesis, TrueCall, TrueWord, derive
from voicemem.protocol.events import Interrupt
from voicemem.protocol.types import JsonObject
from voicemem.transcript.messages import Message

TALKED = "one two, three four? five six"


def wrong(content: str, cut: int | None = 1300) -> int:
    """The words wrong of a memory, where two words had ended and the third had begun."""
    return score(call(), reply(TALKED, cut=cut), Message("assistant", content, 1, 0, {})).wrong


@every_row(
    ("content", "words"),
    [("", -2), ("one ", -1), ("one two, ", 0), ("one two", 0), ("one two, three ", 0), ("one two, three four? ", 1)],
)
def test_the_text_may_end_anywhere_between_two_words(content: str, words: int) -> None:
    """The last that had ended, and the last that had begun; marks are no words."""
    assert wrong(content) == words


def test_a_complete_reply_is_all_of_its_words() -> None:
    assert [wrong(content, None) for content in (TALKED, TALKED[:-4], "")] == [0, -1, -6]


def test_a_lost_message_has_no_words() -> None:
    """As if nothing had been heard."""
    assert score(call(), reply(TALKED, cut=1300), None).wrong == -2


def test_words_that_were_never_synthesised_count() -> None:
    """A memory that has all that was generated is wrong by them, too."""
    known = msgspec.structs.replace(reply(TALKED, cut=1300), words=reply(TALKED).words[:3])
    assert words_in(known, TALKED) == 6


def test_characters_count_in_scripts_without_spaces() -> None:
    """Marks do not."""
    text = "您好，请讲。"
    places = [(0, 1), (1, 3), (3, 4), (4, 6)]
    words = [TrueWord(begin, end, 100 * begin, 100 * end) for begin, end in places]
    known = msgspec.structs.replace(reply("x", cut=10), text=text, words=words)
    assert [words_in(known, text[:end]) for end in range(7)] == [0, 1, 2, 2, 3, 4, 4]


def test_a_text_that_is_not_of_the_reply_is_an_error() -> None:
    """The memory made it up."""
    with pytest.raises(ValueError, match="beginning"):
        words_in(reply(TALKED), "two")


def arrivals(jitter_ms: int, skew_ms: int) -> list[tuple[JsonObject, int | None, str | None]]:
    """What was sent, and with which `ts` and from which host it arrived, in the order of sending."""
    events = derive(call(reply(TALKED, cut=1300)), KINDS["position"])
    rows = sorted(journal(events, jitter_ms, skew_ms, "seed"), key=lambda row: row.position)
    assert len(rows) == len(events)
    return [(event, row.event.ts, row.producer) for event, row in zip(events, rows, strict=True)]


def test_clocks_of_two_hosts_differ() -> None:
    """What plays has another clock than what generates; neither changes the order of arrival."""
    for event, ts, producer in arrivals(0, 200):
        plays = event["type"] in ("tts", "interrupt", "session.end")
        assert (producer, ts) == (("player", event["ts"] + 200) if plays else ("llm", event["ts"]))


def interruption(jitter_ms: int) -> tuple[int, int]:
    """When an interruption was reported, and its position."""
    events = derive(call(reply(TALKED, cut=1300)), KINDS["position"])
    (found,) = [row.event for row in journal(events, jitter_ms, 0, "seed") if isinstance(row.event, Interrupt)]
    assert found.ts is not None
    assert found.audio_end_ms is not None
    return found.ts - BEGAN, found.audio_end_ms


def test_reports_are_late_and_positions_off() -> None:
    """By at most the jitter, and the same each time."""
    assert interruption(0) == (3800, 1300)
    ts, position = interruption(200)
    assert 3800 < ts <= 4000
    assert 0 < abs(position - 1300) <= 200
    assert interruption(200) == (ts, position)


def test_a_call_can_be_spoken_at_another_rate() -> None:
    """Times, positions and words are multiplied, places in the text are not."""
    known = call(reply(TALKED, cut=1300))
    slow = stretched(known, 2.0)
    assert slow.replies[0].words[1] == TrueWord(4, 8, 1000, 1800)
    assert (slow.end_ms, slow.replies[0].position_ms, slow.replies[0].heard()) == (120_000, 2600, "one two, ")
    assert slow.began == known.began
    assert stretched(known, 1.0) is known


def test_both_directions_of_a_clock_are_counted() -> None:
    """One score for each clock."""
    found = list(scores(call(reply(TALKED, cut=1300)), KINDS["words"], Condition("x", "x", skew_ms=(-50, 50))))
    assert [one.wrong for one in found] == [0, 0]


def test_a_done_before_needs_a_sentence_that_had_ended() -> None:
    """Replies that were cut in their first sentence say nothing about it."""
    known = reply(TALKED, cut=1300)
    assert not has_early_done(known)
    later = msgspec.structs.replace(known, synthesised=[Synthesis(1, 8, 900), *known.synthesised])
    assert has_early_done(later)
    assert list(scores(call(known), KINDS["done_before"], CONDITIONS[0])) == []


@pytest.mark.long
@every_row("true", load_calls(TRUTH / "natural"), ids=lambda true: true.name)
def test_a_voice_made_of_recordings_folds(true: TrueCall) -> None:
    """At its own rate, with the silence before its first word; complete replies stay whole."""
    for kind in KINDS.values():
        for one in scores(true, kind, CONDITIONS[0]):
            assert one.is_cut or one.wrong == 0, (kind.name, one)


def test_the_usual_rate_of_speech_fits_voices_made_of_recordings() -> None:
    """At most 1.5 words are wrong of a cut reply where a position is all that is known, as of espeak's."""
    found = [
        abs(one.wrong)
        for true in load_calls(TRUTH / "natural")
        for one in scores(true, KINDS["position"], CONDITIONS[0])
        if one.is_cut
    ]
    assert len(found) == 49
    assert sum(found) / len(found) <= 1.5


@pytest.mark.long
@every_row("true", load_calls(TRUTH / "calls"), ids=lambda true: true.name)
def test_a_true_call_folds(true: TrueCall) -> None:
    """Whatever the evidence, complete replies stay whole, and word times and texts are exact."""
    for kind in KINDS.values():
        for one in scores(true, kind, CONDITIONS[0]):
            assert one.is_cut or one.wrong == 0, (kind.name, one)
            assert one.wrong == 0 or kind.name not in ("heard_text", "heard_chars", "words", "progress_text"), one
