"""An event loop whose clock jumps to the next timer if nothing else is to be done: a minute takes a second."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from pipecat.clocks.base_clock import BaseClock

T = TypeVar("T")
REAL_WAIT_S = 0.05
"""How long is waited for threads where there is no timer."""


class JumpingSelector(selectors.DefaultSelector):
    """Never waits for a timer: it moves the loop's clock."""

    jumped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else REAL_WAIT_S)
        if not ready and timeout:
            self.jumped_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return 1_000_000.0 + self.jumping.jumped_s


class LoopClock(BaseClock):
    """Pipecat's clock on the loop's time."""

    def __init__(self) -> None:
        self.began_s: float | None = None

    def start(self) -> None:
        self.began_s = asyncio.get_running_loop().time()

    def get_time(self) -> int:
        return 0 if self.began_s is None else round((asyncio.get_running_loop().time() - self.began_s) * 1e9) + 1


def run_in_virtual_time(call: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(call)
