"""The frames that the ingest server sends (design, section 5)."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from voicemem.batches import Line, Problem
from voicemem.events import Name, SessionId
from voicemem.events import Sequence as Seq
from voicemem.server.problems import Reason
from voicemem.store.base import Opened


class Ready(Struct, tag_field="type", tag="session.ready", frozen=True):
    """The answer to `session.open`: send on from `next_seq`. `window` is how many bytes may wait for their acks."""

    session_id: SessionId
    producer: Name
    state: str
    epoch: int
    next_seq: Seq
    next_turn: int
    incarnation: str
    window: int


class Ack(Struct, tag_field="type", tag="ack", frozen=True):
    """Everything of this producer up to `seq` is on disk."""

    session_id: SessionId
    producer: Name
    seq: Seq


class Error(Struct, tag_field="type", tag="error", frozen=True, kw_only=True, omit_defaults=True):
    """An event, or an open, that was not taken; what is not known of it is left out. `expected` is with `seq_gap`."""

    session_id: SessionId | None = None
    producer: Name | None = None
    seq: int | None = None
    code: Reason
    detail: str
    expected: Seq | None = None


class GoAway(Struct, tag_field="type", tag="goaway", frozen=True):
    """The server stops: come back to the next one."""


Frame = Ready | Ack | Error | GoAway
GOAWAY = msgspec.json.encode(GoAway())


def ready_frame(opened: Opened, producer: str, next_turn: int, incarnation: str, window: int) -> bytes:
    """The answer to `session.open`; `window` is in bytes."""
    stream = opened.stream
    frame = Ready(stream.id, producer, stream.state, opened.epoch, opened.next_seq, next_turn, incarnation, window)
    return msgspec.json.encode(frame)


def ack_prefix(line: Line) -> bytes:
    """An ack, but for the seq and the last brace: there are many, and only their seqs differ."""
    return msgspec.json.encode(Ack(line.session_id, line.producer, 0)).removesuffix(b"0}")


def error_frame(problem: Problem, session_id: str | None = None, producer: str | None = None) -> bytes:
    """An `error`; what is not known of the event is left out."""
    return msgspec.json.encode(Error(session_id=session_id, producer=producer, **problem._asdict()))
