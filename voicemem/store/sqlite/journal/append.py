"""The append: producers' events into their journals, in the writer's transaction (docs/ingest.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import HISTORY_EVENT, apply_patch
from voicemem.errors import Refused
from voicemem.protocol.codec import split_array
from voicemem.protocol.strict_json import is_same_event
from voicemem.store.admission import Batch, Offer, Outcome, admit, admits_all, must_note_expected
from voicemem.store.records import AppendResult
from voicemem.store.sqlite.enqueue import enqueue_start
from voicemem.store.sqlite.journal.archive import archived_around
from voicemem.store.sqlite.journal.row_cache import IN_OVERVIEW, RowCache
from voicemem.store.sqlite.journal.runs import JournalRun, find_run, next_stored_seq
from voicemem.store.sqlite.journal.stored_bytes import is_full
from voicemem.store.sqlite.retention import cancel_retention
from voicemem.store.streams import ProducerState, Stream, may_reopen

OBJECT_DECODER = msgspec.json.Decoder(type=dict[str, Any])
SELECT_FROM_SECRETS = "select value from secrets where stream = ? and name = ?"
DELETE_FROM_SECRETS = "delete from secrets where stream = ? and name = ?"
INSERT_INTO_SECRETS = "insert into secrets values (?, ?, ?)"
DISABLE_SESSION_ENDPOINT = "update endpoints set disabled_ms = ? where stream = ?"
UPDATE_SESSION_ENDPOINT = """
    update endpoints set url = ?, secret = ?, contents = ?, event_types = ?, disabled_ms = null, disabled_reason = null
    where stream = ?
"""
INSERT_SESSION_ENDPOINT = """
    insert into endpoints (url, secret, contents, event_types, stream, public_only) values (?, ?, ?, ?, ?, 1)
"""


def append(rows: RowCache, batch: Batch, now_ms: int) -> AppendResult:
    """Add a batch to its journal, and return what became of it. Raises `Refused` (`unknown_session`).

    This is the hot path. A batch of plain events in order, of a producer that is known, over a connection, needs no
    look at each event and no row but the run itself. All else goes through `Append`.
    """
    stream = rows.stream(batch.key)
    if stream is None:
        raise Refused("unknown_session")
    producer = rows.producer(batch.key, batch.producer)
    known = producer.epoch > 0 or producer.next_seq > 1
    quota = rows.quotas.stored_bytes
    full = quota > 0 and is_full(rows.connection, stream.project, quota)
    if full or not (known and stream.silent_since_ms is None and admits_all(stream, producer, batch)):
        return BatchAppend(rows, stream, producer, batch, now_ms, full).run()
    first, count = stream.position + 1, len(batch.payloads)
    rows.add_run(JournalRun(stream.key, first, producer.name, batch.first_seq, batch.received_ms, batch.payloads))
    stream.position += count
    producer.next_seq += count
    return AppendResult(stream, producer.next_seq, first)


class BatchAppend:
    """The append of a batch whose events are admitted one by one; it lives for one job."""

    def __init__(
        self, rows: RowCache, stream: Stream, producer: ProducerState, batch: Batch, now_ms: int, full: bool
    ) -> None:
        self.rows = rows
        self.stream = stream
        self.producer = producer
        self.before = msgspec.structs.replace(producer)
        self.epoch = batch.epoch
        self.offers = batch.as_offers()
        self.from_seq = batch.from_seq
        self.expected_position = batch.expected_position
        self.expected_until_ms = batch.expected_until_ms
        self.now_ms = now_ms
        self.is_full = full
        """Whether the project has used up its bytes: then nothing but ends is taken, so that calls can end."""
        self.open_run: JournalRun | None = None
        self.payloads: list[bytes] = []
        """Of the newest run, which grows while positions and seqs are consecutive."""
        self.stored: dict[int, bytes] = {}
        """Payloads by seq: of this batch, which may repeat itself, and the originals of events that were resent."""
        self.unpacked_seqs: list[range] = []
        """Seqs of the archives that were read; of these, what `stored` lacks is in a declared gap."""
        self.known_gap = range(0)
        """Seqs of the declared gap that was found last."""

    def run(self) -> AppendResult:
        if self.expected_position not in (None, self.stream.position):
            return AppendResult(self.stream, self.producer.next_seq, None, position_taken=True)
        reopens = (
            not self.is_full
            and may_reopen(self.stream, self.now_ms)
            and any(self.would_be_stored(offer) for offer in self.offers)
        )
        if reopens:
            reopen(self.rows, self.stream, self.now_ms)
        if self.stream.silent_since_ms is not None:
            self.stream.silent_since_ms = self.now_ms  # events over HTTP put off the idle close
        ending, config = self.stream.ending_ms, self.stream.config
        declared = self.admits_gap() and self.stream.state == "running"
        if declared and self.from_seq is not None:
            declare_gap(self.rows, self.stream, self.producer, self.from_seq, self.now_ms)
        outcomes = [self.append_offer(offer) for offer in self.offers]
        if self.is_expected_back(outcomes):
            self.producer.expected_until_ms = self.expected_until_ms
        if declared or self.needs_producer_row():
            self.rows.save_producer(self.stream.key, self.producer)
        same = self.stream.ending_ms == ending and self.stream.config is config
        if self.stream.silent_since_ms is not None or declared or not same:
            self.rows.save_stream(self.stream)
        return AppendResult(self.stream, self.producer.next_seq, None, outcomes, reopens)

    def needs_producer_row(self) -> bool:
        """Whether its row must be saved: after its first event, or a change that does not follow from the journal."""
        before, after = self.before, self.producer
        first = before.epoch == 0 and before.next_seq == 1 and after.next_seq > 1
        return first or (before.unsequenced, before.ended, before.expected_until_ms) != (
            after.unsequenced,
            after.ended,
            after.expected_until_ms,
        )

    def is_expected_back(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether to note until when its producer, which has no connection, is expected: its buffer may hold more."""
        return (
            self.expected_until_ms is not None
            and must_note_expected(self.producer, self.expected_until_ms)
            and any(
                offer.seq is not None and (outcome.duplicate or outcome.position is not None)
                for offer, outcome in zip(self.offers, outcomes, strict=True)
            )
        )

    def would_be_stored(self, offer: Offer) -> bool:
        """Whether the event would be stored if the session were running; only then is an ended one reopened."""
        producer = self.producer
        if self.from_seq is not None and self.admits_gap():
            producer = msgspec.structs.replace(producer, next_seq=self.from_seq)
        return admit(msgspec.structs.replace(self.stream, state="running"), producer, self.epoch, offer) is None

    def admits_gap(self) -> bool:
        """Whether the batch declares seqs missing, and may, in a session that is running."""
        producer = self.producer
        return (
            self.from_seq is not None
            and self.from_seq > producer.next_seq
            and self.epoch in (None, producer.epoch)
            and not (producer.ended or producer.unsequenced)
        )

    def append_offer(self, offer: Offer) -> Outcome:
        outcome = admit(self.stream, self.producer, self.epoch, offer)
        if outcome is None:
            return self.store_offer(offer)
        if outcome.duplicate and offer.seq is not None:
            return self.compare_duplicate(offer, offer.seq)
        return outcome

    def store_offer(self, offer: Offer) -> Outcome:
        refusal = offer.refusal or self.apply_effect(offer)
        payload = msgspec.json.encode({"type": "refused", "code": refusal}) if refusal else offer.payload
        self.stream.position += 1
        self.add_to_run(offer, payload)
        if offer.seq is None:
            self.producer.unsequenced = True
        else:
            self.producer.next_seq = offer.seq + 1
            self.stored[offer.seq] = payload
        return Outcome(self.stream.position, refusal)

    def add_to_run(self, offer: Offer, payload: bytes) -> None:
        """Add an event to the newest run, or begin one.

        What a batch stores has consecutive positions and seqs, so it is one run, unless its times of receipt differ.
        """
        run = self.open_run
        if run is None or run.received_ms != offer.received_ms:
            self.payloads = []
            position, name = self.stream.position, self.producer.name
            self.open_run = JournalRun(self.stream.key, position, name, offer.seq, offer.received_ms, self.payloads)
            self.rows.add_run(self.open_run)
        self.payloads.append(payload)

    def apply_effect(self, offer: Offer) -> str | None:
        """Apply an update or an end to the stream. Returns the code of an event that is refused."""
        if self.is_full and offer.ending is None:
            self.rows.count_quota_refusal("stored_bytes")
            return "quota_exceeded"
        if offer.update is not None:
            try:
                apply_session_patch(self.rows, self.stream, offer.update, self.now_ms)
            except Refused as refused:
                return refused.code
        if offer.ending is not None:
            self.producer.ended = True
            if self.stream.ending_ms is None:
                self.stream.ending_ms = self.now_ms
                self.stream.ending_ts, self.stream.ending_reason = offer.ending.ts, offer.ending.reason
        return None

    def compare_duplicate(self, offer: Offer, seq: int) -> Outcome:
        """Compare an event with what is stored under its seq.

        The same event is acknowledged again, a refused one is refused again, and a different one is a conflict.
        """
        if not (seq in self.stored or seq in self.known_gap or any(seq in seqs for seqs in self.unpacked_seqs)):
            self.stored |= self.load_originals(seq)
        payload = self.stored.get(seq)
        if payload is None:  # in a declared gap: it can no longer be stored, so it must not be acknowledged
            return Outcome(code="seq_conflict")
        if payload.startswith(b'{"type":"refused"'):
            return Outcome(code=str(OBJECT_DECODER.decode(payload)["code"]), duplicate=True)
        if offer.refusal is None and is_same_event(payload, offer.payload):
            return Outcome(duplicate=True)
        return Outcome(code="seq_conflict")

    def load_originals(self, seq: int) -> dict[int, bytes]:
        """The payloads around a seq, by seq: of the archive that covers it, or of the run that holds or precedes it.

        A seq between two runs lies in a gap that the producer declared. The whole gap is noted in `known_gap`, so
        that a producer that resends thousands of events from it costs one search and not thousands.
        """
        self.rows.flush()
        self.open_run = None  # it is inserted now, and cannot grow any more
        archived = archived_around(self.rows.connection, self.stream.key, self.producer.name, seq)
        if archived.payloads:
            self.unpacked_seqs.append(archived.seqs)
            return archived.payloads
        key, name = self.stream.key, self.producer.name
        run = find_run(self.rows.connection, key, name, seq)
        after, stored = 1, []
        if run is not None:
            after, stored = run.seq + run.events, [run.payload] if run.events == 1 else split_array(run.payload)
        if seq >= after:
            stop = next_stored_seq(self.rows.connection, key, name, seq) or self.producer.next_seq
            self.known_gap = range(max(after, archived.seqs.start), min(stop, archived.seqs.stop))
        return dict(enumerate(stored, after - len(stored)))


def declare_gap(rows: RowCache, stream: Stream, producer: ProducerState, from_seq: int, now_ms: int) -> None:
    """Journal which seqs a producer can no longer send. The caller saves both rows."""
    gap = {"type": "session.gap", "producer": producer.name, "from_seq": producer.next_seq, "to_seq": from_seq - 1}
    rows.append_server_event(stream, now_ms, gap)
    producer.next_seq = from_seq


def reopen(rows: RowCache, stream: Stream, now_ms: int) -> None:
    """Undo an idle close. The caller saves the stream's row."""
    rows.append_server_event(stream, now_ms, {"type": "session.reopened", "ts": now_ms})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "running", None, None, False
    stream.silent_since_ms = now_ms
    cancel_retention(rows.connection, stream)
    enqueue_start(rows, stream, now_ms)


def apply_session_patch(rows: RowCache, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
    """Merge a patch into the configuration. Raises `Refused`, before anything is written."""
    stream.config = apply_patch(stream.config, session_patch.public)
    if not IN_OVERVIEW.isdisjoint(session_patch.public):
        rows.save_overview(stream)
    save_secrets(rows, stream, session_patch, now_ms)


def save_secrets(rows: RowCache, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
    """Store the secrets of a patch, and bring the session's own endpoint in line with its configuration."""
    for name, value in session_patch.secrets.items():
        rows.connection.execute(DELETE_FROM_SECRETS, (stream.key, name))
        if value is not None:
            rows.connection.execute(INSERT_INTO_SECRETS, (stream.key, name, value))
    if "webhook" in session_patch.public or "webhook.secret" in session_patch.secrets:
        save_endpoint(rows, stream, now_ms)


def save_endpoint(rows: RowCache, stream: Stream, now_ms: int) -> None:
    """Make the session's own endpoint what `webhook` in its configuration says; without a URL it is disabled."""
    webhook = stream.config.get("webhook") or {}
    url = webhook.get("url")
    execute = rows.connection.execute
    if url is None:
        execute(DISABLE_SESSION_ENDPOINT, (now_ms, stream.key))
        return
    secret = execute(SELECT_FROM_SECRETS, (stream.key, "webhook.secret")).fetchone()
    event_types = msgspec.json.encode(webhook.get("event_types", [HISTORY_EVENT])).decode()
    values = (url, secret[0] if secret else None, webhook.get("contents", "full"), event_types, stream.key)
    execute(UPDATE_SESSION_ENDPOINT, values)
    if not rows.connection.changes():
        execute(INSERT_SESSION_ENDPOINT, values)
