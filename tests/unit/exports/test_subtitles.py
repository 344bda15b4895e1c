"""Subtitles: when each utterance is shown, and how WebVTT and SRT write it."""

from __future__ import annotations

import csv
import html
import io
import re

import webvtt as reader
from hypothesis import given

from tests.support.events import delta, final, interrupt
from tests.support.profiles import examples
from tests.support.samples.exported_calls import EVENTS, JOKE, START, TEXTS, call_after, call_from, said
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import entries
from voicemem.exports.call import date_time, one_line
from voicemem.exports.rows import csv as rows
from voicemem.exports.subtitles import cues_of, srt, webvtt
from voicemem.protocol.events import JournaledEvent
from voicemem.transcript.fold import fold_all
from voicemem.transcript.state import State

# ruff: noqa: SIM300 (asserts read `expected == actual`)


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
    cues = [*cues_of(call_from(fold_all(State(), entries(journal))))]
    assert [one.start for one in cues] == sorted(one.start for one in cues)
    assert all(0 <= one.start < one.end for one in cues)


# ruff: noqa: SIM300 (asserts read `expected == actual`)


def test_each_heard_utterance_is_a_cue_and_what_was_not_heard_is_a_comment() -> None:
    """With who spoke, and when; the comment is that of its cue."""
    read = reader.from_string("".join(webvtt(call_after(*EVENTS))))
    assert [
        ("1", "00:00:00.000", "00:00:01.000", "Caller", "Tell me a joke."),
        ("2", "00:00:02.000", "00:00:05.000", "Agent", "Why did the scarecrow"),
        ("3", "00:00:06.000", "00:00:07.000", "Caller", "Stop."),
    ] == [(one.identifier, one.start, one.end, one.voice, one.text) for one in read.captions]
    comments = [comment for one in read.captions for comment in one.comments]
    assert f"interrupted at 00:00:05.000, unheard: {JOKE[22:]}" in comments
    assert "session call-1, 00:00:00.000 is 2026-09-21T14:13:20.000Z" in read.header_comments + comments


def test_a_cut_is_where_all_exports_have_it() -> None:
    """A reply that was cut as it began is shown for a while, but was cut then."""
    cut = interrupt(1, START + 100, heard_text="Why did ")
    call = call_after(final(1, "Hi.", START), delta(1, "Why did the scarecrow", START + 100), cut)
    assert "\nNOTE interrupted at 00:00:00.100, unheard: the scarecrow\n" in "".join(webvtt(call))
    assert date_time(START + 100) == [*csv.DictReader(rows(call))][1]["interrupted_at"]


def test_a_reply_that_nobody_heard_has_no_cue() -> None:
    """Its text is a comment."""
    text = "".join(webvtt(said("Hi.", "", "Never heard.")))
    assert ["Hi."] == [one.text for one in reader.from_string(text).captions]
    assert "unheard: Never heard." in text


def test_a_call_in_which_nothing_was_said_is_a_file_without_cues() -> None:
    """It is valid all the same."""
    assert [] == reader.from_string("".join(webvtt(call_after()))).captions


@given(TEXTS, TEXTS, TEXTS, TEXTS.map(lambda name: name.replace("\0", "")))
def test_no_text_breaks_out_of_its_cue(text: str, heard: str, unheard: str, name: str) -> None:
    """Arrows, blank lines, tags and comments are text, of speakers and in comments too."""
    call = said(text, heard, unheard, **({"user": name} if name.strip() else {}))
    written = "".join(webvtt(call))
    read = reader.from_string(written)
    expected = [one_line(one.heard) for one in call.utterances if one_line(one.heard)]
    texts = [html.unescape(re.sub("<[^>]*>", "", one.raw_text)) for one in read.captions]
    assert sorted(expected) == sorted(texts)
    assert len(expected) == written.count("-->")
    assert len(expected) == len(re.findall(r"^<v [^<>\n]*>[^<>\n]+$", written, re.MULTILINE))


# ruff: noqa: SIM300 (asserts read `expected == actual`)


def test_each_heard_utterance_is_a_cue() -> None:
    """With who spoke in front of it, since the format has no place for that."""
    read = reader.from_buffer(io.StringIO("".join(srt(call_after(*EVENTS)))), "srt").captions
    assert [
        ("00:00:00.000", "00:00:01.000", "Caller: Tell me a joke."),
        ("00:00:02.000", "00:00:05.000", "Agent: Why did the scarecrow"),
        ("00:00:06.000", "00:00:07.000", "Caller: Stop."),
    ] == [(one.start, one.end, one.text) for one in read]


def test_a_call_in_which_nothing_was_said_is_an_empty_file() -> None:
    """SubRip has no head."""
    assert "" == "".join(srt(call_after()))


@given(TEXTS, TEXTS)
def test_no_text_breaks_out_of_its_cue_in_srt(text: str, heard: str) -> None:
    """Arrows, blank lines and tags do nothing."""
    call = said(text, heard, "rest")
    written = "".join(srt(call))
    count = sum(bool(one_line(one.heard)) for one in call.utterances)
    blocks = written.split("\n\n") if written else []
    assert [3] * count == [len(block.strip("\n").split("\n")) for block in blocks]
    assert count == written.count("-->")
    assert not set("<\u202e\x00\x1b") & set(written)
