"""SubRip, as webvtt-py reads it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import io

import webvtt as reader
from hypothesis import given

from tests.support.samples.exported_calls import EVENTS, TEXTS, call_after, said
from voicemem.exports.plain_text import one_line
from voicemem.exports.srt import srt


def test_each_heard_utterance_is_a_cue() -> None:
    """With who spoke in front of it, since the format has no place for that."""
    read = reader.from_buffer(io.StringIO(srt(call_after(*EVENTS))), "srt").captions
    assert [
        ("00:00:00.000", "00:00:01.000", "Caller: Tell me a joke."),
        ("00:00:02.000", "00:00:05.000", "Agent: Why did the scarecrow"),
        ("00:00:06.000", "00:00:07.000", "Caller: Stop."),
    ] == [(one.start, one.end, one.text) for one in read]


def test_a_call_in_which_nothing_was_said_is_an_empty_file() -> None:
    """SubRip has no head."""
    assert "" == srt(call_after())


@given(TEXTS, TEXTS)
def test_no_text_breaks_out_of_its_cue(text: str, heard: str) -> None:
    """Arrows, blank lines and tags do nothing."""
    call = said(text, heard, "rest")
    written = srt(call)
    count = sum(bool(one_line(one.heard)) for one in call.utterances)
    blocks = written.split("\n\n") if written else []
    assert [3] * count == [len(block.strip("\n").split("\n")) for block in blocks]
    assert count == written.count("-->")
    assert not set("<\u202e\x00\x1b") & set(written)
