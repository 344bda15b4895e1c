"""What was asked of the store, and what it acknowledged: the reference of every check."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field

from voicemem.store.outbox import Attempt, ClaimedDelivery

PROJECT = "p"
SIZES = (0, 0, 0, 40, 200, 200, 1_500, 9_000)
"""Lengths of an event's text; the rarer ones exceed a page of the database."""


def payload(session_id: str, producer: str, seq: int) -> bytes:
    """The only event that this producer ever offers under this seq."""
    name = f"{session_id}/{producer}/{seq}"
    size = random.Random(name).choice(SIZES)
    text = hashlib.shake_256(name.encode()).hexdigest(max(8, size // 2))
    return json.dumps({"type": "asr", "seq": seq, "turn_id": seq, "text": text, "final": True}).encode()


def end_payload(seq: int) -> bytes:
    """A producer's end."""
    return b'{"type":"session.end","seq":%d}' % seq


@dataclass
class Producing:
    """A producer of one session."""

    name: str
    next_seq: int = 1
    """The seq that it sends next."""
    offered: int = 0
    """The highest seq that it ever sent."""
    acked: int = 0
    epoch: int | None = None
    """The epoch of its open connection."""
    epoch_acked: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    """Positions of acknowledged events, by seq."""
    ends: set[int] = field(default_factory=set)
    """Seqs under which it sent its end."""
    from_seqs: set[int] = field(default_factory=set)
    finished: bool = False
    """Whether it knows that its session takes nothing more."""


@dataclass
class Call:
    """A session. In pairs, the first item is the newest that was requested, the second the newest acknowledged."""

    id: str
    key: int = 0
    """0 until an open is acknowledged."""
    producers: dict[str, Producing] = field(default_factory=dict)
    asked_closes: set[str] = field(default_factory=set)
    closes: set[str] = field(default_factory=set)
    """Notice ids of acknowledged closes."""
    version: list[int] = field(default_factory=lambda: [0, 0])
    """Of the configuration."""
    snapshot: list[int] = field(default_factory=lambda: [0, 0])
    erase_asked: bool = False
    erased: bool = False


@dataclass
class Sent:
    """The state of one delivery. `frozen` and `delivered` are acknowledged facts."""

    delivery: ClaimedDelivery
    asked_bodies: set[bytes] = field(default_factory=set)
    frozen: bytes | None = None
    attempts: list[Attempt] = field(default_factory=list)
    """Acknowledged ones, in order."""
    asked_attempts: int = 0
    delivered: bool = False


@dataclass
class Ledger:
    """Everything, over all the cuts that one database goes through."""

    now_ms: int = 1_800_000_000_000
    calls: dict[str, Call] = field(default_factory=dict)
    deliveries: dict[str, Sent] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    checked: int = 0
    """How often acknowledged events were looked up."""
    made: int = 0

    def tick(self) -> int:
        """The time, a little later than before."""
        self.now_ms += 7
        return self.now_ms

    def fresh(self, kind: str) -> str:
        """A name that was not used before."""
        self.made += 1
        return f"{kind}{self.made}"
