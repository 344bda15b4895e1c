"""Requests begin some at a time: a flood of one project's is spread over many rounds of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 4
"""Requests that begin in one round of the event loop; each may work for a millisecond before it waits for something."""


class RequestTurns:
    """Whose request begins next: that of each project in turn, the oldest of each first."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.at_once = at_once
        self.left = at_once
        self.waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By project; the project that is next comes first."""
        self.scheduled = False

    async def take(self, project: str) -> None:
        """Return when it is the turn of a request: at once, unless many have begun in this round."""
        loop = asyncio.get_running_loop()
        if self.left and not self.waiting:
            self.left -= 1
            self.schedule(loop)
            return
        turn = loop.create_future()
        self.waiting.setdefault(project, deque()).append(turn)
        self.schedule(loop)
        await turn

    def schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.scheduled:
            self.scheduled = True
            loop.call_soon(self.next_round)

    def next_round(self) -> None:
        self.scheduled = False
        self.left = self.at_once
        while self.left and self.waiting:
            project = next(iter(self.waiting))
            line = self.waiting.pop(project)
            turn = line.popleft()
            if line:
                self.waiting[project] = line
            if not turn.done():  # its caller may have hung up
                turn.set_result(None)
                self.left -= 1
        if self.left < self.at_once:
            self.schedule(asyncio.get_running_loop())
