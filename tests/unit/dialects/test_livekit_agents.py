"""The dialect of LiveKit Agents: what it keeps, and rules that no recording shows."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.callers.signed_hooks import json_web_token
from tests.support.dialects import RECORDINGS, contents, fold_rows, journal_rows, well_formed
from tests.support.paths import ROOT
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects import livekit_agents as translation
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.livekit_agents import KINDS, reduce, split_report, verify
from voicemem.protocol.events import FrameEvent, Resume
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow
from voicemem.transcript.state import State

CALLS = [one for one in RECORDINGS if one.dialect == "livekit-agents"]
BEGAN = 1_763_800_000


def fold(*frames: JsonObject, close: bool = False) -> State:
    """The state after these frames, which carry their own times."""
    rows = []
    for position, frame in enumerate(frames, 1):
        reduced = reduce(frame)
        if reduced is not None:
            event = FrameEvent(dialect="livekit-agents", frame=reduced.content, ts=reduced.ts, id=reduced.id)
            rows.append(DecodedRow(position, 1_000_000, event, "main"))
    if close:
        end = (BEGAN + 1_000) * 1_000
        rows.append(DecodedRow(len(frames) + 1, end, msgspec.structs.replace(closed(end), reason=CLOSED)))
    return fold_rows(rows)


def memory(*frames: JsonObject, close: bool = False) -> list[tuple[str, int, str]]:
    """Role, turn and content of the messages after these frames."""
    found = contents(fold(*frames, close=close))["contents"]
    return [(one["role"], one["turn_id"], one["content"]) for one in found]


def heard(at: float, text: str, final: bool = True) -> JsonObject:
    """What the recogniser hears."""
    return {"type": "user_input_transcribed", "transcript": text, "is_final": final, "created_at": BEGAN + at}


def item(at: float, role: str, text: str, id: str | None = None, **fields: Any) -> JsonObject:
    """An item that is added when it began."""
    message = {"type": "message", "id": id or text, "role": role, "content": [text], "created_at": BEGAN + at}
    return {"type": "conversation_item_added", "item": message | fields, "created_at": BEGAN + at}


def test_prompts_images_and_numbers_are_not_kept() -> None:
    """Of items nothing is kept but what was said; identities of the room, which may be phone numbers, become roles."""
    image = {"type": "image_content", "image": "data:secret"}
    audio = {"type": "audio_content", "frame": ["secret"], "transcript": "Hi."}
    user = item(1, "user", "Hello.", extra={"secret": 1}, metrics={"provider_request_ids": ["secret"]})
    user["item"]["content"] += [image, audio]
    executed = {
        "type": "function_tools_executed",
        "function_calls": [{"call_id": "c", "name": "n", "arguments": "{}", "extra": {"token": "secret"}}],
        "function_call_outputs": [{"call_id": "c", "output": "4", "secret": 1}],
    }
    text = {
        "topic": "lk.transcription",
        "identity": "sip_+15551234567secret",
        "text": "Hi.",
        "attributes": {"lk.segment_id": "SG_1", "lk.transcription_final": "true", "secret": "secret"},
    }
    frames = [
        item(1, "system", "secret"),
        item(1, "developer", "secret"),
        {"type": "agent_config_update", "id": "i", "instructions": "secret"},
        {"type": "error", "error": "secret"},
    ]
    assert [reduce(frame) for frame in frames] == [None] * len(frames)
    kept = [frame.content for one in (user, executed, text) if (frame := reduce(one)) is not None]
    assert kept[0]["item"]["content"] == ["Hello.", "Hi."]
    assert kept[2] == {"topic": "lk.transcription", "role": "user", "segment": "SG_1", "text": "Hi.", "final": True}
    assert b"secret" not in msgspec.json.encode(kept)
    assert b"555" not in msgspec.json.encode(kept)


@every_row(
    "frame",
    [
        "text",
        b"audio",
        {},
        {"type": 1},
        {"type": "user_input_transcribed", "transcript": 1, "is_final": True},
        {"type": "user_input_transcribed", "transcript": "x"},
        {"type": "conversation_item_added"},
        {"type": "conversation_item_added", "item": []},
        {"type": "conversation_item_added", "item": {"type": "message", "role": "user", "content": ["x"]}},
        {"type": "message", "id": 1, "role": "user"},
        {"type": "close"},
        {"topic": "lk.transcription", "text": "x"},
        {"topic": "lk.transcription", "text": "x", "identity": "ann", "attributes": {}},
    ],
    ids=repr,
)
def test_malformed_frames(frame: Any) -> None:
    """What is not a frame of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_types_are_named() -> None:
    """A type that is not known is named, so that the log can show it."""
    with pytest.raises(UnknownFrame, match="hologram_shown"):
        reduce({"type": "hologram_shown"})


def test_names_of_javascript() -> None:
    """LiveKit's JavaScript writes other names, and times in ms; both say the same."""
    python = item(1, "user", "Hello.")
    said = {"type": "message", "id": "Hello.", "role": "user", "content": ["Hello."], "createdAt": (BEGAN + 1) * 1_000}
    javascript = {"type": "conversation_item_added", "item": said, "createdAt": (BEGAN + 1) * 1_000}
    assert contents(fold(python)) == contents(fold(javascript))
    assert memory({"type": "user_input_transcribed", "transcript": "Hi.", "isFinal": True}) == [("user", 1, "Hi.")]


def test_what_is_said_over_a_reply_is_of_the_next_turn() -> None:
    """A reply is added after the user spoke over it, and stands before that."""
    said = [item(1, "user", "One."), heard(5, "Stop"), item(2, "assistant", "Two"), item(6, "user", "Stop.")]
    assert memory(*said) == [("user", 1, "One."), ("assistant", 1, "Two"), ("user", 2, "Stop.")]


def test_the_begin_of_speech_counts_and_not_that_of_its_item() -> None:
    """A reply that begins before the item of its utterance was made still answers it."""
    spoken = item(6, "user", "Two.", metrics={"started_speaking_at": BEGAN + 4})
    assert memory(item(1, "user", "One."), spoken, item(5, "assistant", "Three."))[2] == ("assistant", 2, "Three.")


def test_an_item_that_was_lost_and_comes_with_the_history_stands_where_it_was_said() -> None:
    """What a history repairs does not go to the end."""
    live = [item(1, "user", "One."), item(9, "user", "Nine."), item(10, "assistant", "Ten.")]
    assert [one[2] for one in memory(*live, item(2, "assistant", "Two.")["item"])] == ["One.", "Two.", "Nine.", "Ten."]


def test_a_long_turn_is_kept_whole_and_replaced_whole() -> None:
    """A hundred finals of one turn are all kept, and all give way to LiveKit's item."""
    finals = [heard(index, f"Word {index}.") for index in range(100)]
    expected = " ".join(f"Word {index}." for index in range(100))
    assert memory(*finals, close=True) == [("user", 1, expected)]
    state = fold(*finals, item(100, "user", "All of it."))
    assert [one["content"] for one in contents(state)["contents"]] == ["All of it."]
    assert state.ignored == {}


def test_a_false_alarm_of_this_turn_alone_is_taken_back() -> None:
    """A reply that LiveKit resumes has mostly not been added yet: an older one stays interrupted."""
    cut = item(2, "assistant", "Two", interrupted=True)
    resumed = {"type": "agent_false_interruption", "resumed": True, "created_at": BEGAN + 5}
    assert "interrupted" not in contents(fold(item(1, "user", "One."), cut, resumed))["contents"][1]["metadata"]
    later = fold(item(1, "user", "One."), cut, item(4, "user", "Four."), resumed)
    assert contents(later)["contents"][1]["metadata"]["interrupted"] is True


def test_a_reply_that_livekit_adds_again_when_it_is_interrupted_counts_once() -> None:
    """The same text under another id, interrupted, is the reply before it, unless the user has spoken between."""
    sent = [heard(1, "Hi."), item(2, "user", "Hi."), item(3, "assistant", "Yes?", "a1", interrupted=True)]
    again = item(3.2, "assistant", "Yes?", "a2", interrupted=True)
    said = [("user", 1, "Hi."), ("assistant", 1, "Yes?"), ("user", 2, "Me.")]
    assert memory(*sent, again, item(5, "user", "Me.")) == said
    later = item(6, "assistant", "Yes?", "a3", interrupted=True)
    assert memory(*sent, again, item(5, "user", "Me."), later) == [*said, ("assistant", 2, "Yes?")]
    whole = item(4, "assistant", "Yes?", "a4")
    assert memory(*sent, whole, item(5, "user", "Me.")) == [*said[:2], ("assistant", 1, "Yes?"), said[2]]


def test_a_noise_is_no_utterance() -> None:
    """What the agent says after a noise stands before what the user says next."""
    call = [speaks(1.0), heard(2.0, "Hi."), item(3.0, "user", "Hi."), item(4.0, "assistant", "Hello.")]
    call += [speaks(5.0), item(6.0, "assistant", "Are you there?"), speaks(7.0), item(8.0, "user", "Yes.")]
    assert [text for _, _, text in memory(*call)] == ["Hi.", "Hello.", "Are you there?", "Yes."]
    away = speaks(1.0) | {"old_state": "listening", "new_state": "away"}
    assert reduce(away) is None


def speaks(at: float) -> JsonObject:
    """The user begins to speak."""
    return {"type": "user_state_changed", "old_state": "listening", "new_state": "speaking", "created_at": BEGAN + at}


@pytest.mark.parametrize("about", [{}, {"item_id": "u"}])
def test_words_of_a_realtime_model_come_after_its_reply(about: JsonObject) -> None:
    """Without the user's state only the item says when they spoke; its words may come before it, the reply too."""
    call = [item(1, "assistant", "Hello.")]
    for begin, words, answer in ((4, "A table.", "For how many?"), (8, "Two.", "Done.")):
        id = f"u{begin}"
        said = [heard(begin + 2, words) | {"item_id": id if about else None}, item(begin, "user", words, id)]
        call += [item(begin + 0.2, "assistant", answer), *said]
    expected = [("assistant", 0, "Hello."), ("user", 1, "A table."), ("assistant", 1, "For how many?")]
    assert memory(*call) == [*expected, ("user", 2, "Two."), ("assistant", 2, "Done.")]


def test_an_interrupted_reply_is_not_doubled_by_words_that_come_late() -> None:
    """What is known to be heard stays where it is."""
    cut = item(4.2, "assistant", "For how", interrupted=True)
    said = memory(item(1, "user", "Hi."), item(2, "assistant", "Yes?"), cut, item(4, "user", "A table."))
    assert [one[2] for one in said] == ["Hi.", "Yes?", "For how", "A table."]


def test_what_was_answered_without_its_item_stays() -> None:
    """LiveKit loses words that hand over to another agent; what was heard of them stays apart from the next."""
    lost = [speaks(1), heard(2, "Transfer me."), item(3, "assistant", "Billing.")]
    call = [*lost, speaks(6), heard(7, "My bill."), item(7.2, "user", "My bill, please."), item(8, "assistant", "Yes.")]
    said = [("user", 1, "Transfer me."), ("assistant", 1, "Billing."), ("user", 2, "My bill, please.")]
    assert memory(*call) == [*said, ("assistant", 2, "Yes.")]
    late = item(7.1, "user", "Transfer me to them.", created_at=BEGAN + 2.5)
    assert memory(*lost, speaks(6), late)[0] == ("user", 1, "Transfer me to them.")


def test_words_that_name_their_item_give_way_to_that_alone() -> None:
    """Words of two items that are under way at once are each replaced by their own."""
    words = [heard(2, "One") | {"item_id": "u1"}, heard(2.1, "Two") | {"item_id": "u2"}]
    again = heard(2.2, "Two more") | {"itemId": "u2"}
    assert memory(*words, again, close=True) == [("user", 1, "One Two more")]
    first = item(2.3, "user", "One.", "u1", created_at=BEGAN + 2, metrics={"started_speaking_at": BEGAN + 2})
    second = item(2.4, "user", "Two.", "u2", created_at=BEGAN + 2.05)
    assert memory(*words, again, first, second, close=True) == [("user", 1, "One."), ("user", 2, "Two.")]


def test_a_tool_is_called_once() -> None:
    """The start of a call, its end and its item are one call."""
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "n", "arguments": "{}", "created_at": BEGAN + 2}
    started = {"type": "tool_execution_updated", "update": {"type": "tool_call_started", "function_call": call}}
    output = {"type": "function_call_output", "id": "o", "call_id": "c", "output": "4", "created_at": BEGAN + 3}
    executed = {"type": "function_tools_executed", "function_calls": [call], "function_call_outputs": [output]}
    state = fold(item(1, "user", "One."), started, executed, call, output)
    assert sum(len(turn.tool_calls or ()) for turn in state.turns.values()) == 1


def test_wrong_variants_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialect that goes by arrival, or forgets what was cut, gives another memory for a recorded call."""
    call = next(one for one in CALLS if one.name == "tools_and_late_items")

    def is_right() -> bool:
        return bool(contents(fold_rows(journal_rows(call))) == call.document("contents"))

    assert is_right()
    with monkeypatch.context() as patch:
        patch.setattr(translation, "turn_at", lambda at, known: known.here)
        assert not is_right()
    with monkeypatch.context() as patch:
        patch.setattr(translation, "Interrupt", lambda **fields: Resume(item=fields["item"]))
        assert not is_right()


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 2**60), st.floats(), st.text(max_size=5), st.sampled_from(["user", "a"])
)
FIELDS = ["transcript", "is_final", "created_at", "item", "role", "content", "interrupted", "metrics", "id", "call_id"]
PARTS = st.recursive(
    VALUES, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), part, max_size=4)
)
FRAMES = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.sampled_from(sorted(KINDS)),
    st.dictionaries(st.sampled_from(FIELDS), PARTS),
)
RECORDED = [line["frame"] for call in CALLS for line in call.envelopes()]


@given(st.lists(FRAMES | st.sampled_from(RECORDED), max_size=20))
def test_any_frames_in_any_order_are_folded(frames: list[JsonObject]) -> None:
    """Frames of any call in any order, with fields of any value among them, give a memory and no fault."""
    taken = well_formed(frames, reduce)
    state = fold(*taken, close=True)
    assert "frames" not in state.ignored, json.dumps(taken, default=str)


REPORT = json.loads((ROOT / "fixtures" / "livekit-agents" / "webhook.json").read_text("utf-8"))


def test_a_session_report_is_a_whole_call() -> None:
    """The items of its history, with their latencies, tools and agents, and the end with LiveKit's reason and times."""
    frames = [one for one in map(reduce, split_report(REPORT)) if one is not None]
    state = fold(*split_report(REPORT), close=True)
    messages = contents(state)["contents"]
    assert [one["content"] for one in messages] == [
        "Front desk, hello.",
        "Is breakfast included?",
        "Breakfast is included, ",
    ]
    assert (messages[2]["metadata"]["agent"], messages[2]["metadata"]["interrupted"]) == ("restaurant", True)
    assert "4711" not in str(frames)
    assert "15551234567" not in str(frames)
    last = frames[-1]
    assert (last.session_id, last.end) == ("AJ_breakfast", "participant_disconnected")
    assert ((last.ended or 0) - (last.began or 0), last.began) == (12_000, BEGAN * 1000)


def test_a_session_report_without_a_history_is_refused() -> None:
    """It needs a job and items; what is not an item among them is left out."""
    items: JsonObject = {"chat_history": {"items": []}}
    for wrong in ({}, {"job_id": "AJ"}, items, {"job_id": 1, **items}):
        with pytest.raises(MalformedFrame):
            list(split_report(wrong))
    (end,) = split_report({"job_id": "AJ", "chat_history": {"items": [None, {}, {"id": 1}]}, "close_reason": None})
    assert end["reason"] == "ended"


SECRET = "a-secret-of-livekit-of-32-characters"


def is_taken(secret: str = SECRET, scheme: str = "Bearer", algorithm: str = "HS256", **claims: Any) -> bool:
    """Whether an upload is taken at BEGAN with a token of these claims."""
    usual = {"observability": {"write": True}, "nbf": BEGAN, "exp": BEGAN + 60}
    token = json_web_token(usual | claims, secret, algorithm)
    try:
        return verify(b"", {"authorization": f"{scheme} {token}"}, SECRET, BEGAN * 1000)
    except Exception:  # as the service does
        return False


def test_a_report_is_signed_with_livekits_secret() -> None:
    """A token for writing observations, valid now, and of no other secret, algorithm or grant."""
    assert is_taken()
    assert is_taken(nbf=BEGAN + 30)
    assert not is_taken(secret=SECRET[::-1])
    assert not is_taken(scheme="Basic")
    assert not is_taken(algorithm="HS384")
    assert not is_taken(exp=BEGAN)
    assert not is_taken(nbf=BEGAN + 120)
    assert not is_taken(observability={"write": False})
    assert not is_taken(observability={}, video={"roomJoin": True})
    for header in ("", "Bearer", "Bearer x", "Bearer a.b.c", "Bearer ..", f"Bearer {json_web_token({}, SECRET)}"):
        with pytest.raises(Exception):  # noqa: B017, PT011
            assert verify(b"", {"authorization": header}, SECRET, BEGAN * 1000)
