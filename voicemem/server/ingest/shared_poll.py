"""The shared poll: the sockets of all open connections are read together, a few milliseconds' worth at a time.

Why. A call sends about ten small events a second, so with a thousand calls an event comes every 100 µs, each on another
socket. An event loop wakes for each of them: it reads one event, and a commit begins that holds two or three. But a
commit costs about 200 µs of CPU whatever its size (a transaction, a sync of the disk, two switches between threads), so
most of what a core does is waking up and committing. Events that are read together share all of that: their commit,
its sync, and the wake-up in which their acks go out.

How. The sockets of open connections are not polled by the event loop, but registered with an epoll of our own, which
is a file descriptor itself, and readable while any socket in it is.

- While little comes, the loop watches that descriptor, and a round follows at once: an event waits for nothing.
- A round that has found several sockets ready is followed by the next one `PAUSE_S` later; meanwhile the loop does not
  watch. Each round reads everything that has come since, and the rounds continue until one finds little.
- A round reads a bounded piece of each socket, and ends after `ROUND_S`. Sockets that it has not reached come first in
  the next, which follows at once, as it does when a piece was full. So a flood on one socket holds up no other.

A round only reads. The bytes go to the same parser as those that the event loop has read, so frames, fragments, pings,
closes and limits are the same both ways, and so is everything that is sent. Whoever stops reading a connection (its
window is full, its key is over its rate, a large message is taken apart) takes it out of the epoll, and TCP holds the
sender back. At the end of a stream, and after any error, the socket goes back to the event loop, which finds the same
and closes the connection as it always does; of a thousand that are lost at once, a few at a time. A transport tells its
protocol that it is closed before it closes the descriptor, so no descriptor is here under which another connection
could be opened.

Where there is no epoll (macOS, Windows), and for a transport that is not a plain socket (TLS), the event loop reads.
"""

import asyncio
import os
import select
import socket
import time
from collections import deque
from typing import Protocol

PAUSE_S = 0.002
"""The time between two rounds while many sockets are ready."""
BUSY_FROM = 3
"""From this many ready sockets on, a round counts as busy."""
PIECE, LARGE_PIECE = 8 * 1024, 64 * 1024
"""Bytes that are read from a socket in one round; the second in the middle of a frame from `LARGE_FRAME` bytes on, so
that a flood of small frames does not take long."""
LARGE_FRAME = 1_024
ROUND_S = 0.003
"""How long a round may take."""
ENDS_TOGETHER = 4
"""Connections that are closed at a time: each takes the loop about 0.1 ms."""
MOST = 1_024
"""Sockets that one poll reports."""
READABLE = getattr(select, "EPOLLIN", 0)
AT_END = getattr(select, "EPOLLRDHUP", 0)
"""The event of a socket whose peer has closed, or sends no more."""


class PolledConnection(Protocol):
    """A connection whose socket is read in rounds."""

    bytes_needed: int
    """The size of the frame that has begun, as far as it is known."""

    def take_polled(self, data: bytes) -> None:
        """Process received bytes. An error closes the connection."""

    def leave_poll(self) -> None:
        """Have the event loop read the socket again: its stream has ended, or it is broken."""

    def fail_polled(self, error: Exception) -> None:
        """Close the connection, since processing its bytes has failed."""


class SharedPoll:
    """The sockets that are read together, by file descriptor."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.epoll = select.epoll()
        self.watched: dict[int, PolledConnection] = {}
        self.unread: list[tuple[int, int]] = []
        """Ready sockets that the last round has not reached, and their events."""
        self.ended: deque[PolledConnection] = deque()
        """Connections at the end of their streams, which are not watched any more."""
        self.loop.add_reader(self.epoll.fileno(), self.poll_once)
        self.is_watching = True
        """True while the event loop waits for the first socket to be ready; otherwise the next round is due."""

    def add(self, fd: int, connection: PolledConnection) -> None:
        """Read a socket from now on; a known one is ignored."""
        if fd in self.watched:
            return
        self.watched[fd] = connection
        self.epoll.register(fd, READABLE | AT_END)

    def remove(self, fd: int) -> None:
        """Stop reading a socket; an unknown one is ignored."""
        if self.watched.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def close(self) -> None:
        self.watch(False)
        self.epoll.close()

    def watch(self, watch: bool) -> None:
        if watch != self.is_watching:
            self.is_watching = watch
            if watch:
                self.loop.add_reader(self.epoll.fileno(), self.poll_once)
            else:
                self.loop.remove_reader(self.epoll.fileno())

    def poll_once(self) -> None:
        """Read everything that has come, and schedule the next round."""
        if self.epoll.closed:
            return
        ready = self.unread or self.epoll.poll(0, MOST)
        is_busy, ends_s = len(ready) >= BUSY_FROM, time.monotonic() + ROUND_S
        has_more, self.unread = False, []
        for number, (fd, events) in enumerate(ready):
            if time.monotonic() >= ends_s:
                self.unread = ready[number:]
                break
            has_more |= self.read(fd, events)
        if has_more or self.unread:
            self.watch(False)
            self.loop.call_soon(self.poll_once)
        elif is_busy:
            self.watch(False)
            self.loop.call_later(PAUSE_S, self.poll_once)
        else:
            self.watch(True)

    def read(self, fd: int, events: int) -> bool:
        """Read a piece from a socket; return True if it has more."""
        connection = self.watched.get(fd)
        if connection is None:  # it was taken out since the poll
            return False
        if events != READABLE:
            self.end(fd, connection)
            return False
        has_more = self.take(fd, connection, PIECE)
        if has_more and connection.bytes_needed >= LARGE_FRAME and self.watched.get(fd) is connection:
            has_more = self.take(fd, connection, LARGE_PIECE)
        return has_more

    def take(self, fd: int, connection: PolledConnection, size: int) -> bool:
        """Read up to `size` bytes; return True if there were as many."""
        try:
            data = os.read(fd, size)
        except BlockingIOError:  # it had no more, or is closed, and this socket has its number
            return False
        except OSError:
            data = b""
        if not data:
            self.end(fd, connection)
            return False
        try:
            connection.take_polled(data)
        except Exception as error:  # ends this connection, and no other round
            connection.fail_polled(error)
        return len(data) == size

    def end(self, fd: int, connection: PolledConnection) -> None:
        """Stop reading a socket whose stream has ended, and give it back, a few at a time."""
        self.remove(fd)
        if not self.ended:
            self.loop.call_soon(self.give_back)
        self.ended.append(connection)

    def give_back(self) -> None:
        for _ in range(min(ENDS_TOGETHER, len(self.ended))):
            self.ended.popleft().leave_poll()
        if self.ended:
            self.loop.call_later(PAUSE_S, self.give_back)


def shared_poll_if_possible() -> SharedPoll | None:
    return SharedPoll() if hasattr(select, "epoll") else None


def plain_socket(transport: asyncio.Transport) -> int | None:
    """Return the file descriptor of a transport's socket; None if its bytes are not the stream's, as with TLS."""
    known: socket.socket | None = transport.get_extra_info("socket")
    if known is None or transport.get_extra_info("sslcontext") is not None or known.type != socket.SOCK_STREAM:
        return None
    return known.fileno()
