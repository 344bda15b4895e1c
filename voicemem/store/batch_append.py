"""The append of a batch whose events are admitted one by one, over the rows of any engine (docs/ingest.md)."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from voicemem.errors import Refused
from voicemem.protocol.comparison import is_same_event
from voicemem.store import streams
from voicemem.store.admission import may_run_again
from voicemem.store.runs import load_originals
from voicemem.store.stream_changes import StreamRows, apply_session_patch, declare_gap, gap_event, reopen, take_times
from voicemem.store.streams import AppendResult, Batch, JournalRun, Offer, Outcome, ProducerState, Stream

GAP = b'{"type":"session.gap"'
BY_START = attrgetter("start")
OBJECT_DECODER = msgspec.json.Decoder(type=dict[str, Any])


class BatchAppend:
    """The append of a batch whose events are admitted one by one; it lives for one job."""

    def __init__(
        self, rows: StreamRows, stream: Stream, producer: ProducerState, batch: Batch, now_ms: int, full: bool
    ) -> None:
        self.rows = rows
        self.stream = stream
        self.producer = producer
        self.before = msgspec.structs.replace(producer)
        self.batch = batch
        self.offers = batch.as_offers()
        self.now_ms = now_ms
        self.is_full = full
        """True if the project has used up its bytes: then nothing but ends is taken, so that calls can end."""
        self.left_out: range | None = None
        """Seqs in a row that were refused since the bytes are used up: one gap is journaled for all of them."""
        self.leaves_out = False
        self.open_run: JournalRun | None = None
        self.payloads: list[bytes] = []
        """Payloads of the newest run, which grows while positions and seqs are consecutive."""
        self.stored: dict[int, bytes] = {}
        """Payloads by seq: of this batch, which may repeat itself, and the originals of events that were resent."""
        self.known_seqs: list[range] = []
        """Of these seqs `stored` has all that are; what it lacks is in a gap."""
        self.left_out_before: list[range] = []
        """Those of the gaps among them that a quota has left, in their order."""

    def run(self) -> AppendResult:
        if self.batch.expected_position not in (None, self.stream.position):
            return AppendResult(self.stream, self.producer.next_seq, None, position_taken=True)
        keeps_seqs_only = all(offer.seq is not None and offer.ending is None for offer in self.offers)
        if self.is_full and self.stream.state == "running" and self.is_new and keeps_seqs_only:
            refused = [self.refuse_full(offer) for offer in self.offers]  # as at an open, so that names take no room
            return AppendResult(self.stream, self.producer.next_seq, None, refused)
        reopens = (
            not self.is_full
            and streams.may_reopen(self.stream, self.now_ms)
            and any(map(self.would_be_stored, self.offers))
            and may_run_again(self.rows, self.stream.project, self.stream.key)
        )
        if reopens:
            reopen(self.rows, self.stream, self.now_ms)
        if self.stream.silent_since_ms is not None:
            self.stream.silent_since_ms = self.now_ms  # events over HTTP put off the idle close
        ending, config = self.stream.ending_ms, self.stream.config
        declared = self.admits_gap() and self.stream.state == "running"
        if declared and self.batch.from_seq is not None:
            declare_gap(self.rows, self.stream, self.producer, self.batch.from_seq, self.now_ms)
        outcomes = [self.append_offer(offer) for offer in self.offers]
        self.note_left_out()
        if self.is_expected_back(outcomes):
            self.producer.expected_until_ms = self.batch.expected_until_ms
        if declared or self.leaves_out or self.needs_producer_row():
            self.rows.save_producer(self.stream.key, self.producer)
        same = self.stream.ending_ms == ending and self.stream.config is config
        if self.stream.silent_since_ms is not None or declared or self.leaves_out or not same:
            self.rows.save_stream(self.stream)
        return AppendResult(self.stream, self.producer.next_seq, None, outcomes, reopens)

    @property
    def is_new(self) -> bool:
        """True if no event of the producer has come before, and it was not opened."""
        return self.before.epoch == 0 and self.before.next_seq == 1

    def needs_producer_row(self) -> bool:
        """True if its row must be saved: after its first event, or a change that does not follow from the journal."""
        before, after = self.before, self.producer
        first = self.is_new and after.next_seq > 1
        return first or msgspec.structs.replace(before, next_seq=after.next_seq) != after

    def is_expected_back(self, outcomes: Sequence[Outcome]) -> bool:
        """True if the producer must be noted as expected: it has no connection, and may have more to send."""
        return (
            self.batch.expected_until_ms is not None
            and streams.must_note_expected(self.producer, self.batch.expected_until_ms)
            and any(
                offer.seq is not None and (outcome.duplicate or outcome.position is not None)
                for offer, outcome in zip(self.offers, outcomes, strict=True)
            )
        )

    def would_be_stored(self, offer: Offer) -> bool:
        """Return whether the event would be stored if the session were running; only then is an ended one reopened."""
        producer = self.producer
        if self.batch.from_seq is not None and self.admits_gap():
            producer = msgspec.structs.replace(producer, next_seq=self.batch.from_seq)
        running = msgspec.structs.replace(self.stream, state="running")
        return streams.admit(running, producer, self.batch.epoch, offer) is None

    def admits_gap(self) -> bool:
        """Return whether the batch declares seqs missing, and may, in a session that is running."""
        producer = self.producer
        return (
            self.batch.from_seq is not None
            and self.batch.from_seq > producer.next_seq
            and self.batch.epoch in (None, producer.epoch)
            and not (producer.ended or producer.unsequenced)
        )

    def append_offer(self, offer: Offer) -> Outcome:
        outcome = streams.admit(self.stream, self.producer, self.batch.epoch, offer)
        if outcome is None:
            return self.store_offer(offer)
        if outcome.duplicate and offer.seq is not None:
            return self.compare_duplicate(offer, offer.seq)
        return outcome

    def store_offer(self, offer: Offer) -> Outcome:
        if self.is_full and offer.ending is None:
            return self.leave_out(offer)
        self.note_left_out()
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

    def leave_out(self, offer: Offer) -> Outcome:
        """Refuse an event whose project has used up its bytes. Its seq is used too, so that the call can continue."""
        if offer.seq is not None:
            first = offer.seq if self.left_out is None else self.left_out.start
            self.left_out = range(first, offer.seq + 1)
            self.producer.next_seq = offer.seq + 1
        return self.refuse_full(offer)

    def refuse_full(self, offer: Offer) -> Outcome:
        self.rows.count_quota_refusal("stored_bytes")
        return Outcome(code=offer.refusal or "quota_exceeded")

    def note_left_out(self) -> None:
        """Journal one gap for all that was left out so far, under its first seq: by that a resend finds it."""
        if self.left_out is not None:
            self.stream.position += 1
            name, seq = self.producer.name, self.left_out.start
            gap = [gap_event(name, self.left_out)]
            self.rows.add_run(JournalRun(self.stream.key, self.stream.position, name, seq, self.now_ms, gap))
            self.left_out, self.leaves_out, self.open_run = None, True, None

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
        if offer.update is not None:
            try:
                apply_session_patch(self.rows, self.stream, offer.update, self.now_ms)
            except Refused as refused:
                return refused.code
        if offer.ending is not None:
            self.producer.ended, self.producer.node = True, None  # its connection counts no more, so none has to leave
            if self.stream.ending_ms is None:
                self.stream.ending_ms = self.now_ms
                self.stream.ending_ts, self.stream.ending_reason = offer.ending.ts, offer.ending.reason
                take_times(self.rows, self.stream, offer.ending, self.now_ms)
        return None

    def compare_duplicate(self, offer: Offer, seq: int) -> Outcome:
        """Compare an event with what is stored under its seq.

        The same event is acknowledged again, a refused one is refused again, and a different one is a conflict.
        """
        if not (seq in self.stored or any(seq in seqs for seqs in self.known_seqs)):
            # A whole gap is noted: a producer that resends thousands of events from it costs one search.
            self.open_run = None  # it is written now, and cannot grow any more
            self.rows.flush()
            whose = self.rows.connection, self.stream.key, self.producer.name
            originals, known = load_originals(*whose, seq, self.producer.next_seq)
            self.stored |= originals
            for original in originals.values():
                if original.startswith(GAP):
                    gap = OBJECT_DECODER.decode(original)
                    insort(self.left_out_before, range(gap["from_seq"], gap["to_seq"] + 1), key=BY_START)
            if known:
                self.known_seqs.append(known)
        place = bisect_right(self.left_out_before, seq, key=BY_START) - 1
        if place >= 0 and seq in self.left_out_before[place]:
            return Outcome(code=offer.refusal or "quota_exceeded")
        payload = self.stored.get(seq)
        if payload is None:  # in a declared gap: it can no longer be stored, so it must not be acknowledged
            return Outcome(code="quota_exceeded" if self.is_full else "seq_conflict")
        if payload.startswith(b'{"type":"refused"'):
            return Outcome(code=str(OBJECT_DECODER.decode(payload)["code"]), duplicate=True)
        if offer.refusal is None and is_same_event(payload, offer.payload):
            return Outcome(duplicate=True)
        return Outcome(code="seq_conflict")
