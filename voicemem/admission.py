"""Which events of a producer a journal takes, and when a session is over: the rules of order (design, section 5).

Pure decisions over rows; each store asks here inside its transaction, so that all stores decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from voicemem import config
from voicemem.errors import CODES
from voicemem.events import Fields

SESSION, USER = "session", "user"
"""Kinds of streams: a user's is never closed."""
GRACE_MS = 2_000
"""How long after the first `session.end` the last words of other producers are waited for."""


class Ending(NamedTuple):
    """What a `session.end` says: Unix ms, and why."""

    ts: int
    reason: str
    provisional: bool = False
    """For idleness: a producer that comes back undoes it."""


class Offer(NamedTuple):
    """One event that a producer offers to a journal."""

    seq: int | None
    received_ms: int
    payload: bytes
    refusal: str | None = None
    """The code of an event that cannot be taken: it is journaled without its content."""
    update: config.Settled | None = None
    ending: Ending | None = None


class Batch(Struct, frozen=True, gc=False):
    """What one producer offers to one journal at a time; `epoch` None is not checked.

    Either plain `payloads`, without anything special about them, whose seqs count up from `first_seq`, or `offers`.
    """

    key: int
    producer: str
    epoch: int | None
    received_ms: int
    payloads: Sequence[bytes] = ()
    first_seq: int = 0
    offers: Sequence[Offer] | None = None

    def each(self) -> Sequence[Offer]:
        """All of it as offers."""
        if self.offers is not None:
            return self.offers
        return [Offer(self.first_seq + index, self.received_ms, text) for index, text in enumerate(self.payloads)]


class Outcome(NamedTuple):
    """What became of one offer.

    `position` is None when nothing was stored. `code` is None when all is well; with a position, it is the code
    under which the event stands in the journal as refused, and its error counts as its ack.
    """

    position: int | None = None
    code: str | None = None
    duplicate: bool = False
    expected: int | None = None
    """With `seq_gap`: the seq to go on from."""


class Producer(Struct, gc=False):
    """A producer of one session."""

    name: str
    epoch: int = 0
    next_seq: int = 1
    unsequenced: bool = False
    """Whether it sends events without seq."""
    ended: bool = False


class Stream(Struct, gc=False):
    """A journal's row. Times are Unix ms of the store's clock."""

    key: int
    project: str
    kind: str
    id: str
    state: str
    """`running`, `ended` or `erased`."""
    position: int
    started_ms: int
    ended_ms: int | None
    reason: str | None
    config: Fields
    silent_since_ms: int | None
    """When its last connection went; None while one is there."""
    ending_ms: int | None
    """When the first `session.end` was committed."""
    ending_ts: int | None
    ending_reason: str | None
    provisional: bool = False
    """Closed for idleness, by the server: it may be reopened."""

    @property
    def ending(self) -> Ending | None:
        return None if self.ending_ts is None else Ending(self.ending_ts, self.ending_reason or "ended")


def admit(stream: Stream, producer: Producer, epoch: int | None, offer: Offer) -> Outcome | None:
    """What is to become of an offer; None when it is to be stored.

    An outcome with `duplicate` must still be compared with what is stored under its seq.
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


def admits_all(stream: Stream, producer: Producer, batch: Batch) -> bool:
    """Whether plain payloads are simply to be stored, all of them: nothing is known that `admit` would say of one."""
    return (
        batch.offers is None
        and batch.first_seq == producer.next_seq
        and batch.epoch in (None, producer.epoch)
        and stream.state == "running"
        and not (producer.ended or producer.unsequenced)
    )


def sentence(outcome: Outcome) -> str:
    """The plain sentence for an outcome's code."""
    text = CODES[outcome.code or "internal"].sentence
    return f"{text} Expected seq {outcome.expected}." if outcome.expected is not None else text


def due_ms(stream: Stream) -> int | None:
    """When the session is to be closed if nothing more happens; None for never, or when it is closed."""
    if stream.state != "running" or stream.kind != SESSION:
        return None
    settings = config.read(stream.config)
    times = [stream.started_ms + int(settings.max_duration * 1000)]
    if stream.ending_ms is not None:
        times.append(stream.ending_ms + GRACE_MS)
    if stream.silent_since_ms is not None and settings.idle_timeout:
        times.append(stream.silent_since_ms + int(settings.idle_timeout * 1000))
    return min(times)


def due_close(stream: Stream, now_ms: int) -> Ending | None:
    """How a session that is due is to be closed, and with which `ts`; None when it is not due."""
    due = due_ms(stream)
    if due is None or due > now_ms:
        return None
    if stream.ending is not None:
        return stream.ending
    settings = config.read(stream.config)
    if stream.started_ms + int(settings.max_duration * 1000) <= now_ms:
        return Ending(now_ms, "max_duration")
    return Ending(now_ms, "idle", provisional=True)


def may_reopen(stream: Stream, now_ms: int) -> bool:
    """Whether an event or an open brings the session back: after an idle close, for a while."""
    if stream.state != "ended" or not stream.provisional or stream.ended_ms is None:
        return False
    return now_ms < stream.ended_ms + int(config.read(stream.config).reopen_window * 1000)
