"""The calls of fixtures/truth/: what they hold, and that each is sound."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from bench.harness.truth import load_calls
from tests.support.paths import TRUTH
from tests.support.rows import every_row
from tests.support.samples.true_calls import reply
from voicemem.cli.truth import FalseAlarm, PlayedPart, TrueCall, TrueWord, load_call

CALLS = load_calls(TRUTH / "calls")
NATURAL = load_calls(TRUTH / "natural")
TALKED = "one two three four five six"


def check_words(words: list[TrueWord], text: str) -> None:
    assert all(word.begin < word.end and word.start_ms < word.end_ms for word in words)
    assert all(a.end <= b.begin and a.end_ms <= b.start_ms for a, b in pairwise(words))
    assert all(not text[word.begin : word.end].isspace() for word in words)
    assert not words or words[-1].end <= len(text)


@every_row("call", [*CALLS, *NATURAL], ids=lambda call: f"{call.agent.voice} {call.name}")
def test_a_true_call_is_sound(call: TrueCall) -> None:
    """Words follow each other, a reply is generated before it is played, and it is played once, from its start."""
    for utterance in call.utterances:
        check_words(utterance.words, utterance.text)
    for one in call.replies:
        check_words(one.words, one.text)
        assert one.deltas[-1].end == len(one.text)
        assert one.deltas[0].at_ms < one.played[0].from_ms
        positions = [span.position_ms for span in one.played]
        lengths = [span.until_ms - span.from_ms for span in one.played]
        assert positions == [sum(lengths[:number]) for number in range(len(lengths))]
        assert one.position_ms <= one.synthesised[-1].audio_ms
        assert (one.cut_ms is None) == (one.position_ms == one.synthesised[-1].audio_ms)
        assert all(alarm.at_ms < alarm.until_ms <= one.played[-1].until_ms for alarm in one.alarms)


@every_row("call", CALLS, ids=lambda call: call.name)
def test_replies_do_not_overlap_and_every_call_has_a_cut(call: TrueCall) -> None:
    """The agent says one thing at a time, and is interrupted at least once."""
    for before, after in pairwise(call.replies):
        assert before.played[-1].until_ms <= after.played[0].from_ms
    assert call.cut_replies


def test_the_corpus_has_what_calls_have() -> None:
    """Thirty calls: voices, rates, languages, tools, false alarms, hang-ups, cuts before the LLM was done."""
    assert len(CALLS) == 30
    cut = [(call, one) for call in CALLS for one in call.cut_replies]
    assert 60 <= len(cut) <= 90
    assert {call.agent.voice[:2] for call in CALLS} >= {"en", "de", "fr", "es", "it", "pt", "hi", "ja", "cm"}
    assert {call.agent.rate for call in CALLS} >= {140, 150, 165, 180, 190}
    assert sum(call.is_hung_up(one) for call, one in cut) >= 5
    assert sum(one.done_ms >= one.cut_ms for _, one in cut if one.cut_ms is not None) >= 3
    assert sum(len(one.alarms) for call in CALLS for one in call.replies) >= 10
    assert sum(len(call.tools) for call in CALLS) >= 10


def test_a_file_is_small() -> None:
    """Events and truths only; audio is made when it is wanted."""
    assert max(path.stat().st_size for path in (TRUTH / "calls").iterdir()) < 20_000


def test_a_position_follows_the_pauses() -> None:
    """While a false alarm pauses playback, nothing more is heard."""
    one = reply(
        TALKED,
        alarms=[FalseAlarm(3000, 4000)],
        played=[PlayedPart(2500, 3000, 0), PlayedPart(4000, 5200, 500)],
        cut=1700,
    )
    assert [one.position_at(at) for at in (2000, 2500, 2900, 3500, 4000, 4100, 9000)] == [
        0,
        0,
        400,
        500,
        500,
        600,
        1700,
    ]
    assert [one.time_of(position) for position in (0, 400, 500, 600)] == [2500, 2900, 3000, 4100]


def test_what_was_heard_ends_with_the_last_word_that_had_ended() -> None:
    """A word that is cut is not heard; the white space behind the last one is."""
    one = reply(TALKED, cut=1300)
    assert one.heard() == "one two "
    assert one.heard_until(2500) == ""
    assert reply(TALKED).heard() == TALKED


def test_a_file_that_is_not_a_true_call_is_refused(tmp_path: Path) -> None:
    """With msgspec's error, which names the field."""
    path = tmp_path / "call.json"
    path.write_text('{"name": "x"}')
    with pytest.raises(msgspec.ValidationError, match="agent"):
        load_call(path)
