"""The meter of a phone's audio: what it counts, and what it says of how far the phone has played."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.rows import every_row
from voicemem.dialects.dialect import Frame, MalformedFrame
from voicemem.dialects.registry import DIALECTS
from voicemem.integrations.tee.phone import MAX_MARKS, PhoneMeter, PhoneQueue
from voicemem.protocol.types import JsonObject

BEGAN = 1_790_000_000_000
START = {"event": "start", "streamSid": "MZ1", "start": {"callSid": "CA1", "customParameters": {"number": "+49301"}}}


def media(ms: float, **others: Any) -> JsonObject:
    payload = base64.b64encode(bytes(round(ms * 8))).decode()
    return {"event": "media", "streamSid": "MZ1", "media": {"payload": payload, **others}}


def mark(name: str) -> JsonObject:
    return {"event": "mark", "streamSid": "MZ1", "mark": {"name": name}}


CLEAR = {"event": "clear", "streamSid": "MZ1"}


def after(*crossings: tuple[int, str, Any]) -> PhoneMeter:
    """A meter that has seen these frames: when (ms from the beginning), from whom, and which."""
    meter = PhoneMeter()
    for at, side, frame in crossings:
        meter.take(frame, side, BEGAN + at)  # type: ignore[arg-type]
    return meter


def position(meter: PhoneMeter, at: int) -> int:
    return round(meter.at_ms(BEGAN + at))


def test_what_is_queued_plays_in_real_time() -> None:
    """The clock begins with the first byte, stands still when nothing is left, and begins again with the next."""
    meter = after((0, "vendor", START), (100, "app", media(400)), (150, "app", media(400)), (2_000, "app", media(500)))
    assert meter.sent_ms == 1_300
    assert [position(meter, at) for at in (2_000, 2_200, 5_000)] == [800, 1_000, 1_300]


def test_clear_cuts() -> None:
    """What is left of the queue is over, and the report says how far the phone had played."""
    meter = after((0, "app", media(2_000)), (700, "app", CLEAR))
    report = meter.report(BEGAN + 700)
    assert report == {
        "event": "playback",
        "sent_ms": 2_000,
        "at_ms": 2_000,
        "since": BEGAN,
        "cuts": [[BEGAN + 700, 700, 2_000]],
    }


def test_clear_without_audio_is_nothing() -> None:
    """A clear before any audio, or after another one, is not reported."""
    meter = after((0, "app", CLEAR))
    assert (meter.due(BEGAN), meter.report(BEGAN)) == (None, None)
    meter = after((0, "app", media(100)), (50, "app", CLEAR), (60, "app", CLEAR), (500, "app", CLEAR))
    assert [cut[0] - BEGAN for cut in meter.cuts] == [50]


def test_mark_proves_its_point() -> None:
    """A mark that comes back before the clock has reached its audio moves the clock: the phone is ahead of it."""
    meter = after((0, "app", media(1_000)), (0, "app", mark("a")), (0, "app", media(1_000)), (600, "vendor", mark("a")))
    assert [position(meter, at) for at in (600, 900)] == [1_000, 1_300]


def test_marks_that_a_clear_discarded_prove_nothing() -> None:
    """They come back at once, also of audio that was never played."""
    crossings = [(0, "app", media(3_000)), (0, "app", mark("a")), (500, "app", CLEAR), (520, "app", media(1_000))]
    meter = after(*crossings, (600, "vendor", mark("a")))
    assert meter.cuts == [[BEGAN + 500, 500, 3_000]]
    assert position(meter, 600) == 3_080


def test_phone_that_drops_its_queue() -> None:
    """A phone that sends back at once what it never played, without a clear of ours, proves nothing."""
    crossings = [(0, "app", frame) for name in "abcd" for frame in (media(1_000), mark(name))]
    meter = after(*crossings, *((2_500, "vendor", mark(name)) for name in "abcd"))
    assert position(meter, 2_500) <= 3_500


def test_marks_of_one_name() -> None:
    """Many apps give all of theirs the same; they come back in their order."""
    crossings = [(0, "app", frame) for _ in range(3) for frame in (media(1_000), mark("part"))]
    meter = after(*crossings, (1_040, "vendor", mark("part")), (2_040, "vendor", mark("part")))
    assert [found.at_ms for found in meter.marks] == [3_000]


@every_row("name", ["never", "twice"])
def test_marks_that_were_not_sent(name: str) -> None:
    """A mark that was never sent, or comes twice, changes nothing."""
    crossings = [(0, "app", media(1_000)), (0, "app", mark("twice")), (1_050, "vendor", mark("twice"))]
    meter = after(*crossings, (1_100, "app", media(2_000)), (1_150, "vendor", mark(name)))
    assert position(meter, 1_200) == 1_100


def test_marks_that_were_not_sent_cost_nothing() -> None:
    """However many of ours have not come back."""
    meter = after((0, "app", media(1_000)), *((0, "app", mark(f"ours {number}")) for number in range(20_000)))
    waiting, meter.marks = meter.marks, None  # type: ignore[assignment]
    for number in range(1_000):
        meter.take(mark(f"theirs {number}"), "vendor", BEGAN + 100)
    assert len(waiting) == MAX_MARKS


def test_names_of_marks_are_not_kept() -> None:
    """Neither of those that have come back, nor of those before them."""
    frames = [mark(f"part {number}") for number in range(100)]
    meter = after(*((0, "app", frame) for frame in frames), (100, "vendor", frames[-1]))
    assert not meter.names
    assert not meter.marks


def test_audio_after_the_stop_is_not_played() -> None:
    """An app may send for a while after the caller has hung up."""
    stop = {"event": "stop", "streamSid": "MZ1"}
    meter = after(
        (0, "app", media(3_000)), (1_000, "vendor", stop), (1_100, "app", media(2_000)), (9_000, "app", CLEAR)
    )
    assert meter.sent_ms == 3_000
    assert meter.cuts == [[BEGAN + 1_000, 1_000, 3_000]]


async def test_streams_without_ids_are_different() -> None:
    """Vonage's have none, and two phones may be in one session."""
    frames: list[Frame] = []
    for _ in range(2):
        queue = PhoneQueue(DIALECTS["twilio-media-streams"], True, lambda crossing: frames.append(crossing.frame))
        start = {"event": "websocket:connected", "content-type": "audio/l16;rate=16000"}
        queue.put(json.dumps(start), "vendor", True, BEGAN)
        queue.put(bytes(32_000), "app", False, BEGAN)
        queue.put(json.dumps({"action": "clear"}), "app", True, BEGAN + 500)
        while queue.queued:
            queue.work()
    streams = {frame.content["streamSid"] for frame in frames if frame.content["event"] == "playback"}
    assert len(streams) == 2


def test_phone_that_waited() -> None:
    """Where marks come back much later than the first did, the phone was waiting for audio on the way."""
    crossings: list[tuple[int, str, Any]] = [(0, "app", frame) for frame in (media(1_000), mark("a"))]
    crossings += [(0, "app", frame) for frame in (media(1_000), mark("b"), media(5_000))]
    meter = after(*crossings, (1_100, "vendor", mark("a")))
    assert position(meter, 2_000) == 2_000
    meter.take(mark("b"), "vendor", BEGAN + 3_300)
    assert position(meter, 3_300) == 2_100


def test_no_more_than_five_reports_a_second() -> None:
    """However much is sent, a report waits for 200 ms; one of a clear does not."""
    meter, reports = PhoneMeter(), []
    for at in range(0, 4_000, 10):
        meter.take(media(20), "app", BEGAN + at)
        due = meter.due(BEGAN + at)
        if due is not None and due <= BEGAN + at:
            reports.append(meter.report(BEGAN + at))
    assert len(reports) == 20
    meter.take(CLEAR, "app", BEGAN + 4_000)
    assert meter.due(BEGAN + 4_000) == BEGAN + 4_000


def test_reports_go_on_until_all_is_played() -> None:
    """A report is due when the phone has played all, and after a clear, when the app has said what it makes of it."""
    meter = after((0, "app", media(3_000)))
    meter.report(BEGAN)
    assert meter.due(BEGAN) == BEGAN + 3_001
    meter.take(CLEAR, "app", BEGAN + 1_000)
    meter.report(BEGAN + 1_000)
    assert meter.due(BEGAN + 1_000) == BEGAN + 1_600


@every_row(
    ("form", "payload", "ms"),
    [
        (None, bytes(160), 20),
        ({"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}, bytes(161), 20),
        ({"encoding": "PCMA", "sample_rate": 8000}, bytes(160), 20),
        ({"encoding": "G722", "sample_rate": 16000}, bytes(160), 20),
        ({"encoding": "L16", "sample_rate": 24000}, bytes(960), 20),
        ({"encoding": "audio/x-l16", "sampleRate": 16000}, bytes(641), 20),
    ],
    ids=repr,
)
def test_formats(form: Any, payload: bytes, ms: int) -> None:
    """The start of the stream says how many bytes are a millisecond; an odd byte is a part of one."""
    frame = {"event": "media", "media": {"payload": base64.b64encode(payload).decode()}}
    meter = after((0, "vendor", {"event": "start", "start": {"mediaFormat": form}}), (0, "app", frame))
    assert round(meter.sent_ms) == ms


@every_row("form", [{"encoding": "OPUS"}, {"encoding": "mp3"}, {"encoding": "PCMU", "sampleRate": "x"}], ids=repr)
def test_formats_that_are_not_known(form: Any) -> None:
    """Audio whose bytes say nothing about its length is not measured, and the tee says so."""
    meter = after((0, "vendor", {"event": "start", "start": {"mediaFormat": form}}))
    with pytest.raises(MalformedFrame, match="format"):
        meter.take(media(20), "app", BEGAN)
    assert meter.report(BEGAN) is None


@every_row(
    "frame", ["text", {}, {"event": 1}, {"event": "media"}, {"event": "media", "media": {"payload": 7}}], ids=repr
)
def test_malformed_frames(frame: Any) -> None:
    """What is not a frame is refused, here or by the dialect."""
    with pytest.raises(MalformedFrame):
        DIALECTS["twilio-media-streams"].reduce(PhoneMeter().take(frame, "app", BEGAN) or {}, "app")


TELNYX = [
    ("vendor", {"event": "start", "stream_id": "S", "start": {"call_control_id": "v2:C", "media_format": {}}}),
    ("app", {"event": "media", "media": {"payload": base64.b64encode(bytes(8_000)).decode()}}),
    ("app", {"event": "mark", "mark": {"name": "a"}}),
    ("vendor", {"event": "mark", "stream_id": "S", "mark": {"name": "a"}}),
    ("app", {"event": "clear"}),
    ("vendor", {"event": "dtmf", "stream_id": "S", "dtmf": {"digit": "1"}}),
]
PLIVO = [
    ("vendor", {"event": "start", "sequenceNumber": 1, "start": {"callId": "C", "streamId": "S"}}),
    (
        "app",
        {
            "event": "playAudio",
            "media": {
                "contentType": "audio/x-l16",
                "sampleRate": 8000,
                "payload": base64.b64encode(bytes(16_000)).decode(),
            },
        },
    ),
    ("app", {"event": "checkpoint", "streamId": "S", "name": "a"}),
    ("vendor", {"event": "playedStream", "streamId": "S", "name": "a"}),
    ("app", {"event": "clearAudio", "streamId": "S"}),
    ("vendor", {"event": "dtmf", "streamId": "S", "dtmf": {"digit": "1"}, "sequenceNumber": 9}),
]
VONAGE = [
    ("vendor", {"event": "websocket:connected", "content-type": "audio/l16;rate=16000"}),
    ("app", bytes(32_000)),
    ("app", {"action": "notify", "payload": {"name": "a"}}),
    ("vendor", {"event": "websocket:notify", "payload": {"name": "a"}}),
    ("app", {"action": "clear"}),
    ("vendor", {"event": "websocket:dtmf", "digit": "1", "duration": 260}),
]


@every_row("spoken", [TELNYX, PLIVO, VONAGE], ids=["telnyx", "plivo", "vonage"])
def test_spellings(spoken: list[tuple[Any, Any]]) -> None:
    """Audio, marks, clears and keys of those who spell them in their own way."""
    meter, kept = PhoneMeter(), []
    for number, (side, frame) in enumerate(spoken):
        raw = meter.take(frame, side, BEGAN + 100 * number)
        if raw is not None:
            kept.append(DIALECTS["twilio-media-streams"].reduce(raw, side))
    assert meter.sent_ms == 1_000
    assert not meter.marks
    assert len(meter.cuts) == 1
    start, key = kept
    assert start is not None
    assert key is not None
    assert start.session_id in ("v2:C", "C", None)
    assert key.content["dtmf"] == {"digit": "1"}
