"""One call: its handshake with the upstream, and how it ended."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from functools import lru_cache
from typing import Any

from voicemem.errors import CODES
from voicemem.proxy.connections import TLS_CLOSE_S, Connection, couple
from voicemem.proxy.heads import refusal, status_of
from voicemem.proxy.memories import Memories
from voicemem.proxy.recording import Recording, Turns
from voicemem.proxy.requests import Wanted

LOG = logging.getLogger("voicemem.proxy")
ANSWER_S = 10.0
"""How long the rest of an upstream's refusal may take."""
SWITCHING = 101


class Call:
    """From a handshake that may be made until both connections have gone."""

    def __init__(self, caller: Connection, wanted: Wanted, memories: Memories, turns: Turns) -> None:
        self.caller = caller
        self.wanted = wanted
        self.memories = memories
        self.turns = turns
        self.key: str | None = None
        """The key of the memory under which the call is remembered."""
        self.began = time.monotonic()
        self.recording: Recording | None = None
        """None until the upstream has accepted the call."""
        self.status: int | None = None
        """Of the answer to the handshake."""
        self.failed = False
        """Whether the upstream has not answered."""
        self.upstream: Connection | None = None
        self.answered = asyncio.Event()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def dialect(self) -> str:
        return self.wanted.upstream.dialect

    async def run(self, timeout_s: float) -> None:
        """Make the call, and wait for its end. The upstream has `timeout_s` to answer the handshake."""
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
        upstream = self.wanted.upstream
        tls = upstream_tls() if upstream.secure else None
        _, self.upstream = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self.answer),
            upstream.host,
            upstream.port,
            ssl=tls,
            server_hostname=None if tls is None else upstream.host,
            ssl_handshake_timeout=None if tls is None else timeout_s,
            ssl_shutdown_timeout=None if tls is None else TLS_CLOSE_S,
        )
        self.upstream.on_lost = self.lost
        if self.caller.is_lost:
            self.end()
        else:
            self.upstream.transport.write(self.wanted.head)

    def answer(self, upstream: Connection, head: bytes) -> None:
        """Pass the upstream's answer on as it is, and the call begins if it is a yes."""
        status = status_of(head)
        if status is not None and status < 200 and status != SWITCHING:  # such as 103; the answer is still to come
            upstream.has_head = False
            upstream.look_for_head()
        elif status is None:
            self.refuse("upstream_unreachable", "The upstream does not speak HTTP.")
        elif not self.over.done():
            self.status = status
            self.answered.set()
            self.caller.transport.write(head)
            if status == SWITCHING:
                self.recording = self.record()
                couple(self.caller, upstream, self.recording)
            else:
                self.pass_refusal(upstream)

    def record(self) -> Recording | None:
        """The recording of the call; None if there cannot be one, which does not stop the call."""
        try:
            return Recording(self.memories.begin(self.dialect, self.wanted.session_id, self.key), self.turns)
        except Exception:
            LOG.exception("A call is not remembered")
            return None

    def pass_refusal(self, upstream: Connection) -> None:
        """Pass on the rest of a refusal. What the caller sends is for nobody: nothing of it was checked."""
        self.caller.is_deaf, self.caller.early = True, bytearray()
        couple(self.caller, upstream, None)
        asyncio.get_running_loop().call_later(ANSWER_S, upstream.hang_up)

    def refuse(self, code: str, detail: str) -> None:
        """Answer in place of the upstream, and end the call, unless the caller has left."""
        if self.over.done():
            return
        self.status, self.failed = CODES[code].status, True
        if not self.caller.is_lost:
            self.caller.transport.write(refusal(code, detail))
        self.end()

    def end(self) -> None:
        """Close both connections."""
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
        """What the log says about a call that is over: nothing of a key, a query or what was said."""
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
        """A connection has gone; the call is over when both have, and everything was read."""
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
    """Why there is no connection, without the address."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    return (os.strerror(error.errno) if error.errno else type(error).__name__).lower()


@lru_cache(maxsize=1)
def upstream_tls() -> ssl.SSLContext:
    return ssl.create_default_context()
