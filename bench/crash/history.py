"""The history of a crash run: what producers, readers and the webhook receiver did and saw.

What can be checked at once is checked at once, the rest when a session has ended for good (`checker.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from bench.crash.checker import Call, Final, JsonObject, Line, Read, Stay, WebhookEvent, check, closes_to_come, digest
from bench.crash.presence import Life, Trouble
from voicemem.runtime import now_ms

TIME_OF_SENDING = re.compile(rb'"notifyMs":\d+')
"""The one thing that may differ between two attempts."""


BEFORE_MS = 1_000
"""How long before a trouble is known it may have begun."""


class Finding(NamedTuple):
    """A fault."""

    round: int
    session: str
    what: str

    def __str__(self) -> str:
        return f"round {self.round}, session {self.session or '-'}: {self.what}"


class Envelope(msgspec.Struct):
    """A webhook's body; the payload stays as the bytes that came."""

    noticeId: str  # noqa: N815 (as it is on the wire)
    sid: str
    payload: msgspec.Raw


class History:
    """Everything that was seen, checked as far as it can be at once."""

    def __init__(self, told: Callable[[Finding], object] = lambda finding: None) -> None:
        self.told = told
        """Called with every finding."""
        self.calls: dict[str, Call] = {}
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.round = 0
        self.incarnation: str | None = None
        self.settled: dict[str, tuple[int, str]] = {}
        """Position and digest of the journal, by session that was checked."""
        self.troubles: list[Trouble] = []
        """Times in which nodes may rightly count as dead."""
        self.lease_ms: int | None = None
        """After which time a node counts as dead; None where there is only one server."""
        self.reads_count = True
        """Whether what readers see now must stay: what was never acknowledged may go in a failover."""
        self.unsafe_times = 0
        """How often that was not so."""
        self.payloads: dict[str, tuple[str, str]] = {}
        """Session and digest of every webhook event, by its id."""
        self.to_come: dict[str, Counter[int]] = {}
        """Closes without messages that may still be told, by session that was checked and Unix second."""

    def find(self, session: str, what: str) -> None:
        self.findings.append(Finding(self.round, session, what))
        self.told(self.findings[-1])

    def begin(self, session: str, config: JsonObject) -> None:
        self.calls[session] = Call(config)

    def line(self, session: str, producer: str) -> Line:
        return self.calls[session].lines.setdefault(producer, Line())

    def acked(self, session: str) -> dict[str, int]:
        return {name: line.acked for name, line in self.calls[session].lines.items()}

    # What producers did and saw

    def sent(self, session: str, producer: str, event: JsonObject, refusal: str | None = None) -> None:
        """Note an event that is sent now, for the first time or again."""
        line, seq = self.line(session, producer), event["seq"]
        self.counts["events_resent" if seq in line.sent else "events_sent"] += 1
        if line.sent.setdefault(seq, event) != event:
            raise ValueError("a producer never sends two events under one seq")
        if refusal is not None:
            line.refusals[seq] = refusal

    def ready(self, session: str, producer: str, frame: JsonObject) -> None:
        """Note a `session.ready`."""
        line = self.line(session, producer)
        self.incarnation = self.incarnation or frame["incarnation"]
        if frame["incarnation"] != self.incarnation:
            self.find(session, "the store has another incarnation")
        if frame["epoch"] <= line.epoch:
            self.find(session, f"the epoch of {producer} went from {line.epoch} to {frame['epoch']}")
        line.epoch = max(line.epoch, frame["epoch"])
        self.next_seq(session, producer, frame["next_seq"])

    def next_seq(self, session: str, producer: str, next_seq: int) -> None:
        """Note what the service expects next; everything below it counts as acknowledged."""
        line = self.line(session, producer)
        if next_seq < max(line.next_seq, line.acked + 1):
            self.find(session, f"next_seq of {producer} went back to {next_seq}, acknowledged were {line.acked}")
        if next_seq - 1 > max(line.sent, default=0):
            self.find(session, f"next_seq of {producer} is {next_seq}, sent were {max(line.sent, default=0)}")
        line.next_seq = max(line.next_seq, next_seq)
        self.acknowledged(session, producer, next_seq - 1)

    def acknowledged(self, session: str, producer: str, seq: int) -> None:
        """Note that the service has acknowledged everything up to `seq`."""
        line = self.line(session, producer)
        if seq > max(line.sent, default=0):
            self.find(session, f"seq {seq} of {producer} was acknowledged and never sent")
        self.counts["events_acknowledged"] += max(0, seq - line.acked)
        line.acked = max(line.acked, seq)

    def refused(self, session: str, producer: str, seq: int, code: str) -> None:
        """Note an error that counts as an ack."""
        expected = self.line(session, producer).refusals.get(seq)
        if expected != code:
            self.find(session, f"seq {seq} of {producer} was refused with {code}, expected was {expected}")

    @contextmanager
    def troubled(self, server: str, more_ms: int) -> Iterator[None]:
        """A time in which a server, or all (""), may count as dead, and so much longer."""
        trouble = Trouble(server, now_ms() - BEFORE_MS)
        self.troubles.append(trouble)
        try:
            yield
        finally:
            trouble.end_ms = now_ms() + more_ms

    @contextmanager
    def unsafe_reads(self) -> Iterator[None]:
        """A time in which readers may see what was never acknowledged, and is lost."""
        self.reads_count = False
        self.unsafe_times += 1
        try:
            yield
        finally:
            self.reads_count = True

    def is_troubled(self, since_ms: int) -> bool:
        """Whether any server may have counted as dead since a moment."""
        return any(trouble.end_ms >= since_ms for trouble in self.troubles)

    def patched(self, session: str, label: str, answered: bool) -> None:
        self.calls[session].patches[label] = answered

    def arrived(self, session: str, producer: str, server: str) -> Stay:
        """Note a new connection."""
        stay = Stay(server, now_ms())
        self.line(session, producer).stays.append(stay)
        return stay

    def contact(self, session: str) -> None:
        """Note that a producer has heard of the service, or has lost its connection."""
        self.calls[session].contact_ms = now_ms()

    # What readers saw

    def read_history(self, session: str, shown: JsonObject, acked: dict[str, int], floor: int) -> None:
        """Check a history; `floor` is the highest position that was seen before the read began."""
        if not self.reads_count:
            return
        call = self.calls[session]
        call.reads.append(Read(shown["position"], digest(shown["contents"]), acked))
        self.moved(session, shown["position"], floor)

    def read_rows(self, session: str, after: int, rows: Sequence[JsonObject], floor: int, whole: bool) -> None:
        """Check entries of the journal after `after`; `whole` means that the read was not limited."""
        if not self.reads_count:
            return
        call = self.calls[session]
        for position, row in enumerate(rows, after + 1):
            if row["position"] != position:
                self.find(session, f"a read shows position {row['position']} where {position} should be")
            if call.rows.setdefault(row["position"], digest(row)) != digest(row):
                self.find(session, f"position {row['position']} has changed between two reads")
        if whole:
            self.moved(session, max(after, rows[-1]["position"] if rows else 0), floor)

    def read_turns(self, session: str, shown: Sequence[JsonObject], floor: int) -> None:
        """Check the turns; there are never fewer than before (`floor`)."""
        if not self.reads_count:
            return
        self.counts["reads"] += 1
        if len(shown) < floor:
            self.find(session, f"a read shows {len(shown)} turns after one that showed {floor}")
        call = self.calls[session]
        call.turns = max(call.turns, len(shown))

    def moved(self, session: str, position: int, floor: int) -> None:
        self.counts["reads"] += 1
        if position < floor:
            self.find(session, f"a read went back from position {floor} to {position}")
        call = self.calls[session]
        call.position = max(call.position, position)

    # What the receiver saw

    def noticed(self, webhook_id: str | None, body: bytes, verified: bool) -> str:
        """Check a webhook that arrived; returns the id of its webhook event."""
        envelope = msgspec.json.decode(body, type=Envelope)
        session, webhook_event = envelope.sid, envelope.noticeId
        payload = bytes(envelope.payload)
        seen = hashlib.sha256(TIME_OF_SENDING.sub(b"", body)).hexdigest()
        new = webhook_event not in self.payloads
        self.counts["notices" if new else "duplicates"] += 1
        before = self.payloads.setdefault(webhook_event, (session, seen))
        if before[0] != session:
            self.find(session, f"the notice {webhook_event} came for {before[0]} as well")
        elif before[1] != seen:
            self.find(session, f"the notice {webhook_event} came with two different bodies")
        if webhook_id != webhook_event or not verified:
            self.find(session, f"the notice {webhook_event} is not signed as it should be")
        call = self.calls.get(session)
        told = msgspec.json.decode(payload)
        if call is not None and new:
            call.webhook_events[webhook_event] = WebhookEvent(payload, told["stop_ts"], digest(told["contents"]))
        elif call is None and session not in self.settled:
            self.find(session, "a notice came for a session that does not exist")
        elif call is None and new:
            self.noticed_late(session, told)
        return webhook_event

    def noticed_late(self, session: str, told: JsonObject) -> None:
        """Check a webhook event of a session that was checked before."""
        to_come = self.to_come[session]
        if told["contents"] or not to_come[told["stop_ts"]]:
            what = f"of the end {told['stop_ts']} with {len(told['contents'])} messages; {dict(to_come)} may come"
            self.find(session, f"a notice came for which there was no close, {what}")
        to_come[told["stop_ts"]] -= 1
        self.counts["notices_late"] += 1

    # The end of a session

    def settle(self, session: str, final: Final) -> None:
        """Check a session that has ended for good, and remember what must never change again."""
        call = self.calls.pop(session)
        closes = sum(row["event"]["type"] == "session.closed" for row in final.rows)
        self.counts["closes"] += closes
        self.counts["sessions"] += 1
        self.counts["entries"] += len(final.rows)
        for what in check(call, final):
            self.find(session, what)
        if self.lease_ms is not None:
            for what in Life(call, final, self.troubles, self.lease_ms).check():
                self.find(session, what)
        self.settled[session] = (len(final.rows), digest(final.rows))
        self.to_come[session] = closes_to_come(call, final.rows)

    def settled_again(self, session: str, rows: Sequence[JsonObject]) -> None:
        """Check a journal again that was checked before, at the end of the run."""
        if self.settled.get(session) != (len(rows), digest(rows)):
            self.find(session, "the journal is not what it was when the session was checked")
