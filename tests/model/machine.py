"""The rules: what happens to the service and to its model alike, and what must then be the same in both."""

from __future__ import annotations

import copy
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from model import Answer, Fields, Line, Model, Producer, Session
from moves import ENDS, MOVES, PLAIN_MOVES, UPDATES, Move, Sent, resolved
from service import ERASED, Service

from voicemem import history
from voicemem.events import Journaled
from voicemem.fold import Entry, fold_all
from voicemem.state import State

NOW = 1_778_390_400_000
SESSIONS = ["s1", "s2", "s3"]
PRODUCERS = ["main", "b"]
CONFIGS: list[Fields] = [
    {},
    {"idle_timeout": 0, "name": "desk", "channel": "one", "labels": {"a": "b"}},
    {"idle_timeout": 5, "reopen_window": 10},
    {"idle_timeout": 5, "reopen_window": 0},
    {"max_duration": 90, "idle_timeout": 3},
]
JUMPS_MS = [1, 700, 1_999, 2_001, 5_003, 61_000, 3_600_007]
IDS = st.sampled_from(SESSIONS)
NAMES = st.sampled_from(PRODUCERS)
CHOICE = st.integers(0, 11)
Key = tuple[str | None, str | None]
Said = dict[Key, list[Answer]]
"""What is said on a connection, by session id and producer."""


class Rules(RuleBasedStateMachine):
    """What producers, readers and operators do, whatever the service runs in."""

    times = True
    """Whether the model knows what the service's clock says."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(NOW)
        self.service = self.begin(Path(self.folder.name))
        self.saved: dict[str, Session] | None = None
        self.incarnations: set[str] = set()
        self.notices: dict[str, Fields] = {}
        """The payload of each notice, as it came first."""

    def begin(self, folder: Path) -> Service:
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            self.service.finish()
        finally:
            self.folder.cleanup()

    # What there is to choose from

    def lines(self) -> list[tuple[int, Line]]:
        """All lines, dead ones too, with their connections."""
        return [(number, line) for number, lines in self.model.connections.items() for line in lines.values()]

    def line(self, choice: int) -> tuple[int, Line]:
        lines = self.lines()
        return lines[choice % len(lines)]

    def has_lines(self) -> bool:
        return bool(self.lines())

    def known(self) -> list[str]:
        return list(self.model.sessions)

    def producer(self, line: Line) -> Producer:
        """Where a line's producer stands."""
        return self.model.sessions[line.session_id].producers.get(line.producer, Producer())

    # Sessions over REST

    @rule(session_id=IDS, config=st.sampled_from(CONFIGS))
    def create(self, session_id: str, config: Fields) -> None:
        """A session is created, or was there before."""
        expected = {"created": 201, "same": 200, "different": 409, "erased": 410}
        answered = self.request("POST", "/v1/sessions", {"session_id": session_id, **config})
        assert answered.status == expected[self.model.create(session_id, config)], answered.body

    @precondition(known)
    @rule(choice=CHOICE, patch=st.sampled_from(UPDATES))
    def change(self, choice: int, patch: Fields) -> None:
        """Its configuration is patched."""
        session_id = self.known()[choice % len(self.known())]
        answered = self.request("PATCH", f"/v1/sessions/{session_id}", patch)
        if self.is_erased(session_id, answered.status):
            return
        code = self.model.change(session_id, patch)
        assert answered.status == (200 if code is None else 409), answered.body
        assert code is None or code == answered.json["reason"]

    @precondition(known)
    @rule(choice=CHOICE, reason=st.sampled_from(["closed", "timeout"]))
    def end_at_once(self, choice: int, reason: str) -> None:
        """It is ended and closed over REST."""
        session_id = self.known()[choice % len(self.known())]
        answered = self.request("POST", f"/v1/sessions/{session_id}/end", {"reason": reason})
        if not self.is_erased(session_id, answered.status):
            assert answered.status == 200, answered.body
            self.model.end(session_id, reason)

    @precondition(known)
    @rule(choice=CHOICE, sure=st.integers(0, 3))
    def erase(self, choice: int, sure: int) -> None:
        """It is erased, now and then."""
        session_id = self.known()[choice % len(self.known())]
        if sure == 3:
            answered = self.request("DELETE", f"/v1/sessions/{session_id}")
            if not self.is_erased(session_id, answered.status):
                assert answered.status == 204, answered.body
                self.model.erase(session_id)

    def is_erased(self, session_id: str, status: int) -> bool:
        """Whether a session was erased; then nothing but its absence can be the answer."""
        erased = self.model.sessions[session_id].state == "erased"
        assert not erased or status in (404, 410)
        return erased

    # Connections

    @rule(
        number=st.integers(0, 2),
        session_id=IDS | st.just(""),
        name=st.sampled_from([None, *PRODUCERS]),
        config=st.sampled_from(CONFIGS),
        ahead=st.none() | st.integers(-2, 3),
    )
    def open(self, number: int, session_id: str, name: str | None, config: Fields, ahead: int | None) -> None:
        """A producer opens a session, from `next_seq` on or from elsewhere."""
        frame: Fields = {"type": "session.open", "session": config}
        frame |= {"producer": name} if name else {}
        frame |= {"session_id": session_id} if session_id else {}
        before = self.model.sessions.get(session_id)
        lease = before.producers.get(name or "main", Producer()) if before else Producer()
        if ahead is not None and not lease.unsequenced:
            frame["from_seq"] = max(1, lease.next_seq + ahead)
        self.connect(number)
        frames = self.exchange({number: [frame]}, {number: {}}, ready=True)[number]
        ready = frames[0]
        opened = self.model.open(
            number, ready["session_id"], name or "main", self.configured(config), frame.get("from_seq")
        )
        if opened is None:
            assert (ready["type"], ready["code"]) == ("error", "session_erased"), ready
            return
        self.check_ready(ready, *opened)

    def configured(self, config: Fields) -> Fields:
        return config

    def check_ready(self, ready: Fields, line: Line, superseded: int | None) -> None:
        """The answer to an open, and what the connection that had the producer before is told."""
        session = self.model.sessions[line.session_id]
        lease = session.producers[line.producer]
        expected = {"producer": line.producer, "epoch": line.epoch, "next_seq": lease.next_seq, "state": session.state}
        assert ready["type"] == "session.ready"
        assert expected == {key: ready[key] for key in expected}
        assert ready["window"] > 0
        self.incarnations.add(ready["incarnation"])
        if superseded is not None:
            key = line.session_id, line.producer
            self.exchange({superseded: []}, {superseded: {key: [Answer(None, "superseded")]}})

    def connect(self, number: int) -> None:
        if number not in self.model.connections:
            self.service.run(self.service.connect(number))
            self.model.connections[number] = {}

    @precondition(lambda self: bool(self.model.connections))
    @rule(choice=CHOICE, abruptly=st.booleans())
    def disconnect(self, choice: int, abruptly: bool) -> None:
        """A connection goes, with a close or without."""
        number = list(self.model.connections)[choice % len(self.model.connections)]
        self.service.run(self.service.disconnect(number, abruptly))
        self.model.drop(number)

    # Events on a websocket

    @precondition(has_lines)
    @rule(choice=CHOICE, moves=st.lists(MOVES, min_size=1, max_size=5), together=st.booleans(), full=st.booleans())
    def send(self, choice: int, moves: list[Move], together: bool, full: bool) -> None:
        """A producer sends some events, in one frame or in several."""
        number, line = self.line(choice)
        sent = [self.play(number, line, move, full) for move in moves]
        texts = [one.text() for one, _ in sent]
        answers = [answer for _, answer in sent if answer is not None]
        frames = ["[" + ",".join(texts) + "]"] if together else texts
        self.exchange({number: frames}, {number: {(line.session_id, line.producer): answers}})

    @precondition(has_lines)
    @rule(chosen=st.lists(st.tuples(CHOICE, MOVES), min_size=2, max_size=6))
    def send_mixed(self, chosen: list[tuple[int, Move]]) -> None:
        """One frame has events of several lines of its connection."""
        number, _ = self.line(chosen[0][0])
        lines = list(self.model.connections[number].values())
        texts, said = [], defaultdict(list)
        for choice, move in chosen:
            line = lines[choice % len(lines)]
            sent, answer = self.play(number, line, move, full=True)
            texts.append(sent.text())
            if answer is not None:
                said[line.session_id, line.producer].append(answer)
        self.mixed(number, texts, said)

    def mixed(self, number: int, texts: list[str], said: Said) -> None:
        starts = {session_id: None for session_id in self.known()}
        del starts
        self.exchange({number: ["[" + ",".join(texts) + "]"]}, {number: said})

    def play(self, number: int, line: Line, move: Move, full: bool) -> tuple[Sent, Answer | None]:
        """A move on a websocket: the event, with the names it needs, and the answer to it."""
        sent = resolved(move, self.producer(line))
        sent = sent._replace(event=sent.event | self.names(number, line, full))
        return sent, self.model.take(line, sent.event, sent.refusal)

    def names(self, number: int, line: Line, full: bool) -> Fields:
        """What says whose an event is, where the connection alone does not."""
        keys = self.model.connections[number]
        several_sessions = len({session_id for session_id, _ in keys}) > 1
        several_producers = len([1 for session_id, _ in keys if session_id == line.session_id]) > 1
        names = {"session_id": line.session_id} if full or several_sessions else {}
        return names | ({"producer": line.producer} if full or several_producers else {})

    @precondition(has_lines)
    @rule(choice=CHOICE, end=st.sampled_from(ENDS), last=st.sampled_from([None, 0, 0, 3]), http=st.booleans())
    def end(self, choice: int, end: Fields, last: int | None, http: bool) -> None:
        """A producer ends the session, or gets its `last_seq` wrong."""
        number, line = self.line(choice)
        producer = self.producer(line)
        event = {"type": "session.end", **end}
        if not producer.unsequenced:
            event["seq"] = producer.next_seq
        if last is not None:
            event["last_seq"] = producer.next_seq - 1 + last
        if http:
            self.post_events(line.session_id, line.producer, None, [Sent(event)])
            return
        event |= self.names(number, line, full=False)
        answer = self.model.take(line, event)
        said = {(line.session_id, line.producer): [answer] if answer else []}
        self.exchange({number: [json.dumps(event)]}, {number: said})

    @precondition(lambda self: bool(self.model.connections))
    @rule(choice=CHOICE, seq=st.none() | st.integers(1, 3))
    def send_astray(self, choice: int, seq: int | None) -> None:
        """An event names a session that its connection has not opened, or none of several that it has."""
        number = list(self.model.connections)[choice % len(self.model.connections)]
        event: Fields = {"type": "resume", "turn_id": 1} | ({"seq": seq} if seq else {})
        several = len({session_id for session_id, _ in self.model.connections[number]}) > 1
        event |= {} if several else {"session_id": "nowhere"}
        code = "session_required" if several else "not_open"
        key = event.get("session_id"), None
        self.exchange({number: [json.dumps(event)]}, {number: {key: [Answer(seq, code)]}})

    # Events over HTTP

    @precondition(known)
    @rule(
        choice=CHOICE,
        name=NAMES,
        epoch=st.sampled_from([None, None, 0, 1, -1]),
        moves=st.lists(MOVES, min_size=1, max_size=4),
        lines=st.booleans(),
    )
    def post(self, choice: int, name: str, epoch: int | None, moves: list[Move], lines: bool) -> None:
        """A producer sends over HTTP, under the newest epoch, an older or later one, or none."""
        session_id = self.known()[choice % len(self.known())]
        session = self.model.sessions[session_id]
        newest = session.producers.get(name, Producer()).epoch
        given = None if epoch is None or newest + epoch < 1 else newest + epoch
        self.post_events(session_id, name, given, moves, lines)

    def post_events(
        self, session_id: str, name: str, epoch: int | None, given: list[Any], json_lines: bool = False
    ) -> None:
        """One request; of a move the event is made when those before it were taken."""
        session = self.model.sessions[session_id]
        in_order = self.model.may_reopen(session)  # whether a hole in a closed call is a hole or an end is open
        line = Line(session_id, name, epoch)
        texts, answers = [], []
        self.model.heard(session_id)
        for one in given:
            sent = one if isinstance(one, Sent) else resolved(one, self.producer(line), in_order)
            texts.append(json.dumps(sent.event) if json_lines else sent.text())
            answers.append(self.model.take(line, sent.event, sent.refusal))
        body = ("\n".join(texts) if json_lines else "[" + ",".join(texts) + "]").encode()
        query = f"?producer={name}" + ("" if epoch is None else f"&epoch={epoch}")
        answered = self.request("POST", f"/v1/sessions/{session_id}/events{query}", body)
        if self.is_erased(session_id, answered.status):
            return
        assert answered.status == 200, answered.body
        assert answered.json["next_seq"] == self.producer(line).next_seq
        expected = [(answer.seq, answer.code, answer.expected) for answer in answers if answer and answer.code]
        assert expected == [(told["seq"], told["code"], told.get("expected")) for told in answered.json["errors"]]

    # The process, and its receiver

    @rule(save=st.booleans(), restore=st.integers(0, 3))
    def restart(self, save: bool, restore: int) -> None:
        """The service stops and starts again, on its file or on an older copy of it."""
        restored = restore == 3 and self.saved is not None
        numbers = list(self.model.connections)
        told = self.service.run(self.service.restart(save and not restored, restored))
        assert told == {number: ([{"type": "goaway"}], 1012) for number in numbers}
        self.model.stop()
        if restored:
            assert self.saved is not None
            self.model.sessions = copy.deepcopy(self.saved)
            self.incarnations.clear()
        else:
            self.model.settle()
            self.saved = copy.deepcopy(self.model.sessions) if save else self.saved
        self.model.start()

    @rule(times=st.integers(1, 2))
    def stumble(self, times: int) -> None:
        """The receiver will fail before it takes the next notice."""
        self.service.stumble(times)

    # Reading

    @precondition(known)
    @rule(choice=CHOICE, after=st.integers(0, 4))
    def read(self, choice: int, after: int) -> None:
        """A part of a journal, a history that has not changed, lists by state."""
        session_id = self.known()[choice % len(self.known())]
        session = self.model.sessions[session_id]
        for state in ("running", "ended"):
            listed = self.request("GET", f"/v1/sessions?state={state}").json["sessions"]
            assert self.model.listed(state) == [one["session_id"] for one in listed]
        if session.state == "erased":
            return
        rows = self.request("GET", f"/v1/sessions/{session_id}/events?after={after}&limit=3").lines
        positions = range(1, len(session.journal) + 1)
        assert list(positions[after : after + 3]) == [row["position"] for row in rows]
        path = f"/v1/sessions/{session_id}/history"
        answered = self.request("GET", path)
        again = self.request("GET", path, headers={"If-None-Match": answered.headers["ETag"]})
        assert (again.status, again.body) == (304, b"")

    # What must be the same after every step

    @invariant()
    def agrees(self) -> None:
        """The service has the journals, states and connections of the model, and has exported its closes."""
        self.model.settle()
        connected = {one: names for one in self.known() if (names := self.model.connected(one))}
        self.service.run(self.service.settle(connected))
        self.exchange({}, {})
        assert len(self.incarnations) <= 1
        for session in self.model.sessions.values():
            if session.state == "erased":
                self.check_erased(session.id)
            else:
                self.check_session(session)
        listed = self.request("GET", "/v1/sessions").json["sessions"]
        assert self.model.listed() == [one["session_id"] for one in listed if one["session_id"] != ERASED]
        self.check_notices()

    def check_erased(self, session_id: str) -> None:
        for path in ("", "/history", "/events", "/context", "/turns"):
            assert self.request("GET", f"/v1/sessions/{session_id}{path}").status in (404, 410)

    def check_session(self, session: Session) -> None:
        path = f"/v1/sessions/{session.id}"
        shown = self.request("GET", path).json
        assert (session.state, session.reason, session.config) == (shown["state"], shown["reason"], shown["config"])
        if self.times:
            assert (session.started_ms, session.ended_ms) == (shown["started_at"], shown["ended_at"])
        rows = self.request("GET", f"{path}/events").lines
        self.check_journal(session, rows)
        told = self.request("GET", f"{path}/history").json
        assert len(rows) == shown["position"] == told["position"]
        assert told["state"] == session.state
        assert folded(rows) == told["contents"]

    def check_journal(self, session: Session, rows: list[Fields]) -> None:
        assert list(range(1, len(session.journal) + 1)) == [row["position"] for row in rows]
        for entry, row in zip(session.journal, rows, strict=True):
            assert (entry.producer, entry.seq) == (row["producer"], row["seq"])
            event = dict(entry.event)
            if not self.times and entry.producer is None:
                event.pop("ts", None)
            found = row["event"] if entry.producer else {key: row["event"].get(key) for key in event}
            assert event == found
            assert not self.times or entry.received_ms == row["received_ms"]

    def check_notices(self) -> None:
        """One notice of each close, and each attempt of it the same."""
        notices = self.service.run(self.service.notices(len(self.model.exports)))
        for notice in notices:
            assert self.notices.setdefault(notice["noticeId"], notice["payload"]) == notice["payload"]
        assert len(self.model.exports) == len(self.notices)

    # Talking to the service

    def request(self, method: str, path: str, body: Any = None, headers: Fields | None = None) -> Any:
        answered = self.service.run(self.service.request(method, path, body, headers))
        if method != "GET":
            note(f"{method} {path} {body!r} -> {answered.status} {answered.body!r}")
        return answered

    def exchange(
        self, frames: dict[int, list[Any]], said: dict[int, Said], ready: bool = False
    ) -> dict[int, list[Fields]]:
        """Send on some connections, or listen to all; the frames that came back are what should be said."""
        told: dict[int, list[Fields]] = {}
        for number in frames or self.model.connections:
            texts = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames.get(number, [])]
            expected = said.get(number, {})
            found = self.service.run(self.service.exchange(number, texts, lambda f, e=expected: is_enough(f, e)))
            if texts or found:
                note(f"connection {number}: {texts} -> {found}")
            told[number] = found
            self.check_said(found[1:] if ready else found, expected)
        return told

    def check_said(self, frames: list[Fields], expected: Said) -> None:
        """Errors in their order, and acks that cover what must be acknowledged and nothing that is not stored."""
        by_line = defaultdict(list)
        for frame in frames:
            by_line[frame.get("session_id"), frame.get("producer")].append(frame)
        assert set(by_line) <= set(expected), frames
        for key, answers in expected.items():
            errors = [frame for frame in by_line[key] if frame["type"] == "error"]
            acks = [frame["seq"] for frame in by_line[key] if frame["type"] == "ack"]
            assert len(errors) + len(acks) == len(by_line[key]), frames
            wanted = [(answer.seq, answer.code, answer.expected) for answer in answers if answer.code]
            assert wanted == [(frame.get("seq"), frame["code"], frame.get("expected")) for frame in errors]
            self.check_acks(key, acks, answers)

    def check_acks(self, key: Key, acks: list[int], answers: list[Answer]) -> None:
        least = ack_due(answers)
        assert bool(least) == bool(acks), (acks, answers)
        if acks:
            session_id, name = key
            assert session_id is not None
            assert name is not None
            producer = self.model.sessions[session_id].producers[name]
            assert least <= max(acks) < producer.next_seq
            assert sorted(acks) == acks or len(acks) > len(set(acks)) or min(acks) >= 1


def ack_due(answers: list[Answer]) -> int:
    """The seq that must be acknowledged; 0 for none."""
    return max((answer.seq for answer in answers if answer.seq is not None and answer.code is None), default=0)


def is_enough(frames: list[Fields], expected: Said) -> bool:
    """Whether everything came that must come."""
    for key, answers in expected.items():
        own = [frame for frame in frames if (frame.get("session_id"), frame.get("producer")) == key]
        errors = [frame for frame in own if frame["type"] == "error"]
        acked = max((frame["seq"] for frame in own if frame["type"] == "ack"), default=0)
        if len(errors) < len([1 for answer in answers if answer.code]) or acked < ack_due(answers):
            return False
    return True


def folded(rows: list[Fields]) -> list[Fields]:
    """The messages that a journal gives, as JSON."""
    entries = [
        Entry(row["position"], row["received_ms"], msgspec.convert(row["event"], type=Journaled)) for row in rows
    ]
    messages = history.messages(fold_all(State(), entries))
    return list(json.loads(msgspec.json.encode(messages)))


_ = PLAIN_MOVES
