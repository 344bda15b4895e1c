"""Frames that the service sends to a producer."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from voicemem.protocol.types import Name, Reason, SessionId
from voicemem.protocol.types import SequenceNumber as Seq

FEATURES = ("frame", "interrupt.more", "interrupt.several", "llm.cancel", "tts.synthesised_text", "turn_id.optional")
"""Event features that earlier servers refuse (docs/ingest.md, "Open a session")."""


class Ready(Struct, tag_field="type", tag="session.ready", frozen=True):
    """The answer to `session.open`: continue with `next_seq`. At most `window` bytes may be sent without an ack."""

    session_id: SessionId
    """The session; the server chose the id if the producer gave none."""
    producer: Name
    """The producer's name."""
    state: str
    """`running` or `ended`."""
    epoch: int
    """How often this producer was opened; events from older connections are refused."""
    next_seq: Seq
    """The seq to send next."""
    next_turn: int
    """The number of the next turn."""
    incarnation: str
    """The identity of the store: another one may have lost events."""
    window: int
    """How many bytes may be unacknowledged; beyond that the server stops reading."""
    features: tuple[str, ...] = FEATURES
    """Event features that older servers refuse."""
    warnings: tuple[str, ...] | UnsetType = UNSET
    """Sentences about settings without effect, and about times that are not Unix ms; missing if there are none."""


class AckFrame(Struct, tag_field="type", tag="ack", frozen=True):
    """Everything of this producer up to `seq` is on disk."""

    session_id: SessionId
    """The session."""
    producer: Name
    """The producer's name."""
    seq: Seq
    """The highest seq that is on disk with all before it."""


class Error(Struct, tag_field="type", tag="error", frozen=True, kw_only=True, omit_defaults=True):
    """An event or `session.open` was refused. Unknown fields are left out; `expected` comes with `seq_gap`."""

    session_id: SessionId | None = None
    """The session, where it is known."""
    producer: Name | None = None
    """The producer's name, where it is known."""
    seq: int | None = None
    """The seq of the event, which counts as acknowledged."""
    code: Reason
    """The reason, for programs."""
    detail: str
    """The reason, in a sentence."""
    expected: Seq | None = None
    """With `seq_gap`: the seq that is missing."""


class GoAway(Struct, tag_field="type", tag="goaway", frozen=True):
    """The server is about to stop: reconnect to its successor."""


Frame = Ready | AckFrame | Error | GoAway
GOAWAY = msgspec.json.encode(GoAway())
PATH = "/v1/ingest"
PROTOCOL = "voicemem.v1"
