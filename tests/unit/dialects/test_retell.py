"""The dialect of Retell: the SDK's types and signatures, what no recorded call shows, and hostile frames."""

from __future__ import annotations

import hmac
import json
import time
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
    reduced,
    speech_is_an_interruption,
)
from tests.support.paths import ROOT
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.kinds import no_events
from voicemem.dialects.retell.frames import ELEMENT, split, verify
from voicemem.dialects.retell.translation import APP, RETELL, VENDOR, WEBHOOKS, reduce
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmDone
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow

CALLS = {one.name: one for one in RECORDINGS if one.dialect == "retell"}
BODY = ROOT / "fixtures" / "retell" / "webhook.json"
PRIVATE = ("+49", "+1555", "secret", "storage.example", "agent_1", "summary", "CA1")
NOW = 1_763_800_060_000
KEY = "key_of_a_test"


def fold(sent: list[tuple[JsonObject, int | None]], end: int) -> list[Any]:
    """The messages that these frames give, each with its time, up to a hang-up."""
    rows: list[DecodedRow] = []
    for raw, ts in sent:
        frame = reduce(raw)
        if frame is not None:
            event = FrameEvent(dialect="retell", frame=frame.content, ts=frame.ts if ts is None else ts, id=frame.id)
            rows.append(DecodedRow(len(rows) + 1, end, event, "main"))
    rows.append(DecodedRow(len(rows) + 1, end, msgspec.structs.replace(closed(end), reason=CLOSED)))
    messages: list[Any] = contents(fold_rows(rows))["contents"]
    return messages


def memory(*sent: JsonObject) -> list[Any]:
    """The messages that these frames give, one a second, with a hang-up a second later."""
    return fold([(one, place * 1000) for place, one in enumerate(sent, 1)], (len(sent) + 1) * 1000)


def texts(messages: list[Any]) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in messages]


def agent(text: str) -> JsonObject:
    return {"role": "agent", "content": text}


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def update(*elements: JsonObject) -> JsonObject:
    return {"interaction_type": "update_only", "transcript": list(elements)}


def response(id: int, text: str, complete: bool = True) -> JsonObject:
    return {"response_type": "response", "response_id": id, "content": text, "content_complete": complete}


def ended(*elements: JsonObject) -> JsonObject:
    call = {"call_id": "call_1", "transcript_object": list(elements), "disconnection_reason": "user_hangup"}
    return {"event": "call_ended", "call": call}


def test_a_tool_in_the_webhook_divides_a_reply_that_was_one_live() -> None:
    """Live, a transcript without tools has both answers as one; the webhook has both, and the words after them once."""
    live = [update(user("How much?"), agent("One moment. It is nine euros.")), update(user("How much?"))]
    live[1]["transcript"] += [agent("One moment. It is nine euros."), user("Thanks.")]
    called = {"role": "tool_call_invocation", "tool_call_id": "t1", "name": "price", "arguments": "{}"}
    answered = {"role": "tool_call_result", "tool_call_id": "t1", "content": "9"}
    said = [user("How much?"), agent("One moment."), called, answered, agent("It is nine euros."), user("Thanks.")]
    whole = ended()
    whole["call"] |= {"transcript_with_tool_calls": said}
    found = memory(*live, *split(whole), *split(whole | {"event": "call_analyzed"}))
    assert [(one["role"], one["turn_id"], one["content"]) for one in found] == [
        *(("user", 1, "How much?"), ("assistant", 1, "One moment."), ("assistant", 1, "It is nine euros.")),
        ("user", 2, "Thanks."),
    ]


def test_a_backchannel_is_no_message_and_divides_none() -> None:
    """What one says while the other speaks is left out, and what is said around it is one utterance."""
    aside = {"metadata": {"is_backchannel": True}}
    said = [agent("One"), user("mhm") | aside, agent("two."), user("Three"), agent("Right.") | aside, user("four.")]
    whole = [("assistant", "One two."), ("user", "Three four.")]
    assert texts(memory(ended(*said))) == whole
    assert texts(memory(*split(ended(*said)), update(*said))) == whole


def test_a_scrubbed_transcript_takes_the_place_of_all_others() -> None:
    """Of the same webhook, and of what was heard live."""
    said, scrubbed = [user("I am Ann Smith."), agent("Hi, Ann!")], [user("I am [NAME]."), agent("Hi, [NAME]!")]
    call = {"call_id": "call_1", "start_timestamp": NOW, "transcript_object": said}
    call["scrubbed_transcript_with_tool_calls"] = scrubbed
    webhook: JsonObject = {"event": "call_ended", "call": call, "transcript_with_tool_calls": said}
    whole = [("user", "I am [NAME]."), ("assistant", "Hi, [NAME]!")]
    assert "Ann" not in str([reduce(one) for one in split(webhook)])
    assert texts(memory(*split(webhook))) == whole
    assert texts(memory(update(*said), *split(webhook))) == whole
    long = response(1, "Hi, Ann! How are you?")
    assert texts(memory(long, update(*said), *split(webhook))) == whole
    said, scrubbed[:] = [*said, user("Stop.")], [*scrubbed, user("Stop.")]
    cut = memory(long, update(*said), *split(webhook))
    assert (texts(cut), "Ann" in json.dumps(cut)) == ([*whole, ("user", "Stop.")], False)


def test_text_messages_and_scrubbed_transcripts() -> None:
    """A text message is the result of a tool; the transcript without personal data counts where it is all there is."""
    said = [user("Hi."), {"role": "sms", "content": "a@b.c", "time_sec": 3.0}]
    call = {"call_id": "call_1", "scrubbed_transcript_with_tool_calls": said, "start_timestamp": NOW}
    sms = [one["element"] for one in split({"event": "call_ended", "call": call}) if "element" in one][1]
    assert sms == {"role": "sms", "index": 0, "content": "a@b.c", "ts": NOW + 3_000}
    assert texts(memory({"event": "call_ended", "call": call})) == [("user", "Hi.")]


def test_latencies_are_those_of_the_replies() -> None:
    """Each value is that of a reply to the caller; of all replies, where there are so many."""
    call = ended(agent("Hi."), user("One"), agent("Two."), agent("Three."), user("Four"), agent("Five."))
    call["call"]["latency"] = {
        "e2e": {"values": [700, 900]},
        "llm": {"values": [1, 2, 3, 4]},
        "tts": {"values": ["x"]},
        "asr": None,
    }
    found = {one["name"]: one["values"] for one in split(call) if "values" in one}
    assert found == {
        "e2e": [{"index": 2, "ms": 700}, {"index": 5, "ms": 900}],
        "llm": [{"index": place, "ms": ms} for place, ms in zip((0, 2, 3, 5), (1, 2, 3, 4), strict=True)],
    }


def webhooks() -> list[JsonObject]:
    """The bodies of all webhooks in the recorded calls."""
    bodies = [one["frame"] for call in CALLS.values() for one in call.envelopes() if "event" in one["frame"]]
    return [
        *(one for one in bodies if one["event"] != ELEMENT and "agent_id" in one["call"]),
        json.loads(BODY.read_text()),
    ]


@pytest.mark.long
def test_webhooks_fit_the_types_of_the_sdk() -> None:
    """Each recorded call object is one of retell-sdk's, with every element of its transcripts."""
    from retell.types import WebCallResponse  # takes seconds

    assert len(webhooks()) > 10
    for body in webhooks():
        call = body["call"] | {"call_type": "web_call", "access_token": "t"}  # a phone call has numbers besides
        parsed = WebCallResponse.model_validate(call)
        assert len(parsed.transcript_with_tool_calls or ()) == len(call.get("transcript_with_tool_calls", ()))


def test_signatures_are_those_of_the_sdk() -> None:
    """What the SDK signs is accepted; both refuse another key, another body, and a time of long ago."""
    import retell  # takes seconds
    from retell.lib.webhook_auth import symmetric

    client = retell.Retell(api_key=KEY)
    body, now = '{"event": "call_ended"}', int(time.time() * 1000)
    for key, text, ts in ((KEY, body, now), ("another", body, now), (KEY, "{}", now), (KEY, body, now - 301_000)):
        header = symmetric["sign"](text, key, ts)
        expected = (key, text, ts) == (KEY, body, now)
        assert bool(client.verify(body, KEY, header)) == expected  # type: ignore[no-untyped-call]
        assert verify(body.encode(), {"x-retell-signature": header}, KEY, now) == expected


@every_row(
    "header",
    [
        "",
        "v=,d=",
        f"v={NOW},d=",
        f"v={NOW},d=" + "0" * 64,
        f"v={NOW},d=é",
        "v=²,d=" + "0" * 64,
        f"d={'0' * 64},v={NOW}",
    ],
)
def test_other_headers_are_refused(header: str) -> None:
    """A header of another form, or with another digest, verifies nothing; nor does an empty key."""
    assert RETELL.hook is not None
    assert not RETELL.hook.verify(b"{}", {"x-retell-signature": header}, KEY, NOW)
    digest = hmac.digest(b"", f"{{}}{NOW}".encode(), "sha256").hex()
    assert not verify(b"{}", {"x-retell-signature": f"v={NOW},d={digest}"}, "", NOW)


@given(st.text(max_size=90))
def test_any_header_is_refused(header: str) -> None:
    """Whatever stands in the header, verification answers."""
    assert not verify(b"{}", {"x-retell-signature": header}, KEY, NOW)


def test_private_things_are_not_kept() -> None:
    """Numbers, variables, injected context, recordings and analyses are left out of every frame."""
    for call in CALLS.values():
        kept = "".join(msgspec.json.encode(frame.content).decode() for _, frame in reduced(call))
        assert [word for word in PRIVATE if word in kept] == []


def test_unknown_and_malformed_frames() -> None:
    """A type that no one knows is named; what has none, or a transcript of something else, is malformed."""
    for field in ("interaction_type", "response_type", "event"):
        with pytest.raises(UnknownFrame, match="brand-new"):
            reduce({field: "brand-new"})
    malformed: list[Any] = [
        {}, "x", {"event": 1}, {"event": "call_ended"}, {"event": "call_ended", "call": {}},
        {"response_type": "response", "content": "x"},
    ]  # fmt: skip
    for frame in malformed:
        with pytest.raises(MalformedFrame):
            reduce(frame)
    with pytest.raises(MalformedFrame):
        reduce(update(), "app")


def test_a_reply_that_goes_on_was_not_cut() -> None:
    """What the caller says between two parts of one response cuts nothing."""
    first, hm, second = agent("One two three"), user("Uh-huh."), agent("four five six.")
    messages = memory(
        response(1, "One two three four five six."), update(first), update(first, hm), update(first, hm, second)
    )
    assert texts(messages) == [("assistant", "One two three"), ("user", "Uh-huh."), ("assistant", "four five six.")]
    assert not any(one["metadata"].get("interrupted") for one in messages)


def test_two_replies_that_come_first_with_the_last_frame_both_stay() -> None:
    """A frame begins one reply: the next that it has comes with the frame after it, or with the hang-up."""
    tool = {"role": "tool_call_invocation", "tool_call_id": "c", "name": "book", "arguments": "{}"}
    said = [user("A table for two."), agent("Let me look."), tool, agent("It is booked.")]
    frame = {"interaction_type": "update_only", "transcript_with_tool_calls": said}
    expected = [("user", "A table for two."), ("assistant", "Let me look."), ("assistant", "It is booked.")]
    assert texts(memory(frame)) == expected
    assert texts(memory(frame, frame)) == expected
    later = {**frame, "transcript_with_tool_calls": [*said, user("Thanks.")]}
    assert texts(memory(frame, later)) == [*expected, ("user", "Thanks.")]


def test_response_after_its_element() -> None:
    """The transcript may have the agent's first words before the app has sent all of them."""
    said = update(user("Hi."), agent("Good"))
    messages = memory(update(user("Hi.")), response(1, "Good", False), said, response(1, " morning to you.", True))
    assert (messages[1]["content"], messages[1]["metadata"]["original"]) == ("Good", "Good morning to you.")


def test_hang_up_before_the_transcript_has_the_reply() -> None:
    """What the app sent last and the transcript does not have is cut where the clock says."""
    (_, reply) = memory(update(user("Hi.")), response(1, "Good morning to you, what can I do for you on such a day?"))
    assert reply["metadata"]["heard"] == "estimated"
    assert 0 < len(reply["content"]) < len(reply["metadata"]["original"])


def test_the_webhook_is_the_whole_call() -> None:
    """What only live messages had goes, and what they had otherwise is repaired, each utterance once."""
    live = [update(agent("Hello."), user("I want two."), agent("Two what?"), user("Noise"))]
    final = ended(agent("Hello."), user("I want to."), agent("Two what?"))
    expected = [("assistant", "Hello."), ("user", "I want to."), ("assistant", "Two what?")]
    parts = [*split(final)]
    assert texts(memory(*live, *live, *parts)) == texts(memory(*parts)) == texts(memory(*parts, *parts)) == expected


def test_unfinished_words_stay() -> None:
    """What the caller was saying at the hang-up is kept as unfinished."""
    messages = memory(update(agent("Hello.")), update(agent("Hello."), user("I would")))
    assert messages[-1]["metadata"].get("partial") is True


def test_older_names_of_fields() -> None:
    """A webhook with `data` instead of `call`, and a response without a type, are taken."""
    body = ended(agent("Hello."))
    parts = [*split({"event": "call_ended", "data": body["call"]})]
    assert texts(memory(*parts)) == [("assistant", "Hello.")]
    assert reduce({"response_id": 0, "content": "Hello.", "content_complete": True}) is not None


frames_of_recordings = st.sampled_from([one["frame"] for call in CALLS.values() for one in call.envelopes()])
NAMES = ["transcript", "role", "content", "words", "start", "metadata", "response_id", "call", "call_id", "elements"]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.dictionaries(st.sampled_from(NAMES), inner) | st.lists(inner, max_size=3),
        max_leaves=12,
    ),
    st.sampled_from([*(("interaction_type", one) for one in VENDOR), *(("response_type", one) for one in APP)])
    | st.sampled_from([("event", one) for one in WEBHOOKS]),
)
def test_any_frame_is_reduced_or_refused(frame: Any, kind: tuple[str, str]) -> None:
    """Whatever comes, reducing and taking apart answer, or say that it is no frame."""
    for one in (frame, {**frame, kind[0]: kind[1]} if isinstance(frame, dict) else frame):
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
            event = FrameEvent(dialect="retell", frame=frame.content, ts=position * 1000 if with_times else None)
            rows.append(DecodedRow(position, position * 1000, event, "main"))
    rows.append(DecodedRow(len(sent) + 1, 99_000, closed(99_000)))
    assert "frames" not in fold_rows(rows).ignored


def test_every_kind_has_a_rule() -> None:
    """What is kept is translated."""
    for name, kind in (VENDOR | APP | WEBHOOKS).items():
        assert (kind.record is None or name == "call_details") == (kind.rule is no_events)


def finals_are_partials(made: Any) -> Any:
    return msgspec.structs.replace(made, final=False) if isinstance(made, Asr) else made


def heard_is_lost(made: Any) -> Any:
    return msgspec.structs.replace(made, heard_text=None) if isinstance(made, Interrupt) else made


def replies_come_first(made: Any) -> Any:
    return msgspec.structs.replace(made, turn_id=0) if isinstance(made, LlmDone) else made


@pytest.mark.parametrize("wrong", [finals_are_partials, heard_is_lost, replies_come_first, speech_is_an_interruption])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded calls notice a dialect that gets one thing wrong."""
    assert is_caught("retell", wrong, monkeypatch)


@every_row("call", CALLS.values(), ids=str)
def test_everything_twice_changes_nothing(call: Recording) -> None:
    """Each frame sent twice in a row: transcripts say all again, and of responses the pieces are numbered or whole."""
    sent: list[tuple[JsonObject, int | None]] = []
    for envelope in call.envelopes():
        pieces = envelope["frame"].get("content_complete") is False
        for part in split(envelope["frame"]):
            sent += [(part, envelope.get("ts"))] * (1 if pieces else 2)
    assert fold(sent, call.hang_up()) == call.document("contents")["contents"]


def test_recorded_parts_are_those_of_the_webhook() -> None:
    """The frames of `webhook_alone` are what the body gives."""
    body = json.loads(BODY.read_text("utf-8"))
    assert [one["frame"] for one in CALLS["webhook_alone"].envelopes()] == [*split(body)]
