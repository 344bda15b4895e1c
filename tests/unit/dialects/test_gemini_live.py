"""The dialect of Gemini's Live API, held to the types of Google's own SDK."""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, is_caught, reduced
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import AUDIO_BYTES, MalformedFrame, UnknownFrame
from voicemem.dialects.gemini_live.frames import APP, CAMEL, RATE, VENDOR, reduce
from voicemem.dialects.gemini_live.translation import GEMINI_LIVE
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, Tts
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow

CALLS = [one for one in RECORDINGS if one.dialect == "gemini-live"]
PCM = base64.b64encode(bytes(480)).decode()


def with_audio(frame: JsonObject) -> JsonObject:
    """A message as Gemini sends it, for one whose audio was counted."""
    if AUDIO_BYTES not in frame:
        return frame
    data = base64.b64encode(bytes(frame[AUDIO_BYTES])).decode()
    audio = {"inlineData": {"mimeType": f"audio/pcm;rate={frame[RATE]}", "data": data}}
    return {"serverContent": frame.get("serverContent", {}) | {"modelTurn": {"parts": [audio]}}}


@cache
def sdk_types() -> dict[str, type[BaseModel]]:
    """The messages of each side; the SDK takes seconds to import, which only the tests that need it pay."""
    from google.genai.types import LiveClientMessage, LiveServerMessage

    return {"vendor": LiveServerMessage, "app": LiveClientMessage}


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_recorded_frames_are_the_sdks(recording: Recording) -> None:
    """Every message of a recorded call is one that Google's SDK accepts, which forbids unknown fields."""
    for envelope in recording.envelopes():
        frame = envelope["frame"]
        message = with_audio(json.loads(frame) if isinstance(frame, str) else frame)
        sdk_types()[envelope["from"]].model_validate(message)


def test_every_message_of_the_sdk_is_known() -> None:
    """Each kind of message of the SDK is known, in both spellings, with the side that sends it."""
    for side, names in (("vendor", VENDOR), ("app", APP)):
        assert {CAMEL[name] for name in sdk_types()[side].model_fields} == names


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_messages_of_the_sdk_are_reduced_alike(recording: Recording) -> None:
    """What the SDK writes of its own objects, with nulls and other names, is kept as what came over the wire is."""
    for envelope in recording.envelopes():
        frame = envelope["frame"]
        message = with_audio(json.loads(frame) if isinstance(frame, str) else frame)
        kind = sdk_types()[envelope["from"]]
        expected = reduce(message)
        assert reduce(json.loads(kind.model_validate(message).model_dump_json())) == expected
        assert reduce(json.dumps(message).encode()) == expected


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_recordings_keep_no_secrets(recording: Recording) -> None:
    """No handle of a resumption, no prompt, no thought and no audio reaches the journal."""
    kept = msgspec.json.encode([frame.content for _, frame in reduced(recording)])
    assert not any(word in kept for word in (b"secret", b"You are a joker", b"Thinking", b"AAAA", b"Old answer"))


def test_audio_is_counted() -> None:
    """Audio becomes its bytes and its rate, next to what else the message says; images are nothing."""
    audio = {"inlineData": {"mimeType": "audio/pcm;rate=16000", "data": PCM}}
    image = {"inlineData": {"mimeType": "image/png", "data": PCM}}
    kept = reduce({"serverContent": {"modelTurn": {"parts": [audio, image]}}})
    assert kept is not None
    assert (kept.content, kept.counts_audio) == ({"audio_bytes": 480, "rate": 16_000}, True)
    kept = reduce({"serverContent": {"modelTurn": {"parts": [audio]}, "turnComplete": True}})
    assert kept is not None
    assert (kept.content["serverContent"], kept.counts_audio) == ({"turnComplete": True}, False)


@every_row(
    "frame",
    [
        "text",
        b"\xff",
        "[]",
        {},
        {"serverContent": {}, "realtimeInput": {}},
        "[" * 100_000,
    ],
    ids=lambda frame: repr(frame)[:40],
)
def test_malformed_messages(frame: Any) -> None:
    """What is not a message of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_messages_and_the_other_side() -> None:
    """A kind that is not known is named; a message that says it is from the other side is malformed."""
    with pytest.raises(UnknownFrame, match="hologram"):
        reduce({"hologram": {}})
    with pytest.raises(MalformedFrame):
        reduce({"serverContent": {"turnComplete": True}}, "app")


# Rules that no recording shows


def memory(*frames: tuple[int, JsonObject], close_at: int | None = None) -> list[tuple[str, int, str, Any]]:
    """Role, turn, content and `original` of the messages after these messages, each with its time."""
    rows = []
    for position, (ts, frame) in enumerate(frames, 1):
        kept = reduce(frame)
        assert kept is not None
        rows.append(DecodedRow(position, ts, FrameEvent(dialect="gemini-live", frame=kept.content, ts=ts), "main"))
    if close_at is not None:
        close = msgspec.structs.replace(closed(close_at), reason=CLOSED)
        rows.append(DecodedRow(len(rows) + 1, close_at, close))
    found = contents(fold_rows(rows))["contents"]
    return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("original")) for one in found]


def server(**fields: Any) -> JsonObject:
    return {"serverContent": fields}


def heard(text: str) -> JsonObject:
    return server(inputTranscription={"text": text})


def spoken(text: str, audio_ms: int = 1_000) -> JsonObject:
    return {AUDIO_BYTES: 48 * audio_ms, RATE: 24_000, **server(outputTranscription={"text": text})}


DONE, OVER, CUT = server(generationComplete=True), server(turnComplete=True), server(interrupted=True)
TEXT = "One two three four five six seven eight."


def test_words_that_come_after_the_whole_reply_stand_before_it() -> None:
    """Nothing was recognised until the model had said all; the place of the words was kept."""
    frames = (1_000, spoken("Hello.")), (1_100, DONE), (1_200, heard("Hi")), (1_300, heard(" there.")), (2_000, OVER)
    assert memory(*frames) == [("user", 1, "Hi there.", None), ("assistant", 1, "Hello.", None)]


def test_words_that_come_after_the_end_of_their_exchange_stand_in_it() -> None:
    """Words that follow `turnComplete` at once, where none had come, are those that were answered."""
    call = [(1_000, heard("Hi.")), (1_500, spoken("Hello.")), (2_600, OVER), (5_000, spoken("Nine.")), (6_100, OVER)]
    late = [(6_200, heard("What time")), (6_300, heard(" is it?")), (8_000, heard("Thanks.")), (8_500, spoken("Sure."))]
    late.append((9_600, OVER))
    assert memory(*call, *late) == [
        ("user", 1, "Hi.", None),
        ("assistant", 1, "Hello.", None),
        ("user", 2, "What time is it?", None),
        ("assistant", 2, "Nine.", None),
        ("user", 3, "Thanks.", None),
        ("assistant", 3, "Sure.", None),
    ]
    call = [(1_000, spoken("Your number?")), (2_100, OVER), (2_500, heard("Five.")), (3_000, spoken("OK."))]
    answered = memory(*call, (4_100, OVER))
    assert answered == [
        ("assistant", 1, "Your number?", None),
        ("user", 2, "Five.", None),
        ("assistant", 2, "OK.", None),
    ]


@pytest.mark.parametrize("prompt", [".", " "])
def test_a_turn_without_words_prompts_the_model_and_is_not_said(prompt: str) -> None:
    """Frameworks send a period or a space to have the model speak; what the user says over that comes after it."""
    given = {"clientContent": {"turns": [{"role": "model", "parts": [{"text": "Greet."}]}, user_turn(prompt)]}}
    setup: JsonObject = {"setupComplete": {}}
    for asked in (given, {"realtimeInput": {"text": prompt}}, {"clientContent": {"turnComplete": True}}):
        call = [
            (0, setup),
            (10, asked),
            (500, spoken(TEXT, 8_000)),
            (4_400, heard("Hello?")),
            (4_500, CUT),
            (4_510, OVER),
        ]
        assert memory(*call, (5_000, asked), (5_500, spoken("OK.")), (6_600, OVER)) == [
            ("assistant", 0, "One two three four ", TEXT),
            ("user", 1, "Hello?", None),
            ("assistant", 1, "OK.", None),
        ]


@pytest.mark.parametrize("prompt", ["", ".", " "])
def test_a_prompt_is_kept_where_typed_texts_are_left_out(prompt: str) -> None:
    """What only has the model speak is not a typed text."""
    turns = [user_turn(prompt)] if prompt else []
    kept = reduce({"clientContent": {"turns": turns, "turnComplete": True}})
    assert kept is not None
    assert not kept.typed
    assert kept == reduce(kept.content)
    said = reduce({"clientContent": {"turns": [user_turn("Hi."), *turns], "turnComplete": True}})
    assert said is not None
    assert said.typed


def test_a_prompt_over_another_connection_begins_another_reply() -> None:
    """An app that gives the history again, and a turn without words, does not have the old reply continued."""
    said: JsonObject = {"clientContent": {"turns": [user_turn("Count."), {"role": "model"}, user_turn(" ")]}}
    call = [(1_000, heard("Count.")), (1_500, spoken("One two")), (3_000, {"setupComplete": {}}), (3_100, said)]
    found = memory(*call, (3_500, spoken("Where was I?")), (4_600, OVER))
    assert [one[2] for one in found] == ["Count.", "One two", "Where was I?"]


def user_turn(text: str) -> JsonObject:
    return {"role": "user", "parts": [{"text": text}]}


def test_words_over_a_finished_reply_are_the_next_utterance() -> None:
    """The model has generated all and is still played: what the user says then is new, before and after the cut."""
    call = [(1_000, heard("Count.")), (1_500, spoken(TEXT, 8_000)), (1_600, DONE), (5_400, heard("Stop"))]
    call += [(5_500, CUT), (5_600, heard(" it.")), (5_700, OVER), (6_000, spoken("OK.")), (7_000, OVER)]
    assert memory(*call) == [
        ("user", 1, "Count.", None),
        ("assistant", 1, "One two three four ", TEXT),
        ("user", 2, "Stop it.", None),
        ("assistant", 2, "OK.", None),
    ]


def test_a_reply_after_a_cut_is_another_one_even_if_the_turn_was_never_completed() -> None:
    """Gemini may leave out `turnComplete`; audio that comes after `interrupted` is not of the reply that was cut."""
    call = [(1_000, heard("Count.")), (1_500, spoken(TEXT, 8_000)), (5_500, CUT), (5_600, heard("Stop."))]
    said = memory(*call, (6_000, spoken("OK.")))
    assert said[1:] == [("assistant", 1, "One two three four ", TEXT), ("user", 2, "Stop.", None)]
    said = memory(*call, (6_000, spoken("OK.")), (6_100, OVER))
    assert said[3] == ("assistant", 2, "OK.", None)


def test_an_interruption_before_the_model_speaks_is_nothing() -> None:
    """There is nothing to cut, and the reply that comes then is whole."""
    said = memory(
        (1_000, heard("Hi")), (1_100, CUT), (1_200, heard(" again.")), (1_500, spoken("Hello.")), (2_600, OVER)
    )
    assert said == [("user", 1, "Hi again.", None), ("assistant", 1, "Hello.", None)]


def test_an_interruption_after_all_was_played_marks_nothing() -> None:
    """By the clock the audio was over."""
    assert memory((1_000, spoken(TEXT)), (1_100, DONE), (5_000, CUT), (5_100, OVER))[0][3] is None


def test_words_that_come_after_the_cut_were_made_before_it() -> None:
    """Three of four seconds were heard, whether all, half or none of the words had come, also after `turnComplete`."""
    first, rest = "Once upon a time there was", " a small robot in a house."
    call = [(1_000, heard("Tell me.")), (2_000, {AUDIO_BYTES: 48 * 4_000, RATE: 24_000})]

    def words(text: str) -> JsonObject:
        return server(outputTranscription={"text": text})

    right = ("assistant", 1, "Once upon a time there was a small ", first + rest)
    for late in (
        [(2_010, words(first + rest)), (5_000, CUT), (5_100, OVER)],
        [(2_010, words(first)), (5_000, CUT), (5_050, words(rest)), (5_100, OVER)],
        [(5_000, CUT), (5_050, words(first + rest)), (5_100, OVER)],
        [(2_010, words(first)), (5_000, CUT), (5_010, OVER), (5_050, words(rest))],
    ):
        assert memory(*call, *late, (6_000, heard("Stop."))) == [("user", 1, "Tell me.", None), right]


def test_interim_words_are_replaced() -> None:
    """They show what is being said, and leave nothing behind."""
    interim = server(interimInputTranscription={"text": "tell me a yolk"})
    call = (1_000, interim), (1_100, heard("Tell me a joke.")), (1_500, spoken("Why?")), (2_600, OVER)
    assert memory(*call)[0] == ("user", 1, "Tell me a joke.", None)
    assert memory((1_000, interim), (1_500, spoken("Why?")), (2_600, OVER))[0][2] == "tell me a yolk"


def test_calls_without_ids_are_matched_by_name() -> None:
    """On Vertex AI functions may be called without an id."""
    call = {"toolCall": {"functionCalls": [{"name": "book", "args": {"n": 2}}]}}
    answer = {"toolResponse": {"functionResponses": [{"name": "book", "response": {"ok": True}}]}}
    rows = []
    for position, frame in enumerate((call, answer), 1):
        kept = reduce(frame)
        assert kept is not None
        rows.append(
            DecodedRow(position, 1_000, FrameEvent(dialect="gemini-live", frame=kept.content, ts=1_000), "main")
        )
    calls = fold_rows(rows).turns[1].tool_calls
    assert calls is not None
    assert [(one.call_id, one.name, one.result) for one in calls] == [("~book", "book", b'{"ok":true}')]


def test_messages_that_only_count_audio_are_added_up_alike() -> None:
    """Two counts are worth as much as one of their sum."""
    half, whole = {AUDIO_BYTES: 96_000, RATE: 24_000}, {AUDIO_BYTES: 192_000, RATE: 24_000}
    text = (1_000, server(outputTranscription={"text": TEXT}))
    one = memory(text, (1_000, whole), (1_100, DONE), (3_000, CUT))
    assert one == memory(text, (1_000, half), (1_000, half), (1_100, DONE), (3_000, CUT))
    assert one == [("assistant", 1, "One two three four ", TEXT)]


# Wrong dialects


def without_position(made: Any) -> Any:
    """An interruption that does not ask the clock."""
    return msgspec.structs.replace(made, audio_end_ms=None) if isinstance(made, Interrupt) else made


def at_half_the_rate(made: Any) -> Any:
    """Audio taken for twice as long as it is."""
    total = made.total_audio_ms if isinstance(made, Tts) else None
    return made if total is None else msgspec.structs.replace(made, total_audio_ms=2 * total)


def never_final(made: Any) -> Any:
    """The user's words left as partials."""
    return msgspec.structs.replace(made, final=False) if isinstance(made, Asr) else made


def in_arrival_order(made: Any) -> Any:
    """No place kept for late words."""
    return msgspec.structs.replace(made, item=None, turn_id=None) if isinstance(made, Asr) else made


@pytest.mark.parametrize("wrong", [without_position, at_half_the_rate, never_final, in_arrival_order])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(GEMINI_LIVE.name, wrong, monkeypatch)


# Any messages

TEXTS = st.sampled_from(["", " ", "One", " two", "three. "])
BLOB = st.fixed_dictionaries({"mimeType": st.sampled_from(["audio/pcm;rate=24000", "image/png"]), "data": st.just(PCM)})
PART = st.one_of(
    st.builds(lambda text, thought: {"text": text, "thought": thought}, TEXTS, st.booleans()),
    st.builds(lambda blob: {"inlineData": blob}, BLOB),
)
TRANSCRIPTION = st.builds(lambda text: {"text": text}, TEXTS)
CONTENT = st.fixed_dictionaries(
    {},
    optional={
        "inputTranscription": TRANSCRIPTION,
        "interimInputTranscription": TRANSCRIPTION,
        "outputTranscription": TRANSCRIPTION,
        "modelTurn": st.builds(lambda parts: {"parts": parts}, st.lists(PART, max_size=2)),
        "generationComplete": st.booleans(),
        "interrupted": st.booleans(),
        "turnComplete": st.booleans(),
    },
)
CALL = {"functionCalls": [{"id": "c", "name": "book", "args": {}}, {"name": "look"}]}
MESSAGES = st.one_of(
    st.builds(lambda content: {"serverContent": content}, CONTENT),
    st.builds(lambda content: {"serverContent": content, "toolCall": CALL}, CONTENT),
    st.just({"toolResponse": {"functionResponses": [{"id": "c", "name": "book", "response": {}}]}}),
    st.builds(lambda text: {"realtimeInput": {"text": text}}, TEXTS),
    st.builds(lambda text: {"clientContent": {"turns": [{"role": "user", "parts": [{"text": text}]}]}}, TEXTS),
)


@given(
    messages=st.lists(MESSAGES, max_size=20),
    times=st.lists(st.none() | st.integers(0, 10**5), min_size=20, max_size=20),
)
def test_any_messages_in_any_order_are_folded(messages: list[JsonObject], times: list[int | None]) -> None:
    """Nothing that is made of any messages is left out by the fold, with and without times, and with restarts."""
    rows: list[DecodedRow] = []
    for message, ts in zip(messages, times, strict=False):
        sdk_types()["vendor" if message.keys() & VENDOR else "app"].model_validate(message)
        kept = reduce(message)
        if kept is None:
            continue
        again = reduce(kept.content)
        assert again is not None
        assert again.content == kept.content
        rows.append(
            DecodedRow(len(rows) + 1, 1_000, FrameEvent(dialect="gemini-live", frame=kept.content, ts=ts), "main")
        )
    rows.append(DecodedRow(len(rows) + 1, 2_000, msgspec.structs.replace(closed(2_000), reason=CLOSED)))
    state = fold_rows(rows)
    assert state.ignored == {}
    assert contents(fold_rows(rows, restarts=True)) == contents(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CAMEL, *CAMEL.values()]), inner),
    max_leaves=8,
)


@given(message=st.dictionaries(st.sampled_from([*VENDOR, *APP, AUDIO_BYTES, RATE, "other"]), JSON))
def test_any_fields_are_kept_or_refused(message: JsonObject) -> None:
    """A message with whatever fields is reduced, or refused as unknown or malformed; nothing else is raised."""
    try:
        kept = reduce(message)
    except (MalformedFrame, UnknownFrame):
        return
    assert kept is None or reduce(kept.content) == kept
