"""Other stacks' frames on their way to the journal: each is reduced to what its dialect keeps, and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from voicemem.dialects.dialect import AUDIO_BYTES, Dialect, Frame, MalformedFrame, Openings, RawFrame, UnknownFrame
from voicemem.dialects.registry import DIALECTS, no_such_dialect
from voicemem.errors import CODES
from voicemem.protocol.codec import ENCODER, DecodedEvent, RejectedEvent
from voicemem.protocol.events import FrameEvent, IncomingEvent
from voicemem.protocol.strict_json import has_large_integer, may_have_large_number
from voicemem.protocol.types import MAX_FRAME_BYTES
from voicemem.telemetry.metrics import Metrics

LOG = logging.getLogger("voicemem")
MAX_NAMED = 1_000
"""Types of frames that the log has named; further ones are only counted."""
MAX_NAME = 64
"""Characters of a type's name in the log."""
TOO_LONG = "What is kept of a frame may be at most 1 MiB."


class ReducedFrame(DecodedEvent, frozen=True):
    """A frame as it is journaled, and what its dialect says about it."""

    reduced: Frame | None
    """None for a frame that says nothing: only its seq counts."""


class FrameReducer:
    """Reduces frames, and counts what became of them."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.named: set[tuple[str, str]] = set()
        """The types of frames that the log has named, by dialect."""

    def reduce(
        self,
        event: FrameEvent,
        keep_typed: bool = True,
        is_known: Callable[[FrameEvent], bool] | None = None,
        openings: Openings | None = None,
    ) -> ReducedFrame | RejectedEvent | None:
        """What is journaled for a frame; None for one that says nothing, or `is_known` by its id, and has no seq.

        Without `keep_typed` a text that the app typed says nothing. `openings` are those of its sender.
        """
        dialect = DIALECTS.get(event.dialect)
        if dialect is None:
            return rejected(event, "unknown_dialect", no_such_dialect(event.dialect))
        try:
            frame = reduce_frame(dialect, event)

            def was_opened(id: str) -> bool:
                return is_known is not None and is_known(FrameEvent(dialect=event.dialect, id=id))

            typed_out = frame is not None and frame.typed and not keep_typed
            if frame is not None and (typed_out or not (openings or Openings()).admits(frame, was_opened)):
                frame = None  # it is typed, or a part of what is not kept
            result = "ignored" if frame is None else "taken"
        except UnknownFrame as unknown:
            self.name_unknown(dialect.name, str(unknown))
            frame, result = None, "unknown"
        except MalformedFrame as malformed:
            return self.refuse(event, str(malformed))
        if frame is None and event.seq is None:
            self.count(event.dialect, result)
            return None
        kept = FrameEvent(dialect=event.dialect, session_id=event.session_id, producer=event.producer, seq=event.seq)
        if frame is not None:
            vendor_id = frame.id if frame.id is not None and 1 <= len(frame.id) <= 128 else None
            kept = msgspec.structs.replace(
                kept,
                frame=frame.content,
                sender=event.sender,
                ts=frame.ts if event.ts is None else event.ts,
                id=vendor_id if event.id is None else event.id,
            )
        if kept.seq is None and kept.id is not None and is_known is not None and is_known(kept):
            self.count(event.dialect, "repeated")
            return None
        payload = ENCODER.encode(kept)
        if len(payload) > MAX_FRAME_BYTES:
            return self.refuse(event, TOO_LONG)
        if may_have_large_number(payload) and has_large_integer(kept.frame):
            return self.refuse(event, "An integer must be within ±2^53.")
        self.count(event.dialect, result)
        return ReducedFrame(kept, payload, frame)

    def refuse(self, event: FrameEvent, detail: str) -> RejectedEvent:
        self.count(event.dialect, "malformed")
        return rejected(event, "malformed_frame", detail)

    def count(self, dialect: str, result: str) -> None:
        self.metrics.frames.labels(dialect, result).inc()

    def name_unknown(self, dialect: str, kind: str) -> None:
        key = dialect, ascii(kind[:MAX_NAME])
        if key not in self.named and len(self.named) < MAX_NAMED:
            self.named.add(key)
            LOG.info("Frames of an unknown type are ignored: %s, %s", *key)


def merge_audio_counts(one: ReducedFrame, other: ReducedFrame) -> ReducedFrame | None:
    """One frame for two audio counts without a seq that are equal otherwise; None if they are not."""
    if one.reduced is None or other.reduced is None or not (one.reduced.counts_audio and other.reduced.counts_audio):
        return None
    if one.event.seq is not None or other.event.seq is not None or source_of(one) != source_of(other):
        return None
    assert isinstance(one.event, FrameEvent)
    total = one.event.frame[AUDIO_BYTES] + other.reduced.content[AUDIO_BYTES]
    event = msgspec.structs.replace(one.event, frame=one.event.frame | {AUDIO_BYTES: total})
    return ReducedFrame(event, ENCODER.encode(event), one.reduced)


def source_of(frame: ReducedFrame) -> tuple[object, ...]:
    """All of an audio count but its time and the count."""
    event = frame.event
    assert isinstance(event, FrameEvent)
    content = {key: value for key, value in event.frame.items() if key != AUDIO_BYTES}
    return event.dialect, event.sender, event.ts is None, event.id, content


def rejected(event: IncomingEvent, code: str, detail: str) -> RejectedEvent:
    return RejectedEvent(code, detail, event.session_id, event.producer, event.seq)


def reduce_frame(dialect: Dialect, event: FrameEvent) -> Frame | None:
    """What the dialect keeps of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    raw: RawFrame = event.frame
    if not isinstance(raw, dict | str | bytes):
        raise MalformedFrame("A frame is a JSON object or a text.")
    try:
        frame = dialect.reduce(raw, event.sender)
    except (MalformedFrame, UnknownFrame):
        raise
    except Exception:  # a fault of ours in a dialect must not end the call
        LOG.exception("A dialect failed to reduce a frame", extra={"dialect": dialect.name})
        raise MalformedFrame(CODES["malformed_frame"].sentence) from None
    if frame is not None and None not in (event.sender, frame.side) and event.sender != frame.side:
        raise MalformedFrame("The other side sends frames of this type.")
    return frame
