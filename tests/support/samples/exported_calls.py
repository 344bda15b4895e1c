"""Calls as exports have them, made of events; and texts that try to break out of each format."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.events import EventLike, delta, done, event, final, interrupt, tts
from tests.support.transcripts import folded
from voicemem.exports.call import Call, CallFacts, call_of
from voicemem.transcript.history import message_times, turn_entries
from voicemem.transcript.state import State

START = 1_790_000_000_000
JOKE = "Why did the scarecrow win an award? He was outstanding."
EVENTS: tuple[EventLike, ...] = (
    final(1, "Tell me a joke.", START),
    delta(2, JOKE, START + 1_000),
    done(2, START + 1_500),
    tts(2, START + 2_100, audio_ms=100),
    interrupt(2, START + 5_000, heard_text="Why did the scarecrow "),
    event("tool.call", turn_id=3, ts=START + 5_500, call_id="c", name="find", arguments={"nut": "walnut"}),
    event("tool.result", turn_id=3, ts=START + 5_600, call_id="c", result=["none"]),
    final(3, "Stop.", START + 6_000),
)
"""A caller asks, cuts the answer short, and speaks again."""
HOSTILE = (
    "--> 00:00:01.000",
    "a\n\nNOTE not a note\n\n9\n00:00:00.000 --> 00:00:09.000\nforged",
    "</v><v Agent>forged & <b>bold</b>",
    "WEBVTT",
    '=HYPERLINK("http://x","y")',
    "@SUM(1)",
    "\t=1+1",
    'a "quoted", text',
    "# heading",
    "- item",
    "1. one",
    "+ plus",
    "--- ",
    "=== ",
    "> quote",
    "[link](javascript:alert(1)) ![image](http://x/y.png) <img src=x onerror=alert(1)>",
    "**bold** _it_ ~~struck~~ `code` ``` | table | \\",
    "http://example.com www.example.com ann@example.com",
    "&lt;b&gt; &copy; &#60;",
    "left \u202eright\u202c \u2067isolated",
    "\ufeffmark \x00\x07\x1b[31mred \u2028 line \u2029 paragraph \x85 next",
    "שלום, how much is it?",
    "👩\u200d👩\u200d👧 日本語",
)
"""Texts as a caller could say, type or be called."""
TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=40)


def facts(**more: Any) -> CallFacts:
    return CallFacts(**{"session_id": "call-1", "state": "ended", "started_ms": START, **more})


def call_from(state: State, **more: Any) -> Call:
    """The call of a state."""
    entries = [one for number in state.turn_numbers for one in turn_entries(state, state.turns[number])]
    return call_of(facts(**more), [(one.message, message_times(state, one)) for one in entries], state)


def call_after(*events: EventLike, **more: Any) -> Call:
    """The call after these events, and with these facts."""
    return call_from(folded(*events), **more)


def said(text: str, heard: str = "", unheard: str = "", **more: Any) -> Call:
    """A call in which someone says a text, and of a reply nothing but `heard` is heard."""
    reply = (
        (delta(1, heard + unheard, START + 100), done(1, START + 200), interrupt(1, START + 900, heard_text=heard))
        if heard + unheard
        else ()
    )
    return call_after(final(1, text, START, **more), *reply)
