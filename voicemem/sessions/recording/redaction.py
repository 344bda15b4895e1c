"""Redacts events on their way to the journal (docs/redaction.md)."""

import asyncio
import importlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from voicemem.config.service import OWN_REDACTION, Settings
from voicemem.errors import CannotStart, DamagedEntry, Refused
from voicemem.protocol.codec import DecodedEvent, RejectedEvent, decode_journaled
from voicemem.protocol.events import Event
from voicemem.redaction.events import Speech, redact_event
from voicemem.redaction.texts import Finder, Rules, rules_of
from voicemem.sessions.recording.batches import EventBatch, ProducerLease, ReducedFrame
from voicemem.store.append_rules import AppendResult
from voicemem.store.port import Store
from voicemem.store.records import JournalRow

MAX_PRODUCERS = 10_000
"""The number of producers whose last words are remembered; for others the journal is read."""
LOOK_BACK = 500
"""How many of a journal's newest entries are searched for the beginning of speech that continues."""
PAGE = 1_000
LARGE_BYTES = 16 * 1024
"""Batches from this size on are redacted on a thread, so that others do not wait."""


@dataclass(eq=False, repr=False)
class Remembered:
    """The latest speech of a producer, and the position, epoch and seq up to which it is known."""

    speech: Speech
    position: int
    epoch: int | None = None
    next_seq: int | None = None
    """None if it is not known: then every event counts as new."""

    def take(self, event: Event) -> Speech:
        """Return the speech that an event continues; for a repeated event an empty one, since it is only compared."""
        if event.seq is None:
            return self.speech
        if self.next_seq is not None and event.seq < self.next_seq:
            return Speech(self.speech.rules)
        self.next_seq = event.seq + 1
        return self.speech


class Redaction:
    """Redacts batches in the order in which they are committed.

    A producer's latest speech is remembered while everything that it sends is stored. After anything else (a start, a
    node that took over, a duplicate) it is read from the journal again.
    """

    def __init__(self, rules: Rules, store: Store, count: Callable[[int], None]) -> None:
        """`count` takes the number of events of a batch in which something was redacted."""
        self.rules = rules
        self.store = store
        self.count = count
        self.remembered: OrderedDict[tuple[int, str], Remembered] = OrderedDict()

    def slow_sessions(self, batches: Sequence[EventBatch]) -> set[int]:
        return {batch.lease.key for batch in batches if not batch.is_redacted and size_of(batch) > LARGE_BYTES}

    async def redact(self, batches: Sequence[EventBatch]) -> None:
        """Redact batches that are about to be committed; none can grow from now on. Raises `StoreUnavailable`.

        A batch that the commit leaves out stays redacted, and is committed before anything else of its session.
        """
        done = 0
        for batch in batches:
            batch.is_sealed = True
        for batch in batches:
            if batch.is_redacted:
                continue
            batch.is_redacted = True
            remembered = await self.find(batch)
            size = size_of(batch)
            if size > LARGE_BYTES:
                self.count(await asyncio.to_thread(redact_batch, batch, remembered))
                continue
            self.count(redact_batch(batch, remembered))
            done += size
            if done > LARGE_BYTES:
                done = 0
                await asyncio.sleep(0)

    def settle(self, batch: EventBatch, appended: AppendResult) -> None:
        """Keep what is remembered of a batch's producer only if all of the batch was stored."""
        lease, key = batch.lease, key_of(batch.lease)
        lease.position = appended.stream.position
        stored = not appended.position_taken and all(one.position is not None for one in appended.outcomes)
        if not stored:
            self.remembered.pop(key, None)
        elif (known := self.remembered.get(key)) is not None:
            known.position = appended.stream.position
            known.next_seq = appended.next_seq if appended.next_seq > 1 else known.next_seq

    def forget(self, batches: Sequence[EventBatch]) -> None:
        for batch in batches:
            self.remembered.pop(key_of(batch.lease), None)

    async def find(self, batch: EventBatch) -> Remembered:
        lease, key = batch.lease, key_of(batch.lease)
        known = self.remembered.get(key)
        if known is None:
            known = self.remembered[key] = Remembered(Speech(self.rules), max(0, lease.position - LOOK_BACK))
            await self.catch_up(known, lease)
        elif not self.is_current(known, batch):
            await self.catch_up(known, lease)
        known.epoch = lease.epoch
        self.remembered.move_to_end(key)
        if len(self.remembered) > MAX_PRODUCERS:
            self.remembered.popitem(last=False)
        return known

    def is_current(self, known: Remembered, batch: EventBatch) -> bool:
        """Return whether no other node can have stored something of this producer since."""
        epoch = batch.lease.epoch
        if self.store.is_exclusive or (epoch is not None and epoch == known.epoch):
            return True
        arrived = (arrival.event for arrival in batch.arrivals if isinstance(arrival, DecodedEvent))
        first = next((event.seq for event in batch.decoded or arrived if event.seq is not None), None)
        return first is not None and first == known.next_seq

    async def catch_up(self, known: Remembered, lease: ProducerLease) -> None:
        """Read a producer's later speech: redacted again, its events in the journal give the same."""
        with suppress(DamagedEntry):
            while rows := await self.store.journal.read_rows(lease.key, known.position, PAGE):
                known.position = rows[-1].position
                for row in rows:
                    if row.producer == lease.producer:
                        with suppress(msgspec.DecodeError, Refused):
                            redact_event(decode_journaled(row.payload), row.payload, known.speech)
                            known.next_seq = known.next_seq if row.seq is None else row.seq + 1


def redact_rows(rows: Sequence[JournalRow], rules: Rules) -> list[JournalRow]:
    speeches: dict[str | None, Speech] = {}
    redacted_rows = []
    for row in rows:
        speech = speeches.setdefault(row.producer, Speech(rules))
        redacted = redact_event(decode_journaled(row.payload), row.payload, speech)
        redacted_rows.append(row if redacted is None else row._replace(payload=redacted[1]))
    return redacted_rows


def size_of(batch: EventBatch) -> int:
    arrived = (arrival.payload for arrival in batch.arrivals if isinstance(arrival, DecodedEvent))
    return sum(map(len, batch.payloads or arrived))


def key_of(lease: ProducerLease) -> tuple[int, str]:
    return lease.key, lease.producer


def redact_batch(batch: EventBatch, known: Remembered) -> int:
    changed, arrivals = 0, batch.one_by_one()
    for place, arrival in enumerate(arrivals):
        if isinstance(arrival, RejectedEvent):
            continue
        redacted = redact_event(arrival.event, arrival.payload, known.take(arrival.event))
        if redacted is not None:
            arrivals[place] = DecodedEvent(*redacted)
            if isinstance(arrival, ReducedFrame):
                arrivals[place] = ReducedFrame(*redacted, arrival.reduced)
            changed += redacted[0] is not arrival.event
    if batch.is_plain:
        decoded = [arrival for arrival in arrivals if isinstance(arrival, DecodedEvent)]
        batch.decoded, batch.payloads = [one.event for one in decoded], [one.payload for one in decoded]
    return changed


def load_rules(settings: Settings) -> Rules | None:
    """Return the rules of redaction, None without any. Raises `CannotStart` if a custom rule cannot be imported."""
    if not settings.redact:
        return None
    own = [name for name in settings.redact if OWN_REDACTION.fullmatch(name)]
    return rules_of([name for name in settings.redact if name not in own], map(load_finder, own))


def load_finder(path: str) -> Finder:
    """Import MODULE:FUNCTION, and try it. Raises `CannotStart`."""
    module, _, name = path.partition(":")
    try:
        finder: Finder = getattr(importlib.import_module(module), name)
        spans = [(int(start), int(end)) for start, end in finder("")]
    except Exception as error:  # the operator's module may raise anything
        why = f"{type(error).__name__}: {error}"
        raise CannotStart(f"The redaction {path} cannot be used: {why}.") from None
    if spans:
        raise CannotStart(f"The redaction {path} cannot be used: it finds something in an empty text.")
    return finder
