"""A connection that sends much at once is read in pieces, and others in between."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, cast

from voicemem.server.http.connections import AT_ONCE, PIECE, ROUND_S, ReadingQueue, Unread


class Connection:
    """Notes what it takes; each piece may take some time, and it may take no more after some pieces."""

    def __init__(self, turns: ReadingQueue, slow_s: float = 0.0, stops_after: int = 10**9) -> None:
        self.unread = Unread(self, cast(asyncio.Transport, self), turns)
        self.taken: list[bytes] = []
        self.slow_s = slow_s
        self.stops_after = stops_after
        self.reading = True

    def take(self, data: bytes) -> None:
        time.sleep(self.slow_s)
        self.taken.append(data)

    @property
    def takes_more(self) -> bool:
        return len(self.taken) < self.stops_after

    # As a transport

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


async def rounds_until(condition: Any) -> int:
    """How many rounds of the event loop pass until this is so."""
    for count in range(10_000):
        if condition():
            return count
        await asyncio.sleep(0)
    raise AssertionError("it never is")


async def test_little_is_taken_at_once() -> None:
    """What most connections send goes no way round."""
    connection = Connection(ReadingQueue())
    connection.unread.receive(b"x" * AT_ONCE)
    assert connection.taken == [b"x" * AT_ONCE]
    assert connection.reading


async def test_much_is_taken_in_pieces_in_its_order() -> None:
    """Meanwhile the transport is not read; all of it is taken, what came later last."""
    connection = Connection(ReadingQueue())
    text = bytes(range(256)) * 400
    connection.unread.receive(text)
    connection.unread.receive(b"end")
    assert (connection.taken, connection.reading) == ([], False)
    await rounds_until(lambda: connection.reading)
    assert b"".join(connection.taken) == text + b"end"
    assert max(map(len, connection.taken)) == PIECE


async def test_slow_work_is_spread_over_rounds() -> None:
    """The pieces of all connections together take a few ms of one round."""
    turns = ReadingQueue()
    connections = [Connection(turns, slow_s=0.006) for _ in range(5)]
    for connection in connections:
        connection.unread.receive(b"x" * 2 * PIECE)
    assert await rounds_until(lambda: all(connection.reading for connection in connections)) >= 10


async def test_who_takes_no_more_is_asked_again_later() -> None:
    """The rest is kept, and the transport stays paused, until the connection wants it."""
    connection = Connection(ReadingQueue(), stops_after=1)
    connection.unread.receive(b"x" * 3 * PIECE)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(connection.taken), connection.reading) == (1, False)
    connection.stops_after = 10
    connection.unread.wait_in_line()
    await rounds_until(lambda: connection.reading)
    assert sum(map(len, connection.taken)) == 3 * PIECE


async def test_what_is_left_is_taken_when_the_connection_is_lost() -> None:
    """What came before its end is not lost with it, and is taken in turns too, wanted or not; then the end is told."""
    connection = Connection(ReadingQueue(), slow_s=0.006, stops_after=1)
    ends: list[int] = []
    connection.unread.receive(b"x" * 3 * PIECE)
    connection.unread.end(lambda: ends.append(len(connection.taken)))
    assert not ends
    assert await rounds_until(lambda: ends) >= 2
    assert ends == [3]
    assert sum(map(len, connection.taken)) == 3 * PIECE
    assert not connection.unread


async def test_connections_that_are_lost_at_once_end_in_turns() -> None:
    """Others are served between the ends of two that take long, though nothing of either is left to take."""
    queue, ends = ReadingQueue(), list[int]()

    def end(number: int) -> None:
        ends.append(number)
        time.sleep(2 * ROUND_S)

    for number in range(2):
        Connection(queue).unread.end(partial(end, number))
    await asyncio.sleep(0)
    assert ends == [0]
    await asyncio.sleep(0)
    assert ends == [0, 1]


async def test_a_connection_stands_in_line_once() -> None:
    """Also if it stops and goes on while it takes a piece: it has no more turns than others."""

    class Asking(Connection):
        def take(self, data: bytes) -> None:
            super().take(data)
            self.unread.wait_in_line()

    turns = ReadingQueue()
    connection = Asking(turns)
    connection.unread.receive(b"x" * 10 * PIECE)
    turns.run()
    assert len(turns.waiting) <= 1
    await rounds_until(lambda: connection.reading)
    assert len(connection.taken) == 10
