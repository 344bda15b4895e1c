"""The service in this process, under a clock that the rules move."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.support.model.conversation import NOW
from tests.support.model.producer_moves import Move
from tests.support.model.rules import SEVERAL_MOVES, Rules
from tests.support.model.service_driver import InProcessDriver


class TimedService(Rules):
    """The service in this process, whose clock moves when it is told to."""

    service: InProcessDriver

    def begin(self, folder: Path) -> InProcessDriver:
        return InProcessDriver(folder, NOW)

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

    @precondition(Rules.has_lively)
    @rule(
        abruptly=st.booleans(),
        meanwhile=st.sampled_from(["", "post", "restart"]),
        over=st.sampled_from([-1, 1, 700]),
        late=st.sampled_from([None, -1, 1]),
        back=st.sampled_from(["", "open", "post"]),
        moves=SEVERAL_MOVES,
    )
    def fall_silent(
        self, abruptly: bool, meanwhile: str, over: int, late: int | None, back: str, moves: list[Move]
    ) -> None:
        """Every connection goes until about when a session is due, and a producer comes back, in time or too late."""
        for number in list(self.model.connections):
            self.drop(number, abruptly)
        self.settle()
        session_id = self.session(0)
        self.wait_until(self.model.now_ms + 700)
        self.agrees()
        if meanwhile == "post":
            self.post_events(session_id, "main", None, moves[:1])
        elif meanwhile == "restart":
            self.restart()
        self.agrees()
        for moment in self.model.moments_of(self.model.sessions[session_id])[:1]:
            self.wait_until(moment + over)
        self.agrees()
        deadline = self.model.reopen_deadline(self.model.sessions[session_id])
        if late is not None and deadline is not None:
            self.wait_until(deadline + late)
        if back == "open":
            self.open_producer(0, session_id, "main", {}, None)
        elif back == "post":
            self.post_events(session_id, "main", None, [moves[0]._replace(kind="same"), *moves])

    def pause(self, jump: int) -> None:
        self.wait_until(self.model.now_ms + jump)

    def wait_until(self, now_ms: int) -> None:
        """Go past what is due in this very millisecond: whether that counts is no one's business."""
        while now_ms in self.model.moments():
            now_ms += 1
        self.model.now_ms = self.service.now_ms = max(now_ms, self.model.now_ms)
