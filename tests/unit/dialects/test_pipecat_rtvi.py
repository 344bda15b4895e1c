"""The dialect of Pipecat's RTVI messages: what it keeps, and rules that no recording shows."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, contents, fold_rows, journal_rows, well_formed
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects import pipecat_rtvi as translation
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.pipecat_rtvi import KINDS, LABEL, reduce
from voicemem.dialects.reading import unix_ms
from voicemem.protocol.events import FrameEvent, LlmDelta
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow
from voicemem.transcript.state import State
from voicemem.transcript.turns import reply_after, turn_marks

CALLS = [one for one in RECORDINGS if one.dialect == "pipecat-rtvi"]


def message(kind: str, **data: Any) -> JsonObject:
    """A message as it is sent."""
    return {"label": LABEL, "type": kind} | ({"data": data} if data else {})


def fold(*frames: JsonObject, close: bool = False) -> State:
    """The state after these frames, a tenth of a second apart."""
    rows = []
    for position, frame in enumerate(frames, 1):
        reduced = reduce(frame)
        if reduced is not None:
            ts = 1_000_000 + position * 100
            event = FrameEvent(dialect="pipecat-rtvi", frame=reduced.content, ts=ts, id=reduced.id)
            rows.append(DecodedRow(position, ts, event, "main"))
    if close:
        row = msgspec.structs.replace(closed(2_000_000), reason=CLOSED)
        rows.append(DecodedRow(len(frames) + 1, 2_000_000, row))
    return fold_rows(rows)


def memory(*frames: JsonObject, close: bool = False) -> list[tuple[str, int, str, bool]]:
    """Role, turn, content and whether it was interrupted, of the messages after these frames."""
    found = contents(fold(*frames, close=close))["contents"]
    return [(one["role"], one["turn_id"], one["content"], "interrupted" in one["metadata"]) for one in found]


def user(text: str, final: bool = True, **fields: Any) -> JsonObject:
    return message("user-input", text=text, final=final, input_type="transcription", **fields)


def output(segment: int, text: str, spoken: str | None = None) -> JsonObject:
    """What of a segment was spoken; None for its beginning."""
    status = "new" if spoken is None else "completed" if spoken == text else "in-progress"
    progress = {"accumulated_text": spoken or "", "remaining_text": text[len(spoken or "") :]}
    fields = {"output_type": "sentence", "segment_id": segment, "will_be_spoken": True}
    return message("bot-output", text=text, spoken_status=status, spoken_progress=progress, **fields)


LLM, LLM_STOPPED, CUT = message("bot-llm-started"), message("bot-llm-stopped"), message("bot-interrupted")


def test_segments_without_an_id() -> None:
    """A segment is known by its text; another one with the same text is another."""
    okay = [
        message("bot-output", text="Okay.", spoken_status=status, will_be_spoken=True, spoken_progress={})
        for status in ("new", "in-progress", "completed")
    ]
    assert memory(user("Hi."), LLM, *okay, *okay, LLM_STOPPED) == [
        ("user", 1, "Hi.", False),
        ("assistant", 1, "Okay. Okay.", False),
    ]


def test_servers_before_bot_output() -> None:
    """Sentences of the LLM are said once they were spoken, and cut by the clock; where `bot-output` comes, by that."""
    sentences = [message("bot-transcription", text=text) for text in ("Hello there.", "How are you?")]
    starts, stops = message("bot-started-speaking"), message("bot-stopped-speaking")
    begins = message("user-started-speaking")
    call = [user("Hi."), LLM, *sentences, LLM_STOPPED, starts]
    assert memory(*call, stops, begins, user("Fine.")) == [
        ("user", 1, "Hi.", False),
        ("assistant", 1, "Hello there. How are you?", False),
        ("user", 2, "Fine.", False),
    ]
    silence = [message("metrics")] * 8
    assert memory(*call, *silence, begins, stops, user("Stop.")) == [
        ("user", 1, "Hi.", False),
        ("assistant", 1, "Hello there. ", True),
        ("user", 2, "Stop.", False),
    ]
    assert memory(*call, close=True)[1] == ("assistant", 1, "Hello there. How are you?", True)
    both = [output(1, "Hello there."), output(1, "Hello there.", "Hello there.")]
    assert memory(*call, *both, stops)[1] == ("assistant", 1, "Hello there.", False)


def test_prompts_audio_and_numbers_are_not_kept() -> None:
    """Context of the LLM, audio and messages of the app are nothing; of ids of users, those that are numbers."""
    silent = [
        message("user-llm-text", text="secret"),
        message("bot-tts-audio", audio="secret", sample_rate=1, num_channels=1),
        message("server-message", key="secret"),
        message("client-message", t="x", d="secret"),
        message("append-to-context", role="user", content="secret"),
    ]
    assert [reduce(frame) for frame in silent] == [None] * len(silent)
    for number in ("+1 (555) 123-4567", "sip:15551234567@example.org", "sip_+15551234567"):
        kept = reduce(user("Hi.", user_id=number, secret="secret"))
        assert kept is not None
        assert b"555" not in msgspec.json.encode(kept.content)
        assert b"secret" not in msgspec.json.encode(kept.content)
    named = reduce(user("Hi.", user_id="ann"))
    assert named is not None
    assert named.content["data"]["user_id"] == "ann"


@every_row(
    "frame",
    [
        "text",
        b"audio",
        {},
        {"type": "bot-interrupted"},
        {"label": "other", "type": "bot-interrupted"},
        {"label": LABEL, "type": 1},
        message("user-input"),
        message("user-input", text=1),
        message("llm-function-call-in-progress", function_name="x"),
        {"label": LABEL, "type": "user-input", "data": [1]},
        {"label": LABEL, "type": "send-text", "data": None},
    ],
    ids=repr,
)
def test_malformed_frames(frame: Any) -> None:
    """What is not a message of RTVI, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_types_are_named() -> None:
    """A type that is not known is named, so that the log can show it."""
    with pytest.raises(UnknownFrame, match="bot-hologram"):
        reduce(message("bot-hologram"))


def test_words_that_were_spoken_are_all_that_was_heard() -> None:
    """The LLM is done long before its second sentence is spoken and cut."""
    spoken = [
        output(1, "One."),
        output(1, "One.", "One."),
        output(2, "Two three four."),
        output(2, "Two three four.", "Two"),
    ]
    assert memory(LLM, LLM_STOPPED, *spoken, CUT) == [("assistant", 0, "One. Two", True)]
    assert memory(LLM, LLM_STOPPED, *spoken, close=True) == [("assistant", 0, "One. Two", True)]


def test_an_interruption_while_nothing_is_said_marks_nothing() -> None:
    """A message of an interruption comes whenever the user speaks, also when the reply was heard."""
    reply = [LLM, LLM_STOPPED, output(1, "One."), output(1, "One.", "One.")]
    assert memory(*reply, CUT) == [("assistant", 0, "One.", False)]
    assert memory(CUT, user("Hi.")) == [("user", 1, "Hi.", False)]


def test_a_segment_that_was_not_spoken_at_all() -> None:
    """A reply that is cut before its first word was not heard."""
    assert memory(LLM, output(1, "One two."), CUT) == [("assistant", 0, "", True)]


def test_a_reply_answers_what_was_said_when_its_request_began() -> None:
    """The user speaks before the first word of the reply comes."""
    frames = [user("One."), LLM, output(1, "Two."), output(1, "Two.", "Two."), user("Three"), LLM, output(2, "Four.")]
    assert [one[:2] for one in memory(*frames, close=True)] == [
        ("user", 1),
        ("assistant", 1),
        ("user", 2),
        ("assistant", 2),
    ]


def test_what_is_said_without_the_llm_is_a_reply() -> None:
    """A sentence of the app's own is a reply of its own, unless it was on its way when the one before was cut."""
    said = [
        output(1, "One."),
        output(1, "One.", "One."),
        user("Hi."),
        output(2, "Two three."),
        output(2, "Two three.", "Two"),
    ]
    before = [("assistant", 0, "One.", False), ("user", 1, "Hi.", False), ("assistant", 1, "Two", True)]
    assert memory(*said, CUT, output(3, "Four.")) == before
    own = [*before, ("assistant", 1, "Four.", False)]
    assert memory(*said, CUT, message("bot-started-speaking"), output(3, "Four.")) == own
    assert memory(*said, CUT, *[message("bot-stopped-speaking")] * 3, output(3, "Four.")) == own


def test_keys() -> None:
    """Keys that the user presses are a message of theirs, in the form of either version."""
    for keys in ({"buttons": ["1", "#"]}, {"button": "1#"}):
        said = contents(fold(message("dtmf", **keys)))["contents"]
        assert [(one["content"], one["metadata"]["dtmf"]) for one in said] == [("1#", True)]


SPEAKS = message("user-started-speaking")


def test_a_noise_is_no_utterance() -> None:
    """The begin of speech counts that text follows; what the agent says of itself meanwhile stands before that."""
    first = [SPEAKS, user("Hi."), LLM, output(1, "Hello.", "Hello."), LLM_STOPPED]
    prompt = [LLM, output(2, "Are you there?", "Are you there?"), LLM_STOPPED]
    call = [*first, SPEAKS, *prompt, SPEAKS, user("Yes.")]
    said = ["Hi.", "Hello.", "Are you there?", "Yes."]
    assert [text for _, _, text, _ in memory(*call)] == said
    begun = contents(fold(*first, SPEAKS, SPEAKS, SPEAKS, user("Yes.")))["contents"][-1]["timestamp"]
    assert begun == 1_000_000 + 8 * 100


def test_another_bot_says_no_more_of_what_the_first_one_said() -> None:
    """A bot that comes in mid-reply counts its segments again; of the reply the user heard what was spoken by then."""
    ready = message("bot-ready", version="2.2.0")
    first = [ready, user("Hi."), LLM, output(1, "One two.", "One")]
    said = memory(*first, ready, LLM, output(1, "Three.", "Three."), LLM_STOPPED)
    assert said == [("user", 1, "Hi.", False), ("assistant", 1, "One", True), ("assistant", 1, "Three.", False)]
    assert memory(*first, ready, output(1, " ", " "), output(2, "Three.", "Three.")) == said


def test_a_typed_text_counts_once() -> None:
    """The client's message and the server's are one text."""
    sent = message("send-text", content="Hi.") | {"id": "m"}
    echo = message("user-input", text="Hi.", final=True, input_type="chat", msg_id="m")
    assert memory(sent, echo) == memory(echo, sent) == memory(echo) == [("user", 1, "Hi.", False)]
    kept = reduce(sent)
    assert kept is not None
    assert (kept.typed, kept.id, kept.side) == (True, "chat/m", "app")


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.integers(-840, 840))
def test_times_of_the_user_are_read(time: datetime, zone_minutes: int) -> None:
    """Pipecat writes ISO times, in any zone."""
    aware = time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=timezone(timedelta(minutes=zone_minutes)))
    assert unix_ms(aware.isoformat()) == round(aware.timestamp() * 1000)
    assert unix_ms("yesterday") is unix_ms(None) is None


def test_a_call_that_is_cancelled_has_no_result() -> None:
    """Names that the server keeps back leave no call; a cancelled one has no result."""
    call = message("llm-function-call-in-progress", tool_call_id="c", function_name="f", arguments={"x": 1})
    stopped = message("llm-function-call-stopped", tool_call_id="c", cancelled=True)
    state = fold(user("Hi."), call, call, stopped, message("llm-function-call-in-progress", tool_call_id="d"))
    records = [record for turn in state.turns.values() for record in turn.tool_calls or ()]
    assert [(one.call_id, one.arguments, one.answered) for one in records] == [("c", b'{"x":1}', False)]
    assert state.ignored == {}


def test_wrong_variants_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialect that takes what was generated for heard, or counts a transcript twice, gives another memory."""
    call = next(one for one in CALLS if one.name == "barge_in_and_hang_up")

    def is_right() -> bool:
        return bool(contents(fold_rows(journal_rows(call))) == call.document("contents"))

    assert is_right()
    wrong = {
        "bot-output": lambda frame, ts, known: [LlmDelta(item=translation.newest(known), text=frame["data"]["text"])],
        "bot-interrupted": translation.note_speaking,
        "user-transcription": lambda frame, ts, known: translation.hear(frame["data"], known),
    }
    for kind, rule in wrong.items():
        with monkeypatch.context() as patch:
            patch.setitem(KINDS, kind, KINDS[kind]._replace(rule=rule))
            assert not is_right(), kind


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 2**60), st.text(max_size=5), st.sampled_from(["new", "word", "x y"])
)
FIELDS = ["text", "final", "input_type", "segment_id", "spoken", "spoken_status", "spoken_progress", "content"]
FIELDS += ["tool_call_id", "function_name", "arguments", "result", "msg_id", "timestamp", "output_type"]
FRAMES = st.builds(
    lambda kind, data: message(kind, **data),
    st.sampled_from(sorted(KINDS)),
    st.dictionaries(st.sampled_from(FIELDS), VALUES | st.fixed_dictionaries({"accumulated_text": st.text(max_size=5)})),
)
RECORDED = [line["frame"] for call in CALLS for line in call.envelopes()]


@given(st.lists(FRAMES | st.sampled_from(RECORDED), max_size=20))
def test_any_frames_in_any_order_are_folded(frames: list[JsonObject]) -> None:
    """Messages of any call in any order, with fields of any value among them, give a memory and no fault."""
    taken = well_formed(frames, reduce)
    state = fold(*taken, close=True)
    assert "frames" not in state.ignored, json.dumps(taken)


def waited(*frames: JsonObject) -> tuple[float | None, str | None]:
    """How long the caller waited in the first turn, and what that is known by."""
    state = fold(*frames)
    return reply_after(state, state.turns[1])[:]


def test_the_caller_waits_from_the_end_of_their_speech_until_the_bot_speaks() -> None:
    """Detection of speech goes before the end of the turn, and both before words that come later."""
    began, ended = message("user-started-speaking"), message("user-stopped-speaking")
    detected, voice = message("vad-user-stopped-speaking"), message("bot-started-speaking")
    thinks, words, reply = message("bot-llm-started"), user("Is it open?"), output(1, "Yes.")
    assert waited(began, ended, words, thinks, voice, reply) == (300, "marks")
    assert waited(began, ended, words, thinks, reply, voice) == (400, "marks")
    assert waited(began, detected, words, ended, thinks, voice, reply) == (400, "marks")
    assert waited(began, detected, ended, thinks, voice, reply, words) == (300, "marks")
    assert waited(began, words, ended, thinks, voice, reply) == (300, "marks")
    assert waited(began, detected, began, detected, words, thinks, voice, reply) == (300, "marks")


def test_each_reply_begins_when_the_bot_begins_to_speak_it() -> None:
    """A voice whose text has not come is of the next reply, and of no other."""
    voice, stops, thinks = (message(f"bot-{name}") for name in ("started-speaking", "stopped-speaking", "llm-started"))
    call = [thinks, voice, output(1, "Hello."), stops, user("Hi"), thinks, voice, output(2, "Yes?")]
    state = fold(*call)
    assert [turn_marks(state, state.turns[number]).heard_first for number in (0, 1)] == [1_000_200, 1_000_700]
