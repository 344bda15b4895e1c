"""The rules: what producers, operators and the process do, whatever the service runs in."""

from __future__ import annotations

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.model.agreement import Agreement
from tests.support.model.conversation import MOST_SESSIONS, READY, Said
from tests.support.model.producer_moves import ENDS, MOVES, PLAIN, PLAIN_MOVES, UPDATES, Move, Sent, resolved
from tests.support.model.reference_model import Answer, Entry, Producer, ProducerLease
from voicemem.protocol.types import JsonObject

PRODUCERS = ["main", "b"]
OPERATIONS = [
    "back_up",
    "create",
    "change",
    "end_at_once",
    "erase",
    "stumble",
    "read",
    "read",
    "open_unnamed",
    "send_astray",
]
CONFIGS: list[JsonObject] = [
    {"idle_timeout": 5},
    {},
    {"idle_timeout": 0, "name": "desk", "channel": "one", "labels": {"a": "b"}},
    {"idle_timeout": 5, "reopen_window": 10},
    {"idle_timeout": 5, "reopen_window": 0},
    {"idle_timeout": 5, "reopen_window": 10, "ttl_seconds": 30},
    {"max_duration": 400, "idle_timeout": 3},
]
NAMES = st.sampled_from(PRODUCERS)
CHOICE = st.integers(0, 11)
"""Which of those there are: mostly one of the lively, the highest any at all."""
SEVERAL_MOVES = st.lists(MOVES, min_size=1, max_size=1) | st.lists(MOVES, min_size=2, max_size=9)
"""Often a single one: alone in its batch, it is taken another way."""
SELDOM = st.integers(0, 3).map(lambda number: number == 3)


class Rules(Agreement):
    """Each rule does something to the service and to the model alike."""

    # Sessions over REST

    @rule(what=st.sampled_from(OPERATIONS), choice=CHOICE)
    def operate(self, what: str, choice: int) -> None:
        """Someone else has to do with a session."""
        if what == "create" or not self.model.sessions:
            self.create(self.old_or_new(choice), self.configured(CONFIGS[choice % len(CONFIGS)]))
        else:
            operation: Callable[[str, int], None] = getattr(self, what)
            operation(self.session(choice), choice)

    def create(self, session_id: str, config: JsonObject) -> None:
        """It is created, or was there before."""
        expected = {"created": 201, "same": 200, "different": 409, "erased": 410}
        answered = self.request("POST", "/v1/sessions", {"session_id": session_id, **config})
        assert answered.status == expected[self.model.create(session_id, config)], answered.body

    def change(self, session_id: str, choice: int) -> None:
        """Its configuration is patched."""
        patch = self.configured(UPDATES[choice % len(UPDATES)])
        answered = self.request("PATCH", f"/v1/sessions/{session_id}", patch)
        if self.is_erased(session_id, answered.status):
            return
        code = self.model.change(session_id, patch)
        assert answered.status == {None: 200, "session_ended": 410}[code], answered.body
        assert code is None or code == answered.json["reason"]

    def end_at_once(self, session_id: str, choice: int) -> None:
        """It is ended and closed over REST."""
        reason = f"reason {choice}"
        answered = self.request("POST", f"/v1/sessions/{session_id}/end", {"reason": reason})
        if not self.is_erased(session_id, answered.status):
            assert answered.status == 200, answered.body
            self.model.end(session_id, reason)

    def erase(self, session_id: str, _choice: int) -> None:
        """It is erased."""
        answered = self.request("DELETE", f"/v1/sessions/{session_id}")
        if not self.is_erased(session_id, answered.status):
            assert answered.status == 204, answered.body
            self.model.erase(session_id)

    def stumble(self, _session_id: str, _choice: int) -> None:
        """The receiver will fail once before it takes the next webhook event."""
        self.service.stumble()

    def back_up(self, _session_id: str, _choice: int) -> None:
        """The running service's file is copied."""
        self.service.back_up()
        self.backup = copy.deepcopy(self.model.sessions)

    def read(self, session_id: str, choice: int) -> None:
        """A part of its journal, its history where nothing has changed, lists by state."""
        for state in ("running", "ended"):
            listed = self.request("GET", f"/v1/sessions?state={state}").json["sessions"]
            assert self.model.listed(state) == [one["session_id"] for one in listed]
        session = self.model.sessions[session_id]
        if session.state == "erased":
            return
        rows = self.request("GET", f"/v1/sessions/{session_id}/events?after={choice}&limit=3").lines
        positions = range(1, len(session.journal) + 1)
        assert list(positions[choice : choice + 3]) == [row["position"] for row in rows]
        path = f"/v1/sessions/{session_id}/history"
        answered = self.request("GET", path)
        again = self.request("GET", path, headers={"If-None-Match": answered.headers["ETag"]})
        assert (again.status, again.body) == (304, b"")

    def open_unnamed(self, _session_id: str, choice: int) -> None:
        """The server makes the id of another one."""
        if len(self.model.sessions) < MOST_SESSIONS:
            self.open_producer(choice % 3, None, None, CONFIGS[choice % len(CONFIGS)], None)

    def send_astray(self, _session_id: str, choice: int) -> None:
        """An event names a session that its connection has not opened, or none of several that it has."""
        number = choice % 3
        self.connect(number)
        event: JsonObject = {"type": "resume", "turn_id": 1} | ({"seq": choice} if choice else {})
        several = len({session_id for session_id, _ in self.model.connections[number]}) > 1
        event |= {} if several else {"session_id": "nowhere"}
        answer = Answer(choice or None, "session_required" if several else "not_open")
        self.exchange({number: [json.dumps(event)]}, {number: {(event.get("session_id"), None): [answer]}})

    def is_erased(self, session_id: str, status: int) -> bool:
        """Whether a session was erased; then nothing but its absence can be the answer."""
        erased = self.model.sessions[session_id].state == "erased"
        assert not erased or status in (404, 410)
        return erased

    # Connections

    @initialize(config=st.sampled_from(CONFIGS), names=st.permutations(PRODUCERS))
    def begin_call(self, config: JsonObject, names: list[str]) -> None:
        """A call begins, with a producer or two on connections of their own."""
        for number, name in enumerate(names[: 1 + (names[0] == "main")]):
            self.open_producer(number, "s1", name, config, None)

    @rule(
        number=st.integers(0, 2),
        choice=CHOICE,
        name=st.sampled_from([None, *PRODUCERS]),
        config=st.sampled_from(CONFIGS),
        ahead=st.none() | st.integers(-2, 3),
    )
    def open(self, number: int, choice: int, name: str | None, config: JsonObject, ahead: int | None) -> None:
        """A producer opens a session, from `next_seq` on or from elsewhere."""
        self.open_producer(number, self.old_or_new(choice), name, config, ahead)

    def open_producer(
        self, number: int, session_id: str | None, name: str | None, config: JsonObject, ahead: int | None
    ) -> None:
        frame: JsonObject = {"type": "session.open", "session": self.configured(config)}
        frame |= {"producer": name} if name else {}
        frame |= {"session_id": session_id} if session_id else {}
        before = self.model.sessions.get(session_id or "")
        lease = before.producers.get(name or "main", Producer()) if before else Producer()
        if ahead is not None and not lease.unsequenced:
            frame["from_seq"] = max(1, lease.next_seq + ahead)
        self.connect(number)
        if before is not None and before.state == "erased":
            refused: Said = {(session_id, name): [Answer(None, "session_erased")]}
            self.exchange({number: [frame]}, {number: refused})
            return
        (ready,) = self.exchange({number: [frame]}, {number: {}}, opening=True)[number]
        key = ready["session_id"], name or "main"
        superseded = self.model.open(number, *key, frame["session"], frame.get("from_seq"))
        self.check_ready(ready, *key)
        if superseded is not None:
            self.exchange({superseded: []}, {superseded: {key: [Answer(None, "superseded")]}})

    def check_ready(self, ready: JsonObject, session_id: str, name: str) -> None:
        """The answer to an open."""
        expected = self.ready_of(session_id, name)
        assert expected == {field: ready[field] for field in expected}
        assert ready["next_turn"] == self.next_turn(session_id)
        assert ready["window"] > 0
        self.incarnations.add(ready["incarnation"])

    def ready_of(self, session_id: str, name: str) -> JsonObject:
        """What an open is answered now."""
        session = self.model.sessions[session_id]
        producer = session.producers[name]
        told = {"producer": name, "epoch": producer.epoch, "next_seq": producer.next_seq, "state": session.state}
        return {"type": READY, "session_id": session_id, **told}

    def configured(self, config: JsonObject) -> JsonObject:
        """What sessions are configured with."""
        return config

    def tamed(self, move: Move) -> Move:
        """What producers do."""
        return move

    def connect(self, number: int) -> None:
        if number not in self.model.connections:
            self.service.run(self.service.connect(number))
            self.model.connections[number] = {}

    @precondition(lambda self: bool(self.model.connections))
    @rule(choice=CHOICE, abruptly=st.booleans())
    def disconnect(self, choice: int, abruptly: bool) -> None:
        """A connection goes, with a close or without."""
        number = list(self.model.connections)[choice % len(self.model.connections)]
        self.drop(number, abruptly)

    def drop(self, number: int, abruptly: bool) -> None:
        self.service.run(self.service.disconnect(number, abruptly))
        self.model.drop(number, lost=abruptly)

    # Events on a websocket

    @precondition(Agreement.has_lively_lines)
    @rule(choice=CHOICE, moves=SEVERAL_MOVES, full=st.booleans())
    def send(self, choice: int, moves: list[Move], full: bool) -> None:
        """A producer sends some events, each in a frame of its own."""
        self.send_moves(choice, moves, full, together=False)

    @precondition(Agreement.has_lively_lines)
    @rule(choice=CHOICE, moves=SEVERAL_MOVES, full=st.booleans())
    def send_together(self, choice: int, moves: list[Move], full: bool) -> None:
        """A producer sends some events in one frame."""
        self.send_moves(choice, moves, full, together=True)

    def send_moves(self, choice: int, moves: list[Move], full: bool, together: bool) -> None:
        number, line = self.line(choice)
        sent = [self.play(number, line, move, full) for move in moves]
        texts = [one.text() for one, _ in sent]
        answers = [answer for _, answer in sent if answer is not None]
        self.exchange(
            {number: ["[" + ",".join(texts) + "]"] if together else texts},
            {number: {(line.session_id, line.producer): answers}},
        )

    @precondition(Agreement.has_lively_lines)
    @rule(choice=CHOICE, before=SEVERAL_MOVES, after=SEVERAL_MOVES)
    def open_again(self, choice: int, before: list[Move], after: list[Move]) -> None:
        """A producer opens its session again on its connection, in the midst of its events."""
        number, line = self.line(choice)
        key = line.session_id, line.producer
        if line.dead or self.model.sessions[line.session_id].state == "erased":
            return
        sent = [self.play(number, line, move, full=True) for move in before]
        self.model.open(number, *key, {}, None)
        expected = self.ready_of(*key)
        sent += [self.play(number, self.model.connections[number][key], move, full=True) for move in after]
        frames: list[Any] = [one.text() for one, _ in sent]
        frames.insert(len(before), {"type": "session.open", "session_id": key[0], "producer": key[1]})
        said: Said = {key: [answer for _, answer in sent if answer]}
        told = self.exchange({number: frames}, {number: said}, opening=True)[number]
        assert [expected] == [{name: one[name] for name in expected} for one in told if one["type"] == READY]

    @precondition(Agreement.has_lively_lines)
    @rule(choice=CHOICE, count=st.sampled_from([30, 130]), restart=st.booleans())
    def pour(self, choice: int, count: int, restart: bool) -> None:
        """A producer sends much at once, and after a restart, which may load a snapshot, some of it again over HTTP."""
        _, line = self.line(choice)
        moves = [Move("next", PLAIN[number % len(PLAIN)], ({}, ""), 0) for number in range(count)]
        self.send_moves(choice, moves, full=False, together=True)
        if restart:
            self.agrees()
            self.restart()
            self.post_events(line.session_id, line.producer, None, moves[: len(PLAIN)])

    @precondition(Agreement.has_lines)
    @rule(chosen=st.lists(st.tuples(CHOICE, PLAIN_MOVES), min_size=3, max_size=9))
    def send_mixed(self, chosen: list[tuple[int, Move]]) -> None:
        """One frame has events of several lines of its connection; between producers no order is promised."""
        number, _ = self.line(chosen[0][0])
        lines = list(self.model.connections[number].values())
        before = self.lengths()
        texts: list[str] = []
        said: Said = defaultdict(list)
        for choice, move in chosen:
            line = lines[choice % len(lines)]
            sent, answer = self.play(number, line, move, full=True)
            texts.append(sent.text())
            said[line.session_id, line.producer] += [answer] if answer else []
        self.exchange({number: ["[" + ",".join(texts) + "]"]}, {number: said})
        self.reorder(before)

    @precondition(lambda self: self.has_lively_lines() and len(self.model.connections) > 1)
    @rule(chosen=st.lists(st.tuples(CHOICE, st.lists(PLAIN_MOVES, min_size=1, max_size=4)), min_size=2, max_size=4))
    def send_at_once(self, chosen: list[tuple[int, list[Move]]]) -> None:
        """Several connections send at the same time; between producers no order is promised."""
        before = self.lengths()
        frames: dict[int, list[Any]] = defaultdict(list)
        said: dict[int, Said] = defaultdict(lambda: defaultdict(list))
        for choice, moves in chosen:
            number, line = self.line(choice)
            for move in moves:
                sent, answer = self.play(number, line, move, full=True)
                frames[number].append(sent.text())
                said[number][line.session_id, line.producer] += [answer] if answer else []
        self.exchange(frames, said)
        self.reorder(before)

    def lengths(self) -> dict[str, int]:
        return {session.id: len(session.journal) for session in self.model.sessions.values()}

    def reorder(self, before: dict[str, int]) -> None:
        """Put what the producers of a session sent at the same time into the order in which it was taken."""
        for session_id, length in before.items():
            entries = self.model.sessions[session_id].journal
            waiting: dict[str | None, list[Entry]] = defaultdict(list)
            for entry in entries[length:]:
                waiting[entry.producer].append(entry)
            if len(waiting) > 1:
                path = f"/v1/sessions/{session_id}/events?after={length}&limit={len(entries) - length}"
                names = [row["producer"] for row in self.request("GET", path).lines]
                if Counter(names) == Counter(entry.producer for entry in entries[length:]):
                    entries[length:] = [waiting[name].pop(0) for name in names]

    def play(self, number: int, line: ProducerLease, move: Move, full: bool) -> tuple[Sent, Answer | None]:
        """A move on a websocket: the event, with the names it needs, and the answer to it."""
        sent = resolved(self.tamed(move), self.producer(line))
        sent = sent._replace(event=sent.event | self.names(number, line, full))
        return sent, self.model.take(line, sent.event, sent.refusal)

    def names(self, number: int, line: ProducerLease, full: bool) -> JsonObject:
        """What says whose an event is, where the connection alone does not."""
        keys = self.model.connections[number]
        several_sessions = len({session_id for session_id, _ in keys}) > 1
        several_producers = len([1 for session_id, _ in keys if session_id == line.session_id]) > 1
        names = {"session_id": line.session_id} if full or several_sessions else {}
        return names | ({"producer": line.producer} if full or several_producers else {})

    @precondition(Agreement.has_lively_lines)
    @rule(choice=CHOICE, end=st.sampled_from(ENDS), last=st.sampled_from([None, 0, 0, 3]), http=SELDOM)
    def end(self, choice: int, end: JsonObject, last: int | None, http: bool) -> None:
        """A producer ends the session, or gets its `last_seq` wrong."""
        self.end_line(self.line(choice)[1], end, last, http)

    @precondition(Agreement.has_lively_lines)
    @rule(
        choice=CHOICE,
        ends=st.permutations(ENDS),
        number=st.integers(0, 2),
        then=st.sampled_from(["end", "leave", "send", "come", "wait"]),
        moves=SEVERAL_MOVES,
    )
    def end_of_two(self, choice: int, ends: list[JsonObject], number: int, then: str, moves: list[Move]) -> None:
        """One of two producers ends the session; the other ends it too, or leaves, or takes its time."""
        _, line = self.line(choice)
        session_id, name = line.session_id, next(name for name in PRODUCERS if name != line.producer)
        if line.dead or self.model.sessions[session_id].state != "running":
            return
        if name not in self.model.connected(session_id):
            self.open_producer(number, session_id, name, {}, None)
        self.end_line(line, ends[0], None, http=False)
        self.agrees()
        if name not in self.model.connected(session_id):
            return  # the process died meanwhile
        other, where = self.lively_line(session_id, name)
        if then == "leave":
            self.drop(where, abruptly=False)
        elif then == "come":
            self.open_producer(number, session_id, line.producer, {}, None)
        elif then == "send":
            self.post_events(session_id, line.producer, None, moves)
        elif then == "wait":
            self.pause(1_999 + 2 * (choice % 2))
        self.agrees()
        if then != "leave":
            self.end_line(other, ends[1], None, http=False)

    def pause(self, jump: int) -> None:
        """Let time go on, where that can be."""

    def end_line(self, line: ProducerLease, end: JsonObject, last: int | None, http: bool) -> None:
        number = next(number for number, one in self.all_lines() if one is line)
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
        said: Said = {(line.session_id, line.producer): [answer] if answer else []}
        self.exchange({number: [json.dumps(event)]}, {number: said})

    # Events over HTTP

    @precondition(Agreement.has_lively)
    @rule(
        choice=CHOICE,
        name=NAMES,
        epoch=st.sampled_from([None, None, 0, 1, -1]),
        moves=st.lists(MOVES, min_size=1, max_size=6),
        lines=st.booleans(),
    )
    def post(self, choice: int, name: str, epoch: int | None, moves: list[Move], lines: bool) -> None:
        """A producer sends over HTTP, under the newest epoch, an older or later one, or none."""
        session_id = self.session(choice)
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
        line = ProducerLease(session_id, name, epoch)
        texts, answers = [], []
        self.touched.add(session_id)
        self.model.heard(session_id)
        for one in given:
            sent = one if isinstance(one, Sent) else resolved(self.tamed(one), self.producer(line), in_order)
            texts.append(json.dumps(sent.event) if json_lines else sent.text())
            answers.append(self.model.take(line, sent.event, sent.refusal))
        self.model.sent_over_http(line, answers)
        body = ("\n".join(texts) if json_lines else "[" + ",".join(texts) + "]").encode()
        query = f"?producer={name}" + ("" if epoch is None else f"&epoch={epoch}")
        answered = self.request("POST", f"/v1/sessions/{session_id}/events{query}", body)
        if self.is_erased(session_id, answered.status):
            return
        assert answered.appended["next_seq"] == self.producer(line).next_seq
        expected = [(answer.seq, answer.code, answer.expected) for answer in answers if answer and answer.code]
        assert expected == [(told["seq"], told["code"], told.get("expected")) for told in answered.json["errors"]]

    # The process

    @precondition(Agreement.has_lively_lines)
    @rule(backup=st.sampled_from(["", "make", "restore", "restore"]))
    def stop_and_start(self, backup: str) -> None:
        """The service stops and starts again, on its file or on its backup."""
        if backup == "make":
            self.back_up("", 0)
        self.restart(backup == "restore")

    def restart(self, restore: bool = False) -> None:
        backup = self.backup if restore else None
        numbers = list(self.model.connections)
        told = self.service.run(self.service.restart(backup is not None))
        assert told == {number: ([{"type": "goaway"}], 1012) for number in numbers}
        self.restarted()
        if backup is not None:
            self.model.sessions = copy.deepcopy(backup)
            self.former_incarnations |= self.incarnations
            self.incarnations.clear()
        self.model.start()

    def restarted(self) -> None:
        """No connection outlives a process, and what had ended is closed at the latest when the next one starts."""
        self.model.stop()
        self.model.settle()
        self.checked.clear()
