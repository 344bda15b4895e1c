"""`voicemem serve`, killed at any time."""

from __future__ import annotations

import copy
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.support.model.conversation import NOW
from tests.support.model.producer_moves import PLAIN, Move
from tests.support.model.reference_model import DURATIONS, ProducerLease
from tests.support.model.rules import SEVERAL_MOVES, Rules
from tests.support.model.service_driver import InProcessDriver, SubprocessDriver
from voicemem.protocol.types import JsonObject


class KilledService(Rules):
    """`voicemem serve`, which is killed. Its clock cannot be moved, so nothing here is ever due."""

    times = False
    service: SubprocessDriver

    def begin(self, folder: Path) -> InProcessDriver:
        return SubprocessDriver(folder, NOW)

    def configured(self, config: JsonObject) -> JsonObject:
        return {key: value for key, value in config.items() if key not in DURATIONS} | {"idle_timeout": 0}

    def tamed(self, move: Move) -> Move:
        return move if DURATIONS.isdisjoint(move.event) else move._replace(event=PLAIN[0])

    @precondition(Rules.has_lively_lines)
    @rule()
    def die(self) -> None:
        """The process dies between two steps."""
        self.kill()

    def kill(self) -> None:
        self.service.run(self.service.kill())
        self.restarted()
        self.model.start()

    @precondition(Rules.has_lively_lines)
    @rule(choice=st.integers(0, 9), moves=SEVERAL_MOVES, heard=st.integers(0, 3))
    def kill_while_sending(self, choice: int, moves: list[Move], heard: int) -> None:
        """The process dies while it takes events, each in a frame of its own."""
        self.kill_in_flight(choice, moves, heard, together=False)

    @precondition(Rules.has_lively_lines)
    @rule(choice=st.integers(0, 9), moves=SEVERAL_MOVES, heard=st.integers(0, 3))
    def kill_while_sending_together(self, choice: int, moves: list[Move], heard: int) -> None:
        """The process dies while it takes the events of one frame."""
        self.kill_in_flight(choice, moves, heard, together=True)

    def kill_in_flight(self, choice: int, moves: list[Move], heard: int, together: bool) -> None:
        """Of what was sent, some first ones are stored, and among them is everything that was acknowledged."""
        number, line = self.line(choice)
        key = line.session_id, line.producer
        before = copy.deepcopy(self.model)
        sent = [self.play(number, line, move, full=True)[0] for move in moves]
        texts = [one.text() for one in sent]
        frames = ["[" + ",".join(texts) + "]"] if together else texts
        told = self.service.run(self.service.kill_while_sending(number, frames, heard))
        count = len(self.request("GET", f"/v1/sessions/{line.session_id}/events").lines)
        for taken in range(len(sent) + 1):
            self.model = copy.deepcopy(before)
            line = self.model.connections[number][key]
            for one in sent[:taken]:
                self.model.take(line, one.event, one.refusal)
            if len(self.model.sessions[line.session_id].journal) == count:
                break
        assert len(self.model.sessions[line.session_id].journal) == count
        acks = [frame["seq"] for frame in told[number] if frame["type"] == "ack"]
        assert max(acks, default=0) < self.producer(line).next_seq
        self.restarted()
        self.model.start()

    def end_line(self, line: ProducerLease, end: JsonObject, last: int | None, http: bool) -> None:
        """Where another producer is waited for, the process dies before that has ended too, or the time is over."""
        super().end_line(line, end, last, http)
        self.model.settle()
        if any(session.ending is not None for session in self.model.sessions.values()):
            self.kill()
