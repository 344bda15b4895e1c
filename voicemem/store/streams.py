"""A stream and its producers: what a store keeps of a session besides its journal, and what it takes into that.

The rules are pure: when a session is due to close, and which events of a producer its journal takes (docs/ingest.md).
Every store applies them in its transaction, so that all engines decide alike.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from voicemem.config.session import Durations, SessionPatch
from voicemem.errors import CODES
from voicemem.protocol.codec import split_payloads
from voicemem.protocol.types import JsonObject

SESSION_KIND, USER_KIND = "session", "user"
"""Kinds of streams; a user's is never closed."""
ERASED_USER_KIND = "erased user"
"""The kind of the row that is left of an erased user's stream."""
END_GRACE_MS = 2_000
"""How long after the first `session.end` a session waits for the last words of its other producers."""
EXPECTED_BACK_MS = 10_000
"""How long a producer without a connection is expected back: after its connection was lost, after it sent over HTTP,
and after the end of the node that it was connected to. An end waits for these producers, but never longer than the
grace."""
EARLIEST_MS = 10**11
"""A time in 1973: what is between 0 and this is not a Unix time in ms."""
NAME_TAKEN = "A session of this name is running already."
IN_OVERVIEW = frozenset({"name", "user_id", "labels"})
"""The settings that a slim row repeats."""
MAX_OVERVIEW_TEXT, MAX_OVERVIEW_LABELS = 160, 2048
"""Characters of a text that a slim row repeats, and of all labels as JSON; what has more of these shows none."""


class SessionEnding(NamedTuple):
    ts: int
    reason: str
    provisional: bool = False
    """For an idle close: a producer that comes back reopens the session."""
    began_ms: int | None = None
    """When the call began, where its end says so: then both times are the session's."""


class ProducerState(Struct, gc=False):
    name: str
    epoch: int = 0
    next_seq: int = 1
    unsequenced: bool = False
    ended: bool = False
    node: str | None = None
    """The token of the node that it is connected to."""
    expected_until_ms: int | None = None
    """Until when it is expected back, while it is not connected."""


class Stream(Struct, gc=False):
    """The row of a stream. Times are Unix ms."""

    key: int
    project: str
    kind: str
    id: str
    state: str
    position: int
    started_ms: int
    ended_ms: int | None
    """None while it is running, unless its call has said when it ended."""
    reason: str | None
    config: JsonObject
    silent_since_ms: int | None
    """Since when no producer is connected to any node; None while one is."""
    ending_ms: int | None
    ending_ts: int | None
    ending_reason: str | None
    provisional: bool = False
    """True if it was closed for idleness, so that it may be reopened."""

    @property
    def ending(self) -> SessionEnding | None:
        """The first committed `session.end`; None before one was committed."""
        return None if self.ending_ts is None else SessionEnding(self.ending_ts, self.ending_reason or "ended")


class ClosedSession(NamedTuple):
    """A session that was just closed, with what the last entry of its journal says, and when that was made."""

    stream: Stream
    ending: SessionEnding
    received_ms: int


def overview_values(config: JsonObject) -> dict[str, str | None]:
    name, labels = config.get("name"), config.get("labels")
    encoded = None if labels is None else msgspec.json.encode(labels).decode()
    if encoded is not None and len(encoded) > MAX_OVERVIEW_LABELS:
        encoded = None
    shown = None if name is None else name[:MAX_OVERVIEW_TEXT]
    return {"name": shown, "user_id": config.get("user_id"), "labels": encoded}


def is_expected(producer: ProducerState, now_ms: int) -> bool:
    """Return whether a producer may still send events: it is connected, or expected back."""
    return producer.node is not None or (producer.expected_until_ms or 0) > now_ms


def close_due_ms(stream: Stream) -> int | None:
    """The time to close a session if nothing more happens; None when it is not running, and for a user's stream."""
    if stream.state != "running" or stream.kind != SESSION_KIND:
        return None
    durations = msgspec.convert(stream.config, Durations)
    times = [stream.started_ms + int(durations.max_duration * 1000)]
    if stream.ending_ms is not None:
        times.append(stream.ending_ms + END_GRACE_MS)
    if stream.silent_since_ms is not None and durations.idle_timeout:
        times.append(stream.silent_since_ms + int(durations.idle_timeout * 1000))
    return min(times)


def ending_if_due(stream: Stream, now_ms: int) -> SessionEnding | None:
    """The ending with which a session is to be closed now; None when it is not due."""
    due = close_due_ms(stream)
    if due is None or due > now_ms:
        return None
    if stream.ending is not None:
        return stream.ending
    durations = msgspec.convert(stream.config, Durations)
    if stream.started_ms + int(durations.max_duration * 1000) <= now_ms:
        return SessionEnding(now_ms, "max_duration")
    return SessionEnding(now_ms, "idle", provisional=True)


def break_off(stream: Stream, now_ms: int, is_awaited: Callable[[int], bool]) -> int | None:
    """Let a running session fall silent, all of whose connections have broken; when it is to be closed then.

    A committed end waits for the producers that are expected back and have not ended (`is_awaited` of the key) as if
    it had just been committed; without any, it is due now.
    """
    stream.silent_since_ms = now_ms
    if stream.ending is not None:
        if not is_awaited(stream.key):
            return now_ms
        stream.ending_ms = now_ms
    return close_due_ms(stream)


def retention_times(stream: Stream, default_ttl_s: int) -> tuple[int, int | None]:
    """The times of a session that has just ended: when its journal is compacted, and when it expires, if ever.

    `default_ttl_s` is for one that does not say; 0: never.
    """
    durations = msgspec.convert(stream.config, Durations)
    ended = stream.ended_ms or 0
    ttl_s = durations.ttl_seconds if durations.ttl_seconds is not None else default_ttl_s or None
    expires = None if ttl_s is None else ended + int(ttl_s * 1000)
    return ended + int(durations.reopen_window * 1000), expires


def mark_erased(stream: Stream, now_ms: int) -> None:
    """Take everything out of the row. It stays without content, so that a late event cannot create it again."""
    stream.state, stream.config, stream.ended_ms, stream.reason = "erased", {}, now_ms, None
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    stream.provisional = False


def may_reopen(stream: Stream, now_ms: int) -> bool:
    """Return whether an event or an open reopens a session: after an idle close, within its `reopen_window`."""
    if stream.state != "ended" or not stream.provisional or stream.ended_ms is None:
        return False
    return now_ms < stream.ended_ms + int(msgspec.convert(stream.config, Durations).reopen_window * 1000)


EXPECT_AGAIN_MS = 1_000
"""How much later a producer that sends without a connection must be expected for that to be written."""


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
    """How many events `payloads` are, where some came together and have commas between them; 0: each is one."""

    def as_offers(self) -> Sequence[Offer]:
        if self.offers is not None:
            return self.offers
        texts = split_payloads(self.payloads) if self.joined else self.payloads
        return [Offer(self.first_seq + index, self.received_ms, text) for index, text in enumerate(texts)]

    @property
    def count(self) -> int:
        """How many events its payloads are."""
        return self.joined or len(self.payloads)

    def run(self, position: int) -> "JournalRun":
        """Its payloads as they are stored when all are, the first at this position."""
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

    `position` is that of the first event when all were stored in a row. Otherwise it is None, and `outcomes` has one
    outcome for each event.
    """

    stream: Stream
    next_seq: int
    position: int | None
    outcomes: Sequence[Outcome] = ()
    reopened: bool = False
    position_taken: bool = False
    """True if the journal did not end at the batch's `expected_position`, so that nothing was looked at."""


def admit(stream: Stream, producer: ProducerState, epoch: int | None, offer: Offer) -> Outcome | None:
    """Decide on an offer: its outcome, or None when it is to be stored.

    A `duplicate` must still be compared with what is stored under its seq. The check for duplicates comes before that
    for the end of the session: a producer that lost the acks of its last events may resend them at any time later.
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
    """Return whether it is to be written that a producer without a connection is expected until then."""
    return until_ms >= (producer.expected_until_ms or 0) + EXPECT_AGAIN_MS


def outcome_sentence(outcome: Outcome) -> str:
    """The sentence for an outcome's code, with the seq that a gap expects."""
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
        """The values of `runs.JOURNAL_COLUMNS`; the payloads of several events become one JSON array."""
        stream, position, payloads = self.stream, self.position, self.payloads
        count = self.joined or len(payloads)
        payload = payloads[0] if count == 1 else b"[%b]" % b",".join(payloads)
        checked = checksum(stream, position, payload)
        return stream, position, self.producer, self.seq, self.received_ms, count, checked, waypoint, payload


def checksum(stream: int, position: int, payload: bytes) -> int:
    """The CRC of a payload in its place, so that a row that was moved elsewhere counts as damaged too."""
    return zlib.crc32(payload, (stream ^ position) & 0xFFFFFFFF)
