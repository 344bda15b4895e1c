"""Appends to a journal: which events of a producer are stored, refused or duplicates (docs/ingest.md).

The rules are pure, and every store applies them in its transaction, so that all engines decide alike.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from voicemem.config.session import SessionPatch
from voicemem.errors import CODES
from voicemem.protocol.codec import split_payloads
from voicemem.store.streams import ProducerState, SessionEnding, Stream

EXPECT_AGAIN_MS = 1_000
"""By how much the time until which a producer without a connection is expected must rise to be written again."""


class Offer(NamedTuple):
    seq: int | None
    received_ms: int
    payload: bytes
    refusal: str | None = None
    """The code under which the event is journaled as refused, without its content."""
    update: SessionPatch | None = None
    ending: SessionEnding | None = None


class Batch(Struct):
    """Events that one producer offers to one journal at a time. An `epoch` of None is not checked.

    It holds either `payloads`, of plain events whose seqs count up from `first_seq`, or `offers`, of any events.
    """

    key: int
    producer: str
    epoch: int | None
    received_ms: int = 0
    payloads: Sequence[bytes] = ()
    first_seq: int = 0
    offers: Sequence[Offer] | None = None
    from_seq: int | None = None
    """The lowest seq that the producer can still send: above its `next_seq`, the seqs between are declared missing."""
    expected_until_ms: int | None = None
    """Until when the producer of events that came without a connection is expected back."""
    expected_position: int | None = None
    """The position at which the journal must end for `offers` to be stored; None: any."""
    joined: int = 0
    """The number of events in `payloads`, if some hold several with commas between them; 0: each is one event."""

    def as_offers(self) -> Sequence[Offer]:
        if self.offers is not None:
            return self.offers
        texts = split_payloads(self.payloads) if self.joined else self.payloads
        return [Offer(self.first_seq + index, self.received_ms, text) for index, text in enumerate(texts)]

    @property
    def count(self) -> int:
        """The number of events in its payloads."""
        return self.joined or len(self.payloads)

    def run(self, position: int) -> "JournalRun":
        """Return its payloads as they are stored, if all are, the first at this position."""
        name, seq = self.producer, self.first_seq
        return JournalRun(self.key, position, name, seq, self.received_ms, self.payloads, self.joined)


class Outcome(NamedTuple):
    """The result of one offer.

    `position` is None when nothing was stored. `code` is None when the event was stored or is a duplicate. A code with
    a position means that the event is journaled as refused; its error then counts as its ack.
    """

    position: int | None = None
    code: str | None = None
    duplicate: bool = False
    expected: int | None = None


class AppendResult(Struct, frozen=True, gc=False):
    """The results of a batch, with the stream and the producer's `next_seq` after it.

    `position` is the first event's if all were stored in a row. Otherwise it is None, and `outcomes` has one outcome
    for each event.
    """

    stream: Stream
    next_seq: int
    position: int | None
    outcomes: Sequence[Outcome] = ()
    reopened: bool = False
    position_taken: bool = False
    """True if the journal did not end at the batch's `expected_position`, so that no event was examined."""


def admit(stream: Stream, producer: ProducerState, epoch: int | None, offer: Offer) -> Outcome | None:
    """Return the outcome of an offer, or None if it is to be stored.

    A `duplicate` must still be compared with the event stored under its seq. Duplicates are checked before the end of
    the session: a producer that lost the acks of its last events may resend them at any later time.
    """
    if stream.state == "erased":
        return Outcome(code="session_erased")
    if epoch is not None and epoch != producer.epoch:
        return Outcome(code="superseded")
    if offer.seq is not None and offer.seq < producer.next_seq and not producer.unsequenced:
        return Outcome(duplicate=True)
    if stream.state == "ended" or producer.ended:
        return Outcome(code="session_ended")
    if offer.seq is None:
        return Outcome(code="seq_required") if producer.next_seq > 1 else None
    if producer.unsequenced:
        return Outcome(code="seq_required")
    if offer.seq > producer.next_seq:
        return Outcome(code="seq_gap", expected=producer.next_seq)
    return None


def admits_all(stream: Stream, producer: ProducerState, batch: Batch) -> bool:
    """Return whether all of a batch of plain payloads is to be stored: `admit` would return None for each of them."""
    return (
        batch.offers is None
        and batch.from_seq is None
        and (batch.expected_until_ms is None or not must_note_expected(producer, batch.expected_until_ms))
        and batch.first_seq == producer.next_seq
        and batch.epoch in (None, producer.epoch)
        and stream.state == "running"
        and not (producer.ended or producer.unsequenced)
    )


def must_note_expected(producer: ProducerState, until_ms: int) -> bool:
    """Return whether the time until which a producer without a connection is expected must be written."""
    return until_ms >= (producer.expected_until_ms or 0) + EXPECT_AGAIN_MS


def outcome_sentence(outcome: Outcome) -> str:
    """Return the sentence for an outcome's code, with the seq that a gap expects."""
    text = CODES[outcome.code or "internal"].sentence
    return f"{text} Expected seq {outcome.expected}." if outcome.expected is not None else text


class JournalRun(Struct, frozen=True, gc=False):
    """Events of one producer (None: the server's own) that came together, at consecutive positions and seqs."""

    stream: int
    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    payloads: Sequence[bytes]
    joined: int = 0
    """As in a batch."""

    def columns(self, waypoint: bool) -> tuple[Any, ...]:
        """Return the values of `runs.JOURNAL_COLUMNS`; the payloads of several events become one JSON array."""
        stream, position, payloads = self.stream, self.position, self.payloads
        count = self.joined or len(payloads)
        payload = payloads[0] if count == 1 else b"[%b]" % b",".join(payloads)
        checked = checksum(stream, position, payload)
        return stream, position, self.producer, self.seq, self.received_ms, count, checked, waypoint, payload


def checksum(stream: int, position: int, payload: bytes) -> int:
    """Return the CRC of a payload in its place, so that a row that was moved elsewhere counts as damaged too."""
    return zlib.crc32(payload, (stream ^ position) & 0xFFFFFFFF)
