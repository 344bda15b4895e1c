"""Frames that the service sends to a producer."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from voicemem.protocol.types import Name, Reason, SessionId
from voicemem.protocol.types import SequenceNumber as Seq

FEATURES = ("frame", "interrupt.more", "interrupt.several", "llm.cancel", "tts.synthesised_text", "turn_id.optional")
"""Forms of events that earlier servers refuse (docs/ingest.md, "Open a session")."""


class Ready(Struct, tag_field="type", tag="session.ready", frozen=True):
    """The answer to `session.open`: continue with `next_seq`. At most `window` bytes may be sent without an ack."""

    session_id: SessionId
    producer: Name
    state: str
    epoch: int
    next_seq: Seq
    next_turn: int
    incarnation: str
    window: int
    features: tuple[str, ...] = FEATURES
    warnings: tuple[str, ...] | UnsetType = UNSET
    """Sentences about settings of the session that have no effect; left out without any."""


class AckFrame(Struct, tag_field="type", tag="ack", frozen=True):
    """Everything of this producer up to `seq` is on disk."""

    session_id: SessionId
    producer: Name
    seq: Seq


class Error(Struct, tag_field="type", tag="error", frozen=True, kw_only=True, omit_defaults=True):
    """An event or `session.open` was refused. Unknown fields are left out; `expected` comes with `seq_gap`."""

    session_id: SessionId | None = None
    producer: Name | None = None
    seq: int | None = None
    code: Reason
    detail: str
    expected: Seq | None = None


class GoAway(Struct, tag_field="type", tag="goaway", frozen=True):
    """The server is about to stop: reconnect to its successor."""


Frame = Ready | AckFrame | Error | GoAway
GOAWAY = msgspec.json.encode(GoAway())
PATH = "/v1/ingest"
PROTOCOL = "voicemem.v1"
