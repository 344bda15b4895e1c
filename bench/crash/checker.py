"""What must hold for a session: everything that was seen of it, compared with what the service has in the end.

Nothing here talks to the service.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from voicemem.config.session import apply_patch
from voicemem.protocol.codec import decode_journaled
from voicemem.runtime import now_ms
from voicemem.transcript.fold import DecodedRow, fold
from voicemem.transcript.history import messages
from voicemem.transcript.state import State
from voicemem.transcript.turns import turns

JsonObject = dict[str, Any]
PLACE = frozenset({"session_id", "producer", "seq"})
"""Fields of an event that only say where the event belongs."""
OWN = frozenset({"session.closed", "session.reopened", "session.update"})
"""The service's own events that a journal may contain here; no producer declares a gap."""


class Stay:
    """One connection of a producer to one server; times are Unix ms."""

    def __init__(self, server: str, begin_ms: int) -> None:
        self.server = server
        self.begin_ms = begin_ms
        self.heard_ms = 0
        """When the last frame came: then it was still connected, as far as the service knew."""

    def __str__(self) -> str:
        return f"to {self.server} from {self.begin_ms} to {self.heard_ms} at least"

    def heard(self) -> None:
        self.heard_ms = now_ms()


class Line:
    """What was seen of one producer."""

    def __init__(self) -> None:
        self.sent: dict[int, JsonObject] = {}
        self.refusals: dict[int, str] = {}
        """By seq: the codes with which events must be refused."""
        self.acked = 0
        self.epoch = 0
        self.next_seq = 1
        self.stays: list[Stay] = []


class Read(NamedTuple):
    """One answered read: `seen` is a digest of the messages."""

    position: int
    seen: str
    acked: dict[str, int]
    """By producer: what was acknowledged before the read began."""


class WebhookEvent(NamedTuple):
    """One webhook event, as it first arrived."""

    payload: bytes
    stop_ts: int
    contents: str
    """A digest."""


class Call:
    """Everything that was seen of one session."""

    def __init__(self, config: JsonObject) -> None:
        self.config = config
        self.lines: dict[str, Line] = {}
        self.patches: dict[str, bool] = {}
        """The label that each PATCH set, and whether its answer was a success."""
        self.rows: dict[int, str] = {}
        """Digests of journal entries, by position, as they were read while the session ran."""
        self.reads: list[Read] = []
        self.position = 0
        """The highest position that any read has shown."""
        self.turns = 0
        self.contact_ms = 0
        """When any producer of it last heard of the service, or lost its connection (Unix ms)."""
        self.webhook_events: dict[str, WebhookEvent] = {}

    def told(self) -> Counter[int]:
        """How many closes have reached the receiver, by Unix second."""
        return Counter(webhook_event.stop_ts for webhook_event in self.webhook_events.values())


class Final(NamedTuple):
    """What the service reports about a session that has ended for good."""

    rows: list[JsonObject]
    """`GET …/events`"""
    session: JsonObject
    contents: list[JsonObject]
    turns: list[JsonObject]


def digest(value: Any) -> str:
    """The same digest for values that are equal as JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def check(call: Call, final: Final) -> Iterator[str]:
    """The faults of a session, as sentences."""
    yield from check_entries(call, final.rows)
    yield from check_rows_read(call, final.rows)
    yield from check_memory(call, final)
    yield from check_config(call, final)


def check_entries(call: Call, rows: Sequence[JsonObject]) -> Iterator[str]:
    """Check that everything acknowledged is stored exactly once and in order, and nothing else."""
    stored: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for position, row in enumerate(rows, 1):
        if row["position"] != position:
            yield f"position {row['position']} stands where {position} should be"
        event = row["event"]
        if row["producer"] is None:
            if event["type"] not in OWN:
                yield f"the journal contains a {event['type']} of the service's own"
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
        yield "there is a change that was never requested"


def check_entry(row: JsonObject, sent: JsonObject | None, refusal: str | None) -> Iterator[str]:
    where = f"seq {row['seq']} of {row['producer']}"
    if sent is None:
        yield f"{where} was never sent"
    elif refusal is not None:
        if row["event"] != {"type": "refused", "code": refusal}:
            yield f"{where} should stand there as refused"
    elif placeless(row["event"]) != placeless(sent):
        yield f"{where} is not what was sent"


def placeless(event: JsonObject) -> JsonObject:
    return {name: value for name, value in event.items() if name not in PLACE}


def check_rows_read(call: Call, rows: Sequence[JsonObject]) -> Iterator[str]:
    """Check that whatever a read showed is there in the end."""
    for position, seen in call.rows.items():
        if position > len(rows) or digest(rows[position - 1]) != seen:
            yield f"a read showed another position {position}"
    if call.position > len(rows):
        yield f"a read showed position {call.position} of {len(rows)}"


def check_memory(call: Call, final: Final) -> Iterator[str]:
    """Check that every history that was read or sent is the fold of a prefix of the journal, and of the right one."""
    reads: dict[int, list[Read]] = {}
    for read in call.reads:
        reads.setdefault(read.position, []).append(read)
    wanted = dict(call.webhook_events)
    stored: Counter[str] = Counter()
    state = State()
    for read in reads.get(0, []):
        yield from check_read(read, state, stored)
    for row in final.rows:
        event = row["event"]
        try:
            decoded = decode_journaled(msgspec.json.encode(event))
            fold(state, DecodedRow(row["position"], row["received_ms"], decoded, row["producer"]))
        except msgspec.ValidationError:
            yield f"position {row['position']} holds what is no event"
            return
        if row["producer"] is not None:
            stored[row["producer"]] = row["seq"]
        for read in reads.get(row["position"], []):
            yield from check_read(read, state, stored)
        if event["type"] == "session.closed":
            yield from check_close(row, state, stored, wanted)
    if wanted:
        yield f"{len(wanted)} notices came for which there was no close"
    if digest(final.contents) != shown(state):
        yield "the history is not the fold of the journal"
    told = [{key: turn[key] for key in turn if key not in ("agent_id", "channel")} for turn in final.turns]
    if told != [*turns(state)]:
        yield "the turns are not those of the fold of the journal"


def check_close(row: JsonObject, state: State, stored: Counter[str], wanted: dict[str, WebhookEvent]) -> Iterator[str]:
    """Check that a close reached the receiver with the memory of that moment; its webhook is no longer wanted then."""
    key = (row["received_ms"] // 1000, shown(state))
    webhook_event = next((name for name, one in wanted.items() if (one.stop_ts, one.contents) == key), None)
    if webhook_event is not None:
        del wanted[webhook_event]
    elif is_told(row["event"], stored):
        yield f"the close at position {row['position']} did not reach the receiver, or with other contents"


def is_told(event: JsonObject, stored: Counter[str]) -> bool:
    """Whether a close must reach the receiver: one as idle may have come before anybody had joined."""
    return event["reason"] != "idle" or bool(stored)


def closes(rows: Sequence[JsonObject]) -> Iterator[tuple[int, bool]]:
    """Each close by its Unix second, and whether it must reach the receiver."""
    stored: Counter[str] = Counter()
    for row in rows:
        if row["producer"] is not None:
            stored[row["producer"]] += 1
        elif row["event"]["type"] == "session.closed":
            yield row["received_ms"] // 1000, is_told(row["event"], stored)


def closes_to_tell(rows: Sequence[JsonObject]) -> Counter[int]:
    """How many closes must reach the receiver, by Unix second."""
    return Counter(second for second, must in closes(rows) if must)


def closes_to_come(call: Call, rows: Sequence[JsonObject]) -> Counter[int]:
    """How many closes may still reach the receiver, by Unix second.

    A producer joined before them and sent nothing. No one but the service knows whether it did.
    """
    return Counter(second for second, _ in closes(rows)) - call.told()


def check_read(read: Read, state: State, stored: Counter[str]) -> Iterator[str]:
    if read.seen != shown(state):
        yield f"a read of position {read.position} was not the fold up to there"
    for producer, acked in read.acked.items():
        if stored[producer] < acked:
            yield f"a read of position {read.position} did not show seq {acked} of {producer}, acknowledged before"


def shown(state: State) -> str:
    return digest(msgspec.to_builtins(messages(state)))


def check_config(call: Call, final: Final) -> Iterator[str]:
    """Check that the configuration follows from the journal's updates, and the state from its last event."""
    config = call.config
    for row in final.rows:
        if row["event"]["type"] == "session.update":
            patch = {name: value for name, value in row["event"].items() if name not in {"type", "ts", *PLACE}}
            config = apply_patch(config, patch)
    if final.session["config"] != config:
        yield "the configuration is not what the journal's updates make of it"
    if final.session["position"] != len(final.rows):
        yield f"the session says position {final.session['position']}, the journal has {len(final.rows)}"
    own = [row["event"]["type"] for row in final.rows if row["event"]["type"] in ("session.closed", "session.reopened")]
    if final.session["state"] != "ended" or own[-1:] != ["session.closed"]:
        yield "the session was not closed"
    if own != ["session.closed", "session.reopened"] * (len(own) // 2) + ["session.closed"]:
        yield f"closes and reopenings do not take turns: {own}"
