"""The dialect of Amazon Nova Sonic, held to the events that the Amazon Nova user guides document."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, is_caught, reduced
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import AUDIO_BYTES, MalformedFrame, UnknownFrame
from voicemem.dialects.nova_sonic import KINDS, NOVA_SONIC, reduce
from voicemem.protocol.events import FrameEvent, Interrupt, LlmDelta, Tts
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow

CALLS = [one for one in RECORDINGS if one.dialect == "nova-sonic"]
OF_OUTPUT = {"sessionId", "promptName", "completionId"}
OF_CONTENT = OF_OUTPUT | {"contentId"}
DOCUMENTED: dict[tuple[str, str], set[str]] = {
    ("vendor", "usageEvent"): OF_OUTPUT | {"details", "totalInputTokens", "totalOutputTokens", "totalTokens"},
    ("vendor", "completionStart"): OF_OUTPUT,
    ("vendor", "contentStart"): OF_CONTENT
    | {"additionalModelFields", "type", "role"}
    | {"textOutputConfiguration", "toolUseOutputConfiguration", "audioOutputConfiguration"},
    ("vendor", "textOutput"): OF_CONTENT | {"content", "role"},
    ("vendor", "audioOutput"): OF_CONTENT | {"content", "role"},
    ("vendor", "toolUse"): OF_CONTENT | {"content", "role", "toolName", "toolUseId"},
    ("vendor", "contentEnd"): OF_CONTENT | {"stopReason", "type"},
    ("vendor", "completionEnd"): OF_OUTPUT | {"stopReason"},
    ("app", "sessionStart"): {"inferenceConfiguration", "turnDetectionConfiguration"},
    ("app", "promptStart"): {"promptName", "textOutputConfiguration", "audioOutputConfiguration"}
    | {"toolUseOutputConfiguration", "toolConfiguration"},
    ("app", "contentStart"): {"promptName", "contentName", "type", "interactive", "role"}
    | {"textInputConfiguration", "audioInputConfiguration", "toolResultInputConfiguration"},
    ("app", "textInput"): {"promptName", "contentName", "content"},
    ("app", "audioInput"): {"promptName", "contentName", "content"},
    ("app", "toolResult"): {"promptName", "contentName", "content"},
    ("app", "contentEnd"): {"promptName", "contentName"},
    ("app", "promptEnd"): {"promptName"},
    ("app", "sessionEnd"): set(),
}
"""The events of "Handling input events" and "Handling output events with the bidirectional API", and their fields."""
VALUES = {
    "type": {"TEXT", "AUDIO", "TOOL"},
    "role": {"SYSTEM", "USER", "ASSISTANT", "TOOL"},
    "stopReason": {"PARTIAL_TURN", "END_TURN", "INTERRUPTED", "TOOL_USE"},
}


@every_row("recording", CALLS, ids=str)
def test_recorded_frames_are_documented(recording: Recording) -> None:
    """Every event of a recorded call has the fields and values that the user guides name, and no others."""
    for envelope in recording.envelopes():
        ((name, body),) = envelope["frame"]["event"].items()
        assert body.keys() <= DOCUMENTED[envelope["from"], name]
        assert all(body[field] in values for field, values in VALUES.items() if field in body)


def test_every_documented_event_is_known() -> None:
    """Each kind of event of the user guides is known, and no other."""
    assert {name for _, name in DOCUMENTED} == KINDS.keys()


@every_row("recording", CALLS, ids=str)
def test_recordings_keep_no_secrets(recording: Recording) -> None:
    """No prompt, no definition of a tool, no history, no context and no audio reaches the journal."""
    kept = msgspec.json.encode([frame.content for _, frame in reduced(recording)])
    assert not any(word in kept for word in (b"Secret", b"An old", b"AAAA", b"context"))


def test_stream_of_bytes_is_taken() -> None:
    """Bedrock's stream has its JSON as bytes; so it may be sent."""
    frame = {"event": {"textOutput": {"contentId": "c", "content": "Hi", "role": "USER"}}}
    assert reduce(json.dumps(frame).encode()) == reduce(json.dumps(frame)) == reduce(frame)


def test_audio_is_counted() -> None:
    """Audio becomes its bytes, next to what it is a part of."""
    data = base64.b64encode(bytes(480)).decode()
    kept = reduce({"event": {"audioOutput": {"contentId": "c", "content": data}}})
    assert kept is not None
    assert kept.content == {AUDIO_BYTES: 480, "event": {"audioOutput": {"contentId": "c"}}}
    assert kept.counts_audio


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{ "interrupted" : true }', {"interrupted": True}),
        ('{"interrupted":true}\n', {"interrupted": True}),
        ('{ "interrupted" : false }', None),
        ('{ "other" : true }', {"content": '{ "other" : true }'}),
        ("{ interrupted }", {"content": "{ interrupted }"}),
    ],
)
def test_mark_of_an_interruption_is_no_text(content: str, said: JsonObject | None) -> None:
    """However it is spaced, it is kept as a mark."""
    kept = reduce({"event": {"textOutput": {"contentId": "c", "content": content}}})
    assert (None if kept is None else kept.content["event"]["textOutput"]) == (said and {"contentId": "c"} | said)


@every_row(
    "frame",
    [
        "text",
        b"\xff",
        "[]",
        {},
        {"event": []},
        {"event": {}},
        {"event": {"textOutput": "Hi"}},
        {"event": {"textOutput": {"contentId": 1}}},
        {"event": {"audioOutput": {"contentId": "c"}}},
        {"event": {"contentStart": {"type": "TEXT", "role": "USER"}}},
        {"event": {"toolUse": {"toolUseId": "t"}}},
        "[" * 100_000,
    ],
    ids=lambda frame: repr(frame)[:40],
)
def test_malformed_frames(frame: Any) -> None:
    """What is not an event of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_events_and_the_other_side() -> None:
    """A kind that is not known is named; an event that says it is from the other side is malformed."""
    with pytest.raises(UnknownFrame, match="hologram"):
        reduce({"event": {"hologram": {}}})
    with pytest.raises(UnknownFrame, match="modelTimeoutException"):
        reduce({"modelTimeoutException": {"message": "late"}})
    with pytest.raises(MalformedFrame):
        reduce({"event": {"contentEnd": {"contentId": "c"}}}, "app")


# Rules that no recording shows


class Call:
    """A call in short: its events with their times, each in a content of its own."""

    def __init__(self) -> None:
        self.rows: list[DecodedRow] = []
        self.contents = 0

    def event(self, ts: int, name: str, **body: Any) -> None:
        frame: JsonObject = {"event": {name: body}}
        if name == "audioOutput":
            frame |= {AUDIO_BYTES: body.pop("ms") * 48}
        kept = reduce(frame)
        if kept is not None:
            event = FrameEvent(dialect="nova-sonic", frame=kept.content, ts=ts, id=kept.id)
            self.rows.append(DecodedRow(len(self.rows) + 1, ts, event, "main"))

    def text(self, ts: int, role: str, stage: str | None, text: str, stop: str = "PARTIAL_TURN") -> None:
        id = self.content()
        fields = {} if stage is None else {"additionalModelFields": json.dumps({"generationStage": stage})}
        self.event(ts, "contentStart", contentId=id, type="TEXT", role=role, **fields)
        self.event(ts, "textOutput", contentId=id, content=text)
        self.event(ts, "contentEnd", contentId=id, type="TEXT", stopReason=stop)

    def content(self) -> str:
        self.contents += 1
        return f"c{self.contents}"

    def user(self, ts: int, text: str) -> None:
        self.text(ts, "USER", "FINAL", text)

    def final(self, ts: int, text: str) -> None:
        self.text(ts, "ASSISTANT", "FINAL", text)

    def mark(self, ts: int) -> None:
        self.text(ts, "ASSISTANT", "FINAL", '{ "interrupted" : true }', "INTERRUPTED")

    def say(self, ts: int, text: str, ms: int = 1_000, stop: str = "PARTIAL_TURN") -> None:
        self.text(ts, "ASSISTANT", "SPECULATIVE", text)
        id = self.content()
        self.event(ts, "contentStart", contentId=id, type="AUDIO", role="ASSISTANT")
        self.event(ts, "audioOutput", contentId=id, ms=ms)
        self.event(ts, "contentEnd", contentId=id, type="AUDIO", stopReason=stop)

    def memory(self, close_at: int | None = None) -> list[tuple[str, int, str, Any]]:
        """Role, turn, content and `original` of the messages."""
        rows = self.rows
        if close_at is not None:
            close = msgspec.structs.replace(closed(close_at), reason=CLOSED)
            rows = [*rows, DecodedRow(len(rows) + 1, close_at, close)]
        found = contents(fold_rows(rows))["contents"]
        return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("original")) for one in found]


def test_final_texts_find_their_reply_by_their_words() -> None:
    """A sentence that is FINAL after the next reply has begun counts for its own, in another spelling too."""
    call = Call()
    call.user(1_000, "Hi")
    call.say(1_100, "Hello there!", 1_000)
    call.say(1_200, "What is it?", 1_000, "END_TURN")
    call.mark(2_900)
    call.user(3_000, "Wait")
    call.say(3_200, "Sure.", 500, "END_TURN")
    call.final(3_300, "hello there")
    call.final(3_800, "Sure.")
    assert call.memory() == [
        ("user", 1, "Hi", None),
        ("assistant", 1, "Hello there", "Hello there! What is it?"),
        ("user", 2, "Wait", None),
        ("assistant", 2, "Sure.", None),
    ]


def test_final_text_of_a_sentence_that_the_reply_lacks_is_nothing() -> None:
    """What cannot be placed changes nothing; the next sentence can be."""
    call = Call()
    call.say(1_000, "One two three.", 1_000)
    call.say(1_100, "Four five six.", 1_000, "END_TURN")
    call.final(2_100, "Uno dos tres.")
    call.mark(2_600)
    assert call.memory()[0][2] == "One two three. Four "
    call.final(2_700, "Four five")
    assert call.memory()[0][2] == "One two three. Four five"


def test_interruption_cuts_what_waits_behind_the_reply() -> None:
    """Two replies whose audio came at once: of the second nothing was heard."""
    call = Call()
    call.user(1_000, "Hi")
    call.say(1_000, "One two three four.", 4_000, "END_TURN")
    call.say(1_100, "Five six.", 1_000, "END_TURN")
    call.mark(3_000)
    assert call.memory()[1:] == [
        ("assistant", 1, "One two ", "One two three four."),
        ("assistant", 1, "", "Five six."),
    ]


def test_interruption_after_all_was_played_marks_nothing() -> None:
    """By the clock the audio was over."""
    call = Call()
    call.say(1_000, "Hello.", 1_000, "END_TURN")
    call.mark(3_000)
    assert call.memory() == [("assistant", 0, "Hello.", None)]


def test_reply_whose_texts_are_not_told_apart_is_said_once() -> None:
    """Without a stage, a text that repeats what the reply says next is taken for FINAL."""
    call = Call()
    for text in ("One.", "Two.", "One.", "Two."):
        call.text(1_000, "ASSISTANT", None, text)
    assert call.memory(5_000)[0][2] == "One. Two."


def test_texts_of_one_content_are_joined() -> None:
    """A content has one text as a rule; more than one are parts of the same utterance."""
    call = Call()
    call.event(1_000, "contentStart", contentId="c", type="TEXT", role="USER")
    call.event(1_100, "textOutput", contentId="c", content="What")
    call.event(1_200, "textOutput", contentId="c", content="is it?")
    assert call.memory() == [("user", 1, "What is it?", None)]


def test_what_is_typed_before_any_audio_was_not_said() -> None:
    """A history looks like typed text, and stands before the audio."""
    call = Call()
    for ts, before in ((1_000, True), (2_000, False)):
        name = f"t{ts}"
        start = {"promptName": "p", "contentName": name, "type": "TEXT", "role": "USER", "interactive": True}
        call.event(ts, "contentStart", **start)
        call.event(ts, "textInput", contentName=name, content=name)
        if before:
            call.event(ts, "contentStart", promptName="p", contentName="a", type="AUDIO", role="USER")
    assert call.memory() == [("user", 1, "t2000", None)]


def test_long_replies_keep_few_notes() -> None:
    """Of a reply of very many sentences the newest are found, and what is noted stays small."""
    call = Call()
    for number in range(200):
        call.say(1_000 + number, f"Sentence {number}.", 100)
    call.final(22_000, "Sentence 199.")
    state = fold_rows(call.rows)
    assert state.ignored == {}
    assert state.notes["nova-sonic"].size < 4_000


# Wrong dialects


def without_position(made: Any) -> Any:
    """An interruption that does not ask the clock."""
    return msgspec.structs.replace(made, audio_end_ms=None) if isinstance(made, Interrupt) else made


def heard_at_once(made: Any) -> Any:
    """FINAL texts that count as heard when they come."""
    return msgspec.structs.replace(made, ts=None) if isinstance(made, Tts) and made.heard_text else made


def without_finals(made: Any) -> Any:
    """FINAL texts after an interruption left out."""
    return Tts(item="other", done=True) if isinstance(made, Interrupt) and made.heard_text else made


def without_gaps(made: Any) -> Any:
    """Sentences joined without a space."""
    return msgspec.structs.replace(made, text=made.text.lstrip()) if isinstance(made, LlmDelta) else made


@pytest.mark.parametrize("wrong", [without_position, heard_at_once, without_finals, without_gaps])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(NOVA_SONIC.name, wrong, monkeypatch)


# Any events

IDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", " ", "One.", "One", "Two three.", "two", '{ "interrupted" : true }', "…", "{"])
STAGES = st.sampled_from([None, "SPECULATIVE", "FINAL", "NEW"])
BODIES: dict[str, st.SearchStrategy[JsonObject]] = {
    "contentStart": st.one_of(
        st.fixed_dictionaries(
            {"contentId": IDS, "type": st.sampled_from(["TEXT", "AUDIO", "TOOL"])},
            optional={
                "role": st.sampled_from(["USER", "ASSISTANT", "TOOL"]),
                "generationStage": STAGES,
                "promptName": IDS,
            },
        ),
        st.fixed_dictionaries(
            {"contentName": IDS, "promptName": IDS, "type": st.sampled_from(["TEXT", "AUDIO", "TOOL"])},
            optional={"role": st.just("USER"), "toolResultInputConfiguration": st.just({"toolUseId": "t"})},
        ),
    ),
    "textOutput": st.fixed_dictionaries({"contentId": IDS, "content": TEXTS}, optional={"role": st.just("USER")}),
    "audioOutput": st.fixed_dictionaries({"contentId": IDS, "content": st.just("AAAA" * 4_000)}),
    "contentEnd": st.fixed_dictionaries(
        {"contentId": IDS, "stopReason": st.sampled_from(["PARTIAL_TURN", "END_TURN", "INTERRUPTED"])},
        optional={"type": st.just("AUDIO")},
    ),
    "toolUse": st.just({"toolUseId": "t", "toolName": "look", "content": "{}"}),
    "toolResult": st.fixed_dictionaries({"contentName": IDS, "content": TEXTS}),
    "textInput": st.fixed_dictionaries({"contentName": IDS, "content": TEXTS}),
    "completionEnd": st.just({"stopReason": "END_TURN"}),
    "promptStart": st.just({"audioOutputConfiguration": {"sampleRateHertz": 8_000}}),
}
FRAMES = st.sampled_from([*BODIES]).flatmap(lambda name: BODIES[name].map(lambda body: {"event": {name: body}}))


@given(
    frames=st.lists(FRAMES, max_size=25),
    times=st.lists(st.none() | st.integers(0, 10**4), min_size=25, max_size=25),
)
def test_any_events_in_any_order_are_folded(frames: list[JsonObject], times: list[int | None]) -> None:
    """Nothing that is made of any events is left out by the fold, with and without times, and with restarts."""
    rows: list[DecodedRow] = []
    for frame, ts in zip(frames, times, strict=False):
        kept = reduce(frame)
        if kept is None:
            continue
        again = reduce(kept.content)
        assert again is not None
        assert again.content == kept.content
        event = FrameEvent(dialect="nova-sonic", frame=kept.content, ts=ts)
        rows.append(DecodedRow(len(rows) + 1, 1_000, event, "main"))
    rows.append(DecodedRow(len(rows) + 1, 2_000, msgspec.structs.replace(closed(2_000), reason=CLOSED)))
    state = fold_rows(rows)
    assert state.ignored == {}
    assert contents(fold_rows(rows, restarts=True)) == contents(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(OF_CONTENT)), inner),
    max_leaves=8,
)


@given(name=st.sampled_from([*KINDS, "other"]), body=JSON, fields=st.dictionaries(st.sampled_from([*VALUES]), JSON))
def test_any_fields_are_kept_or_refused(name: str, body: Any, fields: JsonObject) -> None:
    """An event with whatever fields is reduced, or refused as unknown or malformed; nothing else is raised."""
    try:
        kept = reduce({"event": {name: body | fields if isinstance(body, dict) else body}})
    except (MalformedFrame, UnknownFrame):
        return
    assert kept is None or reduce(kept.content) == kept
