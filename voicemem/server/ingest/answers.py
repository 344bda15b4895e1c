"""Encoding of the frames that answer a producer."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from voicemem.config.session import warnings_about
from voicemem.protocol.frames import AckFrame, Error, Ready
from voicemem.sessions.recording.batches import EventProblem, ProducerLease
from voicemem.store.records import OpenResult


def ready_frame(opened: OpenResult, producer: str, next_turn: int, incarnation: str, window: int) -> bytes:
    """Encode the answer to `session.open`; `window` is in bytes."""
    stream = opened.stream
    frame = Ready(
        session_id=stream.id,
        producer=producer,
        state=stream.state,
        epoch=opened.epoch,
        next_seq=opened.next_seq,
        next_turn=next_turn,
        incarnation=incarnation,
        window=window,
        warnings=warnings_about(stream.config) or UNSET,
    )
    return msgspec.json.encode(frame)


def ack_prefix(lease: ProducerLease) -> bytes:
    """Encode an ack up to its seq; the seq and `}` are appended to it for each ack."""
    return msgspec.json.encode(AckFrame(lease.session_id, lease.producer, 0)).removesuffix(b"0}")


def error_frame(problem: EventProblem, session_id: str | None = None, producer: str | None = None) -> bytes:
    """Encode an `error`; what is unknown about the event is left out."""
    return msgspec.json.encode(Error(session_id=session_id, producer=producer, **problem._asdict()))
