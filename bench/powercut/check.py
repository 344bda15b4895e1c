"""Checks a reopened store against what was acknowledged."""

from __future__ import annotations

import json
from collections import Counter

import apsw

from bench.powercut.ledger import PROJECT, Call, Ledger, Producing, Sent, end_payload, payload
from bench.powercut.work import payload_of
from voicemem.config.session import validate_config
from voicemem.store.deliveries import Delivery
from voicemem.store.port import Store
from voicemem.store.records import JournalRow

FAR_MS = 10**9


def check_file(path: str, ledger: Ledger) -> None:
    """Check the file by itself."""
    connection = apsw.Connection(path)
    try:
        told = connection.execute("pragma integrity_check").fetchall()
    except apsw.Error as error:
        told = [(str(error),)]
    finally:
        connection.close()
    if told != [("ok",)]:
        ledger.findings.append(f"integrity_check: {told[:3]}")


async def check_store(store: Store, ledger: Ledger) -> None:
    """Check all sessions, deliveries and producers. Changes the store: epochs rise, deliveries are claimed."""
    claimed = await store.outbox.claim_deliveries(ledger.now_ms + FAR_MS, 1, {}, 1_000_000)
    bodies = {one.notice_id: await payload_of(store, one.payload) for one in claimed if one.payload is not None}
    for sent in ledger.deliveries.values():
        call = next(call for call in ledger.calls.values() if call.key == sent.delivery.stream)
        if not call.erase_asked:
            await check_body(store, ledger, sent, bodies.get(sent.delivery.notice_id))
    for call in ledger.calls.values():
        await Checker(store, ledger, call).run()


async def check_body(store: Store, ledger: Ledger, sent: Sent, claimed: bytes | None) -> None:
    name = f"delivery {sent.delivery.notice_id}"
    if claimed is not None and claimed not in sent.asked_bodies:
        ledger.findings.append(f"{name}: a body that nobody gave")
    if sent.frozen is None:
        return
    payload = await store.outbox.freeze_payload(sent.delivery, b"another")
    if payload is None or await payload_of(store, payload) != sent.frozen:
        ledger.findings.append(f"{name}: its frozen body is lost or another")


class Checker:
    """One session."""

    def __init__(self, store: Store, ledger: Ledger, call: Call) -> None:
        self.store = store
        self.ledger = ledger
        self.call = call
        self.expected = dict.fromkeys(call.producers, 1)
        """The seq that the journal should have next, by producer."""
        self.closes = 0
        self.version = 0

    def say(self, text: str) -> None:
        self.ledger.findings.append(f"{self.call.id}: {text}")

    async def run(self) -> None:
        call = self.call
        stream = await self.store.journal.find_session(PROJECT, call.id)
        if stream is None:
            if call.key and not call.erase_asked:
                self.say("an acknowledged session is gone")
            if call.erased and await self.store.journal.read_rows(call.key, 0, 1):
                self.say("an erased session can be read")
            return
        if call.erased:
            self.say("an erased session is back")
            return
        call.key = stream.key
        rows = await self.rows()
        if [row.position for row in rows] != list(range(1, stream.position + 1)):
            self.say(f"positions are not 1 to {stream.position}")
        for row in rows:
            self.check_row(row)
        for producer in call.producers.values():
            await self.check_producer(producer)
        if stream.config["labels"]["version"] != str(self.version) or not self.between(self.version, call.version):
            self.say(f"configuration {stream.config['labels']}, journal {self.version}, asked and acked {call.version}")
        if (stream.state == "ended") != (self.closes == 1):
            self.say(f"{stream.state} after {self.closes} closes")
        self.check_deliveries(await self.store.deliveries.list_deliveries(stream.key))
        snapshot = await self.store.journal.load_snapshot(stream.key, 1, 10**9)
        found = 0 if snapshot is None else snapshot.position
        if not self.between(found, call.snapshot) or (snapshot and snapshot.state != b"%d " % found * 300):
            self.say(f"snapshot of {found}, asked and acked {call.snapshot}")

    def between(self, value: int, asked_acked: list[int]) -> bool:
        return asked_acked[1] <= value <= asked_acked[0]

    async def rows(self) -> list[JournalRow]:
        rows: list[JournalRow] = []
        while more := await self.store.journal.read_rows(self.call.key, rows[-1].position if rows else 0, 1_000):
            rows += more
        return rows

    def check_row(self, row: JournalRow) -> None:
        if row.producer is None:
            self.check_own(json.loads(row.payload))
            return
        producer = self.call.producers.get(row.producer)
        if producer is None or row.seq is None or row.seq > producer.offered:
            self.say(f"a phantom at {row.position}: {row.producer}/{row.seq}")
            return
        name = f"{row.producer}/{row.seq}"
        if row.seq != self.expected[row.producer]:
            self.say(f"{name} at {row.position}, expected {self.expected[row.producer]}")
        self.expected[row.producer] = row.seq + 1
        allowed = {payload(self.call.id, row.producer, row.seq)}
        if row.seq in producer.ends:
            allowed.add(end_payload(row.seq))
        if row.payload not in allowed:
            self.say(f"{name} at {row.position} has other bytes than were sent")
        if producer.positions.get(row.seq, row.position) != row.position:
            self.say(f"{name} was acknowledged at {producer.positions[row.seq]}, and is at {row.position}")

    def check_own(self, event: dict[str, object]) -> None:
        if event["type"] == "session.closed":
            self.closes += 1
        elif event["type"] == "session.update":
            labels = event["labels"]
            assert isinstance(labels, dict)
            self.version = int(labels["version"])
        elif event["type"] == "session.gap":
            name, first, last = str(event["producer"]), int(str(event["from_seq"])), int(str(event["to_seq"]))
            if first != self.expected[name] or last + 1 not in self.call.producers[name].from_seqs:
                self.say(f"gap {first} to {last} of {name}, expected {self.expected[name]}")
            self.expected[name] = last + 1
        else:
            self.say(f"a phantom: {event}")

    async def check_producer(self, producer: Producing) -> None:
        following = self.expected[producer.name]
        self.ledger.checked += len(producer.positions)
        if following <= producer.acked:
            self.say(f"LOST: {producer.name} was acknowledged up to {producer.acked}, stored up to {following - 1}")
        opened = await self.store.journal.open_producer(
            PROJECT, self.call.id, producer.name, validate_config({}), None, self.ledger.now_ms
        )
        if opened.next_seq != following:
            self.say(f"{producer.name}: next_seq {opened.next_seq}, journal ends before {following}")
        if opened.epoch <= producer.epoch_acked:
            self.say(f"{producer.name}: epoch {opened.epoch} was given out before")

    def check_deliveries(self, found: list[Delivery]) -> None:
        webhook_events = Counter(delivery.notice_id for delivery in found)
        if len(webhook_events) != len(found) or len(found) != self.closes:
            self.say(f"{self.closes} closes, deliveries {dict(webhook_events)}")
        if not self.call.closes <= webhook_events.keys() <= self.call.asked_closes:
            self.say(f"LOST: closes {self.call.closes} were acknowledged, deliveries {set(webhook_events)}")
        for delivery in found:
            sent = self.ledger.deliveries.get(delivery.notice_id)
            if sent is not None:
                self.check_delivery(delivery, sent)

    def check_delivery(self, delivery: Delivery, sent: Sent) -> None:
        kept = [attempt for attempt in delivery.attempts if attempt in sent.attempts]
        if kept != sent.attempts or len(delivery.attempts) > sent.asked_attempts:
            self.say(f"LOST: attempts of {delivery.notice_id}: {len(delivery.attempts)} of {len(sent.attempts)}")
        if sent.delivered and delivery.state != "delivered":
            self.say(f"{delivery.notice_id} was delivered, and is {delivery.state}")
