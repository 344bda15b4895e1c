"""Keeps the store busy from several workers at once, with everything that a service does to its store."""

from __future__ import annotations

import asyncio
import random
from typing import Literal

from bench.powercut.ledger import PROJECT, Call, Ledger, Producing, Sent, end_payload, payload
from voicemem.config.session import validate_config
from voicemem.errors import Refused, StoreUnavailable
from voicemem.store.append_rules import Batch, Offer, Outcome
from voicemem.store.outbox import Attempt, FrozenPayload
from voicemem.store.port import Store
from voicemem.store.records import DisconnectedProducer, Snapshot
from voicemem.store.streams import SessionEnding

PAIRS = 3
"""Sessions at a time, each with two producers."""
LEASE_MS = 60
OVER = ("session_ended", "session_erased", "superseded")


async def keep_busy(store: Store, ledger: Ledger, choice: random.Random, steps: int) -> None:
    """Work until every worker has taken so many steps. Raises `StoreUnavailable` once the others have stopped too."""
    calls = [Call(ledger.fresh("s")) for _ in range(PAIRS)]
    for number, resumed in enumerate([call for call in ledger.calls.values() if not call.closes][-PAIRS:]):
        calls[number] = resumed
    callers = [
        Caller(store, ledger, random.Random(choice.random()), f"p{number % 2}", calls, number // 2)
        for number in range(2 * PAIRS)
    ]
    tasks = [asyncio.create_task(caller.run(steps)) for caller in callers]
    tasks.append(asyncio.create_task(deliver(store, ledger, random.Random(choice.random()), steps)))
    errors = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, StoreUnavailable)):
        raise error


class Caller:
    """Be one producer: open, send, resend, and end; now and then do what a server does."""

    def __init__(
        self, store: Store, ledger: Ledger, choice: random.Random, name: str, calls: list[Call], pair: int
    ) -> None:
        self.store = store
        self.ledger = ledger
        self.choice = choice
        self.name = name
        self.calls = calls
        self.pair = pair

    async def run(self, steps: int) -> None:
        if self.choice.random() < 0.3:
            await self.resend()
        for _ in range(steps):
            call = self.calls[self.pair]
            producer = call.producers.setdefault(self.name, Producing(self.name))
            self.ledger.calls[call.id] = call
            if call.erase_asked or producer.finished:
                self.next_call(call)
            elif producer.epoch is None or self.choice.random() < 0.02:
                await self.open(call, producer)
            else:
                await self.do(call, producer)

    def next_call(self, call: Call) -> None:
        if self.calls[self.pair] is call:
            self.calls[self.pair] = Call(self.ledger.fresh("s"))

    async def do(self, call: Call, producer: Producing) -> None:
        """Do one of the things that a service does, mostly an append."""
        dice = self.choice.random()
        if dice < 0.75:
            await self.send(call, producer, self.choice.choice((0, 0, 0, 2)))
        elif dice < 0.82:
            await self.change(call)
        elif dice < 0.88:
            await self.snapshot(call, producer)
        elif dice < 0.92:
            await self.end(call, producer)
        elif dice < 0.96:
            await self.close(call)
        elif dice < 0.98:
            gone = DisconnectedProducer(call.key, producer.name, producer.epoch or 0)
            await self.store.journal.leave([gone], self.ledger.tick())
        else:
            await self.erase(call)

    # Producers

    async def open(self, call: Call, producer: Producing) -> None:
        given = validate_config({"labels": {"version": "0"}, "idle_timeout": 0})
        from_seq = None
        if call.key and self.choice.random() < 0.05:
            from_seq = producer.next_seq + self.choice.randrange(1, 4)
            producer.from_seqs.add(from_seq)
        try:
            opened = await self.store.journal.open_producer(
                PROJECT, call.id, producer.name, given, from_seq, self.ledger.tick()
            )
        except Refused:  # erased meanwhile
            producer.finished = True
            return
        call.key = opened.stream.key
        producer.epoch = producer.epoch_acked = opened.epoch
        producer.next_seq = opened.next_seq
        if opened.stream.state == "running":
            # The store does not know what a skipped seq contained, so no producer may offer it again.
            producer.offered = max(producer.offered, opened.next_seq - 1)

    async def send(self, call: Call, producer: Producing, again: int) -> None:
        """Send a few events, the first of them perhaps again."""
        first = max(1, producer.next_seq - again)
        if any(seq not in producer.positions for seq in range(first, producer.next_seq)):
            first = producer.next_seq
        seqs = range(first, producer.next_seq + self.choice.randrange(1, 6))
        await self.offer(call, producer, self.events(call, seqs))

    def events(self, call: Call, seqs: range) -> list[Offer]:
        now = self.ledger.tick()
        return [Offer(seq, now, payload(call.id, self.name, seq)) for seq in seqs]

    async def offer(self, call: Call, producer: Producing, offers: list[Offer]) -> None:
        seqs = [offer.seq or 0 for offer in offers]
        producer.offered = max(producer.offered, *seqs)
        outcomes = await self.append(call, producer, offers)
        for seq, outcome in zip(seqs, outcomes, strict=True):
            if outcome.code in OVER:
                producer.finished = True
                return
            if outcome.code is not None:
                self.ledger.findings.append(f"{call.id}/{self.name}/{seq} was refused: {outcome.code}")
                producer.finished = True
                return
            producer.acked = max(producer.acked, seq)
            producer.next_seq = producer.acked + 1
            if outcome.position is not None:
                producer.positions[seq] = outcome.position

    async def append(self, call: Call, producer: Producing, offers: list[Offer]) -> list[Outcome]:
        now, first = self.ledger.tick(), offers[0].seq or 0
        batch = Batch(call.key, producer.name, producer.epoch, now, [offer.payload for offer in offers], first)
        if any(offer.ending for offer in offers):
            batch = Batch(call.key, producer.name, producer.epoch, now, offers=offers)
        (appended,) = await self.store.journal.append([batch], now)
        if appended.position is None:
            return [*appended.outcomes]
        return [Outcome(appended.position + index) for index in range(len(offers))]

    async def resend(self) -> None:
        """Do what a producer over HTTP does when it does not know whether its last events arrived: it opens nothing."""
        call = self.calls[self.pair]
        producer = call.producers.get(self.name)
        if producer is None or not call.key or call.erase_asked or producer.finished:
            return
        seqs = range(producer.next_seq, producer.offered + 1)
        jumped = any(from_seq > producer.next_seq for from_seq in producer.from_seqs)
        if seqs and not jumped and producer.ends.isdisjoint(seqs):
            await self.offer(call, producer, self.events(call, seqs))

    async def end(self, call: Call, producer: Producing) -> None:
        seq = producer.next_seq
        if producer.offered >= seq:  # it has sent something else under this seq
            return
        producer.ends.add(seq)
        now = self.ledger.tick()
        await self.offer(call, producer, [Offer(seq, now, end_payload(seq), ending=SessionEnding(now, "ended"))])
        if not producer.finished:
            producer.finished = True
            webhook_event = self.webhook_event(call)
            if await self.store.journal.close_ended(call.key, webhook_event, self.ledger.tick()) is not None:
                call.closes.add(webhook_event)

    # The server's own

    def webhook_event(self, call: Call) -> str:
        webhook_event = self.ledger.fresh("n")
        call.asked_closes.add(webhook_event)
        return webhook_event

    async def close(self, call: Call) -> None:
        webhook_event, now = self.webhook_event(call), self.ledger.tick()
        if await self.store.journal.close_session(call.key, SessionEnding(now, "api"), webhook_event, now) is not None:
            call.closes.add(webhook_event)

    async def change(self, call: Call) -> None:
        call.version[0] = version = call.version[0] + 1
        settled = validate_config({"labels": {"version": str(version)}})
        event = b'{"type":"session.update","labels":{"version":"%d"}}' % version
        try:
            await self.store.journal.change_config(call.key, settled, event, self.ledger.tick())
        except Refused:
            return
        call.version[1] = max(call.version[1], version)

    async def snapshot(self, call: Call, producer: Producing) -> None:
        at = max(producer.positions.values(), default=0)
        if at > call.snapshot[0]:
            call.snapshot[0] = at
            await self.store.journal.save_snapshot(call.key, Snapshot(at, 1, b"%d " % at * 300))
            call.snapshot[1] = max(call.snapshot[1], at)

    async def erase(self, call: Call) -> None:
        call.erase_asked = True
        await self.store.retention.erase(call.key, self.ledger.tick())
        call.erased = True


async def payload_of(store: Store, payload: FrozenPayload) -> bytes:
    return b"".join([part async for part in store.outbox.parts_of(payload)])


async def deliver(store: Store, ledger: Ledger, choice: random.Random, steps: int) -> None:
    """Do the outbox's part: claim, freeze, attempt, finish."""
    for _ in range(steps // 2):
        for delivery in await store.outbox.claim_deliveries(ledger.tick(), LEASE_MS, {}, 4):
            sent = ledger.deliveries.setdefault(delivery.notice_id, Sent(delivery))
            sent.delivery = delivery
            payload = delivery.payload
            if payload is None:
                mine = f"{delivery.notice_id} {choice.random()}".encode() * choice.choice((1, 400))
                sent.asked_bodies.add(mine)
                payload = await store.outbox.freeze_payload(delivery, mine)
            if payload is None:  # erased meanwhile
                continue
            body = await payload_of(store, payload)
            sent.frozen = sent.frozen or body
            if body != sent.frozen:
                ledger.findings.append(f"the body of {delivery.notice_id} changed")
            done = choice.random() < 0.5
            attempt = Attempt(ledger.tick(), 1, 200 if done else 500, None, f"{choice.random()}")
            state: Literal["delivered", "pending"] = "delivered" if done else "pending"
            sent.asked_attempts += 1
            if await store.outbox.finish_delivery(delivery, attempt, state, None if done else ledger.now_ms):
                sent.attempts.append(attempt)
                sent.delivered = done
        await asyncio.sleep(0)
