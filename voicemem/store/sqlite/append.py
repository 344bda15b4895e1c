"""The append: one producer's events into one journal, inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from voicemem.admission import Offer, Outcome, Producer, Stream, admit, may_reopen
from voicemem.config import Settled, merged
from voicemem.errors import Refused
from voicemem.store.base import Appended
from voicemem.store.sqlite.rows import append_own, insert_rows, load_producer, load_stream, save_producer, update_stream
from voicemem.wire import same_event

TYPE = msgspec.json.Decoder(type=dict[str, Any])


class Append:
    """One batch of offers on its way into a journal; lives as long as the job."""

    def __init__(
        self, connection: apsw.Connection, key: int, name: str, epoch: int | None, offers: Sequence[Offer], now_ms: int
    ) -> None:
        stream = load_stream(connection, key)
        if stream is None:
            raise Refused("unknown_session")
        self.connection = connection
        self.stream: Stream = stream
        self.producer: Producer = load_producer(connection, key, name)
        self.epoch = epoch
        self.offers = offers
        self.now_ms = now_ms
        self.rows: list[tuple[Any, ...]] = []
        self.stored: dict[int, bytes] = {}
        """Payloads by seq: of this batch, which may repeat itself, and the originals of what it sends again."""
        self.originals_known = False

    def run(self) -> Appended:
        if may_reopen(self.stream, self.now_ms) and any(self.is_new(offer) for offer in self.offers):
            reopen(self.connection, self.stream, self.now_ms)
        if self.stream.silent_since_ms is not None:
            self.stream.silent_since_ms = self.now_ms  # what comes without a connection counts as hearing
        outcomes = [self.take(offer) for offer in self.offers]
        if self.rows:
            insert_rows(self.connection, self.rows)
            save_producer(self.connection, self.stream.key, self.producer)
        if self.rows or self.stream.silent_since_ms is not None:
            update_stream(self.connection, self.stream)
        return Appended(outcomes, self.stream, self.producer.next_seq)

    def is_new(self, offer: Offer) -> bool:
        """Whether an ended session would be reopened for this."""
        return admit(msgspec.structs.replace(self.stream, state="running"), self.producer, self.epoch, offer) is None

    def take(self, offer: Offer) -> Outcome:
        outcome = admit(self.stream, self.producer, self.epoch, offer)
        if outcome is None:
            return self.store(offer)
        if outcome.duplicate and offer.seq is not None:
            return self.compare(offer, offer.seq)
        return outcome

    def store(self, offer: Offer) -> Outcome:
        refusal = offer.refusal or self.take_effect(offer)
        payload = msgspec.json.encode({"type": "refused", "code": refusal}) if refusal else offer.payload
        self.stream.position += 1
        self.rows.append(
            (self.stream.key, self.stream.position, self.producer.name, offer.seq, offer.received_ms, payload)
        )
        if offer.seq is None:
            self.producer.unsequenced = True
        else:
            self.producer.next_seq = offer.seq + 1
            self.stored[offer.seq] = payload
        return Outcome(self.stream.position, refusal)

    def take_effect(self, offer: Offer) -> str | None:
        """Let an update or an end take effect; the code of the refusal when it cannot."""
        if offer.update is not None:
            try:
                apply_settled(self.connection, self.stream, offer.update, self.now_ms)
            except Refused as refused:
                return refused.code
        if offer.ending is not None:
            self.producer.ended = True
            if self.stream.ending_ms is None:
                self.stream.ending_ms = self.now_ms
                self.stream.ending_ts, self.stream.ending_reason = offer.ending.ts, offer.ending.reason
        return None

    def compare(self, offer: Offer, seq: int) -> Outcome:
        """A seq that is stored already: acknowledged again when it is the same, whatever was refused stays refused."""
        if seq not in self.stored and not self.originals_known:
            self.stored = self.originals() | self.stored
            self.originals_known = True
        payload = self.stored.get(seq)
        if payload is None:  # in a declared gap: it cannot be stored any more, so it must not be acknowledged
            return Outcome(code="seq_conflict")
        if payload.startswith(b'{"type":"refused"'):
            return Outcome(code=str(TYPE.decode(payload)["code"]), duplicate=True)
        if offer.refusal is None and same_event(payload, offer.payload):
            return Outcome(duplicate=True)
        return Outcome(code="seq_conflict")

    def originals(self) -> dict[int, bytes]:
        """What is stored under the seqs of this batch."""
        following = self.producer.next_seq
        seqs = [offer.seq for offer in self.offers if offer.seq is not None and offer.seq < following]
        first = first_position(self.connection, self.stream, self.producer.name, min(seqs))
        rows = self.connection.execute(
            "select seq, payload from journal where stream = ? and position >= ? and producer = ? order by position"
            " limit ?",
            (self.stream.key, first, self.producer.name, max(seqs) - min(seqs) + 1),
        )
        return dict(rows)


def first_position(connection: apsw.Connection, stream: Stream, producer: str, seq: int) -> int:
    """Where a producer's seq stands, or would: its seqs rise with the positions, so it is found by halving."""
    low, high = 1, stream.position + 1
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            "select position, seq from journal where stream = ? and position >= ? and producer = ?"
            " order by position limit 1",
            (stream.key, middle, producer),
        ).fetchone()
        if row is None or row[1] >= seq:
            high = middle
        else:
            low = row[0] + 1
    return low


def reopen(connection: apsw.Connection, stream: Stream, now_ms: int) -> None:
    """Undo an idle close; the stream's row is still to be updated."""
    append_own(connection, stream, now_ms, {"type": "session.reopened", "ts": now_ms})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "running", None, None, False
    stream.silent_since_ms = now_ms


def apply_settled(connection: apsw.Connection, stream: Stream, settled: Settled, now_ms: int) -> None:
    """Merge a patch into the configuration. Raises `Refused` before anything is written."""
    stream.config = merged(stream.config, settled.public)
    save_secrets(connection, stream, settled, now_ms)


def save_secrets(connection: apsw.Connection, stream: Stream, settled: Settled, now_ms: int) -> None:
    """Keep secrets apart, and the session's own receiver in step with its configuration."""
    for name, value in settled.secrets.items():
        connection.execute("delete from secrets where stream = ? and name = ?", (stream.key, name))
        if value is not None:
            connection.execute("insert into secrets values (?, ?, ?)", (stream.key, name, value))
    if "webhook" in settled.public or "webhook.secret" in settled.secrets:
        save_endpoint(connection, stream, now_ms)


def save_endpoint(connection: apsw.Connection, stream: Stream, now_ms: int) -> None:
    webhook = stream.config.get("webhook") or {}
    url = webhook.get("url")
    if url is None:
        connection.execute("update endpoints set disabled_ms = ? where stream = ?", (now_ms, stream.key))
        return
    secret = connection.execute(
        "select value from secrets where stream = ? and name = 'webhook.secret'", (stream.key,)
    ).fetchone()
    values = (url, secret[0] if secret else None, webhook.get("contents", "full"), stream.key)
    connection.execute(
        "update endpoints set url = ?, secret = ?, contents = ?, disabled_ms = null where stream = ?", values
    )
    if not connection.changes():
        connection.execute(
            "insert into endpoints (url, secret, contents, stream, public_only) values (?, ?, ?, ?, 1)", values
        )
