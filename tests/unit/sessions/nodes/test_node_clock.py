"""The clock of a node follows that of the store, also when answers are late or a clock is set."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from voicemem.sessions.node_lease import NodeClock


class Clocks:
    """A node's clock, and a store whose clock is ahead of it, and whose answers take as long as is said."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.ahead_ms = 300_000
        self.there_ms = self.back_ms = 1

    async def read_clock(self) -> int:
        self.now_ms += self.there_ms
        read = self.now_ms + self.ahead_ms
        self.now_ms += self.back_ms
        return read


async def offset_after(clock: NodeClock, store: Any) -> int:
    await clock.correct(store)
    return clock.offset_ms


async def test_an_answer_that_comes_late_does_not_move_the_clock() -> None:
    """A process that was busy when the answer came knows less than before, so what it knew still counts."""
    clocks = Clocks()
    clock = NodeClock(lambda: clocks.now_ms)
    assert 300_000 == await offset_after(clock, clocks)
    clocks.back_ms = 2_000
    assert 300_000 == await offset_after(clock, clocks)
    clocks.there_ms, clocks.back_ms = 2_000, 0
    assert 300_000 == await offset_after(clock, clocks)


async def test_a_clock_that_is_set_is_followed() -> None:
    """What was measured before does not count any more then."""
    clocks = Clocks()
    clock = NodeClock(lambda: clocks.now_ms)
    await clock.correct(clocks)  # type: ignore[arg-type]
    clocks.ahead_ms = -300_000
    assert -300_000 == await offset_after(clock, clocks)


async def test_a_clock_that_is_set_back_during_a_request_is_asked_again() -> None:
    """That answer says nothing."""
    clocks = Clocks()
    clock = NodeClock(lambda: clocks.now_ms)
    clocks.back_ms = -3_600_000
    assert 0 == await offset_after(clock, clocks)
    clocks.back_ms = 1
    assert 300_000 == await offset_after(clock, clocks)
