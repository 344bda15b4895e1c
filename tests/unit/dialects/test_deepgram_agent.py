"""The dialect of Deepgram's Voice Agent, held to the types of Deepgram's own SDK."""

from __future__ import annotations

import warnings
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from deepgram.agent.v1 import types as agent
from deepgram.speak.v2.types import SpeakV2SpeechInterrupted
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, is_caught, reduced
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.deepgram_agent import DEEPGRAM_AGENT, KINDS, note_format, reduce
from voicemem.dialects.dialect import AUDIO_BYTES, MalformedFrame, UnknownFrame
from voicemem.dialects.kinds import no_events
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmDelta, Tts
from voicemem.protocol.types import MAX_INTEGER, JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow
from voicemem.transcript.known import FoldKnown
from voicemem.transcript.state import State

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it imports websockets.legacy
    from deepgram.agent.v1.socket_client import AsyncV1SocketClient, V1SocketClientResponse

CALLS = [one for one in RECORDINGS if one.dialect == "deepgram-agent"]


def type_of(model: type[BaseModel]) -> str:
    (name,) = get_args(model.model_fields["type"].annotation)
    return str(name)


RECEIVED = {type_of(model): model for model in get_args(V1SocketClientResponse) if model is not bytes}
SENT = {
    type_of(model): model
    for name, method in vars(AsyncV1SocketClient).items()
    if name.startswith("send_")
    for model in (get_args(get_type_hints(method)["message"]) or (get_type_hints(method)["message"],))
    if isinstance(model, type) and issubclass(model, BaseModel)
}


def model_of(frame: JsonObject, side: str) -> type[BaseModel]:
    """The SDK's type of a frame."""
    if frame["type"] == "SpeechInterrupted":
        return SpeakV2SpeechInterrupted
    if "function_calls" in frame:
        return agent.FunctionCallHistoryMessage
    if frame["type"] == "History":
        return agent.ConversationHistoryMessage
    if "message" in frame and frame["type"] == "InjectAgentMessage":  # another one has the LLM say something
        return agent.AgentV1InjectAgentMessage
    return (RECEIVED if side == "vendor" else SENT)[frame["type"]]


@every_row("recording", CALLS, ids=str)
def test_recorded_frames_are_the_sdks(recording: Recording) -> None:
    """Every frame of a recorded call is one that Deepgram's SDK accepts and knows all fields of."""
    for envelope in recording.envelopes():
        frame, side = envelope["frame"], envelope["from"]
        if frame.keys() == {AUDIO_BYTES}:
            continue
        found = model_of(frame, side).model_validate(frame)
        assert found.model_extra == {}
        assert found.model_dump(exclude_unset=True) == frame


def test_every_frame_of_the_sdk_is_known() -> None:
    """Each type of the SDK's is known, with the side that sends it."""
    for types, side in ((RECEIVED, "vendor"), (SENT, "app")):
        assert {name: side for name in types} == {name: KINDS[name].side or side for name in types}
    assert KINDS.keys() - RECEIVED.keys() - SENT.keys() == {"SpeechInterrupted"}


def test_every_kept_type_has_a_rule() -> None:
    """What is kept is translated, and nothing else."""
    for kind in KINDS.values():
        assert (kind.record is None) == (kind.rule is no_events)


@every_row("recording", CALLS, ids=str)
def test_recordings_keep_no_secrets(recording: Recording) -> None:
    """No prompt, key, definition of a function, thought, or old conversation reaches the journal."""
    kept = msgspec.json.encode([frame.content for _, frame in reduced(recording)])
    words = (b"secret", b"sk-", b"joker", b"scarecrow.", b"gpt", b"An old", b"example.com", b"agent_")
    assert not any(word in kept for word in words)


def test_audio_is_counted() -> None:
    """Binary frames are the agent's audio, unless the app sends them; an empty one says nothing."""
    kept = reduce(bytes(480))
    assert kept is not None
    assert (kept.content, kept.counts_audio) == ({"audio_bytes": 480}, True)
    assert reduce({"audio_bytes": 480}, "vendor") == kept
    assert [reduce(bytes(480), "app"), reduce({"audio_bytes": 480}, "app"), reduce(b"")] == [None, None, None]


@every_row(
    ("output", "rate"),
    [
        (None, 48_000),
        ({"encoding": "linear16", "sample_rate": 16_000, "container": "wav"}, 32_000),
        ({"encoding": "mulaw"}, 8_000),
        ({"encoding": "alaw", "sample_rate": 8_000}, 8_000),
        ({"encoding": "mp3"}, 6_000),
        ({"encoding": "mp3", "bitrate": 32_000}, 4_000),
        ({"encoding": "opus", "container": "ogg"}, 1_500),
        ({"encoding": "flac"}, 0),
        ({"encoding": "linear16", "sample_rate": -1}, 0),
    ],
    ids=repr,
)
def test_formats_of_audio(output: Any, rate: int) -> None:
    """The settings say how many bytes are a second; of what has no constant rate no one knows."""
    kept = reduce({"type": "Settings", "audio": {"output": output}})
    assert kept is not None
    known = FoldKnown(State(), "deepgram-agent", has_clock=True)
    note_format(kept.content, 0, known)
    assert known.notes["rate"] == rate


@every_row(
    "frame",
    [
        "text",
        [],
        {},
        {"type": 1},
        {"type": "ConversationText", "role": "user"},
        {"type": "ConversationText", "role": "tool", "content": "x"},
        {"audio_bytes": -1},
    ],
    ids=repr,
)
def test_malformed_frames(frame: Any) -> None:
    """What is not a frame of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_types_and_the_other_side() -> None:
    """A type that is not known is named; a frame that says it is from the other side is malformed."""
    with pytest.raises(UnknownFrame, match="Hologram"):
        reduce({"type": "Hologram"})
    with pytest.raises(MalformedFrame):
        reduce({"type": "InjectUserMessage", "content": "x"}, "vendor")


# Rules that no recording shows

TEXT = "One two three four five six seven eight."


def memory(*frames: tuple[int | None, JsonObject], close_at: int | None = None) -> list[tuple[str, int, str, Any]]:
    """Role, turn, content and `original` of the messages after these frames, each with its time."""
    rows = []
    for position, (ts, frame) in enumerate(frames, 1):
        kept = reduce(frame)
        assert kept is not None
        event = FrameEvent(dialect="deepgram-agent", frame=kept.content, ts=ts, id=kept.id)
        rows.append(DecodedRow(position, ts or 1_000, event, "main"))
    if close_at is not None:
        close = msgspec.structs.replace(closed(close_at), reason=CLOSED)
        rows.append(DecodedRow(len(rows) + 1, close_at, close))
    found = contents(fold_rows(rows))["contents"]
    return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("original")) for one in found]


def untimed(*frames: JsonObject) -> list[tuple[str, int, str, Any]]:
    return memory(*((None, frame) for frame in frames))


def said(role: str, text: str, **fields: Any) -> JsonObject:
    return {"type": "ConversationText", "role": role, "content": text, **fields}


def audio(audio_ms: int) -> JsonObject:
    return {AUDIO_BYTES: 48 * audio_ms}


SPEAKS, SENT_ALL, THINKS = ({"type": name} for name in ("UserStartedSpeaking", "AgentAudioDone", "AgentThinking"))


def test_audio_before_its_words() -> None:
    """Audio that came first belongs to the words after it, also where those come after the interruption."""
    call = [(1_000, said("user", "Count.")), (2_000, audio(8_000))]
    one = memory(*call, (2_100, said("assistant", TEXT)), (2_200, SENT_ALL), (6_000, SPEAKS))
    assert one[1] == ("assistant", 1, "One two three four ", TEXT)
    one = memory(*call, (2_100, SENT_ALL), (2_200, said("assistant", TEXT)), close_at=6_000)
    assert one[1] == ("assistant", 1, "One two three four ", TEXT)
    late = memory(*call, (6_000, SPEAKS), (6_100, said("assistant", TEXT)))
    assert late[1] == ("assistant", 1, "One two three four ", TEXT)


def test_without_times_only_what_is_being_sent_is_interrupted() -> None:
    """No one knows whether a reply that had been sent whole was still playing."""
    spoken = said("user", "Count."), said("assistant", TEXT), audio(8_000)
    assert untimed(*spoken, SPEAKS)[1] == ("assistant", 1, TEXT, TEXT)
    assert untimed(*spoken, SENT_ALL, SPEAKS)[1] == ("assistant", 1, TEXT, None)


def test_without_audio_there_is_no_silence_to_play() -> None:
    """By the length of its text the reply was over."""
    call = [(1_000, said("user", "Count.")), (2_000, said("assistant", TEXT)), (2_500, SENT_ALL)]
    assert memory(*call, (9_000, SPEAKS), close_at=9_000)[1] == ("assistant", 1, TEXT, None)


@pytest.mark.parametrize("name", ["exact_words_and_another_connection", "functions_and_typed_text"])
def test_without_audio_what_was_heard_is_not_cut(name: str) -> None:
    """Where audio is not passed on, replies that were over when the user spoke again are whole."""
    (call,) = (one for one in CALLS if one.name == name)
    whole = [one["content"] for one in call.document("contents")["contents"] if "interrupted" not in one["metadata"]]
    frames = [(one["ts"], one["frame"]) for one in call.envelopes() if AUDIO_BYTES not in one["frame"]]
    found = memory(*((ts, frame) for ts, frame in frames if reduce(frame) is not None), close_at=call.hang_up())
    assert [text for _, _, text, original in found if original is None] == whole


def test_without_audio_nothing_says_that_all_was_sent() -> None:
    """A reply is over by the length of its text, at the interruption and at the close; without times none is cut."""
    call = [(1_000, said("assistant", "Hello.")), (5_000, SPEAKS), (6_000, said("user", "Hi."))]
    call += [(7_000, said("assistant", "One two three.")), (9_000, SPEAKS), (9_900, said("user", "Four."))]
    call += [(10_500, said("assistant", "Five."))]
    texts = ["Hello.", "Hi.", "One two three.", "Four.", "Five."]
    assert [one[2:] for one in memory(*call, close_at=20_000)] == [(text, None) for text in texts]
    assert [one[2:] for one in untimed(*(frame for _, frame in call))] == [(text, None) for text in texts[:-1]]


def test_an_interruption_between_a_text_and_its_audio() -> None:
    """A function was waited for; the user speaks before the audio of what came of it."""
    call = [(1_000, said("user", "When?")), (2_000, said("assistant", "One moment.")), (2_010, audio(1_000))]
    call += [(2_020, SENT_ALL), (6_000, said("assistant", "At ten.")), (6_050, SPEAKS)]
    assert memory(*call)[1] == ("assistant", 1, "One moment. ", "One moment. At ten.")


def test_late_words_stay_in_the_reply_that_was_cut() -> None:
    """Only once the agent begins again, what it says is another reply."""
    call = [(1_000, said("assistant", TEXT)), (1_010, audio(8_000)), (5_000, SPEAKS)]
    late = (5_050, said("assistant", "Nine."))
    assert memory(*call, late) == [("assistant", 0, "One two three four ", f"{TEXT} Nine.")]
    assert memory(*call, (5_040, THINKS), late, (5_060, SENT_ALL)) == [
        ("assistant", 0, "One two three four ", TEXT),
        ("assistant", 0, "Nine.", None),
    ]


def test_a_reply_that_still_plays_when_a_text_is_typed() -> None:
    """It goes on playing; when the user then speaks, it is cut, though another reply is under way."""
    call = [(1_000, said("assistant", TEXT)), (1_010, audio(8_000)), (1_100, SENT_ALL)]
    call += [(2_000, {"type": "InjectUserMessage", "content": "Hi"}), (5_010, SPEAKS), (6_000, said("user", "Stop."))]
    assert memory(*call) == [
        ("assistant", 0, "One two three four ", TEXT),
        ("user", 1, "Hi", None),
        ("user", 1, "Stop.", None),
    ]


def test_texts_in_scripts_without_spaces() -> None:
    """Nothing stands between them; the user's own texts are joined likewise."""
    call = (1_000, said("assistant", "你好。")), (1_100, said("assistant", "请问？")), (1_200, SENT_ALL)
    assert memory(*call)[0][2] == "你好。请问？"


def test_an_echo_is_one_text() -> None:
    """A typed text that comes back is not said twice, but one that is said after the answer is."""
    typed, echo = {"type": "InjectUserMessage", "content": "Yes. "}, said("user", "Yes.")
    call = [(1_000, typed), (1_100, echo), (2_000, said("assistant", "Fine.")), (3_000, SENT_ALL)]
    assert [one[2] for one in memory(*call)] == ["Yes. ", "Fine."]
    assert [one[2] for one in memory(*call, (9_000, echo))] == ["Yes. ", "Fine.", "Yes."]


def test_heard_text_of_the_end_of_a_reply() -> None:
    """Deepgram states what was heard of the turn that was cut, which may be the second part of a reply."""
    call = [(1_000, said("assistant", "One moment.")), (2_000, SENT_ALL), (5_000, said("assistant", "At ten o'clock."))]
    heard = {"type": "SpeechInterrupted", "text_spoken": "At ten", "audio_played_ms": 1}
    assert memory(*call, (5_500, heard)) == [("assistant", 0, "One moment. At ten", "One moment. At ten o'clock.")]
    whole = {"type": "SpeechInterrupted", "text_spoken": "At ten o'clock."}
    assert memory(*call, (5_500, SENT_ALL), (5_600, whole))[0][3] is None
    assert memory((500, heard)) == []
    again = {"type": "SpeechInterrupted", "text_spoken": "No. No."}
    assert memory((1_000, said("assistant", "No. No. No. Never.")), (2_000, again))[0][2] == "No. No."


def test_a_heard_text_that_is_left_out() -> None:
    """Then the clock says what was heard."""
    call = (1_000, said("assistant", TEXT)), (1_010, audio(8_000)), (1_100, SENT_ALL)
    assert memory(*call, (5_010, {"type": "SpeechInterrupted"})) == memory(*call, (5_010, SPEAKS))


# Wrong dialects


def without_position(made: Any) -> Any:
    """An interruption that does not ask the clock."""
    return msgspec.structs.replace(made, audio_end_ms=None) if isinstance(made, Interrupt) else made


def at_half_the_rate(made: Any) -> Any:
    """Audio taken for twice as long as it is."""
    total = made.total_audio_ms if isinstance(made, Tts) else None
    return made if total is None else msgspec.structs.replace(made, total_audio_ms=2 * total)


def in_one_reply(made: Any) -> Any:
    """All that the agent says in one reply."""
    return msgspec.structs.replace(made, item="~r1") if isinstance(made, LlmDelta) else made


def never_final(made: Any) -> Any:
    """The user's words left as partials."""
    return msgspec.structs.replace(made, final=False) if isinstance(made, Asr) else made


@pytest.mark.parametrize("wrong", [without_position, at_half_the_rate, in_one_reply, never_final])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(DEEPGRAM_AGENT.name, wrong, monkeypatch)


# Any frames

TEXTS = st.sampled_from(["One", " two", "three. ", "四", "x" * 50])
CALL = {"id": "c", "name": "book", "arguments": "{}", "client_side": True}
FRAMES = st.one_of(
    st.builds(said, st.sampled_from(["user", "assistant"]), TEXTS),
    st.builds(lambda count: {AUDIO_BYTES: count}, st.sampled_from([1, 48_000, MAX_INTEGER])),
    st.sampled_from([SPEAKS, SENT_ALL, THINKS]),
    st.builds(lambda text: {"type": "InjectUserMessage", "content": text}, TEXTS),
    st.builds(lambda how: {"type": "InjectAgentMessage", "behavior": how}, st.sampled_from([None, "interrupt"])),
    st.builds(lambda text: {"type": "SpeechInterrupted", "text_spoken": text}, st.none() | TEXTS),
    st.just({"type": "FunctionCallRequest", "functions": [CALL]}),
    st.builds(
        lambda id: {"type": "FunctionCallResponse", "id": id, "name": "book", "content": ""}, st.none() | st.just("c")
    ),
    st.builds(
        lambda name, rate: {"type": "Settings", "audio": {"output": {"encoding": name, "sample_rate": rate}}},
        st.sampled_from(["linear16", "mulaw", "mp3", "flac"]),
        st.sampled_from([None, -1, 0, 1, 8_000, MAX_INTEGER]),
    ),
    st.just({"type": "Welcome", "request_id": "r"}),
)


@given(
    frames=st.lists(FRAMES, max_size=30), times=st.lists(st.none() | st.integers(0, 10**5), min_size=30, max_size=30)
)
def test_any_frames_in_any_order_are_folded(frames: list[JsonObject], times: list[int | None]) -> None:
    """Nothing that is made of any frames is left out by the fold, with and without times, and with restarts."""
    rows = []
    for position, (frame, ts) in enumerate(zip(frames, times, strict=False), 1):
        kept = reduce(frame)
        assert kept is not None
        again = reduce(kept.content)
        assert again is not None
        assert again.content == kept.content
        event = FrameEvent(dialect="deepgram-agent", frame=kept.content, ts=ts)
        rows.append(DecodedRow(position, 1_000, event, "main"))
    rows.append(DecodedRow(len(rows) + 1, 2_000, msgspec.structs.replace(closed(2_000), reason=CLOSED)))
    state = fold_rows(rows)
    assert state.ignored == {}
    assert contents(fold_rows(rows, restarts=True)) == contents(state)


FIELDS = ("role", "content", "functions", "audio", "output", "id", "name", "behavior", "text_spoken", AUDIO_BYTES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=6,
)


@given(name=st.sampled_from([*KINDS, "other"]), fields=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_fields_are_kept_or_refused(name: str, fields: JsonObject) -> None:
    """A frame with whatever fields is reduced, or refused as unknown or malformed; nothing else is raised."""
    try:
        kept = reduce({"type": name, **fields})
    except (MalformedFrame, UnknownFrame):
        return
    assert kept is None or reduce(kept.content) == kept
