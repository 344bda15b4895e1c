"""The dialect of ElevenLabs Agents: what no recorded call shows, hostile frames, and the webhook's signature."""

from __future__ import annotations

import base64
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
from voicemem.dialects.elevenlabs_agents.frames import frames, verify, words_of
from voicemem.dialects.elevenlabs_agents.post_call import without_ellipsis
from voicemem.dialects.elevenlabs_agents.translation import ELEVENLABS_AGENTS, KINDS, reduce
from voicemem.dialects.kinds import no_events
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmDone, Tts
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow
from voicemem.transcript.turns import turns

CALLS = {one.name: one for one in RECORDINGS if one.dialect == "elevenlabs-agents"}
BODY = ROOT / "fixtures" / "elevenlabs-agents" / "webhook.json"
NOW = 1_763_800_060_000
SECRET = "wsec_of_a_test"
FROM_THE_SDK = "bd0c5ead34016abc19d3469ccc4405715ac3828fdf4c9bc78c4cd5f4833c6f16"
"""Over the body of the test below; `construct_event` of elevenlabs 2.78.0 takes it."""
PRIVATE = ("+49", "sk-not", "You are a joker", "menu", "analysis", "agent_1")


def memory(*sent: JsonObject) -> list[Any]:
    """The messages that these frames give, one a second, with a hang-up a second later."""
    return memory_at(*((position * 1000, raw) for position, raw in enumerate(sent, 1)))


def memory_at(*sent: tuple[int, JsonObject]) -> list[Any]:
    """The messages that frames of these times give, with a hang-up a second later."""
    rows = []
    for position, (ts, raw) in enumerate(sent, 1):
        frame = reduce(raw)
        if frame is not None:
            event = FrameEvent(dialect="elevenlabs-agents", frame=frame.content, ts=ts, id=frame.id)
            rows.append(DecodedRow(position, ts, event, "main"))
    end = sent[-1][0] + 1000
    rows.append(DecodedRow(len(sent) + 1, end, msgspec.structs.replace(closed(end), reason=CLOSED)))
    messages: list[Any] = contents(fold_rows(rows))["contents"]
    return messages


def user(text: str, event: int) -> JsonObject:
    return {"type": "user_transcript", "user_transcription_event": {"user_transcript": text, "event_id": event}}


def tentative(text: str, event: int) -> JsonObject:
    inside = {"user_transcript": text, "event_id": event}
    return {"type": "tentative_user_transcript", "tentative_user_transcription_event": inside}


def agent(text: str, event: int) -> JsonObject:
    return {"type": "agent_response", "agent_response_event": {"agent_response": text, "event_id": event}}


def corrected(original: str, heard: str, event: int) -> JsonObject:
    inside = {"original_agent_response": original, "corrected_agent_response": heard, "event_id": event}
    return {"type": "agent_response_correction", "agent_response_correction_event": inside}


def audio(milliseconds: int, event: int) -> JsonObject:
    return {"type": "audio", "audio_event": {"audio_base_64": "A" * (milliseconds * 32 * 4 // 3), "event_id": event}}


def timed_audio(text: str, event: int, each_ms: int = 200) -> JsonObject:
    """A piece of audio with the times of its characters."""
    frame = audio(len(text) * each_ms, event)
    times = [float(at * each_ms) for at in range(len(text))]
    alignment = {"chars": [*text], "char_start_times_ms": times, "char_durations_ms": [float(each_ms)] * len(text)}
    frame["audio_event"]["alignment"] = alignment
    return frame


INTERRUPTION: JsonObject = {"type": "interruption", "interruption_event": {"event_id": 90}}


def test_private_things_are_not_kept() -> None:
    """Neither audio, prompts, variables, phone numbers, context nor the webhook's knowledge of the caller are kept."""
    for recording in CALLS.values():
        for _, frame in reduced(recording):
            text = json.dumps(frame.content)
            assert not [one for one in PRIVATE if one in text]
            assert "audio_base_64" not in text


def test_audio_is_a_count() -> None:
    """Audio without times is a count, which may be added up; with times it has words."""
    frame = reduce(
        {"type": "audio", "audio_event": {"audio_base_64": base64.b64encode(bytes(99)).decode(), "event_id": 3}}
    )
    assert frame is not None
    assert frame.content == {"type": "audio", "audio_bytes": 99, "event_id": 3}
    assert frame.counts_audio
    assert frame.id is None


def test_words_of_characters() -> None:
    """Characters are put together to words, of scripts without spaces one by one; useless times do no harm."""
    text = "I’m “so” 你好 ok"
    times = [float(10 * place) for place in range(len(text))]
    words = [word for word, _, _ in words_of(zip(text, times, [10.0] * len(text), strict=True))]
    assert words == ["I’m ", "“so” ", "你", "好 ", "ok"]
    useless = [("O", 0, 50), ("f", None, 50), ("!", float("inf"), 1), (" ", -5, 1), (7, 90, 10), ("a", 1e300, 10**30)]
    assert words_of(useless) == [("Of! ", 0, 101), ("a", 101, 101)]


@every_row(
    ("pieces", "heard"),
    [
        (("你好，我们", "今天去公园。"), "你好，我们"),
        (("東京は今", "日も晴れです。"), "東京は今日"),
        (("วันนี้อ", "ากาศดีมาก"), "วัน"),
        (("네, 내일 ", "오전에 가요."), "네, 내일 "),
        (("네, 내", "일 오전에 가요."), "네, 내일 "),
        (("Yes, of ", "course, we do."), "Yes, "),
        (("نعم، غ", "داً صباحاً."), "نعم، "),
    ],
)
def test_every_script_is_cut_where_its_words_or_characters_end(pieces: tuple[str, ...], heard: str) -> None:
    """A second of audio was played, five characters: whole words count, or in some scripts characters."""
    first, second = (timed_audio(piece, 2) for piece in pieces)
    sent = [(1000, agent("".join(pieces), 2)), (1000, first), (1100, second), (2000, INTERRUPTION)]
    assert [one["content"] for one in memory_at(*sent)] == [heard]


def test_correction_counts_after_the_clock_said_it_was_over() -> None:
    """A correction counts though by the clock all of the reply's audio had been played."""
    sent = [user("Go on.", 1), agent("One two three.", 2), audio(100, 3), INTERRUPTION]
    assert memory(*sent)[1]["content"] == "One two three."
    message = memory(*sent, corrected("One two three.", "One two...", 4))[1]
    assert (message["content"], message["metadata"]["interrupt_timestamp"]) == ("One two", 4000)


def test_correction_of_an_unknown_reply_says_it() -> None:
    """Where the reply itself was lost, the correction has its text."""
    message = memory(user("Go on.", 1), corrected("One two three.", "One...", 4))[1]
    assert (message["content"], message["metadata"]["original"]) == ("One", "One two three.")


def test_correction_of_both_answers_around_a_tool() -> None:
    """A correction that says both replies of an event cuts the second where its text ends."""
    said = [agent("One moment.", 1), audio(800, 1), agent("It is nine euros, all in all.", 1), audio(2_000, 1)]
    both = corrected("One moment. It is nine euros, all in all.", "One moment. It is nine...", 4)
    assert [one["content"] for one in memory(user("How much?", 1), *said, INTERRUPTION, both)] == [
        *("How much?", "One moment.", "It is nine"),
    ]


def test_replies_with_names_of_their_own() -> None:
    """A reply with a `response_id` counts once however often it comes; the same text under another one is another."""

    def named(frame: JsonObject, id: str) -> JsonObject:
        return {key: one | {"response_id": id} if isinstance(one, dict) else one for key, one in frame.items()}

    parts = [("start", ""), ("delta", "One "), ("delta", "moment."), ("stop", "")]
    streamed = [
        {"type": "agent_chat_response_part", "text_response_part": {"text": text, "type": type, "event_id": 1}}
        for type, text in parts
    ]
    first = [named(one, "r1") for one in (*streamed, agent("One moment.", 1))]
    sent = [
        *first,
        audio(800, 1),
        first[-1],
        named(agent("One moment.", 1), "r2"),
        named(agent("It is nine.", 1), "r3"),
    ]
    found = memory(user("How much?", 1), *sent, first[-1], user("Thanks.", 2))
    assert [(one["turn_id"], one["content"]) for one in found] == [
        (1, "How much?"),
        (1, "One moment."),
        (1, "One moment."),
        (1, "It is nine."),
        (2, "Thanks."),
    ]


def test_an_interruption_of_which_no_audio_was_seen() -> None:
    """It cuts the newest reply; the one before it was over by the length of its text, for any voice."""
    sent = [(0, user("How much?", 1)), (500, agent("One moment.", 1)), (4_000, agent("It is nine euros.", 1))]
    found = memory_at(*sent, (4_700, INTERRUPTION))
    assert [one["content"] for one in found] == ["How much?", "One moment.", "It is nine "]
    assert ["interrupted" in one["metadata"] for one in found] == [False, False, True]


def test_correction_that_corrects_nothing_marks_nothing() -> None:
    """A correction with the same text is no interruption."""
    message = memory(user("Go on.", 1), agent("One two.", 2), corrected("One two.", "One two.", 4))[1]
    assert "interrupted" not in message["metadata"]


@pytest.mark.parametrize(
    ("heard", "original", "expected"),
    [
        ("One...", "One two.", "One"),
        ("Wait...", "Wait... what?", "Wait..."),
        ("One…", "One two.", "One"),
        ("", "a", ""),
    ],
)
def test_ellipsis(heard: str, original: str, expected: str) -> None:
    """The ellipsis of a correction is taken off, unless the reply has it there."""
    assert without_ellipsis(heard, original) == expected


def test_tentative_text_under_another_number_is_said_once() -> None:
    """A final transcript with another number than the tentative one replaces it."""
    messages = memory(tentative("Tell me", 1), user("Tell me a joke.", 2))
    assert [(one["content"], one["turn_id"]) for one in messages] == [("Tell me a joke.", 1)]


def test_unfinished_user_text_stays() -> None:
    """What was tentative when the call ended is kept as such."""
    message = memory(tentative("Tell me", 1))[0]
    assert (message["content"], message["metadata"]["partial"]) == ("Tell me", True)


def test_a_silent_user_says_nothing() -> None:
    """`...` is what a silent user says: no message, and what the agent says then is of the same turn."""
    call = [agent("Hello.", 1), user("Hi.", 5), agent("Your name?", 5), tentative("...", 9), user("...", 9)]
    said = [("Hello.", 0), ("Hi.", 1), ("Your name?", 1), ("Are you there?", 1), ("Yes.", 2)]
    found = memory(*call, agent("Are you there?", 9), user("Yes.", 12))
    assert said == [(one["content"], one["turn_id"]) for one in found]
    items = [{"role": "user" if text in ("Hi.", "Yes.") else "agent", "message": text} for text, _ in said]
    items.insert(3, {"role": "user", "message": "..."})
    data = {"conversation_id": "c", "transcript": items}
    after = memory(*frames({"type": "post_call_transcription", "data": data}))
    assert said == [(one["content"], one["turn_id"]) for one in after]


def test_queued_replies_are_all_cut() -> None:
    """An interruption also cuts the replies of the turn that wait to be played."""
    sent = [
        user("Go on.", 1),
        agent("One two three.", 2),
        audio(9000, 2),
        agent("Four five.", 3),
        audio(900, 3),
        INTERRUPTION,
    ]
    messages = memory(*sent)
    assert messages[1]["metadata"]["interrupted"]
    assert (messages[2]["content"], messages[2]["metadata"]["original"]) == ("", "Four five.")


def test_audio_interrupted_before_its_text_is_cut() -> None:
    """A reply whose text comes after the interruption of its audio was heard as far as the clock says."""
    sent = [user("Go on.", 1), audio(4000, 2), INTERRUPTION, agent("One two three four.", 2)]
    message = memory(*sent)[1]
    assert (message["content"], message["metadata"]["interrupt_timestamp"]) == ("One ", 3000)
    messages = memory(*sent[:3], user("No.", 3), agent("Five six.", 4), audio(100, 4))
    assert [one["content"] for one in messages if "interrupted" not in one["metadata"]][-1] == "Five six."


def test_unknown_and_malformed_frames() -> None:
    """Other types are unknown; frames of other forms, sides and vendors are malformed."""
    with pytest.raises(UnknownFrame):
        reduce({"type": "new_event"})
    hostile: list[Any] = ["text", b"\0", {}, {"type": 3}, {"type": "audio"}, {"type": "audio", "audio_event": {}}]
    hostile += [user("a", 1) | {"user_transcription_event": []}, {"type": "session.created"} | {"type": None}]
    for frame in hostile:
        with pytest.raises(MalformedFrame):
            reduce(frame)
    for side, frame in (("app", INTERRUPTION), ("vendor", {"type": "pong"}), ("vendor", {"user_audio_chunk": "A"})):
        with pytest.raises(MalformedFrame):
            reduce(frame, side)  # type: ignore[arg-type]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
recorded_frames = [row["frame"] for one in CALLS.values() for row in one.envelopes()]


@st.composite
def mutated_frames(draw: st.DrawFn) -> Any:
    """A recorded frame of which a field, at any level, has another value."""
    frame = json.loads(json.dumps(draw(st.sampled_from(recorded_frames))))
    at: Any = frame
    while isinstance(at, dict) and at:
        key = draw(st.sampled_from(sorted(at)))
        if not isinstance(at[key], dict) or draw(st.booleans()):
            at[key] = draw(json_values | st.integers(0, 20))
            break
        at = at[key]
    return frame


@given(json_values | mutated_frames())
def test_any_frame_is_reduced_or_refused(frame: Any) -> None:
    """Whatever comes is kept, ignored or refused by the two errors, and what is kept is kept again as it is."""
    try:
        kept = reduce(frame)
    except (MalformedFrame, UnknownFrame):
        return
    if kept is not None:
        assert reduce(json.loads(msgspec.json.encode(kept.content))) == kept


@given(st.lists(st.sampled_from(recorded_frames) | mutated_frames(), max_size=30), st.booleans())
def test_frames_in_any_order_never_fail(sent: list[Any], with_times: bool) -> None:
    """No order, loss, repetition or change of frames makes the translation fail."""
    rows = []
    for position, raw in enumerate(sent, 1):
        try:
            frame = reduce(raw)
        except (MalformedFrame, UnknownFrame):
            continue
        if frame is not None:
            ts = position * 100 if with_times else None
            event = FrameEvent(dialect="elevenlabs-agents", frame=frame.content, ts=ts)
            rows.append(DecodedRow(position, position * 100, event, "main"))
    rows.append(DecodedRow(len(sent) + 1, 9_999, closed(9_999)))
    state = fold_rows(rows)
    assert state.ignored == {}


def test_every_kind_has_a_rule() -> None:
    """Whatever is kept is translated."""
    for kind in KINDS.values():
        assert (kind.record is None) == (kind.rule is no_events)


# Wrong dialects


def at_half_the_rate(made: Any) -> Any:
    """Audio taken for half as long as it is."""
    total = made.total_audio_ms if isinstance(made, Tts) else None
    return made if total is None else msgspec.structs.replace(made, total_audio_ms=total // 2, words=None)


def without_truncation(made: Any) -> Any:
    """A correction whose heard text is not taken, nor the clock's position."""
    if not isinstance(made, Interrupt):
        return made
    return msgspec.structs.replace(made, heard_text=None, audio_end_ms=None)


def in_arrival_order(made: Any) -> Any:
    """No event says which item or turn it is about."""
    if isinstance(made, Asr | LlmDone | Interrupt):
        return msgspec.structs.replace(made, item=None, turn_id=None)
    return made


def always_more(made: Any) -> Any:
    """An interruption taken for one though the audio was over."""
    return msgspec.structs.replace(made, more=True) if isinstance(made, Interrupt) else made


@pytest.mark.parametrize(
    "wrong", [at_half_the_rate, without_truncation, in_arrival_order, always_more, speech_is_an_interruption]
)
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(ELEVENLABS_AGENTS.name, wrong, monkeypatch)


@every_row("call", CALLS.values(), ids=str)
def test_repeated_frames_of_a_conversation_change_nothing(call: Recording) -> None:
    """Transcripts, replies, interruptions and corrections that come twice count once, though they have no ids."""
    numbered = ("user_transcript", "agent_response", "interruption", "agent_response_correction")
    rows = journal_rows(call)
    twice = [row for row in rows for _ in range(1 + (kind_of(row) in numbered))]
    again = [row._replace(position=position) for position, row in enumerate(twice, 1)]
    assert contents(fold_rows(again)) == call.document("contents")


def kind_of(row: DecodedRow) -> str | None:
    return row.event.frame["type"] if isinstance(row.event, FrameEvent) else None


def test_a_second_conversation_counts_anew() -> None:
    """An app that connects again has the same numbers again, with other texts."""
    sent: list[JsonObject] = []
    for name, answer in (("conv_1", "Once upon a time."), ("conv_2", "Why not?")):
        inside = {"conversation_id": name, "agent_output_audio_format": "pcm_16000"}
        metadata = {"type": "conversation_initiation_metadata", "conversation_initiation_metadata_event": inside}
        sent += [metadata, agent("Hello!", 1), audio(500, 1), user(f"To {name}.", 2), agent(answer, 3), audio(9000, 3)]
        sent += [INTERRUPTION]
    said = ["Hello!", "To conv_1.", "Once upon a time.", "Hello!", "To conv_2.", "Why not?"]
    messages = memory(*sent)
    assert [one["metadata"].get("original", one["content"]) for one in messages] == said
    assert [place for place, one in enumerate(messages) if "interrupted" in one["metadata"]] == [2, 5]


# The webhook


def signature(body: bytes, secret: str = SECRET, seconds: int = NOW // 1000) -> str:
    signed = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v0={signed}"


def signed_by(header: str, body: bytes = b"{}", now: int = NOW, secret: str = SECRET) -> bool:
    hook = ELEVENLABS_AGENTS.hook
    assert hook is not None
    return hook.verify(body, {"elevenlabs-signature": header}, secret, now)


def test_signature_of_the_sdk_is_accepted() -> None:
    """A signature that ElevenLabs' own SDK accepts is accepted, over the bytes as they came."""
    assert signed_by(f"t=1763800060,v0={FROM_THE_SDK}", b'{"type": "post_call_transcription"}')
    assert signed_by(signature(b"\xff{"), b"\xff{")


@every_row(
    "header",
    [
        "",
        "t=,v0=",
        "v0=" + "0" * 64,
        f"t={NOW // 1000}",
        f"t={NOW // 1000},v0=",
        f"t={NOW // 1000},v0=é",
        "t=²,v0=" + "0" * 64,
        "t=" + "9" * 400 + ",v0=" + "0" * 64,
        signature(b"{}", "another secret"),
        signature(b"{ }"),
        signature(b"{}", seconds=NOW // 1000 - 1801),
        signature(b"{}", seconds=NOW // 1000 + 1801),
        signature(b"{}").replace("v0", "v1"),
        signature(b"{}") + ",t=1",
    ],
)
def test_wrong_signatures_are_refused(header: str) -> None:
    """A signature of another secret, body, scheme or time is refused, and so is anything else."""
    assert not signed_by(header)


@given(st.text(max_size=80), st.binary(max_size=20))
def test_any_header_is_refused(header: str, body: bytes) -> None:
    """Whatever stands in the header, verification answers."""
    assert not verify(body, {"elevenlabs-signature": header}, SECRET, NOW)


def test_empty_secret_verifies_nothing() -> None:
    """Without a secret no one can have signed."""
    assert not signed_by(signature(b"{}", ""), secret="")


def test_body_becomes_frames() -> None:
    """The webhook's body gives one frame an item and one for the end, each of which names the conversation."""
    body = json.loads(BODY.read_text("utf-8"))
    kept = [reduce(frame) for frame in frames(body)]
    recorded = [frame for _, frame in reduced(CALLS["webhook_alone"])]
    assert kept == recorded
    assert {frame.session_id for frame in recorded} == {"conv_7201"}
    assert [frame.end for frame in recorded] == [None] * (len(recorded) - 1) + ["ended"]


def test_latencies_of_the_webhook() -> None:
    """Each is a metric of the turn that it was measured in, in ms; names of later versions are not kept."""
    state = fold_rows(journal_rows(CALLS["live_and_webhook_with_latencies"]))
    found = {
        number: [(one.name, one.latency_ms) for one in turn.latencies or ()] for number, turn in state.turns.items()
    }
    assert found == {
        0: [("tts_ttfb", 150)],
        1: [
            ("asr_ttlw", 120),
            *(("llm_ttft", 400), ("tts_ttfb", 200)),
            *(("llm_ttft", 610), ("llm_ttfs", 712), ("tts_ttfb", 180), ("e2e", 1275)),
        ],
        2: [("asr_ttlw", 0)],
    }


def test_what_the_caller_says_is_no_waiting() -> None:
    """The webhook has the beginnings of lines alone: when one was said is guessed by its length."""
    said = [("user", "I would like to hear a joke, please.", 3), ("agent", "Of course.", 6), ("user", "Thanks.", 8)]
    said += [("agent", "Bye.", 9), ("user", "A very long question, " * 9, 20), ("agent", "Yes.", 21)]
    transcript = [{"role": role, "message": text, "time_in_call_secs": at} for role, text, at in said]
    data = {"conversation_id": "c", "transcript": transcript, "metadata": {"start_time_unix_secs": NOW // 1000}}
    rows = []
    for position, raw in enumerate(frames({"type": "post_call_transcription", "data": data}), 1):
        frame = reduce(raw)
        assert frame is not None
        event = FrameEvent(dialect="elevenlabs-agents", frame=frame.content, ts=frame.ts, id=frame.id)
        rows.append(DecodedRow(position, NOW, event, "main"))
    found = [(one["reply_after_ms"], one["reply_after_by"]) for one in turns(fold_rows(rows))]
    assert found == [(750, "estimate"), (684, "estimate"), (None, None)]


def test_other_webhooks_say_nothing() -> None:
    """Audio after the call, and calls that never began, are accepted and say nothing."""
    assert [*frames({"type": "post_call_audio", "data": {"full_audio": "AAAA"}})] == []
    assert [*frames({"type": "call_initiation_failure", "data": {}})] == []


@pytest.mark.parametrize("data", [None, {}, {"conversation_id": "c", "transcript": 1}, {"transcript": []}])
def test_malformed_bodies(data: Any) -> None:
    """A body of another form is malformed."""
    for body in ({}, {"type": 1}, {"type": "post_call_transcription", "data": data}):
        with pytest.raises(MalformedFrame):
            [*frames(body)]


def test_webhook_twice_changes_nothing() -> None:
    """A webhook that is delivered again, and after the live conversation, changes nothing."""
    call = CALLS["live_and_webhook"]
    rows = journal_rows(call)
    again = [row._replace(position=row.position + 1000) for row in rows[:-1]]
    both = [*rows[:-1], *again, rows[-1]._replace(position=9999)]
    assert contents(fold_rows(both)) == call.document("contents")
