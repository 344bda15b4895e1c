"""The dialect of Vapi: what no recorded call shows, hostile messages, and who may send webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import (
    RECORDINGS,
    Recording,
    contents,
    fold_rows,
    is_caught,
    journal_rows,
    reduced,
    speech_is_an_interruption,
)
from tests.support.paths import ROOT
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.kinds import no_events
from voicemem.dialects.vapi.frames import split, verify
from voicemem.dialects.vapi.speaking import first_words, is_similar
from voicemem.dialects.vapi.translation import KINDS, VAPI, reduce
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmDone
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow

CALLS = {one.name: one for one in RECORDINGS if one.dialect == "vapi"}
PRIVATE = ("+49", "+1555", "You are a joker", "secret definition", "storage.example", "asst_1", "gpt-4o", "summary")
NOW = 1_763_800_060_000
SECRET = "a secret"


def memory(*sent: JsonObject) -> list[Any]:
    """The messages that these give, one a second, with a hang-up a second after the last."""
    rows: list[DecodedRow] = []
    for position, raw in enumerate(sent, 1):
        for part in split(raw):
            frame = reduce(part)
            if frame is not None:
                event = FrameEvent(dialect="vapi", frame=frame.content, ts=frame.ts, id=frame.id)
                rows.append(DecodedRow(len(rows) + 1, position * 1000, event, "main"))
    end = (len(sent) + 1) * 1000
    rows.append(DecodedRow(len(rows) + 1, end, msgspec.structs.replace(closed(end), reason=CLOSED)))
    messages: list[Any] = contents(fold_rows(rows))["contents"]
    return messages


def said(*sent: JsonObject) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in memory(*sent)]


def message(type: str, at: int | None = None, **fields: Any) -> JsonObject:
    return {"message": {"type": type, "timestamp": at, "call": {"id": "call_1"}} | fields}


def bot(text: str, start: int, end: int) -> JsonObject:
    return {"role": "bot", "message": text, "time": start, "endTime": end}


def user(text: str, start: int, end: int) -> JsonObject:
    return {"role": "user", "message": text, "time": start, "endTime": end}


def update(at: int | None, *messages: JsonObject) -> JsonObject:
    return message("conversation-update", at, messages=list(messages))


def transcript(at: int | None, role: str, text: str, kind: str = "final") -> JsonObject:
    return message("transcript", at, role=role, transcriptType=kind, transcript=text)


def test_private_things_are_not_kept() -> None:
    """Prompts, definitions of tools, numbers, recordings and analyses are left out of every message."""
    for call in CALLS.values():
        kept = "".join(msgspec.json.encode(frame.content).decode() for _, frame in reduced(call))
        assert [word for word in PRIVATE if word in kept] == []


@every_row("frame", [{}, {"message": {}}, {"message": "x"}, {"message": {"type": 1}}, [], "x"])
def test_what_is_no_message_is_malformed(frame: Any) -> None:
    """A frame without a type is not Vapi's."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_types_and_the_other_side() -> None:
    """A type that no one knows is named; the app sends none of these."""
    with pytest.raises(UnknownFrame, match="brand-new"):
        reduce({"message": {"type": "brand-new"}})
    with pytest.raises(MalformedFrame):
        reduce(transcript(1, "user", "Hi."), "app")
    assert reduce(message("transfer-update", 1)) is None


def test_late_and_older_histories_change_nothing() -> None:
    """Webhooks come in any order, and twice; the newest version of a message stays."""
    grown, whole = bot("It is", 3000, 3500), bot("It is four degrees.", 3000, 5000)
    asked = user("What is the weather?", 1000, 2000)
    newest = update(5100, asked, whole)
    expected = [("user", "What is the weather?"), ("assistant", "It is four degrees.")]
    for sent in ([newest, update(3600, asked, grown)], [update(3600, asked, grown), newest, newest]):
        assert said(*sent) == expected


LIVE = "second_answer_in_live_messages", "transcript_that_was_overtaken"
"""Calls without a history."""
HOOKS = [
    one
    for one in CALLS.values()
    if one.name not in ("webhook_alone", "shapes_of_the_documentation", "transcripts_alone", *LIVE)
]
"""Calls whose webhooks have times, and in which a history is not far behind what is said."""
MAX_DELAY_MS = 1500


@pytest.mark.parametrize("call", HOOKS, ids=str)
@given(delays=st.lists(st.integers(0, MAX_DELAY_MS), min_size=40, max_size=40))
def test_webhooks_that_overtake_one_another_change_nothing(call: Recording, delays: list[int]) -> None:
    """Each webhook may take a second and a half longer than the others; only the report after the call is last."""
    *sent, report = [one["frame"] for one in call.envelopes()]
    times = [one["message"].get("timestamp", place * 2_000) for place, one in enumerate(sent)]
    places = sorted(range(len(sent)), key=lambda place: times[place] + delays[place % len(delays)])
    late = memory(*[sent[place] for place in places], report)
    assert [essence(one) for one in late] == [essence(one) for one in memory(*sent, report)]


def essence(message: Any) -> tuple[str, int, str, str | None]:
    return message["role"], message["turn_id"], message["content"], message["metadata"].get("original")


def test_report_replaces_two_live_replies_of_one_turn() -> None:
    """Of a turn with a tool in it, live messages said both replies; the report says them again, with who spoke."""
    tool = message("tool-calls", 6000, toolCallList=[{"id": "c1", "function": {"name": "find", "arguments": "{}"}}])
    asked, thanked = user("Is Dr Lee in?", 3000, 3900), user("Thanks.", 11000, 11900)
    first = bot("I am checking.", 5000, 5900) | {"assistantName": "Desk"}
    second = bot("Yes, until four.", 7500, 8400) | {"assistantName": "Nurse"}
    live = (
        transcript(4000, "user", "Is Dr Lee in?"),
        transcript(5900, "assistant", "I am checking."),
        tool,
        transcript(8400, "assistant", "Yes, until four."),
        transcript(12000, "user", "Thanks."),
    )
    right = ["Is Dr Lee in?", "I am checking.", "Yes, until four.", "Thanks."]
    assert [text for _, text in said(*live)] == right
    report = message("end-of-call-report", 13000, artifact={"messages": [asked, first, second, thanked]})
    found = memory(*live, report)
    assert [one["content"] for one in found] == right
    assert [one["metadata"].get("agent") for one in found] == [None, "Desk", "Nurse", None]


def test_interruption_after_the_history_has_it() -> None:
    """`user-interrupted` may come after the message that it cut, and twice."""
    cut = message("user-interrupted", 5000)
    messages = memory(update(5200, user("Hi.", 1000, 1500), bot("It is", 3000, 4900)), cut, cut)
    assert messages[1]["metadata"]["interrupted"]
    assert (messages[1]["content"], messages[1]["metadata"]["interrupt_timestamp"]) == ("It is", 5000)


def test_interruption_of_another_reply_marks_nothing() -> None:
    """One that comes long after a reply's end is not about it."""
    cut = message("user-interrupted", 15_000)
    messages = memory(update(5200, user("Hi.", 1000, 1500), bot("It is late.", 3000, 4900)), cut)
    assert "interrupted" not in messages[1]["metadata"]


def test_a_false_alarm_is_taken_back() -> None:
    """A reply that grows on after its interruption is heard on."""
    asked = user("Hi.", 1000, 1500)
    cut = message("user-interrupted", 5000)
    messages = memory(
        update(5200, asked, bot("It is", 3000, 4900)), cut, update(9100, asked, bot("It is four degrees.", 3000, 9000))
    )
    assert (messages[1]["content"], "interrupted" in messages[1]["metadata"]) == ("It is four degrees.", False)


def test_words_spoken_count_where_the_history_has_all() -> None:
    """A history with the whole text of a reply that was cut: as many words were heard as had been spoken."""
    text = "One two three four five six."
    speech = message(
        "assistant.speechStarted", 4000, text=text, turn=0, timing={"type": "word-progress", "wordsSpoken": 3}
    )
    asked = user("Count.", 1000, 1500)
    messages = memory(speech, message("user-interrupted", 5000), update(5200, asked, bot(text, 3000, 5100)))
    assert (messages[1]["content"], messages[1]["metadata"]["original"]) == ("One two three", text)


def test_fragments_that_become_one_message() -> None:
    """What Vapi joins to the message before it is not said twice."""
    first, second = user("I'd like", 1000, 1500), user("to book.", 1800, 2400)
    whole = user("I'd like to book.", 1000, 2400)
    assert said(update(2500, first, second), update(2600, whole)) == [("user", "I'd like to book.")]


def test_transcripts_give_way_to_the_report() -> None:
    """A call of transcripts, and a report that words it otherwise: the report counts, each message once."""
    live = [
        transcript(1000, "assistant", "Hello there."),
        transcript(2000, "user", "Book a table for to."),
        transcript(3000, "assistant", "For two, certainly."),
        transcript(4000, "user", "Thanks."),
    ]
    messages = [
        bot("Hello there!", 900, 1400),
        user("Book a table for two.", 1700, 2600),
        bot("For two, certainly.", 2900, 3500),
        user("Thanks.", 3900, 4100),
    ]
    report = message("end-of-call-report", 9000, artifact={"messages": messages}, endedReason="customer-ended-call")
    expected = [("user" if one["role"] == "user" else "assistant", one["message"]) for one in messages]
    assert said(*live, report) == said(*live, report, *live) == said(report) == expected
    assert said(*live, *live) == said(*live)


def test_transcript_after_its_history_is_not_said_again() -> None:
    """A webhook that is late repeats what the history has by then."""
    asked = user("What are your prices?", 1000, 2000)
    sent = [update(2300, asked), transcript(2100, "user", "What are your prices?")]
    assert said(*sent) == [("user", "What are your prices?")]


def test_words_that_the_history_joins_to_those_before_a_reply_that_no_one_heard() -> None:
    """The reply was cut before its first word; the next one is another, and the report that brings no news counts."""
    both = user("Rooms? For tonight.", 1000, 4000)
    live = [
        update(1900, user("Rooms?", 1000, 1800)),
        message("assistant.speechStarted", 2000, text="We have two left.", turn=1, timing={"wordsSpoken": 0}),
        message("user-interrupted", 2100, turnId="x"),
        transcript(4100, "user", "For tonight."),
        update(4200, both),
        update(6000, both, bot("Two rooms.", 5000, 5900)),
    ]
    report = message("end-of-call-report", 9000, artifact={"messages": [both, bot("Two rooms.", 5000, 5900)]})
    assert said(*live, report) == [("user", "Rooms? For tonight."), ("assistant", ""), ("assistant", "Two rooms.")]


def test_last_words_stay_without_a_report() -> None:
    """A partial of the user's at the hang-up is kept as such."""
    messages = memory(update(2300, bot("Hi.", 1000, 2000)), transcript(3000, "user", "I would", "partial"))
    assert (messages[-1]["content"], messages[-1]["metadata"].get("partial")) == ("I would", True)


@pytest.mark.parametrize(("count", "expected"), [(0, ""), (1, "One"), (2, "One two,"), (9, "One two, three.")])
def test_first_words(count: int, expected: str) -> None:
    """Words are counted as they are written."""
    assert first_words("One two, three.", count) == expected


def test_long_replies_are_known() -> None:
    """Replies of thousands of characters, one after the other, and the last of them cut: notes hold what is needed."""
    texts = [" ".join([word] * 500) + "." for word in ("never", "always", "perhaps", "today", "gladly")]
    sent: list[JsonObject] = []
    history: list[JsonObject] = []
    for place, text in enumerate(texts):
        at = 10_000 * (place + 1)
        sent += [message("model-output", at, output=text, turnId=text[:3]), transcript(at + 100, "assistant", text)]
        sent.append(message("assistant.speechStarted", at, text=text, turn=place))
        history += [user(f"Number {place}?", at - 500, at - 100), bot(text if place < 4 else text[:99], at, at + 5000)]
        sent += [message("user-interrupted", at + 5100)] if place == 4 else []
        sent.append(update(at + 5200, *history))
    messages = memory(*sent)
    assert [one["metadata"].get("original", one["content"]) for one in messages[1::2]] == texts
    assert messages[-1]["content"] == texts[-1][:99].strip()


def test_similar_texts() -> None:
    """Texts of the same speech share words; marks and case do not count."""
    assert is_similar("For two, certainly", "for 2 certainly!")
    assert not is_similar("Thanks.", "Book a table.")
    assert is_similar("!", "!")


frames_of_recordings = st.sampled_from([one["frame"] for call in CALLS.values() for one in call.envelopes()])


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.dictionaries(
                st.sampled_from(
                    ["type", "message", "messages", "role", "time", "timing", "toolCalls", "artifact", "timestamp"]
                ),
                inner,
            )
            | st.lists(inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.sampled_from(sorted(KINDS)),
)
def test_any_frame_is_reduced_or_refused(frame: Any, type: str) -> None:
    """Whatever comes, reducing and taking apart answer, or say that it is no frame."""
    for one in (frame, {"message": frame}, {**frame, "type": type} if isinstance(frame, dict) else frame):
        try:
            reduce(one)
            if isinstance(one, dict):
                [*map(reduce, split(one))]
        except (MalformedFrame, UnknownFrame):
            continue


@given(st.lists(frames_of_recordings, max_size=20), st.booleans())
def test_frames_in_any_order_never_fail(sent: list[Any], with_times: bool) -> None:
    """Frames of all calls, mixed: the fold takes each, and loses none to a fault of the dialect."""
    rows = []
    for position, raw in enumerate(sent, 1):
        frame = reduce(raw)
        if frame is not None:
            event = FrameEvent(dialect="vapi", frame=frame.content, ts=frame.ts if with_times else None)
            rows.append(DecodedRow(position, position * 1000, event, "main"))
    rows.append(DecodedRow(len(sent) + 1, 99_000, closed(99_000)))
    assert "frames" not in fold_rows(rows).ignored


def test_every_kind_has_a_rule() -> None:
    """What is kept is translated."""
    for kind in KINDS.values():
        assert (kind.record is None) == (kind.rule is no_events)


def finals_are_partials(made: Any) -> Any:
    return msgspec.structs.replace(made, final=False) if isinstance(made, Asr) else made


def heard_is_lost(made: Any) -> Any:
    return msgspec.structs.replace(made, heard_text=None) if isinstance(made, Interrupt) else made


def replies_come_first(made: Any) -> Any:
    return msgspec.structs.replace(made, turn_id=0) if isinstance(made, LlmDone) else made


@pytest.mark.parametrize("wrong", [finals_are_partials, heard_is_lost, replies_come_first, speech_is_an_interruption])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded calls notice a dialect that gets one thing wrong."""
    assert is_caught("vapi", wrong, monkeypatch)


@every_row("call", CALLS.values(), ids=str)
def test_webhooks_taken_apart_and_twice_give_the_same(call: Recording) -> None:
    """What a service keeps of the webhooks, one by one and then all of them again, is the memory of the call."""
    rows: list[DecodedRow] = []
    for envelope in [*call.envelopes(), *call.envelopes()]:
        for part in split(envelope["frame"]):
            frame = reduce(part)
            if frame is not None:
                ts = envelope.get("ts", frame.ts)
                event = FrameEvent(dialect="vapi", frame=frame.content, ts=ts, id=frame.id)
                rows.append(DecodedRow(len(rows) + 1, call.hang_up(), event, "main"))
    close = msgspec.structs.replace(closed(call.hang_up()), reason=CLOSED)
    rows.append(DecodedRow(len(rows) + 1, call.hang_up(), close))
    assert contents(fold_rows(rows)) == call.document("contents")


def test_recorded_parts_are_those_of_the_webhook() -> None:
    """The frames of `webhook_alone` are what the body gives."""
    body = json.loads((ROOT / "fixtures" / "vapi" / "webhook.json").read_text("utf-8"))
    assert [one["frame"] for one in CALLS["webhook_alone"].envelopes()] == [*split(body)]
    assert journal_rows(CALLS["webhook_alone"])


# Who sent it


def signed(body: bytes, secret: str = SECRET, timestamp: str | None = None) -> str:
    payload = body if timestamp is None else timestamp.encode() + b"." + body
    return hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()


@every_row(
    "headers",
    [
        {"x-vapi-secret": SECRET},
        {"authorization": f"Bearer {SECRET}"},
        {"x-vapi-signature": signed(b"{}")},
        {"x-signature": f"sha256={signed(b'{}')}"},
        {"x-vapi-signature": signed(b"{}", timestamp=str(NOW)), "x-vapi-timestamp": str(NOW)},
        {"x-signature": signed(b"{}", timestamp=str(NOW // 1000)), "x-timestamp": str(NOW // 1000)},
    ],
)
def test_what_vapi_sends_is_accepted(headers: dict[str, str]) -> None:
    """The secret in a header of Vapi's, or a signature over the body, with a time or without."""
    assert VAPI.hook is not None
    assert VAPI.hook.verify(b"{}", headers, SECRET, NOW)


OLD = str(NOW - 301_000)


@every_row(
    "headers",
    [
        {},
        {"x-vapi-secret": ""},
        {"x-vapi-secret": "another"},
        {"authorization": "Bearer "},
        {"x-vapi-signature": SECRET},
        {"x-vapi-signature": signed(b"{}", "another")},
        {"x-vapi-signature": signed(b"{ }")},
        {"x-signature": signed(b"{}", timestamp=OLD), "x-timestamp": OLD},
        {"x-signature": signed(b"{}"), "x-timestamp": str(NOW)},
        {"x-signature": signed(b"{}", timestamp="soon"), "x-timestamp": "soon"},
        {"x-signature": signed(b"{}", timestamp="²"), "x-timestamp": "²"},
        {"x-signature": "é"},
    ],
)
def test_forged_and_old_ones_are_refused(headers: dict[str, str]) -> None:
    """Another secret, body or time, a time of long ago, and anything else."""
    assert not verify(b"{}", headers, SECRET, NOW)
    assert not verify(b"{}", headers | {"x-vapi-secret": ""}, "", NOW)


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_header_is_refused(signature: str, timestamp: str) -> None:
    """Whatever stands in the headers, verification answers."""
    assert not verify(b"{}", {"x-signature": signature, "x-timestamp": timestamp}, SECRET, NOW)
