"""Frames that the service sends to a producer."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from voicemem.protocol.types import Name, Reason, SessionId
from voicemem.protocol.types import SequenceNumber as Seq


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
PATH = "/v1/ingest"
PROTOCOL = "voicemem.v1"
