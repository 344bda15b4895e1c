"""What docs/ingest.md promises about sessions and their producers, in plain lists and dicts.

Written from the promises alone: it knows nothing of the service, has no disk, no socket, and its clock is a number.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from voicemem.protocol.types import JsonObject

GRACE_MS = 2_000
EXPECTED_BACK_MS = 10_000
DEFAULTS = {"idle_timeout": 60, "reopen_window": 3_600, "max_duration": 72 * 3_600}
"""Seconds."""
DURATIONS = frozenset({*DEFAULTS, "ttl_seconds"})
ROUTING = frozenset({"session_id", "producer"})
"""Fields that say whose an event is; they are no part of what it says."""


@dataclass
class Entry:
    """One row of a journal; the server's own events have no producer and no seq."""

    producer: str | None
    seq: int | None
    event: JsonObject
    received_ms: int


@dataclass
class Producer:
    """A process that sends events of one session."""

    epoch: int = 0
    next_seq: int = 1
    unsequenced: bool = False
    ended: bool = False
    stored: dict[int, JsonObject] = field(default_factory=dict)
    """What stands in the journal, by seq."""


@dataclass
class Ending:
    """The first `session.end`: when it came (ms), and what it says."""

    at_ms: int
    ts: int
    reason: str


@dataclass
class Session:
    """One call."""

    id: str
    config: JsonObject
    started_ms: int
    silent_since_ms: int | None
    state: str = "running"
    reason: str | None = None
    ended_ms: int | None = None
    provisional: bool = False
    """Closed for idleness, which a producer may undo."""
    ending: Ending | None = None
    journal: list[Entry] = field(default_factory=list)
    producers: dict[str, Producer] = field(default_factory=dict)

    @property
    def was_joined(self) -> bool:
        """Whether anybody ever opened it or sent; of the idle close of others receivers get no history."""
        return bool(self.producers) or any(entry.producer for entry in self.journal)

    def setting_ms(self, name: str) -> int:
        """A duration of the configuration."""
        return int(self.config.get(name, DEFAULTS[name]) * 1000)


@dataclass(eq=False)
class ProducerLease:
    """A producer's way into a session: an epoch on a connection, or one HTTP request (whose epoch may be None)."""

    session_id: str
    producer: str
    epoch: int | None
    told_gap: int | None = None
    """The expected seq of the gap that was told last."""
    dead: bool = False
    """Superseded, and told so."""


@dataclass
class Answer:
    """What is said about one event: an ack (of a numbered one) or an error."""

    seq: int | None
    code: str | None = None
    expected: int | None = None


@dataclass
class Delivery:
    """One close of a session, on its way to the receiver."""

    session_id: str
    position: int
    started_ms: int
    ended_ms: int
    config: JsonObject


class Model:
    """All sessions of a service, and who is connected."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.sessions: dict[str, Session] = {}
        self.connections: dict[int, dict[tuple[str, str], ProducerLease]] = {}
        """The lines of each connection, by session id and producer."""
        self.began_ms = now_ms
        self.seen: set[tuple[str, str]] = set()
        """Sessions and producers that were connected since then."""
        self.awaited: dict[tuple[str, str], int] = {}
        """Until when (ms) a producer of a session is waited for, that is probably on its way back."""
        self.deliveries: list[Delivery] = []
        """Every close there ever was: a receiver forgets nothing."""

    # Sessions

    def create(self, session_id: str, config: JsonObject) -> str:
        """`created`, `same`, `different` or `erased`."""
        session = self.sessions.get(session_id)
        if session is None:
            self.sessions[session_id] = Session(session_id, merged({}, config), self.now_ms, self.now_ms)
            return "created"
        if session.state == "erased":
            return "erased"
        return "same" if session.config == merged({}, config) else "different"

    def change(self, session_id: str, patch: JsonObject) -> str | None:
        """A merge patch over REST; the code of its refusal, if it is refused."""
        session = self.sessions[session_id]
        if session.state == "ended":
            return "session_ended"
        session.config = merged(session.config, patch)
        self.journal(session, {"type": "session.update", **patch})
        return None

    def end(self, session_id: str, reason: str) -> None:
        """Over REST: at once. What was closed before stays as it was."""
        session = self.sessions[session_id]
        if session.state == "running":
            self.close(session, self.now_ms, reason)

    def erase(self, session_id: str) -> None:
        """Only that there was a session of this id stays."""
        session = self.sessions[session_id]
        session.state, session.ending, session.ended_ms, session.provisional = "erased", None, None, False
        session.journal, session.producers, session.config = [], {}, {}

    def listed(self, state: str | None = None) -> list[str]:
        """Ids, the newest first."""
        shown = [s for s in self.sessions.values() if s.state != "erased" and state in (None, s.state)]
        return [s.id for s in reversed(sorted(shown, key=lambda s: s.started_ms))]

    # Connections

    def open(
        self, connection: int, session_id: str, producer: str, config: JsonObject, from_seq: int | None
    ) -> int | None:
        """A new epoch, of a session that was not erased; the other connection that it supersedes, if there is one."""
        self.create(session_id, config)
        session = self.sessions[session_id]
        if self.may_reopen(session):
            self.reopen(session)
        lease = session.producers.setdefault(producer, Producer())
        lease.epoch += 1
        if session.state == "running" and from_seq is not None and from_seq > lease.next_seq:
            hole = {"from_seq": lease.next_seq, "to_seq": from_seq - 1}
            self.journal(session, {"type": "session.gap", "producer": producer, **hole})
            lease.next_seq = from_seq
        superseded = None
        for other, lines in self.connections.items():
            before = lines.get((session_id, producer))
            if before is not None and not before.dead:
                before.dead, superseded = True, None if other == connection else other
        self.seen.add((session_id, producer))
        self.awaited.pop((session_id, producer), None)
        self.connections[connection][session_id, producer] = ProducerLease(session_id, producer, lease.epoch)
        session.silent_since_ms = None
        return superseded

    def drop(self, connection: int, lost: bool = False) -> None:
        """A connection is gone; one that is lost may come back."""
        for line in self.connections.pop(connection).values():
            if lost and not line.dead:
                self.awaited[line.session_id, line.producer] = self.now_ms + EXPECTED_BACK_MS
            if not line.dead and not self.connected(line.session_id):
                self.sessions[line.session_id].silent_since_ms = self.now_ms

    def connected(self, session_id: str) -> set[str]:
        """The producers that have a connection."""
        lines = [line for lines in self.connections.values() for line in lines.values()]
        return {line.producer for line in lines if line.session_id == session_id and not line.dead}

    def sent_over_http(self, line: ProducerLease, answers: Sequence[Answer | None]) -> None:
        """Whoever counts their events has a buffer, which may hold more."""
        if any(answer is not None and answer.code is None and answer.seq is not None for answer in answers):
            self.awaited[line.session_id, line.producer] = self.now_ms + EXPECTED_BACK_MS

    def expected(self, session: Session) -> set[str]:
        """The producers that may still have something to say."""
        awaited = {name for (one, name), until in self.awaited.items() if one == session.id and until > self.now_ms}
        gone: set[str] = set()
        if self.now_ms < self.began_ms + EXPECTED_BACK_MS:
            opened = {name for name, producer in session.producers.items() if producer.epoch}
            gone = {name for name in opened if (session.id, name) not in self.seen}
        return self.connected(session.id) | awaited | gone

    # Events

    def heard(self, session_id: str) -> None:
        """Events over HTTP came in, which counts as hearing."""
        session = self.sessions[session_id]
        if session.silent_since_ms is not None:
            session.silent_since_ms = self.now_ms

    def take(self, line: ProducerLease, event: JsonObject, refusal: str | None = None) -> Answer | None:
        """One event, and what is said about it; `refusal` is the code of one that cannot be taken for its content."""
        if line.dead:
            return None
        session, event = self.sessions[line.session_id], as_stored(event)
        seq = event.get("seq")
        if type(seq) is not int or seq < 1:
            seq = None
        if refusal is None and "last_seq" in event and (seq is None or event["last_seq"] != seq - 1):
            refusal = "last_seq_mismatch"
        if seq is None and refusal is not None:
            return Answer(None, refusal)
        if session.state == "erased":
            return Answer(seq, "session_erased")
        producer = session.producers.get(line.producer, Producer())
        if line.epoch not in (None, producer.epoch):
            return Answer(seq, "superseded")
        if seq is not None and seq < producer.next_seq and not producer.unsequenced:
            return self.take_again(producer, seq, event, refusal)
        code = self.order(session, producer, seq)
        if code == "seq_gap":
            told, line.told_gap = line.told_gap, producer.next_seq
            return None if told == producer.next_seq else Answer(seq, code, producer.next_seq)
        if code is not None:
            return Answer(seq, code)
        session.producers[line.producer] = producer
        return self.store(session, line.producer, seq, event, refusal)

    def take_again(self, producer: Producer, seq: int, event: JsonObject, refusal: str | None) -> Answer:
        """A seq that is taken: the same is acknowledged again, a refusal repeated, anything else a conflict."""
        before = producer.stored.get(seq)
        if before is None:
            return Answer(seq, "seq_conflict")  # in a hole that was declared
        if before["type"] == "refused":
            return Answer(seq, before["code"])
        same = refusal is None and text_of(before) == text_of(event)
        return Answer(seq, None if same else "seq_conflict")

    def order(self, session: Session, producer: Producer, seq: int | None) -> str | None:
        """Why a new event is out of order; None when it is in order."""
        if producer.ended or (session.state == "ended" and not self.may_reopen(session)):
            return "session_ended"
        if producer.unsequenced if seq is not None else producer.next_seq > 1:
            return "seq_required"
        return "seq_gap" if seq is not None and seq > producer.next_seq else None

    def store(self, session: Session, name: str, seq: int | None, event: JsonObject, refusal: str | None) -> Answer:
        """An event in its order: it takes its place, and its effect."""
        if session.state == "ended":
            self.reopen(session)
        producer = session.producers[name]
        kept = event if refusal is None else {"type": "refused", "code": refusal}
        session.journal.append(Entry(name, seq, kept, self.now_ms))
        if seq is None:
            producer.unsequenced = True
        else:
            producer.next_seq, producer.stored[seq] = seq + 1, kept
        if kept["type"] == "session.update":
            patch = {key: value for key, value in kept.items() if key in UPDATED}
            session.config = merged(session.config, patch)
        if kept["type"] == "session.end":
            producer.ended = True
            ts = int(kept.get("ts", self.now_ms))
            session.ending = session.ending or Ending(self.now_ms, ts, kept["reason"])
        return Answer(seq, refusal)

    # Time

    def settle(self) -> None:
        """Close what is to be closed by now, and erase what was kept long enough."""
        for session in self.sessions.values():
            if session.state == "running":
                self.close_when_due(session)
            expiry = self.expiry(session)
            if expiry is not None and self.now_ms >= expiry:
                self.erase(session.id)

    def close_when_due(self, session: Session) -> None:
        too_long = self.now_ms >= session.started_ms + session.setting_ms("max_duration")
        idle_ms, since = session.setting_ms("idle_timeout"), session.silent_since_ms
        idle = idle_ms > 0 and since is not None and self.now_ms >= since + idle_ms
        if session.ending is not None:
            waiting = any(not session.producers[name].ended for name in self.expected(session))
            if too_long or idle or not waiting or self.now_ms >= session.ending.at_ms + GRACE_MS:
                self.close(session, session.ending.ts, session.ending.reason)
        elif too_long:
            self.close(session, self.now_ms, "max_duration")
        elif idle:
            self.close(session, self.now_ms, "idle", tells=session.was_joined)
            session.provisional = True

    def close(self, session: Session, ts: int, reason: str, tells: bool = True) -> None:
        self.journal(session, {"type": "session.closed", "ts": ts, "reason": reason})
        session.state, session.reason, session.ended_ms = "ended", reason, self.now_ms
        session.ending = None
        if tells:
            config = copy.deepcopy(session.config)
            self.deliveries.append(Delivery(session.id, len(session.journal), session.started_ms, self.now_ms, config))

    def reopen_deadline(self, session: Session) -> int | None:
        """Until when (Unix ms) an idle close can be undone."""
        if session.state != "ended" or not session.provisional or session.ended_ms is None:
            return None
        return session.ended_ms + session.setting_ms("reopen_window")

    def expiry(self, session: Session) -> int | None:
        """Until when (Unix ms) a session is kept; None for ever."""
        kept = session.config.get("ttl_seconds")
        return None if kept is None or session.ended_ms is None else session.ended_ms + int(kept * 1000)

    def may_reopen(self, session: Session) -> bool:
        deadline = self.reopen_deadline(session)
        return deadline is not None and self.now_ms < deadline

    def reopen(self, session: Session) -> None:
        self.journal(session, {"type": "session.reopened", "ts": self.now_ms})
        session.state, session.reason, session.ended_ms, session.provisional = "running", None, None, False
        session.silent_since_ms = self.now_ms

    def moments(self) -> list[int]:
        """When something will happen if no one does anything (Unix ms)."""
        return sorted({moment for session in self.sessions.values() for moment in self.moments_of(session)})

    def moments_of(self, session: Session) -> list[int]:
        """The same of one session."""
        found = [self.reopen_deadline(session), self.expiry(session)]
        if session.state == "running":
            found.append(session.started_ms + session.setting_ms("max_duration"))
            if session.ending is not None:
                found.append(session.ending.at_ms + GRACE_MS)
            if session.silent_since_ms is not None:
                found.append(session.silent_since_ms + session.setting_ms("idle_timeout"))
        return sorted(moment for moment in found if moment is not None and moment > self.now_ms)

    # The process

    def stop(self) -> None:
        """No connection outlives a process."""
        for connection in list(self.connections):
            self.drop(connection)

    def start(self) -> None:
        """Time without a server is not silence; what ended is closed."""
        self.began_ms, self.seen, self.awaited = self.now_ms, set(), {}
        for session in self.sessions.values():
            if session.state == "running":
                session.silent_since_ms = self.now_ms
                if session.ending is not None:  # the grace begins again for those who have not ended
                    session.ending.at_ms = self.now_ms
        self.settle()

    def journal(self, session: Session, event: JsonObject) -> None:
        """An event of the server's own."""
        session.journal.append(Entry(None, None, event, self.now_ms))


UPDATED = frozenset({"name", "channel", "user_id", "labels", "interruptable", *DURATIONS})
"""Settings that events of the tests change."""


def as_stored(value: Any) -> Any:
    """A JSON value with U+FFFD for each U+0000 in its texts, which not every database can store."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [as_stored(one) for one in value]
    return {key: as_stored(one) for key, one in value.items()} if isinstance(value, dict) else value


def text_of(event: JsonObject) -> JsonObject:
    """An event without what only says whose it is."""
    return {key: value for key, value in event.items() if key not in ROUTING}


def merged(target: JsonObject, patch: JsonObject) -> JsonObject:
    """A merge patch (RFC 7396)."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            result[key] = value
    return result
