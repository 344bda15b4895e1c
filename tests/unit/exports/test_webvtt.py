"""WebVTT, as webvtt-py reads it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import html
import re

import webvtt as reader
from hypothesis import given

from tests.support.samples.exported_calls import EVENTS, JOKE, TEXTS, call_after, said
from voicemem.exports.plain_text import one_line
from voicemem.exports.webvtt import webvtt


def test_each_heard_utterance_is_a_cue_and_what_was_not_heard_is_a_comment() -> None:
    """With who spoke, and when; the comment is that of its cue."""
    read = reader.from_string(webvtt(call_after(*EVENTS)))
    assert [
        ("1", "00:00:00.000", "00:00:01.000", "Caller", "Tell me a joke."),
        ("2", "00:00:02.000", "00:00:05.000", "Agent", "Why did the scarecrow"),
        ("3", "00:00:06.000", "00:00:07.000", "Caller", "Stop."),
    ] == [(one.identifier, one.start, one.end, one.voice, one.text) for one in read.captions]
    comments = [comment for one in read.captions for comment in one.comments]
    assert f"interrupted at 00:00:05.000, unheard: {JOKE[22:]}" in comments
    assert "session call-1, 00:00:00.000 is 2026-09-21T14:13:20.000Z" in read.header_comments + comments


def test_a_reply_that_nobody_heard_has_no_cue() -> None:
    """Its text is a comment."""
    text = webvtt(said("Hi.", "", "Never heard."))
    assert ["Hi."] == [one.text for one in reader.from_string(text).captions]
    assert "unheard: Never heard." in text


def test_a_call_in_which_nothing_was_said_is_a_file_without_cues() -> None:
    """It is valid all the same."""
    assert [] == reader.from_string(webvtt(call_after())).captions


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_no_text_breaks_out_of_its_cue(text: str, heard: str, unheard: str, name: str) -> None:
    """Arrows, blank lines, tags and comments are text, of speakers and in comments too."""
    call = said(text, heard, unheard, **({"user": name} if name.strip() else {}))
    written = webvtt(call)
    read = reader.from_string(written)
    expected = [one_line(one.heard) for one in call.utterances if one_line(one.heard)]
    texts = [html.unescape(re.sub("<[^>]*>", "", one.raw_text)) for one in read.captions]
    assert sorted(expected) == sorted(texts)
    assert len(expected) == written.count("-->")
    assert len(expected) == len(re.findall(r"^<v [^<>\n]*>[^<>\n]+$", written, re.MULTILINE))
