"""One call: its two connections, the handshake with the upstream, and its end.

Bytes from one connection go to the other unchanged, before anything reads them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

from voicemem.errors import CODES
from voicemem.proxy.memories import Memories
from voicemem.proxy.recording import Direction, ReadQueue, Recording
from voicemem.proxy.requests import END, MAX_HEAD_BYTES, CallRequest, refusal, status_of, with_subprotocol

LOG = logging.getLogger("voicemem.proxy")
TLS_CLOSE_S = 5.0
"""The longest wait for a peer's half of the TLS shutdown."""
KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
"""A peer that vanished without a close counts as gone after two minutes. Most websocket pings come sooner."""
SWITCHING = 101


class Connection(asyncio.Protocol):
    """The connection of a caller or to an upstream. It begins with an HTTP head; then `start_relay` joins two of them.

    `on_made` is called first, after TLS; `on_head` gets the head, or nothing if it is too long; `on_lost` is called
    once, even if no head came.
    """

    def __init__(
        self, on_head: Callable[[Connection, bytes], None], on_made: Callable[[Connection], None] = lambda _: None
    ) -> None:
        self.on_head = on_head
        self.on_made = on_made
        self.on_lost: Callable[[], object] = lambda: None
        self.transport: asyncio.Transport
        self.early = bytearray()
        """Bytes that came before there was a peer: a head, or what a caller sends without waiting for the answer."""
        self.has_head = False
        self.asks_for_head = False
        """True for `HEAD`, whose answer has no body."""
        self.peer: Connection | None = None
        self.direction: Direction | None = None
        self.is_deaf = False
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
        end = self.early.find(END)
        if end < 0 and len(self.early) <= MAX_HEAD_BYTES:
            return
        self.has_head = True
        size = end + len(END) if 0 <= end <= MAX_HEAD_BYTES else 0
        head = bytes(self.early[:size])
        del self.early[:size]
        self.on_head(self, head)

    def hang_up(self) -> None:
        """Close the connection once the bytes that are left have been sent."""
        if not self.is_lost and not self.transport.is_closing():
            self.is_deaf = True
            self.peer = None
            self.transport.close()
            asyncio.get_running_loop().call_later(10.0, self.cut)  # seconds for the peer to read the rest

    def cut(self) -> None:
        if not self.is_lost:
            self.transport.abort()

    # From the transport

    def pause_writing(self) -> None:
        """Stop reading from the other peer, because this one reads slowly."""
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


def start_relay(caller: Connection, upstream: Connection, recording: Recording | None) -> None:
    """Forward bytes both ways from now on, those that have already arrived first."""
    caller.peer, upstream.peer = upstream, caller
    if recording is not None:
        caller.direction, upstream.direction = recording.from_caller, recording.from_upstream
    for one in (caller, upstream):
        early, one.early = bytes(one.early), bytearray()
        if early:
            one.data_received(early)
        one.transport.resume_reading()


def keep_alive(connection: socket.socket | None) -> None:
    """Have TCP detect peers that have vanished, and send small frames at once."""
    if connection is None:
        return
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):  # not every system has all options
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Call:
    """A call through the proxy, from an accepted request until both connections are closed."""

    def __init__(self, caller: Connection, request: CallRequest, memories: Memories, reads: ReadQueue) -> None:
        self.caller = caller
        self.request = request
        self.memories = memories
        self.reads = reads
        self.key: str | None = None
        self.began = time.monotonic()
        self.recording: Recording | None = None
        """None until the upstream has accepted the call."""
        self.status: int | None = None
        self.failed = False
        self.upstream: Connection | None = None
        self.answered = asyncio.Event()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def dialect(self) -> str:
        return self.request.upstream.dialect

    async def run(self, timeout_s: float) -> None:
        """Run the call until its end. The upstream has `timeout_s` to answer the handshake."""
        self.caller.on_lost = self.lost
        try:
            async with asyncio.timeout(timeout_s):
                await self.dial(timeout_s)
                await self.answered.wait()
        except TimeoutError:
            self.refuse("upstream_timeout", f"The upstream has not answered within {timeout_s:g} s.")
        except OSError as error:
            self.refuse("upstream_unreachable", f"The upstream cannot be reached: {reason_of(error)}.")
        await self.over

    async def dial(self, timeout_s: float) -> None:
        """Connect to the upstream, and send it the handshake."""
        upstream = self.request.upstream
        _, self.upstream = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self.answer),
            upstream.host,
            upstream.port,
            server_hostname=upstream.host if upstream.secure else None,
            **tls_options(upstream_tls() if upstream.secure else None, timeout_s),
        )
        self.upstream.on_lost = self.lost
        if self.caller.is_lost:
            self.end()
        else:
            self.upstream.transport.write(self.request.head)

    def answer(self, upstream: Connection, head: bytes) -> None:
        """Forward the upstream's answer; the call begins if it accepts the handshake."""
        status = status_of(head)
        if status is not None and status < 200 and status != SWITCHING:  # such as 103; the answer is still to come
            upstream.has_head = False
            upstream.look_for_head()
        elif status is None:
            self.refuse("upstream_unreachable", "The upstream does not speak HTTP.")
        elif not self.over.done():
            self.status = status
            self.answered.set()
            self.caller.transport.write(with_subprotocol(head, self.request.confirmed if status == SWITCHING else None))
            if status == SWITCHING:
                try:
                    memory = self.memories.begin(self.request, self.key)
                    self.recording = Recording(memory, self.reads)
                except Exception:  # the call continues
                    LOG.exception("A call is not recorded")
            else:  # the caller's bytes are dropped: none were checked
                self.caller.is_deaf, self.caller.early = True, bytearray()
                asyncio.get_running_loop().call_later(10.0, upstream.hang_up)  # seconds for the rest of the refusal
            start_relay(self.caller, upstream, self.recording)

    def refuse(self, code: str, detail: str) -> None:
        """Answer in place of the upstream, and end the call, unless the caller has left."""
        if self.over.done():
            return
        self.status, self.failed = CODES[code].status, True
        if not self.caller.is_lost:
            self.caller.transport.write(refusal(code, detail))
        self.end()

    def end(self) -> None:
        for one in (self.caller, self.upstream):
            if one is not None:
                one.hang_up()
        self.lost()

    def cut(self) -> None:
        """End the call at once: both sides see that their connection is lost."""
        for one in (self.caller, self.upstream):
            if one is not None:
                one.cut()

    def facts(self) -> dict[str, Any]:
        """Return the log fields of a call that is over, without keys, queries or what was said."""
        facts: dict[str, Any] = {"dialect": self.dialect, "status": self.status}
        facts["seconds"] = round(time.monotonic() - self.began, 1)
        if self.recording is not None:
            caller, upstream = self.recording.from_caller, self.recording.from_upstream
            facts |= {
                "session": self.recording.memory.session_id,
                "close": self.recording.close_code,
                "frames": f"{caller.frames}/{upstream.frames}",
                "bytes": f"{caller.bytes}/{upstream.bytes}",
                "dropped": self.recording.memory.dropped,
            }
        return facts

    def lost(self) -> None:
        """Note that a connection was lost; the call is over when both were, and everything was read."""
        if self.caller.is_lost and self.upstream is not None and not self.upstream.is_lost:
            self.upstream.hang_up()
        if self.status is None and self.upstream is not None and self.upstream.is_lost and not self.caller.is_lost:
            self.refuse("upstream_unreachable", "The upstream has closed the connection without an answer.")
            return
        if self.caller.is_lost and (self.upstream is None or self.upstream.is_lost):
            asyncio.get_running_loop().call_soon(self.finish)

    def finish(self) -> None:
        self.answered.set()
        if not self.over.done():
            if self.recording is not None:
                self.recording.over()
            self.over.set_result(None)


def reason_of(error: OSError) -> str:
    """Return why the connection failed, without the address."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    return (os.strerror(error.errno) if error.errno else type(error).__name__).lower()


def tls_options(context: ssl.SSLContext | None, handshake_s: float) -> dict[str, Any]:
    if context is None:  # without TLS, asyncio refuses its timeouts
        return {}
    return {"ssl": context, "ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": TLS_CLOSE_S}


@lru_cache(maxsize=1)
def upstream_tls() -> ssl.SSLContext:
    return ssl.create_default_context()
