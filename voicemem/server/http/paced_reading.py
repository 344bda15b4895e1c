"""Reading in turns: a connection that sends much at once is read piece by piece, and the others in between.

An event loop hands over up to a quarter of a MiB at a time, and many times in a round. That may be 40,000 pings, or
50,000 chunks of a body: hundreds of milliseconds for each of these connections, in which nobody else is served.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

AT_ONCE = 4 * 1024
"""Bytes that are taken as they come; more are taken in turns."""
PIECE = 8 * 1024
"""Bytes that a connection is given at a time, unless it asks for another size."""
ROUND_S = 0.005
"""How long the pieces of one round of the event loop may take together."""


class PacedConnection(Protocol):
    """A connection that has an `Unread`."""

    def take(self, data: bytes) -> None:
        """Work on bytes that have come."""

    @property
    def takes_more(self) -> bool:
        """Whether the connection wants more bytes now."""


class ReadingTurns:
    """Whose turn it is, among the connections of one port that have sent much."""

    def __init__(self) -> None:
        self.waiting: deque[Unread] = deque()
        self.scheduled = False

    def add(self, unread: Unread) -> None:
        """Let a connection have turns until it has nothing unread, or takes no more."""
        self.waiting.append(unread)
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Take some pieces, one of each connection after the other, and the next ones in the next round."""
        ends = time.monotonic() + ROUND_S
        try:
            while self.waiting and time.monotonic() < ends:
                unread = self.waiting.popleft()
                if unread.take_piece():
                    self.waiting.append(unread)
        finally:
            self.scheduled = bool(self.waiting)
            if self.scheduled:
                asyncio.get_running_loop().call_soon(self.run)


class Unread:
    """What a connection has sent and nobody has looked at. While there is any, its transport is not read."""

    __slots__ = ("at", "connection", "data", "ended", "in_line", "piece", "transport", "turns")

    def __init__(
        self, connection: PacedConnection, transport: asyncio.Transport, turns: ReadingTurns, piece: int = PIECE
    ) -> None:
        self.connection = connection
        self.transport = transport
        self.turns = turns
        self.piece = piece
        self.data = b""
        self.at = 0
        self.in_line = False
        self.ended: Callable[[], None] | None = None
        """Called once everything is taken, after the connection was lost."""

    def __bool__(self) -> bool:
        return bool(self.data)

    def receive(self, data: bytes) -> None:
        """Take bytes at once if they are few, else in turns."""
        if not self.data and len(data) <= AT_ONCE:
            self.connection.take(data)
            return
        self.data = self.data[self.at :] + data
        self.at = 0
        if not self.transport.is_closing():
            self.transport.pause_reading()
        self.wait_in_line()

    def wait_in_line(self) -> None:
        """Go on with what is unread, when its turn comes."""
        if self.data and not self.in_line:
            self.in_line = True
            self.turns.add(self)

    def take_piece(self) -> bool:
        """Take the next piece; False when there is none, or the connection takes no more for now."""
        self.in_line = False
        if not self.data or not (self.ended or self.is_wanted):
            return False
        piece = self.data[self.at : self.at + self.piece]
        self.at += len(piece)
        if self.at >= len(self.data):
            self.data, self.at = b"", 0
        self.connection.take(piece)
        if self.data:
            was_in_line, self.in_line = self.in_line, True  # the connection itself may have asked to go on
            return not was_in_line
        if self.ended:
            self.ended()
        elif self.is_wanted:
            self.transport.resume_reading()
        return False

    @property
    def is_wanted(self) -> bool:
        return self.connection.takes_more and not self.transport.is_closing()

    def end(self, ended: Callable[[], None]) -> None:
        """Note that the connection is lost: what is left is taken in turns as well, and then `ended` is called."""
        if not self.data:
            ended()
            return
        self.ended = ended
        self.wait_in_line()
