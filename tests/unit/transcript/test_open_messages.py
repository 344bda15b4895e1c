"""What is in progress, and how far a reply that plays was heard, for readers who asked for it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from tests.support.events import EventLike, delta, done, final, interrupt, message, partial, resume, tts
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import closed, folded, message_dicts, reopened
from voicemem.protocol.events import JournaledEvent
from voicemem.protocol.types import JsonObject
from voicemem.transcript.open_messages import open_messages, playing_turn

GROWS = (final(1, "Hi.", 1000), delta(1, "Good day, ", 1400), delta(1, "how can I help?", 1500))
WORDS = [
    {"text": word, "start_ms": 300 * n, "end_ms": 300 * n + 300} for n, word in enumerate(["Good", "day", "how", "can"])
]


def shown(*given_events: EventLike) -> list[JsonObject]:
    return [msgspec.to_builtins(one) for one in open_messages(folded(*given_events))]


def last(*given_events: EventLike) -> JsonObject:
    """The metadata of the last message."""
    return dict(shown(*given_events)[-1]["metadata"])


def heard(*given_events: EventLike) -> Any:
    return last(*given_events).get("heard_so_far")


def test_a_partial_is_open() -> None:
    """A partial says so, until its final; two utterances of a turn are open while one of them is."""
    assert {"source": "asr", "partial": True, "open": True} == last(partial(1, "Well", 1000))
    assert {"source": "asr"} == last(partial(1, "Well", 1000), final(1, "Well, yes.", 1400))
    assert {"source": "asr", "partial": True, "open": True} == last(final(1, "Well.", 1000), partial(1, "And", 1400))


def test_a_reply_is_open_while_it_grows() -> None:
    """It is over once the LLM has ended it, when it was not reported to play."""
    assert {"source": "llm", "open": True} == last(*GROWS)
    assert {"source": "llm"} == last(*GROWS, done(1, 1600))


def test_a_reply_is_open_while_it_plays() -> None:
    """Its text is whole before it is heard: it is open until playback has ended, or a later turn has a final."""
    playing = (*GROWS, done(1, 1600), tts(1, 1800, audio_ms=0))
    assert {"source": "llm", "open": True} == last(*playing)
    assert {"source": "llm"} == last(*playing, tts(1, 4000, done=True))
    assert {"source": "llm"} == shown(*playing, final(2, "Wait.", 3000))[1]["metadata"]
    assert {"source": "llm"} == shown(*playing, delta(2, "Yes.", 3000), tts(2, 3200, audio_ms=10))[1]["metadata"]


def test_a_cut_reply_is_over() -> None:
    """After a barge-in it has its heard text; after a false alarm it is open again."""
    playing = (*GROWS, tts(1, 1800, audio_ms=0), tts(1, 2400, heard_text="Good day, "))
    cut = last(*playing, interrupt(1, 2500))
    assert (True, False, False) == (cut["interrupted"], "open" in cut, "heard_so_far" in cut)
    assert True is last(*playing, interrupt(1, 2500), resume(1, 2900))["open"]


@pytest.mark.parametrize(
    ("played", "text"),
    [
        (tts(1, 2400, heard_text="Good day, "), "Good day, "),
        (tts(1, 2400, audio_ms=700, words=WORDS), "Good day, "),
        (tts(1, 2400, audio_ms=1000, total_audio_ms=2500), "Good day, "),
        (tts(1, 2400, audio_ms=100, words=WORDS), ""),
        (tts(1, 2400, audio_ms=0), None),
    ],
)
def test_what_was_heard_so_far(played: JsonObject, text: str | None) -> None:
    """It is the text that a cut would leave now; where nothing is known of playback, nothing is said."""
    assert text == heard(*GROWS, played) == heard(*GROWS, done(1, 1600), played)


def test_an_estimate_by_the_position() -> None:
    """A position alone gives what a voice has said by then; it grows with it."""
    first, later = (heard(*GROWS, tts(1, 2400, audio_ms=ms)) for ms in (300, 1100))
    assert first
    assert len(first) < len(later) < len("Good day, how can I help?")


def test_the_close_ends_everything() -> None:
    """In a call that is over nothing is open; in one that is reopened it is again."""
    call = (*GROWS, tts(1, 2400, heard_text="Good "), partial(2, "And", 2500))
    assert message_dicts(folded(*call, closed(3000))) == shown(*call, closed(3000))
    assert [False, True, True] == ["open" in one["metadata"] for one in shown(*call, closed(3000), reopened())]


def test_whole_messages_are_never_open() -> None:
    """A greeting that is not reported to play, and a restored reply, are as they are."""
    assert {"source": "greeting"} == last(message(1, "Hello.", 1000))
    metadata = {"interrupted": True, "interrupt_timestamp": 1100, "original": "Hello there."}
    assert "open" not in last(message(1, "Hello", 1000, metadata=metadata))


def test_the_marks_follow_the_metadata() -> None:
    """Those of the producer stay, behind the documented ones."""
    assert ["source", "partial", "language", "open"] == list(last(partial(1, "Well", metadata={"language": "en"})))


def test_the_reply_that_plays() -> None:
    """One at most: playback of a later reply ends that of those before."""
    playing = (*GROWS, done(1, 1600), tts(1, 1800, audio_ms=10))
    assert [1, None] == [playing_turn(folded(*playing)), playing_turn(folded(*playing, final(2, "Wait.", 3000)))]
    assert 2 == playing_turn(folded(*playing, delta(2, "Yes.", 3000), tts(2, 3200, audio_ms=10)))
    assert [None, None] == [playing_turn(folded(*GROWS)), playing_turn(folded(*playing, closed(9000)))]


@given(PRODUCER_JOURNALS)
def test_the_marks_change_nothing_else(given_events: list[JournaledEvent]) -> None:
    """Whatever producers send, without its marks each message is that of the fold; only one reply plays at a time."""
    state = folded(*given_events)
    plain = message_dicts(state, unfinished=True)
    made = [msgspec.to_builtins(one) for one in open_messages(state)]
    for one, expected in zip(made, plain, strict=True):
        for name in ("open", "heard_so_far", "partial"):
            one["metadata"].pop(name, None)
            expected["metadata"].pop(name, None)
    assert plain == made
