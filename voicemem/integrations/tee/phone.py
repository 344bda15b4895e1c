"""The meter of a phone's audio, for the media streams of Twilio, SignalWire, Telnyx, Plivo and Vonage.

No audio leaves this module, only reports of how much was sent and how far the phone has played it, at most five times a
second (`dialects/twilio_media_streams`). A phone plays queued audio in order, in real time, from the first byte of each
stretch, and never beyond the queue. It sends a mark back once the audio before it was played, but also at once when a
`clear` has discarded that audio: so a mark counts only if no `clear` came before it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from voicemem.dialects.dialect import Dialect, Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.twilio_media_streams import as_twilio, first_text
from voicemem.integrations.tee import memory
from voicemem.protocol.types import JsonObject

REPORT_MS = 200
"""The shortest time between two reports, except after a `clear`."""
AFTER_CUT_MS = 600
"""How long after a `clear` another report follows, once the app has sent its own estimate."""
STALLED_MS = 500
"""A mark this much later than the earliest ones shows that the phone waited for audio."""
MAX_AHEAD_MS = 1_000
"""Marks earlier than this are ignored: no phone plays so fast."""
USUAL_RATE = 8_000
MAX_MARKS = 10_000
COMPANDED = ("mulaw", "x-mulaw", "pcmu", "alaw", "x-alaw", "pcma", "ulaw")
LINEAR = ("l16", "x-l16", "linear16", "pcm", "lpcm")


def bytes_per_ms(form: Any) -> float | None:
    """Return a format's bytes a millisecond; None for one that is unknown or has no constant rate."""
    if not isinstance(form, dict):
        return USUAL_RATE / 1_000
    encoding = form.get("encoding") or form.get("contentType")
    name, _, parameters = str(encoding or "audio/x-mulaw").lower().partition(";")
    name = name.strip().removeprefix("audio/")
    stated = parameters.partition("rate=")[2] or form.get("sampleRate") or form.get("sample_rate") or USUAL_RATE
    try:
        rate = int(stated)
    except (TypeError, ValueError):
        return None
    if not 1_000 <= rate <= 192_000:
        return None
    if name in COMPANDED:
        return rate / 1_000
    if name in LINEAR:
        return rate / 500
    return 8.0 if name == "g722" else None


def whole_ms(ms: float) -> int:
    return int(ms + 0.5)


def mark_name(raw: JsonObject) -> str:
    """Return the name of a mark; Vonage's is any JSON."""
    name = raw["mark"].get("name")
    return name if isinstance(name, str) else msgspec.json.encode(name).decode()


class Mark(NamedTuple):
    """A mark that was sent, and how much audio was sent before it."""

    name: str
    at_ms: float


class PhoneMeter:
    """Counts the audio that an app sends to a phone, and reports how far it was played. It has no clock of its own."""

    def __init__(self, stream: str | None = None) -> None:
        self.stream = stream
        """The stream's id, until its `start` names another; Vonage's have none."""
        self.rate: float | None = USUAL_RATE / 1_000
        """Bytes a millisecond; None if unknown: such audio is not measured."""
        self.sent_ms = 0.0
        self.begun = (0.0, 0)
        """The position and the time at which the newest stretch begins."""
        self.stalled_ms = self.ahead_ms = 0.0
        """How much later, and earlier, marks of this stretch came than its start predicts."""
        self.earliest_ms: float | None = None
        """The shortest delay of a mark after its audio."""
        self.marks: deque[Mark] = deque()
        self.names: Counter[str] = Counter()
        """How many marks have each name."""
        self.is_stopped = False
        self.since: int | None = None
        """When the first unreported audio was sent."""
        self.cuts: list[list[int]] = []
        self.has_cut = False
        """True if a `clear` has cut audio, which must be reported at once."""
        self.is_changed = False
        self.reported_ts = self.cut_ts = 0
        """The times of the last report, and of the last report of a cut."""
        self.cleared_ms = 0.0
        """How much had been sent at the last `clear`."""
        self.over_ms = 0.0
        """The position up to which the last report had audio as over."""
        self.asked_at: int | None = None
        """When to report next in any case."""

    def at_ms(self, ts: int) -> float:
        """Return the position up to which audio is over at a time."""
        position, began = self.begun
        return max(self.over_ms, min(self.sent_ms, position + max(0.0, ts - began - self.stalled_ms)))

    def take(self, frame: RawFrame, side: Side, ts: int) -> JsonObject | None:
        """Handle a frame of the socket; return it if the dialect needs it. Raises `MalformedFrame`."""
        if isinstance(frame, bytes):  # Vonage's audio
            if side == "app":
                self.send(len(frame), ts)
            return None
        if not isinstance(frame, dict):
            raise MalformedFrame("A frame of this dialect is a JSON object.")
        if frame.get("event") == "media" and side == "vendor":  # the caller's audio, fifty times a second
            return None
        raw = as_twilio(frame)
        match raw["event"], side:
            case "media", "app":
                self.send_media(raw.get("media"), ts)
            case "mark", "app":
                self.send_mark(mark_name(raw))
            case "mark", "vendor":
                self.pass_mark(mark_name(raw), ts)
            case "clear", "app":
                self.clear(ts, self.at_ms(ts))
            case "stop", _:  # it is as late as a mark is
                self.clear(ts, self.at_ms(ts - whole_ms(self.earliest_ms or 0)))
                self.is_stopped = True
            case "start", _:
                self.stream, self.is_stopped = first_text((raw.get("streamSid"), self.stream)), False
                self.rate = bytes_per_ms(raw["start"]["mediaFormat"])
        return None if raw["event"] in ("media", "mark", "clear") else raw

    def send_media(self, media: Any, ts: int) -> None:
        """Count base64 audio, in the stream's format or in one that it names. Raises `MalformedFrame`."""
        payload = media.get("payload") if isinstance(media, dict) else None
        if not isinstance(payload, str):
            raise MalformedFrame("An audio frame has no audio.")
        if "contentType" in media:
            self.rate = bytes_per_ms(media)
        self.send(len(payload.rstrip("=")) * 3 // 4, ts)

    def send(self, count: int, ts: int) -> None:
        if self.rate is None:
            raise MalformedFrame("Audio of this format is not measured.")
        if not count or self.is_stopped:
            return
        if self.at_ms(ts) >= self.sent_ms:  # the phone was silent
            self.begun, self.stalled_ms, self.ahead_ms = (self.sent_ms, ts), 0.0, 0.0
        self.sent_ms += count / self.rate
        self.since = ts if self.since is None else self.since
        self.is_changed = True

    def send_mark(self, name: str) -> None:
        if len(self.marks) < MAX_MARKS:
            self.marks.append(Mark(name, self.sent_ms))
            self.names[name] += 1

    def pass_mark(self, name: str, ts: int) -> None:
        """Handle a returned mark. Earlier ones no longer come; an unknown mark is ignored."""
        if not self.names[name]:
            return
        mark = None
        while mark is None or mark.name != name:
            mark = self.marks.popleft()
            self.names[mark.name] -= 1
            if not self.names[mark.name]:
                del self.names[mark.name]
        position, began = self.begun
        if mark.at_ms <= position:
            # From an earlier stretch, or discarded: a `clear` begins a stretch after all sent audio.
            return
        late_ms = ts - began - (mark.at_ms - position)
        if late_ms < 0:  # the phone plays ahead of our clock, unless it has dropped audio itself
            ahead_ms = self.ahead_ms - late_ms
            if ahead_ms <= MAX_AHEAD_MS:
                self.begun, self.stalled_ms, self.is_changed = (mark.at_ms, ts), 0.0, True
                self.ahead_ms = ahead_ms
        else:
            self.earliest_ms = late_ms if self.earliest_ms is None else min(self.earliest_ms, late_ms)
            before_ms, stalled_ms = self.stalled_ms, late_ms - self.earliest_ms
            self.stalled_ms = stalled_ms if stalled_ms > STALLED_MS else 0.0
            self.is_changed |= self.stalled_ms != before_ms

    def clear(self, ts: int, at_ms: float) -> None:
        """Note that no audio after this position will be played."""
        if self.sent_ms > self.cleared_ms:
            self.cuts.append([ts, whole_ms(at_ms), whole_ms(self.sent_ms)])
            self.cleared_ms = self.sent_ms
            self.begun, self.stalled_ms = (self.sent_ms, ts), 0.0
            self.is_changed = self.has_cut = True

    # Reports

    def due(self, ts: int) -> int | None:
        """Return the time of the next report; None if there is nothing to report."""
        if self.has_cut and ts >= self.cut_ts + REPORT_MS:
            return ts
        times = [] if self.asked_at is None else [self.asked_at]
        if self.is_changed:
            times.append(max(ts, self.reported_ts + REPORT_MS))
        return min(times, default=None)

    def report(self, ts: int) -> JsonObject | None:
        """Return the report for the dialect; None if no audio was ever sent."""
        if not self.sent_ms:
            return None
        at_ms = self.at_ms(ts)
        frame: JsonObject = {"event": "playback", "sent_ms": whole_ms(self.sent_ms), "at_ms": whole_ms(at_ms)}
        if self.stream is not None:
            frame["streamSid"] = self.stream
        if self.since is not None:
            frame["since"] = self.since
        if self.cuts:
            frame["cuts"] = self.cuts
        if self.has_cut:
            self.cut_ts = ts
        times = [] if ts >= self.cut_ts + AFTER_CUT_MS else [self.cut_ts + AFTER_CUT_MS]
        if at_ms < self.sent_ms:  # report again when all is played
            times.append(ts + max(REPORT_MS, whole_ms(self.sent_ms - at_ms) + 1))
        self.asked_at, self.over_ms = min(times, default=None), at_ms
        self.since, self.cuts, self.has_cut, self.is_changed, self.reported_ts = None, [], False, False, ts
        return frame


class PhoneQueue(memory.FrameQueue):
    """Queues a phone's messages, and forwards reports in place of audio."""

    def __init__(self, dialect: Dialect, keep_typed: bool, forward: Callable[[memory.ReducedMessage], object]) -> None:
        super().__init__(dialect, keep_typed, forward)
        self.meter = PhoneMeter(secrets.token_hex(16))
        self.timer: asyncio.TimerHandle | None = None
        self.timer_ts = 0

    def reduce(self, message: memory.CopiedMessage) -> Frame | None:
        came = memory.raw_frame(message)
        self.note_caller(came)
        raw = self.meter.take(came, message.side, message.ts)
        due = self.meter.due(message.ts)
        if due is not None and (due <= message.ts or raw is not None):
            self.report(message.ts)
        self.set_timer(message.ts)
        return None if raw is None else self.dialect.reduce(raw, message.side)

    def finish(self) -> None:
        super().finish()
        if self.meter.is_changed:
            self.report(memory.now_ms())

    def report(self, ts: int) -> None:
        raw = self.meter.report(ts)
        frame = None if raw is None else self.dialect.reduce(raw, "app")
        if frame is not None:
            self.forward(memory.ReducedMessage(frame, "app", ts))

    def set_timer(self, ts: int) -> None:
        """Report once a report is due."""
        due = self.meter.due(ts)
        if due is None or self.loop.is_closed() or (self.timer is not None and self.timer_ts <= due):
            return
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.timer_ts = self.loop.call_later(max(0, due - ts) / 1_000, self.on_time), due

    def on_time(self) -> None:
        self.timer, ts = None, memory.now_ms()
        due = self.meter.due(ts)
        if due is not None and due <= ts:
            self.report(ts)
        self.set_timer(ts)
