"""The dialect of OpenAI's Live API, held to the types of OpenAI's own SDK."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, is_caught, reduced
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.openai_live import KINDS, OPENAI_LIVE, reduce
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmCancel, LlmDelta, LlmDone
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow

CALLS = [one for one in RECORDINGS if one.dialect == "openai-live"]


def extra_fields(value: Any) -> set[str]:
    """The fields of a parsed event, at all levels, that the SDK's types do not name."""
    if isinstance(value, list):
        return {name for one in value for name in extra_fields(one)}
    if not isinstance(value, BaseModel):
        return set()
    return {*(value.model_extra or ())}.union(
        *(extra_fields(getattr(value, name)) for name in type(value).model_fields)
    )


@cache
def sdk_adapters() -> dict[str, TypeAdapter[Any]]:
    """What parses the events of each side; the SDK's types take a second to import, which only these tests pay."""
    from openai.types.live.client_event import ClientEvent
    from openai.types.live.connect_server_event import ConnectServerEvent

    return {"vendor": TypeAdapter(ConnectServerEvent), "app": TypeAdapter(ClientEvent)}


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_recorded_frames_are_the_sdks(recording: Recording) -> None:
    """Every event of a recorded call is one of the SDK's, without fields that it does not name."""
    adapters = sdk_adapters()
    for envelope in recording.envelopes():
        parsed = adapters[envelope["from"]].validate_python(envelope["frame"])
        assert parsed.type == envelope["frame"]["type"]
        assert extra_fields(parsed) == set()


def types_of(union: Any) -> set[str]:
    """The types of the events in a union of the SDK's."""
    members = typing.get_args(typing.get_args(union)[0])
    return {name for kind in members for name in typing.get_args(kind.model_fields["type"].annotation)}


def test_every_event_of_the_sdk_is_known() -> None:
    """Each type of the SDK's events is known, with the sides that send it; forked sessions start otherwise."""
    from openai.types.live import (
        client_event,
        connect_client_event,
        connect_server_event,
        fork_client_event,
        fork_server_event,
        server_event,
    )

    vendor = (
        types_of(server_event.ServerEvent)
        | types_of(connect_server_event.ConnectServerEvent)
        | types_of(fork_server_event.ForkServerEvent)
    )
    app = (
        types_of(client_event.ClientEvent)
        | types_of(connect_client_event.ConnectClientEvent)
        | types_of(fork_client_event.ForkClientEvent)
    )
    sides = {name: kind.side for name, kind in KINDS.items()}
    later = {"session.paused", "session.resumed"}
    assert {name for name, side in sides.items() if side in ("vendor", None)} == vendor | later
    assert {name for name, side in sides.items() if side in ("app", None)} == app


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_recordings_keep_no_secrets(recording: Recording) -> None:
    """No instructions, no thoughts, no history, nothing of the backend's, and no audio reaches the journal."""
    kept = msgspec.json.encode([frame.content for _, frame in reduced(recording)])
    assert not any(word in kept.lower() for word in (b"secret", b"an old", b"aaaa"))


@every_row(
    "frame",
    [
        "text",
        b"audio",
        {},
        {"type": 1},
        {"type": "session.output_transcript.delta", "delta": 1, "start_ms": 0, "end_ms": 1},
        {"type": "session.started", "session": []},
        {"type": "response.event", "event": {}},
        {"type": "session.delegation.created", "delegation": {}},
    ],
    ids=lambda frame: repr(frame)[:60],
)
def test_malformed_frames(frame: Any) -> None:
    """What is not an event of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_events_and_the_other_side() -> None:
    """A type that is not known is named; an event that says it is from the other side is malformed."""
    with pytest.raises(UnknownFrame, match=r"session\.hologram"):
        reduce({"type": "session.hologram"})
    with pytest.raises(MalformedFrame):
        reduce({"type": "session.closed", "reason": "expired"}, "app")
    assert reduce({"type": "session.input_audio.append", "audio": ""}, "vendor") is None
    assert reduce({"type": "session.input_audio.append", "audio": ""}, "app") is None


# Rules that no recording shows


class Call:
    """A call in short: what was said from one ms of the timeline to another, as it comes."""

    def __init__(self, zero: int | None = 10_000) -> None:
        self.rows: list[DecodedRow] = []
        self.zero = zero
        if zero is not None:
            self.event(zero, type="session.started", session={"id": "s"})

    def event(self, ts: int | None, **frame: Any) -> None:
        kept = reduce(frame)
        assert kept is not None
        event = FrameEvent(dialect="openai-live", frame=kept.content, ts=ts)
        self.rows.append(DecodedRow(len(self.rows) + 1, 10_000, event, "main"))

    def said(self, who: str, start: int, end: int, text: str) -> None:
        ts = None if self.zero is None else self.zero + end
        self.event(ts, type=f"session.{who}_transcript.delta", delta=text, start_ms=start, end_ms=end)

    def user(self, start: int, end: int, text: str) -> None:
        self.said("input", start, end, text)

    def agent(self, start: int, end: int, text: str) -> None:
        self.said("output", start, end, text)

    def memory(self, close_at: int | None = None) -> list[tuple[str, int, str, Any]]:
        """Role, turn, content and `original` of the messages; `close_at` is on the timeline."""
        rows = self.rows
        if close_at is not None:
            ts = (self.zero or 0) + close_at
            rows = [*rows, DecodedRow(len(rows) + 1, ts, msgspec.structs.replace(closed(ts), reason=CLOSED))]
        found = contents(fold_rows(rows))["contents"]
        return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("original")) for one in found]


def test_hang_up_before_what_came_can_have_been_played() -> None:
    """Fragments may come before their time; what lies behind the hang-up on the timeline was not heard."""
    call = Call()
    for number, word in enumerate(["One", " two", " three", " four."]):
        start = 1_000 * number
        frame = {"delta": word, "start_ms": start, "end_ms": start + 1_000}
        call.event(10_500, type="session.output_transcript.delta", **frame)
    assert call.memory(2_100) == [("assistant", 0, "One two ", "One two three four.")]
    assert call.memory(4_100) == [("assistant", 0, "One two three four.", None)]


def test_silence_before_the_hang_up_is_an_end() -> None:
    """An agent that has been silent for a second was not interrupted by the hang-up, whatever its last sign is."""
    call = Call()
    call.agent(0, 500, "Hello")
    assert call.memory(700) == [("assistant", 0, "Hello", "Hello")]
    assert call.memory(1_500) == [("assistant", 0, "Hello", None)]


def test_a_false_alarm_is_taken_back() -> None:
    """The agent was taken for interrupted, and fragments of the time before the pause come late: it goes on."""
    call = Call()
    call.agent(0, 1_000, "I was")
    call.user(900, 2_500, "Hm hm")
    assert call.memory()[0] == ("assistant", 0, "I was", "I was")
    call.agent(1_200, 2_600, " saying this.")
    assert call.memory(3_000)[0] == ("assistant", 0, "I was saying this.", None)


def test_words_after_a_pause_are_words_of_their_own() -> None:
    """An utterance that goes on after a breath has a space there, whether its fragment begins with one or not."""
    call = Call()
    call.user(0, 400, "I ne")
    call.user(400, 600, "ed")
    call.user(1_100, 1_700, "a room.")
    assert call.memory() == [("user", 1, "I need a room.", None)]


def test_an_ended_sentence_was_not_interrupted() -> None:
    """The user speaks over the last word of a sentence, and the agent says nothing more."""
    call = Call()
    call.agent(0, 1_000, "That is all.")
    call.user(900, 2_500, "Thanks")
    assert call.memory(3_000)[0] == ("assistant", 0, "That is all.", None)


def test_who_speaks_while_the_other_does_goes_on() -> None:
    """Fragments of both alternate; neither speech is torn apart."""
    call = Call()
    for number in range(4):
        call.agent(300 * number, 300 * number + 300, f" a{number}")
        call.user(300 * number + 10, 300 * number + 310, f" u{number}")
    assert sorted(call.memory(1_300)) == [
        ("assistant", 0, "a0 a1 a2 a3", "a0 a1 a2 a3"),
        ("user", 1, "u0 u1 u2 u3", None),
    ]


def test_another_session_has_another_timeline() -> None:
    """A fork or a new call begins at 0 again, and nothing of it belongs to what was said before."""
    call = Call()
    call.agent(0, 500, "One.")
    call.event(20_000, type="session.started", session={"id": "other"})
    call.zero = 20_000
    call.agent(0, 500, "Two.")
    call.event(20_600, type="session.started", session={"id": "other"})
    call.agent(500, 900, " Three.")
    assert call.memory(2_000) == [("assistant", 0, "One.", None), ("assistant", 0, "Two. Three.", None)]


def test_a_typed_text_ends_a_reply() -> None:
    """What the agent says soon after is another reply, in the turn of the text."""
    call = Call()
    call.agent(0, 500, "One.")
    call.event(
        10_600, type="response.item.create", item={"role": "user", "content": [{"type": "input_text", "text": "and"}]}
    )
    call.agent(900, 1_200, "Two.")
    assert call.memory(3_000) == [
        ("assistant", 0, "One.", None),
        ("user", 1, "and", None),
        ("assistant", 1, "Two.", None),
    ]


def test_results_belong_to_the_turn_of_their_call() -> None:
    """A delegation to the app is a tool call, and what the app says about it its result."""
    call = Call()
    call.user(0, 500, "Look.")
    call.event(10_600, type="session.delegation.created", delegation={"id": "d", "target": "client"}, offset_ms=500)
    call.agent(600, 900, "Wait.")
    call.user(2_000, 2_500, "OK.")
    call.event(12_600, type="session.commentary.append", content="Found.", delegation_id="d")
    calls = fold_rows(call.rows).turns[1].tool_calls
    assert calls is not None
    assert [(one.call_id, one.name, one.result) for one in calls] == [("d", "delegation", b'"Found."')]


# Wrong dialects


def never_cut(made: Any) -> Any:
    """Interruptions taken for ends."""
    return LlmDone(item=made.item) if isinstance(made, Interrupt) else made


def never_final(made: Any) -> Any:
    """The user's words left as partials."""
    return msgspec.structs.replace(made, final=False) if isinstance(made, Asr) else made


def in_arrival_order(made: Any) -> Any:
    """Replies left where they were when the words came that they answer."""
    return LlmDelta(text="", item="other") if isinstance(made, LlmCancel) else made


def in_one_turn(made: Any) -> Any:
    """Utterances that open no turn of their own."""
    return msgspec.structs.replace(made, turn_id=1) if isinstance(made, Asr) else made


@pytest.mark.parametrize("wrong", [never_cut, never_final, in_arrival_order, in_one_turn])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(OPENAI_LIVE.name, wrong, monkeypatch)


# Any events

FRAGMENTS = st.builds(
    lambda who, text, start, length: {
        "type": f"session.{who}_transcript.delta",
        "delta": text,
        "start_ms": start,
        "end_ms": start + length,
    },
    st.sampled_from(["input", "output"]),
    st.sampled_from(["", " ", "One", " two.", "three", "。"]),
    st.integers(0, 6_000),
    st.integers(0, 800),
)
ITEM = st.sampled_from(
    [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "typed"}]},
        {"type": "message", "role": "assistant", "content": []},
    ]
)
FRAMES = st.one_of(
    FRAGMENTS,
    FRAGMENTS,
    FRAGMENTS,
    st.builds(lambda id: {"type": "session.started", "session": {"id": id}}, st.sampled_from(["a", "b"])),
    st.just({"type": "session.delegation.created", "delegation": {"id": "d", "target": "client"}}),
    st.just({"type": "session.commentary.append", "content": "x", "delegation_id": "d"}),
    st.builds(lambda item: {"type": "response.item.create", "item": item}, ITEM),
    st.just({"type": "transport.dtmf.received", "event": "#"}),
)


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
        assert reduce(kept.content) == kept
        event = FrameEvent(dialect="openai-live", frame=kept.content, ts=ts)
        rows.append(DecodedRow(len(rows) + 1, 1_000, event, "main"))
    rows.append(DecodedRow(len(rows) + 1, 2_000, msgspec.structs.replace(closed(2_000), reason=CLOSED)))
    state = fold_rows(rows)
    assert state.ignored == {}
    assert contents(fold_rows(rows, restarts=True)) == contents(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "item", "id", "content"]), inner)
    ),
    max_leaves=8,
)
NAMES = ["session", "delta", "start_ms", "end_ms", "reason", "delegation", "content", "delegation_id", "item", "event"]


@given(name=st.sampled_from([*KINDS, "other"]), fields=st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_fields_are_kept_or_refused(name: str, fields: JsonObject) -> None:
    """An event with whatever fields is reduced, or refused as unknown or malformed; nothing else is raised."""
    try:
        kept = reduce({"type": name, **fields})
    except (MalformedFrame, UnknownFrame):
        return
    assert kept is None or reduce(kept.content) == kept
