"""The frames that the ingest server sends (design, section 5)."""

from __future__ import annotations

import msgspec

from voicemem.protocol.frames import Ack, Error, Ready
from voicemem.sessions.batches import Problem, ProducerLease
from voicemem.store.records import Opened


def ready_frame(opened: Opened, producer: str, next_turn: int, incarnation: str, window: int) -> bytes:
    """The answer to `session.open`; `window` is in bytes."""
    stream = opened.stream
    frame = Ready(stream.id, producer, stream.state, opened.epoch, opened.next_seq, next_turn, incarnation, window)
    return msgspec.json.encode(frame)


def ack_prefix(lease: ProducerLease) -> bytes:
    """An ack, but for the seq and the last brace: there are many, and only their seqs differ."""
    return msgspec.json.encode(Ack(lease.session_id, lease.producer, 0)).removesuffix(b"0}")


def error_frame(problem: Problem, session_id: str | None = None, producer: str | None = None) -> bytes:
    """An `error`; what is not known of the event is left out."""
    return msgspec.json.encode(Error(session_id=session_id, producer=producer, **problem._asdict()))
