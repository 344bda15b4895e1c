"""The dialect of Ultravox: rules that no recording shows, and the webhook's signature."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, is_caught, reduced
from tests.support.paths import ROOT
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.kinds import no_events
from voicemem.dialects.ultravox import KINDS, ULTRAVOX, frames, reduce, verify
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmDelta, LlmDone
from voicemem.protocol.types import MAX_INTEGER, JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow

CALLS = [one for one in RECORDINGS if one.dialect == "ultravox"]
BODY = (ROOT / "fixtures" / "ultravox" / "webhook.json").read_bytes()


def memory(*sent: tuple[int | None, JsonObject], close_at: int | None = None) -> list[tuple[str, int, str, Any]]:
    """Role, turn, content and `original` of the messages after these frames, each with its time."""
    rows = []
    for position, (ts, frame) in enumerate(sent, 1):
        kept = reduce(frame)
        assert kept is not None
        event = FrameEvent(dialect="ultravox", frame=kept.content, ts=ts, id=kept.id)
        rows.append(DecodedRow(position, ts or 1_000, event, "main"))
    if close_at is not None:
        close = msgspec.structs.replace(closed(close_at), reason=CLOSED)
        rows.append(DecodedRow(len(rows) + 1, close_at, close))
    found = contents(fold_rows(rows))["contents"]
    return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("original")) for one in found]


def user(ordinal: int, text: str, final: bool = True, medium: str = "voice") -> JsonObject:
    return transcript("user", ordinal, final, medium, text=text)


def agent(ordinal: int, text: str, final: bool = False, medium: str = "voice") -> JsonObject:
    return transcript("agent", ordinal, final, medium, text=text)


def transcript(role: str, ordinal: int, final: bool, medium: str = "voice", **fields: str) -> JsonObject:
    return {"type": "transcript", "role": role, "medium": medium, "ordinal": ordinal, "final": final, **fields}


def state(name: str) -> JsonObject:
    return {"type": "state", "state": name}


CLEAR = {"type": "playback_clear_buffer"}
TEXT = "One two three four five six seven eight."


# What is kept


@every_row("recording", CALLS, ids=str)
def test_recordings_keep_no_secrets(recording: Recording) -> None:
    """No debug message, summary, token or number of the caller's reaches the journal."""
    kept = msgspec.json.encode([frame.content for _, frame in reduced(recording)])
    assert not any(word in kept for word in (b"secret", b"speaks", b"urgency", b"uninterruptible"))


def test_every_kept_type_has_a_rule() -> None:
    """What is kept is translated, and nothing else."""
    for kind in KINDS.values():
        assert (kind.record is None) == (kind.rule is no_events)


def test_audio_says_nothing() -> None:
    """A data connection may carry audio of both sides, which no one can tell apart."""
    assert [reduce(bytes(480)), reduce({"audio_bytes": 480}), reduce(user(1, "", final=False))] == [None, None, None]


@every_row(
    "frame",
    [
        "text",
        [],
        {},
        {"type": 1},
        {"type": "transcript", "role": "user"},
        transcript("system", 1, True),
        transcript("user", -1, True),
        transcript("user", MAX_INTEGER + 1, True),
        {"type": "call_started"},
        {"type": "client_tool_invocation", "toolName": "x"},
        {"type": "call.ended", "callId": "c", "ts": -1},
    ],
    ids=repr,
)
def test_malformed_messages(frame: Any) -> None:
    """What is not a message of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_types_and_the_other_side() -> None:
    """A type that is not known is named; a message that says it is from the other side is malformed."""
    with pytest.raises(UnknownFrame, match="hologram"):
        reduce({"type": "hologram"})
    with pytest.raises(MalformedFrame):
        reduce({"type": "user_text_message", "text": "x"}, "vendor")


# Rules that no recording shows


def test_the_words_so_far_were_heard() -> None:
    """A reply that is cut before its final was heard so far, even if nothing more of it is ever said."""
    call = [(1_000, state("speaking")), (1_010, agent(0, "One two"))]
    for cut in (state("listening"), CLEAR):
        assert memory(*call, (1_500, cut)) == [("assistant", 0, "One two", "One two")]
        final = (1_600, agent(0, "One two", final=True))
        assert memory(*call, (1_500, cut), final) == [("assistant", 0, "One two", "One two")]
        assert memory(*call, (1_500, cut), (1_600, agent(0, TEXT, final=True))) == [("assistant", 0, "One two", TEXT)]
    assert memory(*((None, frame) for _, frame in call), (None, CLEAR))[0][3] == "One two"


def test_a_reply_that_was_said_to_its_end() -> None:
    """All words had come before the agent listened again, however short that took; a later buffer is another's."""
    call = [(1_000, state("speaking")), (1_010, agent(0, TEXT, final=True)), (1_200, state("listening"))]
    assert memory(*call, (1_300, CLEAR), close_at=1_400) == [("assistant", 0, TEXT, None)]


def test_thinking_in_mid_reply_is_no_interruption() -> None:
    """The agent calls a tool while it speaks."""
    call = [(1_000, state("speaking")), (1_010, agent(0, "One ")), (1_500, state("thinking"))]
    assert memory(*call, (2_000, agent(0, TEXT, final=True))) == [("assistant", 0, TEXT, None)]


def test_a_buffer_that_is_cleared_without_times() -> None:
    """No one knows how much of a whole reply was heard: it is marked, with all of its text."""
    call = [(None, agent(0, TEXT, final=True)), (None, CLEAR)]
    assert memory(*call) == [("assistant", 0, TEXT, TEXT)]


def test_the_caller_leaves_while_replies_play() -> None:
    """They are said one after the other; of the first all was heard, of the second a part, of the third nothing."""
    call = [(1_000, state("speaking"))]
    call += [(1_010, agent(ordinal, TEXT, final=True)) for ordinal in (0, 1, 2)]
    said = memory(*call, close_at=4_700)
    assert [(content, original) for _, _, content, original in said] == [
        (TEXT, None),
        ("One two three ", TEXT),
        ("", TEXT),
    ]


def test_without_states_a_final_reply_is_whole() -> None:
    """Nothing says whether it was still being spoken; one without a final was."""
    assert memory((1_000, agent(0, TEXT, final=True)), close_at=1_100) == [("assistant", 0, TEXT, None)]
    assert memory((1_000, agent(0, TEXT)), close_at=1_100) == [("assistant", 0, TEXT, TEXT)]


def test_a_reply_without_a_final_is_complete_when_another_begins() -> None:
    """Its final may have been lost."""
    assert memory((1_000, agent(0, "One.")), (5_000, agent(1, "Two.", final=True)), close_at=9_000) == [
        ("assistant", 0, "One.", None),
        ("assistant", 0, "Two.", None),
    ]


def test_tools_between_replies_are_no_words_of_the_user() -> None:
    """Their messages have ordinals too; words that come late stand before the reply."""
    call = [(1_000, user(0, "When?")), (1_100, agent(1, "One moment.", final=True))]
    tool = {"type": "client_tool_invocation", "toolName": "x", "invocationId": "i", "parameters": {}}
    answer = (3_000, agent(4, "At ten.", final=True))
    assert [one[1] for one in memory(*call, (2_000, tool), answer)] == [1, 1, 1]
    assert memory(*call, answer, (3_100, user(3, "Hm?")))[2:] == [
        ("user", 2, "Hm?", None),
        ("assistant", 2, "At ten.", None),
    ]


def test_a_second_utterance_before_the_answer_is_of_its_turn() -> None:
    """No one has answered in between."""
    call = (1_000, user(0, "When?")), (2_000, user(1, "Today?")), (3_000, agent(2, "At ten.", final=True))
    assert memory(*call) == [("user", 1, "When? Today?", None), ("assistant", 1, "At ten.", None)]


def test_sides_that_count_apart() -> None:
    """Both have an ordinal 0 and 1, whoever is first."""
    call = (1_000, agent(0, "Hello.", final=True)), (2_000, user(0, "When?")), (3_000, user(1, "Today?"))
    assert memory(*call, (4_000, agent(1, "At ten.", final=True))) == [
        ("assistant", 0, "Hello.", None),
        ("user", 1, "When? Today?", None),
        ("assistant", 1, "At ten.", None),
    ]


def test_typed_texts_are_said_once() -> None:
    """The app's message, its echo, and the echo again; without the app's message the echo counts."""
    typed, echo = (1_000, {"type": "user_text_message", "text": "Hi. "}), (1_100, user(0, "Hi.", medium="text"))
    assert [one[2] for one in memory(typed, echo, echo)] == ["Hi. "]
    assert [one[2] for one in memory(echo, echo)] == ["Hi."]
    late = [(0, agent(0, "Hello.", True)), (2_000, agent(2, "Bye.", True)), (2_100, user(1, "Thanks.", medium="text"))]
    assert [one[:3] for one in memory(*late)][1:] == [("user", 1, "Thanks."), ("assistant", 1, "Bye.")]


# The webhook


def headers(secret: str, at: datetime, body: bytes = BODY, form: str = "{}") -> dict[str, str]:
    """What Ultravox sends with a body that it signs at a time."""
    stated = at.isoformat()
    signature = hmac.new(secret.encode(), body + stated.encode(), hashlib.sha256).hexdigest()
    return {"x-ultravox-webhook-timestamp": stated, "x-ultravox-webhook-signature": form.format(signature)}


AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
NOW = int(AT.timestamp() * 1000)


def test_signatures() -> None:
    """One of several signatures is enough; times may have an offset, or none for UTC."""
    assert verify(BODY, headers("s", AT), "s", NOW)
    assert verify(BODY, headers("s", AT, form=f"{'0' * 64}, {{}}"), "s", NOW + 59_000)
    assert verify(BODY, headers("s", AT.replace(tzinfo=None)), "s", NOW)
    zoned = {**headers("s", AT), "x-ultravox-webhook-timestamp": "2026-11-22T12:00:00Z"}
    assert not verify(BODY, zoned, "s", NOW)  # the text is signed, not the time


@every_row(
    ("changed", "secret", "late_ms"),
    [
        ({}, "other", 0),
        ({}, "", 0),
        ({}, "s", 61_000),
        ({}, "s", -61_000),
        ({"x-ultravox-webhook-signature": ""}, "s", 0),
        ({"x-ultravox-webhook-signature": "é" * 64}, "s", 0),
        ({"x-ultravox-webhook-timestamp": ""}, "s", 0),
        ({"x-ultravox-webhook-timestamp": (AT + timedelta(seconds=1)).isoformat()}, "s", 0),
        ({"x-ultravox-webhook-timestamp": "0001-01-01T00:00:00+23:59"}, "s", 0),
        ({"x-ultravox-webhook-timestamp": "9" * 1_000}, "s", 0),
    ],
    ids=repr,
)
def test_forged_and_old_signatures_are_refused(changed: dict[str, str], secret: str, late_ms: int) -> None:
    """Another secret, body or time, no signature, and one that is older or newer than a minute."""
    assert not verify(BODY, headers("s", AT) | changed, secret, NOW + late_ms)
    assert not verify(BODY + b" ", headers("s", AT), "s", NOW)


def test_the_end_of_a_call() -> None:
    """Both events that say it make the same frame; the others make none."""
    body = json.loads(BODY)
    (frame,) = frames(body)
    kept = reduce(frame)
    assert kept is not None
    assert (kept.session_id, kept.end, kept.ts) == (body["call"]["callId"], "hangup", 1_763_800_015_000)
    assert [*frames(body | {"event": "call.billed"})] == [frame]
    assert [*frames(body | {"event": "call.started"}), *frames(body | {"event": "call.joined"})] == []
    (unjoined,) = frames({"event": "call.ended", "call": {"callId": "c", "ended": "0001-01-01", "endReason": None}})
    kept = reduce(unjoined)
    assert kept is not None
    assert (kept.end, kept.ts) == ("ended", None)


@pytest.mark.parametrize("body", [{}, {"event": 1}, {"event": "call.ended"}, {"event": "call.ended", "call": {}}])
def test_malformed_webhooks(body: Any) -> None:
    """A webhook has an event and a call."""
    with pytest.raises(MalformedFrame):
        [*frames(body)]


# Wrong dialects


def without_text(made: Any) -> Any:
    """An interruption that does not say what was heard."""
    return msgspec.structs.replace(made, heard_text=None) if isinstance(made, Interrupt) else made


def whole_deltas(made: Any) -> Any:
    """Pieces taken for all of the text."""
    return msgspec.structs.replace(made, whole=True) if isinstance(made, LlmDelta) else made


def never_final(made: Any) -> Any:
    """The user's words left as partials."""
    return msgspec.structs.replace(made, final=False) if isinstance(made, Asr) else made


def in_one_reply(made: Any) -> Any:
    """All that the agent says in one reply."""
    return msgspec.structs.replace(made, item="~o0") if isinstance(made, LlmDelta | LlmDone) else made


@pytest.mark.parametrize("wrong", [without_text, whole_deltas, never_final, in_one_reply])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(ULTRAVOX.name, wrong, monkeypatch)


# Any messages

TEXTS = st.sampled_from(["", "One", " two", "One two", "三", "x" * 50])
ORDINALS = st.sampled_from([0, 1, 2, 3, 5, MAX_INTEGER])
MESSAGES = st.one_of(
    st.builds(
        lambda role, ordinal, final, medium, key, text: transcript(role, ordinal, final, medium, **{key: text}),
        st.sampled_from(["user", "agent"]),
        ORDINALS,
        st.booleans(),
        st.sampled_from(["voice", "text"]),
        st.sampled_from(["text", "delta"]),
        TEXTS,
    ),
    st.builds(state, st.sampled_from(["idle", "listening", "thinking", "speaking", "dreaming"])),
    st.just(CLEAR),
    st.builds(lambda id: {"type": "call_started", "callId": id}, st.sampled_from(["a", "b"])),
    st.builds(lambda text: {"type": "user_text_message", "text": text}, TEXTS),
    st.just({"type": "client_tool_invocation", "toolName": "x", "invocationId": "i", "parameters": {}}),
    st.just({"type": "client_tool_result", "invocationId": "i", "result": "{}"}),
)


@given(
    messages=st.lists(MESSAGES, max_size=30),
    times=st.lists(st.none() | st.integers(0, 10**5), min_size=30, max_size=30),
)
def test_any_messages_in_any_order_are_folded(messages: list[JsonObject], times: list[int | None]) -> None:
    """Nothing that is made of any messages is left out by the fold, with and without times, and with restarts."""
    rows: list[DecodedRow] = []
    for message, ts in zip(messages, times, strict=False):
        kept = reduce(message)
        if kept is None:
            continue
        assert reduce(kept.content) == kept
        event = FrameEvent(dialect="ultravox", frame=kept.content, ts=ts)
        rows.append(DecodedRow(len(rows) + 1, 1_000, event, "main"))
    rows.append(DecodedRow(len(rows) + 1, 2_000, msgspec.structs.replace(closed(2_000), reason=CLOSED)))
    folded = fold_rows(rows)
    assert folded.ignored == {}
    assert contents(fold_rows(rows, restarts=True)) == contents(folded)


FIELDS = (
    "role",
    "medium",
    "text",
    "delta",
    "final",
    "ordinal",
    "state",
    "callId",
    "toolName",
    "invocationId",
    "result",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=6,
)


@given(name=st.sampled_from([*KINDS, "other"]), fields=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_fields_are_kept_or_refused(name: str, fields: JsonObject) -> None:
    """A message with whatever fields is reduced, or refused as unknown or malformed; nothing else is raised."""
    try:
        kept = reduce({"type": name, **fields})
    except (MalformedFrame, UnknownFrame):
        return
    assert kept is None or reduce(kept.content) == kept
