"""The dialect of Agora's engine: messages in parts, updates of every form, and hostile frames."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, contents, fold_rows, is_caught, reduced, speech_is_an_interruption
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.agora_ten import AGORA_TEN, MAX_PART, reduce
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmDelta, LlmDone, Tts
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow
from voicemem.transcript.history import messages
from voicemem.transcript.state import State

CALLS = [one for one in RECORDINGS if one.dialect == "agora-ten"]
START = 700_000
"""Where the media clock stands when the reply begins."""


def folded(sent: list[Any], with_times: bool = True) -> State:
    """The state after these frames, one every 100 ms, and a hang-up; those that are refused are left out."""
    rows = []
    for position, raw in enumerate(sent, 1):
        try:
            frame = reduce(raw)
        except (MalformedFrame, UnknownFrame):
            continue
        if frame is not None:
            ts = position * 100 if with_times else None
            event = FrameEvent(dialect="agora-ten", frame=frame.content, ts=ts, id=frame.id)
            rows.append(DecodedRow(position, position * 100, event, "main"))
    end = (len(sent) + 1) * 100
    rows.append(DecodedRow(len(sent) + 1, end, msgspec.structs.replace(closed(end), reason=CLOSED)))
    return fold_rows(rows)


def memory(*sent: Any) -> list[Any]:
    messages: list[Any] = contents(folded(list(sent)))["contents"]
    return messages


def user(text: str, turn: int = 1) -> JsonObject:
    return {"object": "user.transcription", "text": text, "final": True, "turn_id": turn}


def agent(text: str, status: int = 0, words: list[JsonObject] | None = None, number: int | None = None) -> JsonObject:
    content = {"object": "assistant.transcription", "text": text, "turn_id": 1, "turn_status": status, "words": words}
    return content | ({} if number is None else {"turn_seq_id": number})


def words(text: str) -> list[JsonObject]:
    """A word every 300 ms."""
    return [
        {"word": f"{word} ", "start_ms": START + 300 * place, "duration_ms": 280}
        for place, word in enumerate(text.split())
    ]


def parts(message: Any, number: int) -> list[str]:
    encoded = base64.b64encode(json.dumps(message).encode()).decode()
    size = -(-len(encoded) // number)
    return [f"id|{place + 1}|{number}|{encoded[place * size : (place + 1) * size]}" for place in range(number)]


def interrupt(start_ms: int) -> JsonObject:
    return {"object": "message.interrupt", "turn_id": 1, "start_ms": start_ms, "send_ts": 5, "data_type": "message"}


@every_row("wrong", [None, "soon", 10**12, 10**17, 2**60, 10**30, 1e300, [], {}])
@every_row("place", [0, 1, 2])
def test_a_word_without_a_time_is_said(wrong: Any, place: int) -> None:
    """A time that none can have is none: the reply is whole, and its other words have theirs."""
    timed = words("One two three four five six.")
    timed[place] |= {"start_ms": wrong}
    reply = agent("One two three four five six. ", 1, timed)
    whole = folded([user("Count."), reply, *[{"object": "message.state"}] * 30])
    assert [(one.content, one.metadata.get("interrupted")) for one in messages(whole)][1:] == [
        ("One two three four five six. ", None)
    ]
    cut = memory(user("Count."), reply, interrupt(START + 1_190))
    assert cut[1]["content"] == "One two three four "


def test_an_interruption_without_a_time_counts() -> None:
    """Then the clock says what was heard."""
    for wrong in (None, "now", 10**30):
        found = memory(user("Count."), agent("One two.", 1, words("One two.")), interrupt(0) | {"start_ms": wrong})
        assert found[1]["metadata"]["interrupted"]


def test_private_things_are_not_kept() -> None:
    """Fields that the dialect does not name are not kept."""
    for recording in CALLS:
        for _, frame in reduced(recording):
            text = json.dumps(frame.content)
            assert "+49" not in text
            assert "data_type" not in text or "transcribe" in text
            assert "stream_id" not in text


@pytest.mark.parametrize("binary", [False, True])
def test_parts_in_any_order(binary: bool) -> None:
    """The parts of a message give it once all are there, in any order and repeated, as text or binary."""
    pieces: list[str] = parts(user("Hello there."), 4)
    sent = [pieces[place] for place in (2, 0, 3, 0, 2, 1, 1)]
    messages = memory(*([one.encode() for one in sent] if binary else sent))
    assert [one["content"] for one in messages] == ["Hello there."]
    assert memory(*sent[:5]) == []


def test_message_in_one_part_is_reduced_at_once() -> None:
    """A message that is whole leaves nothing in the journal but what is kept of it."""
    frame = reduce(parts(user("Hello.") | {"secret": "sk"}, 1)[0])
    assert frame is not None
    assert frame.content == {"object": "user.transcription", "text": "Hello.", "final": True, "turn_id": 1}


def test_many_open_messages_stay_few() -> None:
    """Of messages that are never whole, the newest few wait; the call goes on."""
    sent = [f"id{number}|1|2|{'A' * 2000}" for number in range(100)]
    state = folded([*sent, user("Hello.")])
    notes = state.notes["agora-ten"]
    assert len(notes.values) <= 16
    assert contents(state)["contents"][0]["content"] == "Hello."


def test_interruption_is_on_the_clock_of_the_words() -> None:
    """The reply ends with the last word that was spoken, wherever the media clock began."""
    message = memory(user("Go on."), agent("One two three", 1, words("One two three")), interrupt(START + 650))[1]
    assert (message["content"], message["metadata"]["heard"]) == ("One two ", "aligned")


def test_interruption_without_words_is_no_position() -> None:
    """Without words, a place on the media clock is not taken for a position in the reply."""
    message = memory(user("Go on."), agent("One two three.", 1), interrupt(START + 650))[1]
    assert message["metadata"]["heard"] == "estimated"
    assert message["content"] != message["metadata"]["original"]


def test_status_alone_interrupts_by_the_clock() -> None:
    """A status 2 without a `message.interrupt` interrupts where the clock says that playback stood."""
    sent = [user("Go on."), agent("One two three", 0, words("One two three")), *[user("Go on.")] * 6]
    message = memory(*sent, agent("One two three", 2, []))[1]
    assert (message["content"], message["metadata"]["heard"]) == ("One two ", "estimated")


def test_words_alone_and_whole_texts_give_the_same() -> None:
    """A message may have all words so far or only the new ones, and all of the text or only theirs."""
    timed = words("One two three four")
    fragments = [agent("One two ", 0, timed[:2]), agent("three four ", 1, timed[2:])]
    wholes = [agent("One two ", 0, timed[:2]), agent("One two three four ", 1, timed)]
    for updates in (fragments, wholes):
        message = memory(user("Go."), *updates)[1]
        assert message["metadata"].get("original", message["content"]) == "One two three four "


def test_outdated_update_changes_nothing() -> None:
    """An update with a lower number than the newest is not the text."""
    messages = memory(
        user("Go."), agent("One two.", 0, number=3), agent("One", 0, number=2), agent("One two.", 1, number=4)
    )
    assert messages[1]["content"] == "One two."


def test_message_id_counts_once_each_update() -> None:
    """A repeated message has the same id, an update that has its `message_id` another."""
    first, second = agent("One") | {"message_id": "m"}, agent("One two", 1) | {"message_id": "m"}
    ids = [frame.id for one in (first, first, second) if (frame := reduce(one)) is not None]
    assert ids[0] == ids[1] != ids[2]


def test_unknown_and_malformed_frames() -> None:
    """Other types are unknown; frames of other forms and of the app are malformed."""
    with pytest.raises(UnknownFrame):
        reduce({"object": "message.new"})
    assert reduce({"event_type": "message.state"}) is None
    hostile: list[Any] = [
        "",
        "a|b",
        "a|0|1|",
        "a|2|1|AA==",
        "a|x|1|AA==",
        "a|1|1|%%",
        "a|1|1|W10=",
        b"\xff|1|1|",
        {},
        3,
    ]
    hostile += [{"object": 1}, {"object": "user.transcription"}, {"part": 1}, {"part": {"id": "a", "index": 1}}]
    hostile += [f"a|1|2|{'A' * (MAX_PART + 1)}", f"{'i' * 65}|1|2|AA", "a|1|65|AA"]
    for frame in hostile:
        with pytest.raises(MalformedFrame):
            reduce(frame)
    with pytest.raises(MalformedFrame):
        reduce(user("Hello."), "app")


# Wrong dialects


def at_half_the_rate(made: Any) -> Any:
    """Words spoken twice as fast as they are."""
    if not isinstance(made, Tts) or not made.words:
        return made
    halved = [msgspec.structs.replace(one, start_ms=one.start_ms // 2, end_ms=one.end_ms // 2) for one in made.words]
    return msgspec.structs.replace(made, words=tuple(halved))


def without_truncation(made: Any) -> Any:
    """An interruption that does not say where."""
    return msgspec.structs.replace(made, audio_end_ms=None) if isinstance(made, Interrupt) else made


def in_arrival_order(made: Any) -> Any:
    """Agora's turns left out."""
    if isinstance(made, Asr | LlmDelta | LlmDone | Interrupt):
        return msgspec.structs.replace(made, item=None, turn_id=None)
    return made


def repeats_taken_again(made: Any) -> Any:
    """Each text of a reply taken for more of it."""
    return msgspec.structs.replace(made, whole=False) if isinstance(made, LlmDelta) else made


@pytest.mark.parametrize(
    "wrong", [at_half_the_rate, without_truncation, in_arrival_order, repeats_taken_again, speech_is_an_interruption]
)
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(AGORA_TEN.name, wrong, monkeypatch)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
recorded_frames = [row["frame"] for one in CALLS for row in one.envelopes()]


@st.composite
def mutated_frames(draw: st.DrawFn) -> Any:
    """A recorded message of which a field has another value, perhaps in parts."""
    frame = draw(st.sampled_from([one for one in recorded_frames if isinstance(one, dict)]))
    changed = frame | {draw(st.sampled_from(sorted(frame))): draw(json_values | st.integers(0, 3))}
    return draw(st.sampled_from([changed, *parts(changed, 2)]))


any_frames = st.sampled_from(recorded_frames) | mutated_frames() | json_values | st.binary(max_size=20)


@given(any_frames)
def test_any_frame_is_reduced_or_refused(frame: Any) -> None:
    """Whatever comes is kept, ignored or refused by the two errors, and what is kept is kept again as it is."""
    try:
        kept = reduce(frame)
    except (MalformedFrame, UnknownFrame):
        return
    if kept is not None:
        assert reduce(json.loads(msgspec.json.encode(kept.content))) == kept


@given(st.lists(any_frames, max_size=30), st.booleans())
def test_frames_in_any_order_never_fail(sent: list[Any], with_times: bool) -> None:
    """No order, loss, repetition or change of frames makes the translation fail."""
    assert folded(sent, with_times).ignored == {}
