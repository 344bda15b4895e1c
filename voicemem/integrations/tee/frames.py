"""Frames on their way from a connection to the memory: put aside as they are, and reduced once the event loop is free.

What is put aside is bounded, and is reduced before anything else waits; so it is short-lived, whatever the memory does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from voicemem.dialects.dialect import AUDIO_BYTES, Dialect, Frame, MalformedFrame, RawFrame, Side, UnknownFrame
from voicemem.dialects.envelope import MAX_DIALECT_FRAME_BYTES
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED

LOG = logging.getLogger("voicemem.integrations")
MAX_ASIDE = 10_000
MAX_ASIDE_BYTES = 4 * MAX_DIALECT_FRAME_BYTES
"""Frames put aside, at most; beyond that they are dropped and counted."""
SLICE_NS = 1_000_000
"""How long frames are reduced before the call goes on."""
ADD_UP_S = 0.25
"""Counts of audio that are equal otherwise are added up for so long, unless another frame comes."""
MAX_NAMED = 100
"""Types of unknown frames that the log names."""
RawMessage = str | bytes | bytearray | memoryview


class Crossing(NamedTuple):
    """A message that crossed the connection."""

    data: str | bytes
    is_text: bool
    """Whether it is known to be text; bytes may be either."""
    side: Side
    ts: int
    """When, Unix ms."""


class ReducedCrossing(NamedTuple):
    """What is kept of it."""

    frame: Frame
    side: Side
    ts: int


class FrameQueue:
    """Takes messages in the path of the call, and hands on what their dialect keeps, in order.

    `put` costs a microsecond or two, and nothing here raises.
    """

    def __init__(self, dialect: Dialect, keep_typed: bool, hand_on: Callable[[ReducedCrossing], object]) -> None:
        self.dialect = dialect
        self.keep_typed = keep_typed
        self.hand_on = hand_on
        self.counts: Counter[str] = Counter()
        """What became of the messages: taken, ignored, unknown, malformed, dropped."""
        self.named: set[str] = set()
        self.aside: deque[Crossing] = deque()
        self.aside_bytes = 0
        self.is_scheduled = False
        self.audio: ReducedCrossing | None = None
        """A count of audio that may still grow."""
        self.loop = asyncio.get_running_loop()

    def put(self, data: RawMessage, side: Side, is_text: bool = False, ts: int | None = None) -> None:
        """Put a message aside, which crossed the connection at `ts`, or now."""
        if not isinstance(data, str | bytes):
            data = bytes(data)  # the sender may use its buffer again
        size = len(data)
        if len(self.aside) >= MAX_ASIDE or self.aside_bytes + size > MAX_ASIDE_BYTES:
            self.drop()
            return
        self.aside.append(Crossing(data, is_text, side, now_ms() if ts is None else ts))
        self.aside_bytes += size
        if not self.is_scheduled:
            self.schedule()

    def drop(self) -> None:
        self.counts["dropped"] += 1
        if self.counts["dropped"] == 1:
            LOG.warning("The memory has missed a frame: more of them came than could be reduced.")

    def schedule(self) -> None:
        self.is_scheduled = True
        try:
            self.loop.call_soon(self.work)
        except RuntimeError:  # the event loop was closed: nothing of this call can be sent any more
            self.aside.clear()

    def work(self) -> None:
        """Reduce for a while, then let the call go on."""
        self.is_scheduled = False
        until = time.perf_counter_ns() + SLICE_NS
        while self.aside:
            self.take(self.aside.popleft())
            if self.aside and time.perf_counter_ns() > until:
                self.schedule()
                return

    def finish(self) -> None:
        """Reduce all that was put aside, and hand on what was being added up."""
        while self.aside:
            self.take(self.aside.popleft())
        self.hand_on_audio()

    def take(self, crossing: Crossing) -> None:
        """Reduce one message, and count what became of it."""
        self.aside_bytes -= len(crossing.data)
        try:
            frame = self.dialect.reduce(raw_frame(crossing), crossing.side)
            if frame is not None and frame.typed and not self.keep_typed:
                frame = None
            self.counts["ignored" if frame is None else "taken"] += 1
        except UnknownFrame as unknown:
            self.counts["unknown"] += 1
            self.name_unknown(str(unknown))
            return
        except Exception as error:  # whatever crosses the connection, and whatever a dialect makes of it
            self.reject(error)
            return
        if frame is not None:
            self.hand_on_in_order(ReducedCrossing(frame, crossing.side, crossing.ts))

    def reject(self, error: Exception) -> None:
        """Count a message that says nothing to the dialect; the log says the reason of the first."""
        self.counts["malformed"] += 1
        if self.counts["malformed"] == 1:
            reason = str(error) if isinstance(error, MalformedFrame) else type(error).__name__
            LOG.warning("A message is not a frame of %s, and is left out: %s", self.dialect.name, reason)

    def name_unknown(self, kind: str) -> None:
        """Name a type that the dialect does not know, once."""
        name = ascii(kind[:64])
        if name not in self.named and len(self.named) < MAX_NAMED:
            self.named.add(name)
            LOG.info("Frames of an unknown type are left out: %s, %s", self.dialect.name, name)

    def hand_on_in_order(self, reduced: ReducedCrossing) -> None:
        """Hand a frame on after those before it; a count of audio may wait to be added to."""
        if self.audio is not None:
            sum_of_both = added_up(self.audio, reduced)
            if sum_of_both is not None:
                self.audio = sum_of_both
                return
            self.hand_on_audio()
        if reduced.frame.counts_audio:
            self.audio = reduced
            self.loop.call_later(ADD_UP_S, self.hand_on_audio_of, reduced.ts)
        else:
            self.hand_on(reduced)

    def hand_on_audio_of(self, ts: int) -> None:
        """Hand on a count of audio that began then, if it still waits."""
        if self.audio is not None and self.audio.ts == ts:
            self.hand_on_audio()

    def hand_on_audio(self) -> None:
        if self.audio is not None:
            audio, self.audio = self.audio, None
            self.hand_on(audio)


def raw_frame(crossing: Crossing) -> RawFrame:
    """The frame of a message: its JSON object, or a text or bytes that are not one. Raises `MalformedFrame`."""
    data = crossing.data
    if len(data) > MAX_DIALECT_FRAME_BYTES:
        raise MalformedFrame("A frame may be at most 16 MiB.")
    if isinstance(data, bytes) and not crossing.is_text and not data.lstrip(b" \t\r\n").startswith(b"{"):
        return data
    try:
        value = JSON_DECODER.decode(data)
    except msgspec.ValidationError:
        raise MalformedFrame("A number of the frame is out of range.") from None
    except MALFORMED:
        return data.decode() if isinstance(data, bytes) and crossing.is_text else data
    if not isinstance(value, dict):
        raise MalformedFrame("A frame is a JSON object or a text.")
    return value


def added_up(one: ReducedCrossing, other: ReducedCrossing) -> ReducedCrossing | None:
    """One count for two of audio that are equal otherwise; None if they are not."""
    if not other.frame.counts_audio or one.side != other.side:
        return None
    content, added = one.frame.content, other.frame.content[AUDIO_BYTES]
    if content | {AUDIO_BYTES: added} != other.frame.content:
        return None
    return one._replace(frame=one.frame._replace(content=content | {AUDIO_BYTES: content[AUDIO_BYTES] + added}))


def now_ms() -> int:
    """The time, Unix ms."""
    return time.time_ns() // 1_000_000
