"""The history of a crash run, and what must hold of it.

Producers, readers and the webhook receiver tell a `History` what they did and what they saw; `check` compares one
session's part of it with the journal that the service has in the end. Nothing here talks to the service.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from voicemem.config import merged
from voicemem.fold import Entry, fold
from voicemem.history import messages
from voicemem.state import State
from voicemem.turns import turns
from voicemem.wire import decode_journaled

Fields = dict[str, Any]
PLACE = frozenset({"session_id", "producer", "seq"})
"""Fields of an event that only say where it belongs."""
OWN = frozenset({"session.closed", "session.reopened", "session.update"})
"""Types of the service's own events that may stand in a journal here: nobody declares a gap."""


class Line:
    """What was seen of one producer."""

    def __init__(self) -> None:
        self.sent: dict[int, Fields] = {}
        self.refusals: dict[int, str] = {}
        """The codes with which some of what was sent must be refused."""
        self.acked = 0
        self.epoch = 0
        self.next_seq = 1


class Read(NamedTuple):
    """One answered read: `seen` is a digest of the messages."""

    position: int
    seen: str
    acked: dict[str, int]
    """What was acknowledged to each producer before the read began."""


class Notice(NamedTuple):
    """One notice as it first came."""

    payload: bytes
    stop_ts: int
    contents: str
    """A digest."""


class Call:
    """What was seen of one session."""

    def __init__(self, config: Fields) -> None:
        self.config = config
        self.lines: dict[str, Line] = {}
        self.patches: dict[str, bool] = {}
        """The label that each PATCH set, and whether it was answered with success."""
        self.rows: dict[int, str] = {}
        """Digests of journal entries, by position, as they were read while the session ran."""
        self.reads: list[Read] = []
        self.position = 0
        """The highest that any read has shown."""
        self.turns = 0
        self.notices: dict[str, Notice] = {}


class Final(NamedTuple):
    """What the service says of a session that has ended for good."""

    rows: list[Fields]
    """`GET …/events`"""
    session: Fields
    contents: list[Fields]
    turns: list[Fields]


class Finding(NamedTuple):
    """Something that must not be."""

    round: int
    session: str
    what: str


def digest(value: Any) -> str:
    """The same for what is equal as JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


class History:
    """Everything that was seen, with what must hold at once checked at once."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.round = 0
        self.incarnation: str | None = None
        self.settled: dict[str, tuple[int, str]] = {}
        """Position and digest of the journals of sessions that were checked."""
        self.payloads: dict[str, tuple[str, str]] = {}
        """Session and digest of every notice that ever came, by its id."""

    def find(self, session: str, what: str) -> None:
        self.findings.append(Finding(self.round, session, what))

    def begin(self, session: str, config: Fields) -> None:
        self.calls[session] = Call(config)

    def line(self, session: str, producer: str) -> Line:
        return self.calls[session].lines.setdefault(producer, Line())

    def acked(self, session: str) -> dict[str, int]:
        return {name: line.acked for name, line in self.calls[session].lines.items()}

    # What producers did and saw

    def sent(self, session: str, producer: str, event: Fields, refusal: str | None = None) -> None:
        """An event that goes out now, for the first time or again."""
        line, seq = self.line(session, producer), event["seq"]
        self.counts["events_resent" if seq in line.sent else "events_sent"] += 1
        if line.sent.setdefault(seq, event) != event:
            raise ValueError("a producer never sends two events under one seq")
        if refusal is not None:
            line.refusals[seq] = refusal

    def ready(self, session: str, producer: str, frame: Fields) -> None:
        """A `session.ready`."""
        line = self.line(session, producer)
        self.incarnation = self.incarnation or frame["incarnation"]
        if frame["incarnation"] != self.incarnation:
            self.find(session, "the store has another incarnation")
        if frame["epoch"] <= line.epoch:
            self.find(session, f"the epoch of {producer} went from {line.epoch} to {frame['epoch']}")
        line.epoch = max(line.epoch, frame["epoch"])
        self.next_seq(session, producer, frame["next_seq"])

    def next_seq(self, session: str, producer: str, next_seq: int) -> None:
        """What the service expects next; what is below it counts as acknowledged."""
        line = self.line(session, producer)
        if next_seq < max(line.next_seq, line.acked + 1):
            self.find(session, f"next_seq of {producer} went back to {next_seq}, acknowledged were {line.acked}")
        if next_seq - 1 > max(line.sent, default=0):
            self.find(session, f"next_seq of {producer} is {next_seq}, sent were {max(line.sent, default=0)}")
        line.next_seq = max(line.next_seq, next_seq)
        self.acknowledged(session, producer, next_seq - 1)

    def acknowledged(self, session: str, producer: str, seq: int) -> None:
        """Everything up to `seq` is on disk, the service says."""
        line = self.line(session, producer)
        if seq > max(line.sent, default=0):
            self.find(session, f"seq {seq} of {producer} was acknowledged and never sent")
        self.counts["events_acknowledged"] += max(0, seq - line.acked)
        line.acked = max(line.acked, seq)

    def refused(self, session: str, producer: str, seq: int, code: str) -> None:
        """An error that counts as an ack."""
        expected = self.line(session, producer).refusals.get(seq)
        if expected != code:
            self.find(session, f"seq {seq} of {producer} was refused with {code}, expected was {expected}")

    def patched(self, session: str, label: str, answered: bool) -> None:
        self.calls[session].patches[label] = answered

    # What readers saw

    def read_history(self, session: str, shown: Fields, acked: dict[str, int], floor: int) -> None:
        """A history; `floor` is the highest position that was seen before the read began."""
        call = self.calls[session]
        call.reads.append(Read(shown["position"], digest(shown["contents"]), acked))
        self.moved(session, shown["position"], floor)

    def read_rows(self, session: str, after: int, rows: Sequence[Fields], floor: int, whole: bool) -> None:
        """Entries of the journal above `after`; `whole` when all that there were were asked for."""
        call = self.calls[session]
        for position, row in enumerate(rows, after + 1):
            if row["position"] != position:
                self.find(session, f"a read shows position {row['position']} where {position} should be")
            if call.rows.setdefault(row["position"], digest(row)) != digest(row):
                self.find(session, f"position {row['position']} has changed between two reads")
        if whole:
            self.moved(session, max(after, rows[-1]["position"] if rows else 0), floor)

    def read_turns(self, session: str, shown: Sequence[Fields], floor: int) -> None:
        """The turns; there are never fewer than before (`floor`)."""
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
        """A webhook arrived; the id of its notice."""
        envelope = msgspec.json.decode(body, type=Envelope)
        session, notice = envelope.sid, envelope.noticeId
        payload = bytes(envelope.payload)
        seen = hashlib.sha256(payload).hexdigest()
        new = notice not in self.payloads
        self.counts["notices" if new else "duplicates"] += 1
        before = self.payloads.setdefault(notice, (session, seen))
        if before[0] != session:
            self.find(session, f"the notice {notice} came for {before[0]} as well")
        elif before[1] != seen:
            self.find(session, f"the notice {notice} came with two different payloads")
        if webhook_id != notice or not verified:
            self.find(session, f"the notice {notice} is not signed as it should be")
        call = self.calls.get(session)
        if call is not None and new:
            told = msgspec.json.decode(payload)
            call.notices[notice] = Notice(payload, told["stop_ts"], digest(told["contents"]))
        elif call is None and session not in self.settled:
            self.find(session, "a notice came for a session that nobody began")
        elif call is None and new:
            self.find(session, "a notice came for which there was no close")
        return notice

    # The end of a session

    def settle(self, session: str, final: Final) -> None:
        """Check a session that has ended for good, and keep of it what must never change again."""
        call = self.calls.pop(session)
        closes = sum(row["event"]["type"] == "session.closed" for row in final.rows)
        self.counts["closes"] += closes
        self.counts["sessions"] += 1
        self.counts["entries"] += len(final.rows)
        for what in check(call, final):
            self.find(session, what)
        self.settled[session] = (len(final.rows), digest(final.rows))

    def settled_again(self, session: str, rows: Sequence[Fields]) -> None:
        """The journal of a session that was checked before, read once more at the end of the run."""
        if self.settled.get(session) != (len(rows), digest(rows)):
            self.find(session, "the journal is not what it was when the session was checked")


class Envelope(msgspec.Struct):
    """A webhook's body; the payload stays the bytes that came."""

    noticeId: str  # noqa: N815 (as it is on the wire)
    sid: str
    payload: msgspec.Raw


def check(call: Call, final: Final) -> Iterator[str]:
    """What is wrong with a session, in sentences."""
    yield from check_entries(call, final.rows)
    yield from check_rows_read(call, final.rows)
    yield from check_memory(call, final)
    yield from check_config(call, final)


def check_entries(call: Call, rows: Sequence[Fields]) -> Iterator[str]:
    """Everything that was acknowledged is stored exactly once and in order, and nothing else."""
    stored: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for position, row in enumerate(rows, 1):
        if row["position"] != position:
            yield f"position {row['position']} stands where {position} should be"
        event = row["event"]
        if row["producer"] is None:
            if event["type"] not in OWN:
                yield f"the journal holds a {event['type']} of the service's own"
            if event["type"] == "session.update":
                labels.update(event["labels"].keys())
            continue
        line, seq = call.lines.get(row["producer"], Line()), row["seq"]
        stored[row["producer"]] += 1
        if seq != stored[row["producer"]]:
            yield f"seq {seq} of {row['producer']} stands where {stored[row['producer']]} should be"
            stored[row["producer"]] = seq
        yield from check_entry(row, line.sent.get(seq), line.refusals.get(seq))
    for name, line in call.lines.items():
        if stored[name] < line.acked:
            yield f"{name} was acknowledged up to {line.acked}, stored is up to {stored[name]}"
    for label, answered in call.patches.items():
        if labels[label] > 1 or (answered and not labels[label]):
            yield f"the change {label} is there {labels[label]} times"
    if set(labels) - set(call.patches):
        yield "there is a change that nobody asked for"


def check_entry(row: Fields, sent: Fields | None, refusal: str | None) -> Iterator[str]:
    where = f"seq {row['seq']} of {row['producer']}"
    if sent is None:
        yield f"{where} was never sent"
    elif refusal is not None:
        if row["event"] != {"type": "refused", "code": refusal}:
            yield f"{where} should stand there as refused"
    elif placeless(row["event"]) != placeless(sent):
        yield f"{where} is not what was sent"


def placeless(event: Fields) -> Fields:
    return {name: value for name, value in event.items() if name not in PLACE}


def check_rows_read(call: Call, rows: Sequence[Fields]) -> Iterator[str]:
    """Whatever a read showed is there in the end."""
    for position, seen in call.rows.items():
        if position > len(rows) or digest(rows[position - 1]) != seen:
            yield f"a read showed another position {position}"
    if call.position > len(rows):
        yield f"a read showed position {call.position} of {len(rows)}"


def check_memory(call: Call, final: Final) -> Iterator[str]:
    """Every history that was read or sent is the fold of a prefix of the journal: of the right one."""
    reads: dict[int, list[Read]] = {}
    for read in call.reads:
        reads.setdefault(read.position, []).append(read)
    wanted = dict(call.notices)
    stored: Counter[str] = Counter()
    state = State()
    for read in reads.get(0, []):
        yield from check_read(read, state, stored)
    for row in final.rows:
        event = row["event"]
        fold(state, Entry(row["position"], row["received_ms"], decode_journaled(msgspec.json.encode(event))))
        if row["producer"] is not None:
            stored[row["producer"]] = row["seq"]
        for read in reads.get(row["position"], []):
            yield from check_read(read, state, stored)
        if event["type"] == "session.closed":
            key = (row["received_ms"] // 1000, shown(state))
            notice = next((name for name, one in wanted.items() if (one.stop_ts, one.contents) == key), None)
            if notice is None:
                yield f"the close at position {row['position']} reached the receiver not, or with other contents"
            else:
                del wanted[notice]
    if wanted:
        yield f"{len(wanted)} notices came for which there was no close"
    if digest(final.contents) != shown(state):
        yield "the history is not the fold of the journal"
    if [{key: turn[key] for key in turn if key not in ("agent_id", "channel")} for turn in final.turns] != turns(state):
        yield "the turns are not those of the fold of the journal"


def check_read(read: Read, state: State, stored: Counter[str]) -> Iterator[str]:
    if read.seen != shown(state):
        yield f"a read of position {read.position} was not the fold up to there"
    for producer, acked in read.acked.items():
        if stored[producer] < acked:
            yield f"a read of position {read.position} did not show seq {acked} of {producer}, acknowledged before"


def shown(state: State) -> str:
    return digest(msgspec.to_builtins(messages(state)))


def check_config(call: Call, final: Final) -> Iterator[str]:
    """The configuration is what the journal's updates make of the first one; the state is that of the last event."""
    config = call.config
    for row in final.rows:
        if row["event"]["type"] == "session.update":
            config = merged(config, {name: row["event"][name] for name in row["event"] if name not in {"type", *PLACE}})
    if final.session["config"] != config:
        yield "the configuration is not what the journal's updates make of it"
    if final.session["position"] != len(final.rows):
        yield f"the session says position {final.session['position']}, the journal has {len(final.rows)}"
    own = [row["event"]["type"] for row in final.rows if row["event"]["type"] in ("session.closed", "session.reopened")]
    if final.session["state"] != "ended" or own[-1:] != ["session.closed"]:
        yield "the session was not closed"
    if own != ["session.closed", "session.reopened"] * (len(own) // 2) + ["session.closed"]:
        yield f"closes and reopenings do not take turns: {own}"
