"""The two connections of a call. What comes from one goes to the other as it is, before anything looks at it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from voicemem.proxy.heads import END, MAX_HEAD_BYTES
from voicemem.proxy.recording import Direction, Recording

FLUSH_S = 10.0
"""How long a peer may take to read what is left for it, once the other has gone."""
TLS_CLOSE_S = 5.0
"""The same for a peer's part in the end of TLS."""
KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
"""After two minutes, a peer that has vanished without a word is gone. Most pings of websockets come sooner."""


class Connection(asyncio.Protocol):
    """The connection of a caller or to an upstream. First comes a head of HTTP; then `couple` joins two of them.

    `on_made` is called first, after TLS; `on_head` gets the head, or nothing where it is too long; `on_lost` is called
    once, also before there was a head.
    """

    def __init__(
        self,
        on_head: Callable[[Connection, bytes], None],
        on_made: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        self.on_head = on_head
        self.on_made = on_made
        self.on_lost: Callable[[], None] = lambda: None
        self.transport: asyncio.Transport
        self.early = bytearray()
        """What came before there was a peer: a head, or what a caller sends without waiting."""
        self.has_head = False
        self.peer: Connection | None = None
        self.direction: Direction | None = None
        self.is_deaf = False
        """Whether what comes is thrown away."""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        keep_alive(transport.get_extra_info("socket"))
        self.on_made(self)

    def data_received(self, data: bytes) -> None:
        if self.is_deaf:
            return
        if self.peer is not None:
            self.peer.transport.write(data)
            if self.direction is not None:
                self.direction.forwarded(data)
        else:
            self.early += data
            if self.has_head:
                self.transport.pause_reading()
            else:
                self.look_for_head()

    def look_for_head(self) -> None:
        """Hand on a head that is complete."""
        end = self.early.find(END)
        if end < 0 and len(self.early) <= MAX_HEAD_BYTES:
            return
        self.has_head = True
        size = end + len(END) if 0 <= end <= MAX_HEAD_BYTES else 0
        head = bytes(self.early[:size])
        del self.early[:size]
        self.on_head(self, head)

    def hang_up(self) -> None:
        """Close the connection, once it has sent what was left."""
        if not self.is_lost and not self.transport.is_closing():
            self.is_deaf = True
            self.peer = None
            self.transport.close()
            asyncio.get_running_loop().call_later(FLUSH_S, self.cut)

    def cut(self) -> None:
        """Close the connection at once."""
        if not self.is_lost:
            self.transport.abort()

    # From the transport

    def pause_writing(self) -> None:
        """This peer reads slowly, so the other is not read from."""
        if self.peer is not None and not self.peer.is_lost:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and not self.peer.is_lost and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
        if self.peer is not None:
            self.peer.hang_up()
        self.on_lost()


def couple(caller: Connection, upstream: Connection, recording: Recording | None) -> None:
    """Forward what comes from now on, and what has come already, both ways."""
    caller.peer, upstream.peer = upstream, caller
    if recording is not None:
        caller.direction, upstream.direction = recording.from_caller, recording.from_upstream
    for one in (caller, upstream):
        send_early(one)


def send_early(sender: Connection) -> None:
    early, sender.early = bytes(sender.early), bytearray()
    if early:
        sender.data_received(early)
    sender.transport.resume_reading()


def keep_alive(connection: socket.socket | None) -> None:
    """Have TCP find out about peers that have vanished, and send small frames at once."""
    if connection is None:
        return
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):  # not every system has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
