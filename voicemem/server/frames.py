"""The frames that the ingest server sends (design, section 5)."""

from __future__ import annotations

import msgspec

from voicemem.batches import Line, Problem
from voicemem.store.base import Opened

GOAWAY = b'{"type":"goaway"}'
"""The server stops: come back to the next one."""


def ready_frame(opened: Opened, producer: str, next_turn: int, incarnation: str, window: int) -> bytes:
    """The answer to `session.open`; `window` is in bytes."""
    frame = {
        "type": "session.ready",
        "session_id": opened.stream.id,
        "producer": producer,
        "state": opened.stream.state,
        "epoch": opened.epoch,
        "next_seq": opened.next_seq,
        "next_turn": next_turn,
        "incarnation": incarnation,
        "window": window,
    }
    return msgspec.json.encode(frame)


def ack_prefix(line: Line) -> bytes:
    """The frame that says that everything up to a seq is on disk, but for the seq and the last brace."""
    names = msgspec.json.encode({"type": "ack", "session_id": line.session_id, "producer": line.producer})
    return names[:-1] + b',"seq":'


def error_frame(problem: Problem, session_id: str | None = None, producer: str | None = None) -> bytes:
    """An `error`; what is not known of the event is left out."""
    frame = {"type": "error", "session_id": session_id, "producer": producer, **problem._asdict()}
    return msgspec.json.encode({key: value for key, value in frame.items() if value is not None})
