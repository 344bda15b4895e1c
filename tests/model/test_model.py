"""The service does what design section 5 says, whatever happens in whatever order.

A hypothesis state machine does to the real service, on real sockets and a real file, what it does to a simple model
(`model.py`), and after every step both must have the same journals, states and histories. In the suite the examples
are always the same. A long run has others every time, and prints how to repeat what it finds::

    VOICEMEM_MODEL_EXAMPLES=500 python -m pytest tests/model -k Timed

`VOICEMEM_MODEL_STEPS` (50) bounds the length of an example, `--hypothesis-seed=N` gives the same run again.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from machine import CHOICE, SEVERAL_MOVES, Rules
from model import DEFAULTS, Fields
from moves import ENDS, PLAIN, Move
from service import Process, Service
from talk import NOW

EXAMPLES = int(os.environ.get("VOICEMEM_MODEL_EXAMPLES", "0"))
STEPS = int(os.environ.get("VOICEMEM_MODEL_STEPS", "50"))


def bounded(examples: int, steps: int) -> settings:
    """So many examples in the suite, which are the same every time; or as many as were asked for."""
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=STEPS if EXAMPLES else steps,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


class Timed(Rules):
    """The service in this process, whose clock moves when it is told to."""

    service: Service

    def begin(self, folder: Path) -> Service:
        return Service(folder, NOW)

    @rule(jump=st.sampled_from([1, 700, 1_999, 2_001, 5_003, 61_000]))
    def wait(self, jump: int) -> None:
        """Time goes on."""
        self.wait_until(self.model.now_ms + jump)

    @rule(which=st.integers(0, 2), over=st.sampled_from([-1, 1]))
    def wait_for_something(self, which: int, over: int) -> None:
        """Time goes on until just before or after something is due."""
        moments = self.model.moments()
        if moments:
            self.wait_until(moments[which % len(moments)] + over)

    @rule(abruptly=st.booleans(), over=st.sampled_from([-1, 1, 700]))
    def fall_silent(self, abruptly: bool, over: int) -> None:
        """Every connection goes, and nobody comes back until about when the first session is due."""
        for number in list(self.model.connections):
            self.drop(number, abruptly)
        self.settle()
        moments = self.model.moments()
        if moments:
            self.wait_until(moments[0] + over)

    def wait_until(self, now_ms: int) -> None:
        """Go past what is due in this very millisecond: whether that counts is nobody's business."""
        while now_ms in self.model.moments():
            now_ms += 1
        self.model.now_ms = self.service.now_ms = max(now_ms, self.model.now_ms)


class Killed(Rules):
    """`voicemem serve`, which is killed. Its clock cannot be moved, so nothing here is ever due."""

    times = False
    service: Process

    def begin(self, folder: Path) -> Service:
        return Process(folder, NOW)

    def configured(self, config: Fields) -> Fields:
        return {key: value for key, value in config.items() if key not in DEFAULTS} | {"idle_timeout": 0}

    def tamed(self, move: Move) -> Move:
        return move if DEFAULTS.keys().isdisjoint(move.event) else move._replace(event=PLAIN[0])

    @precondition(Rules.has_lively_lines)
    @rule()
    def kill(self) -> None:
        """The process dies between two steps."""
        self.service.run(self.service.kill())
        self.restarted()
        self.model.start()

    @precondition(Rules.has_lively_lines)
    @rule(choice=st.integers(0, 9), moves=SEVERAL_MOVES, heard=st.integers(0, 3), together=st.booleans())
    def kill_while_sending(self, choice: int, moves: list[Move], heard: int, together: bool) -> None:
        """The process dies while it takes events: of these it has stored some first ones, all that it acknowledged."""
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

    @precondition(Rules.has_lines)
    @rule(choice=CHOICE, end=st.sampled_from(ENDS), last=st.sampled_from([None, 0, 3]), http=st.booleans())
    def end(self, choice: int, end: Fields, last: int | None, http: bool) -> None:
        """A producer ends the session; where another is waited for, the process dies before that has ended too."""
        self.end_call(choice, end, last, http)
        self.model.settle()
        if any(session.ending is not None for session in self.model.sessions.values()):
            self.kill()


TestTimed = Timed.TestCase
TestTimed.settings = bounded(examples=10, steps=40)
TestKilled = Killed.TestCase
TestKilled.settings = bounded(examples=2, steps=8)
