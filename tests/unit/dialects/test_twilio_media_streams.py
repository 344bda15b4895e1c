"""The dialect `twilio-media-streams`: a phone's playback as evidence about the replies of other stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bench.harness.truth import load_calls
from tests.support.dialects import RECORDINGS, Recording, reduced
from tests.support.paths import ROOT
from tests.support.phones import BEGAN, STACKS, Call, Network
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import MalformedFrame
from voicemem.dialects.twilio_media_streams import KINDS, MAX_LINES, reduce
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow, fold_event
from voicemem.transcript.history import messages
from voicemem.transcript.known import MAX_NOTES_BYTES
from voicemem.transcript.messages import Message
from voicemem.transcript.state import State

CALLS = load_calls(ROOT / "fixtures" / "truth" / "calls")
NETWORKS = (Network(20), Network(150, 60), Network(300, 100))
TEXT = "In Oslo it rains until the evening, and tomorrow the sun comes out."


@pytest.mark.long
async def test_words_of_cut_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside each stack, at most 0.6 words of a cut reply are wrong, whatever the network and the app are like."""
    for stack in STACKS.values():
        wrong: list[int] = []
        for number, call in enumerate(CALLS[::2]):
            app: dict[str, Any] = {"late_ms": number % 4 * 150, "early_ms": number % 5 * 100, "marks": number % 3 > 0}
            called = Call(call, stack, NETWORKS[number % 3], monkeypatch, truncates=number % 2 == 0, **app)
            called.run()
            wrong += called.wrong()
        assert len(wrong) > 30
        assert sum(wrong) / len(wrong) <= 0.6, stack.name


@pytest.mark.long
@every_row("speed", [0.97, 1.03])
async def test_phone_that_plays_slower_or_faster(speed: float) -> None:
    """Its clock is off, with marks and without them."""
    with pytest.MonkeyPatch.context() as patched:
        wrong: list[int] = []
        for number, call in enumerate(CALLS[::4]):
            called = Call(call, STACKS["openai-realtime"], NETWORKS[1], patched, speed=speed, marks=number % 2 == 0)
            called.run()
            wrong += called.wrong()
    assert sum(wrong) / len(wrong) <= 0.6


async def test_words_of_a_call_that_is_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last reply what the phone had played when the caller hung up; nothing before it was sent to the phone."""
    for stack in STACKS.values():
        wrong: list[int] = []
        for number, call in enumerate(CALLS[::3]):
            after: dict[str, Any] = {"hang_up_ms": number % 4 * 400 + 300, "late_ms": 600}
            called = Call(call, stack, NETWORKS[number % 3], monkeypatch, **after)
            called.run()
            wrong.append([*called.wrong()][-1])
        assert sum(wrong) / len(wrong) <= 0.6, (stack.name, wrong)


def row(at: int, event: JsonObject) -> JsonObject:
    return {"ts": BEGAN + at, **event}


def phone(at: int, sent: int, played: int, **others: Any) -> JsonObject:
    """A report: `since` and the time of a cut count from the beginning of the call."""
    frame: JsonObject = {"event": "playback", "streamSid": "MZ1", "sent_ms": sent, "at_ms": played, **others}
    if "since" in frame:
        frame["since"] += BEGAN
    frame["cuts"] = [[BEGAN + cut[0], *cut[1:]] for cut in frame.get("cuts", [])]
    return row(at, {"type": "frame", "dialect": "twilio-media-streams", "frame": frame})


def reply(at: int, item: str, text: str = TEXT, total_ms: int | None = 4_000) -> list[JsonObject]:
    """A reply of a program's own, and the length of its audio."""
    done = row(at + 50, {"type": "llm.done", "item": item})
    audio = [] if total_ms is None else [row(at + 60, {"type": "tts", "item": item, "total_audio_ms": total_ms})]
    return [row(at, {"type": "llm.delta", "item": item, "text": text}), done, *audio]


def asked(at: int) -> JsonObject:
    return row(at, {"type": "asr", "text": "And then?", "final": True})


def memory(events: Sequence[JsonObject], end: int, restarts: bool = False) -> list[Message]:
    """What the agent said, when the caller has gone."""
    state = State()
    for position, event in enumerate(events, 1):
        entry = decode_journaled(msgspec.json.encode(event))
        fold_event(state, *DecodedRow(position, BEGAN + end, entry, event.get("dialect", "app")))
    close = msgspec.structs.replace(closed(BEGAN + end), reason=CLOSED)
    fold_event(state, *DecodedRow(len(events) + 1, BEGAN + end, close))
    assert state.ignored == {}
    for notes in state.notes.values():
        assert notes.size <= MAX_NOTES_BYTES
        assert len(notes.values) <= MAX_LINES
    return [message for message in messages(state) if message.role == "assistant"]


def heard(events: Sequence[JsonObject], end: int = 60_000) -> list[tuple[str, bool]]:
    """What was heard of each reply, and whether it was interrupted."""
    return [(one.content, bool(one.metadata.get("interrupted"))) for one in memory(events, end)]


HALF = "In Oslo it rains until the "
"""What has been heard when half of the audio was played."""


@every_row("total_ms", [4_000, None])
def test_replies_of_a_program(total_ms: int | None) -> None:
    """A program's own events are enough; where they say no length of the audio, what was sent to the phone is it."""
    cut = phone(2_200, 4_000, 4_000, cuts=[[2_200, 2_000, 4_000]])
    events = [
        asked(0),
        *reply(100, "a", total_ms=total_ms),
        phone(200, 4_000, 0, since=200),
        cut,
        phone(4_000, 4_000, 4_000),
    ]
    [(text, is_cut)] = heard(events)
    assert (text, is_cut) == (HALF, True)


def test_two_replies_in_the_queue() -> None:
    """The first was heard whole when the queue is cleared; the second as far as the phone had come in it."""
    events = [asked(0), *reply(100, "a"), *reply(400, "b"), phone(500, 8_000, 340, since=160)]
    cut = phone(6_160, 8_000, 8_000, cuts=[[6_160, 6_000, 8_000]])
    (first, second) = heard([*events, cut])
    assert first == (TEXT, False)
    assert second == (HALF, True)


def test_reply_behind_a_cut_one() -> None:
    """What was queued behind the reply that is cut was not heard at all."""
    events = [asked(0), *reply(100, "a"), *reply(400, "b"), phone(500, 8_000, 340, since=160)]
    cut = phone(2_160, 8_000, 8_000, cuts=[[2_160, 2_000, 8_000]])
    assert heard([*events, cut]) == [(HALF, True), ("", True)]


def test_more_replies_than_usual_in_the_queue() -> None:
    """However many are sent at once, each has its own part of the queue."""
    events = [asked(0), *(event for number in range(30) for event in reply(100 + 10 * number, f"item_{number}"))]
    events += [phone(800, 120_000, 640, since=160)]
    cut = phone(102_160, 120_000, 120_000, cuts=[[102_160, 102_000, 120_000]])
    assert heard([*events, cut], 120_000) == [(TEXT, False)] * 25 + [(HALF, True)] + [("", True)] * 4


def test_reply_that_was_never_sent() -> None:
    """Audio that has come from the model, and that the app has not sent to the phone, was not heard."""
    events = [
        asked(0),
        *reply(100, "a"),
        phone(200, 4_000, 0, since=170),
        phone(5_000, 4_000, 4_000),
        *reply(5_100, "b"),
    ]
    assert heard(events, end=5_400) == [(TEXT, False), ("", True)]


def test_hang_up() -> None:
    """When the stream stops, or its socket is lost, the rest of the queue is not played."""
    events = [asked(0), *reply(100, "a"), phone(200, 4_000, 0, since=200)]
    stop = row(
        2_200, {"type": "frame", "dialect": "twilio-media-streams", "frame": {"event": "stop", "streamSid": "MZ1"}}
    )
    for rows, end in (([*events, stop], 9_000), (events, 2_200)):
        [(text, is_cut)] = heard(rows, end)
        assert (text, is_cut) == (HALF, True)


def test_audio_of_no_reply() -> None:
    """A greeting or music of the app's own is not a reply's audio, which was not sent before it came."""
    events = [phone(100, 3_000, 0, since=100), phone(3_101, 3_000, 3_000), asked(4_000), *reply(4_500, "a")]
    events += [phone(4_600, 7_000, 3_000, since=4_600)]
    cut = phone(6_600, 7_000, 7_000, cuts=[[6_600, 5_000, 7_000]])
    [(text, is_cut)] = heard([*events, cut])
    assert (text, is_cut) == (HALF, True)


@every_row("total_ms", [4_000, None])
@every_row("silence_ms", range(1_000, 20_000, 1_400))
def test_silence_as_audio(silence_ms: int, total_ms: int | None) -> None:
    """Silence that the app sends between replies, in real time, is of none, however long."""
    events = [asked(0), *reply(100, "a", total_ms=total_ms), phone(300, 4_000, 200, since=120)]
    ends, sent = 4_200 + silence_ms, 4_000 + silence_ms
    events += [phone(at + 200, at, at, since=at) for at in range(4_200, ends, 200)]
    events += [asked(ends), *reply(ends + 100, "b", total_ms=total_ms)]
    events += [phone(ends + 300, sent + 4_000, sent + 100, since=ends + 200)]
    events += [phone(ends + 2_200, sent + 4_000, sent + 4_000, cuts=[[ends + 2_200, sent + 2_000, sent + 4_000]])]
    assert heard(events) == [(TEXT, False), (HALF, True)]


@every_row("late_ms", [0, 800])
def test_reply_after_a_clear(late_ms: int) -> None:
    """What came of a cut reply and was not sent any more shifts nothing of the next; nor what was sent late."""
    events = [asked(0), *reply(100, "a", total_ms=6_000), phone(200, 3_000, 0, since=160)]
    events += [phone(1_200, 3_000, 3_000, cuts=[[1_200, 1_000, 3_000]])]
    sent = 3_000
    if late_ms:
        sent += late_ms
        events += [phone(1_400, sent, 3_000 + 180, since=1_220)]
    events += [asked(2_500), *reply(3_000, "b"), phone(3_200, sent + 4_000, sent + 100, since=3_100)]
    events += [phone(5_100, sent + 4_000, sent + 4_000, cuts=[[5_100, sent + 2_000, sent + 4_000]])]
    (_, (text, is_cut)) = heard(events)
    assert (text, is_cut) == (HALF, True)


def test_positions_of_the_app_count_less() -> None:
    """A position that the app takes from clocks of its own does not take the place of what the phone has played."""
    events = [asked(0), *reply(100, "a"), phone(200, 4_000, 0, since=200)]
    cut = phone(2_200, 4_000, 4_000, cuts=[[2_200, 2_000, 4_000]])
    wrong = row(2_210, {"type": "interrupt", "item": "a", "audio_end_ms": 3_900})
    [(text, is_cut)] = heard([*events, cut, wrong, phone(2_900, 4_000, 4_000)])
    assert (text, is_cut) == (HALF, True)


def test_two_phones() -> None:
    """Each stream has positions of its own, and what was sent to one only was heard there."""
    other = {"streamSid": "MZ2"}
    events = [asked(0), *reply(100, "a"), phone(200, 4_000, 0, since=200), phone(4_300, 4_000, 4_000)]
    events += [asked(5_000), *reply(5_100, "b"), phone(5_200, 4_000, 0, since=5_200, **other)]
    events += [phone(7_200, 4_000, 4_000, cuts=[[7_200, 2_000, 4_000]], **other)]
    first, second = heard(events)
    assert first == (TEXT, False)
    assert second == (HALF, True)


@every_row(
    "report",
    [
        {"sent_ms": -5, "at_ms": -9},
        {"sent_ms": 2**60, "at_ms": 2**61, "since": 1},
        {"sent_ms": 4_000, "at_ms": 9_000, "since": 2**50},
        {"sent_ms": 4_000, "at_ms": 0, "cuts": [[], [1], [-1, -1, -1], [1, 2, 3, 4]]},
        {"sent_ms": 4_000, "at_ms": 0, "cuts": [[2**61, 2**61, 2**61]] * 40},
    ],
    ids=repr,
)
def test_reports_that_cannot_be(report: JsonObject) -> None:
    """They are folded without a fault, and the reply stays."""
    frame = {"event": "playback", "streamSid": "MZ1", **report}
    wrong = row(300, {"type": "frame", "dialect": "twilio-media-streams", "frame": frame})
    assert [text[:7] for text, _ in heard([asked(0), *reply(100, "a"), phone(200, 4_000, 0, since=200), wrong])] == [
        TEXT[:7]
    ]


def test_notes_are_bounded() -> None:
    """However many streams, replies and reports there are."""
    events: list[JsonObject] = []
    for number in range(300):
        at, stream = 1_000 * number, {"streamSid": f"MZ{number % 9}"}
        events += [
            asked(at),
            *reply(at + 10, f"item_{number}", total_ms=500),
            phone(at + 100, 500 * number + 500, 500 * number, since=at + 90, **stream),
        ]
    assert len(memory(events, 400_000)) == 300


@every_row("frame", ["text", [], {}, {"event": 1}, {"event": "dtmf"}, {"event": "playback", "sent_ms": "x"}], ids=repr)
def test_malformed_frames(frame: Any) -> None:
    """What is not a frame of the dialect is refused."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


@every_row("recording", [one for one in RECORDINGS if one.dialect == "twilio-media-streams"], ids=str)
def test_no_audio_and_no_parameters_are_kept(recording: Recording) -> None:
    """Neither audio nor what the app was called with reaches the journal."""
    kept = msgspec.json.encode([frame.content for _, frame in reduced(recording)])
    assert not any(word in kept for word in (b"f39", b"media", b"customParameters", b"+49", b"AC1"))


def test_every_kept_type_is_one_sides() -> None:
    """The app reports, and the phone says the rest."""
    assert {name: kind.side for name, kind in KINDS.items() if kind.record is not None} == {
        "start": "vendor",
        "stop": "vendor",
        "dtmf": "vendor",
        "playback": "app",
    }
