"""The fold of other stacks' frames: whatever a dialect makes, the call goes on (docs/dialects.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from tests.support.transcripts import closed, message_dicts, reopened
from voicemem.dialects.dialect import Dialect
from voicemem.dialects.known import Known, MadeEvent
from voicemem.dialects.registry import DIALECTS
from voicemem.memory.fork import fork_events
from voicemem.protocol.events import (
    Asr,
    FrameEvent,
    JournaledEvent,
    LlmDelta,
    LlmDone,
    MessageEvent,
    ServerEvent,
    SessionEnd,
    Tts,
)
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.known import MAX_NOTES_BYTES
from voicemem.transcript.state import State, decode_state, encode_state

Translate = Callable[[JsonObject, int, Known], Iterable[MadeEvent]]


@pytest.fixture
def dialect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a dialect `test` of a function that translates."""

    def make(translate: Translate, **more: Any) -> None:
        made = Dialect(
            name="test", version=1, reduce=lambda frame, side: None, translate=translate, texts=lambda frame: [], **more
        )
        monkeypatch.setitem(DIALECTS, "test", made)

    return make


def frame(ts: int | None = None, **content: Any) -> FrameEvent:
    return FrameEvent(dialect="test", frame=content, ts=ts)


def fold(*events: JournaledEvent, restarts: bool = False) -> State:
    """The state after these events, each at its position."""
    state = State()
    for position, event in enumerate(events, 1):
        producer = None if isinstance(event, ServerEvent) else "main"
        fold_all(state, [DecodedRow(position, position * 1_000, event, producer)])
        if restarts:
            state = decode_state(encode_state(state))
    return state


def contents(state: State) -> list[str]:
    return [one["content"] for one in message_dicts(state)]


def say(content: JsonObject, ts: int, known: Known) -> Iterable[MadeEvent]:
    """A typed text."""
    yield MessageEvent(role="user", text=content["text"], source="message")


def test_a_made_event_stands_at_the_frames_position_and_time(dialect: Callable[..., None]) -> None:
    """What a frame says counts as if it had been sent at its place."""
    dialect(say)
    state = fold(FrameEvent(dialect="test"), frame(5_000, text="One."), frame(text="Two."))
    assert [(one["content"], one["timestamp"]) for one in message_dicts(state)] == [("One.", 5_000), ("Two.", 3_000)]


TYPED_FRAMES: dict[str, JsonObject] = {
    "deepgram-agent": {"type": "InjectUserMessage", "content": "TEXT"},
    "elevenlabs-agents": {"type": "user_message", "text": "TEXT"},
    "openai-realtime": {"type": "input_audio_buffer.dtmf_event_received", "event_id": "e", "event": "TEXT"},
    "pipecat-rtvi": {"label": "rtvi-ai", "type": "send-text", "data": {"content": "TEXT"}},
    "twilio-media-streams": {"event": "dtmf", "streamSid": "s", "dtmf": {"digit": "TEXT"}},
    "ultravox": {"type": "user_text_message", "text": "TEXT"},
}


@pytest.mark.parametrize("name", TYPED_FRAMES)
def test_a_blank_text_is_not_typed(name: str) -> None:
    """Whichever stack an app types into, a text of white space is no message."""

    def typed(text: str) -> list[str]:
        raw = msgspec.json.decode(msgspec.json.encode(TYPED_FRAMES[name]).replace(b"TEXT", text.encode()))
        kept = DIALECTS[name].reduce(raw, None)
        events = [] if kept is None else [FrameEvent(dialect=name, frame=kept.content, ts=2)]
        return [one["content"] for one in message_dicts(fold(*events)) if one["role"] == "user"]

    assert (typed("7"), typed(" ")) == (["7"], [])


@pytest.mark.parametrize(
    ("text", "is_said"), [("...", False), ("。", False), ("****", True), ("É.", True), ("🙂", True)]
)
def test_a_transcript_without_words_says_nothing(dialect: Callable[..., None], text: str, is_said: bool) -> None:
    """Recognisers write marks for silence; a masked word or an emoji is not silence."""
    dialect(lambda frame, ts, known: [Asr(item="a", text=frame["text"], final=True)])
    assert contents(fold(frame(text=text))) == ([text] if is_said else [])


KEY_FRAMES: dict[str, JsonObject] = {
    "conversation-relay": {"type": "dtmf", "digit": "KEY"},
    "openai-realtime": {"type": "input_audio_buffer.dtmf_event_received", "event": "KEY"},
    "pipecat-rtvi": {"label": "rtvi-ai", "type": "dtmf-input", "data": {"buttons": ["KEY"]}},
    "twilio-media-streams": {"event": "dtmf", "streamSid": "s", "dtmf": {"digit": "KEY"}},
}


@pytest.mark.parametrize("name", KEY_FRAMES)
def test_keys_that_come_one_by_one_are_of_one_turn(name: str) -> None:
    """Whichever stack reports them, keys belong together until the agent answers."""

    def press(key: str) -> FrameEvent:
        kept = DIALECTS[name].reduce(msgspec.json.decode(json.dumps(KEY_FRAMES[name]).replace("KEY", key)), None)
        assert kept is not None
        return FrameEvent(dialect=name, frame=kept.content, ts=2)

    answer = LlmDone(text="Thanks.", item="a", turn_id=1)
    said = message_dicts(fold(press("4"), press("2"), answer, press("7")))
    assert [(one["turn_id"], one["content"]) for one in said] == [(1, "4"), (1, "2"), (1, "Thanks."), (2, "7")]


def test_an_unknown_dialect_changes_nothing() -> None:
    """A journal of a later version can be read: frames of its dialects say nothing here."""
    state = fold(FrameEvent(dialect="later", frame={"x": 1}))
    assert (contents(state), state.notes, state.position) == ([], {}, 1)


def test_a_failure_skips_the_frame_and_what_it_noted(dialect: Callable[..., None]) -> None:
    """A dialect that fails half-way leaves nothing behind, and the failure is counted."""

    def translate(content: JsonObject, ts: int, known: Known) -> Iterable[MadeEvent]:
        known.note("seen", content["text"])
        yield from say(content, ts, known)
        if content["text"] == "bad":
            raise ZeroDivisionError

    dialect(translate)
    state = fold(frame(text="good"), frame(text="bad"))
    assert (contents(state), state.ignored) == (["good"], {"frames": 1})
    assert state.notes["test"].values == {"seen": "good"}


@pytest.mark.parametrize(
    "event",
    [
        Asr(item="x" * 129, text="a"),
        Asr(item="a", text="x" * 300_000),
        Asr(text=1),  # type: ignore[arg-type]
        Tts(item="a"),
        Tts(item="a", audio_ms=-1),
        MessageEvent(role="user", text="a", source="llm"),
        FrameEvent(dialect="test", frame={}),
        "text",
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_no_producer_may_send_is_left_out(dialect: Callable[..., None], event: Any) -> None:
    """An event that breaks a rule is left out and counted; the others of its frame stay."""

    def translate(content: JsonObject, ts: int, known: Known) -> Iterable[MadeEvent]:
        yield event
        yield from say(content, ts, known)

    dialect(translate)
    state = fold(frame(text="One."))
    assert (contents(state), state.ignored) == (["One."], {"frames": 1})


def test_a_frame_makes_so_many_events_at_most(dialect: Callable[..., None]) -> None:
    """Beyond 64 events of a frame nothing is taken, also of a dialect that never stops."""

    def translate(content: JsonObject, ts: int, known: Known) -> Iterable[MadeEvent]:
        number = 0
        while True:
            number += 1
            yield LlmDelta(item="a", text=f"{number} ")

    dialect(translate)
    state = fold(frame())
    assert state.ignored == {"frames": 1}
    assert state.replies[2].generation.text().endswith("63 64 ")


def test_a_frame_begins_one_reply_and_one_utterance(dialect: Callable[..., None]) -> None:
    """A second one of the same frame would have the same id, so it is left out and counted."""

    def translate(content: JsonObject, ts: int, known: Known) -> Iterable[MadeEvent]:
        yield Asr(item="u1", text="One.", final=True, turn_id=1)
        yield Asr(item="u2", text="Two.", final=True, turn_id=1)
        yield LlmDone(item="a1", text="Three.", turn_id=1)
        yield LlmDone(item="a2", text="Four.", turn_id=1)

    dialect(translate)
    state = fold(frame())
    assert (contents(state), state.ignored) == (["One.", "Three."], {"segments": 1, "replies": 1})


def test_notes_are_bounded_and_survive_restarts(dialect: Callable[..., None]) -> None:
    """Of more than 16 KiB the oldest go; a restart after any frame keeps the rest."""

    def translate(content: JsonObject, ts: int, known: Known) -> Iterable[MadeEvent]:
        assert content["number"] == 0 or str(content["number"] - 1) in known.notes
        known.note(str(content["number"]), "x" * 1_000)
        known.note("gone", 1)
        known.note("gone", None)
        assert "gone" not in known.notes
        assert [*known.notes][-1] == str(content["number"])
        return ()

    dialect(translate)
    state = fold(*(frame(number=number) for number in range(100)), restarts=True)
    notes = state.notes["test"]
    assert [*notes.values] == [str(number) for number in range(84, 100)]
    assert notes.size == sum(len(msgspec.json.encode(one)) for one in notes.values.items()) <= MAX_NOTES_BYTES
    assert state.ignored == {}


def reply(content: JsonObject, ts: int, known: Known) -> Iterable[MadeEvent]:
    """A reply with 4 s of audio, and interruptions by the clock."""
    if content.get("cut"):
        yield from known.interrupt_by_clock("a", ts)
    else:
        yield LlmDone(item="a", text="One two three four.")
        yield Tts(item="a", total_audio_ms=4_000)


def test_the_clock_knows_where_a_reply_was_cut(dialect: Callable[..., None]) -> None:
    """Half of the audio was played by then; after all of it nothing is marked; a stated position counts more."""
    dialect(reply)
    begin = frame(1_000)
    assert contents(fold(begin, frame(3_000, cut=True))) == ["One two "]
    assert contents(fold(begin, frame(6_000, cut=True))) == ["One two three four."]
    for stated in (Tts(item="a", audio_ms=1_000, ts=3_500),):
        assert contents(fold(begin, stated, frame(4_000, cut=True))) == ["One "]


def test_the_end_says_when_the_caller_left(dialect: Callable[..., None]) -> None:
    """`closed` is asked with the time of the end, not of a close that came much later; a reopening asks again."""
    asked: list[int] = []

    def at_close(ts: int, known: Known) -> Iterable[MadeEvent]:
        asked.append(ts)
        return ()

    dialect(say, closed=at_close)
    fold(frame(1_000, text="a"), SessionEnd(ts=2_000), closed(9_000))
    fold(frame(1_000, text="a"), closed(9_000), closed(9_500), reopened(), closed(9_900))
    assert asked == [2_000, 1_000, 1_000]


def test_a_fork_has_the_messages_and_no_frames(dialect: Callable[..., None]) -> None:
    """A copy of the call needs no dialect."""
    dialect(reply)
    state = fold(frame(1_000), frame(3_000, cut=True))
    events = list(fork_events(state, "s", 0))
    assert not any(isinstance(event, FrameEvent) for event in events)
    assert contents(fold(*events)) == contents(state)  # type: ignore[arg-type]
