"""The port: takes callers, says how the proxy is, and lets the calls that there are come to their end."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time

from voicemem.errors import CannotStart, Refused, VoicememError
from voicemem.proxy.call import Call
from voicemem.proxy.connections import TLS_CLOSE_S, Connection
from voicemem.proxy.heads import parse_request, refusal
from voicemem.proxy.health import Health
from voicemem.proxy.keys import KeyCheck
from voicemem.proxy.memories import Memories
from voicemem.proxy.recording import Turns
from voicemem.proxy.requests import PREFIX, Wanted, read_request
from voicemem.proxy.settings import Settings

LOG = logging.getLogger("voicemem.proxy")
HEAD_S = 10.0
"""How long a caller may take to send its request."""
MAX_WAITING = 1_000
"""Connections that have not sent a request yet, or are answered."""


class ProxyServer:
    """Forwards calls from `start` on, until `drain` and `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.memories = Memories(settings)
        self.keys = KeyCheck(settings)
        self.turns = Turns()
        self.calls: dict[asyncio.Task[None], Call] = {}
        self.health = Health(settings, self.memories, self.calls.values)
        self.waiting: set[Connection] = set()
        self.draining = False
        self.listening: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; the port. Raises `OSError` for an address that cannot be had, or files that hold no certificate."""
        tls = server_tls(self.settings)
        self.listening = await asyncio.get_running_loop().create_server(
            self.new_connection,
            self.settings.listen.host,
            self.settings.listen.port,
            ssl=tls,
            backlog=1024,
            ssl_handshake_timeout=None if tls is None else HEAD_S,
            ssl_shutdown_timeout=None if tls is None else TLS_CLOSE_S,
        )
        port: int = self.listening.sockets[0].getsockname()[1]
        return port

    # Callers

    def new_connection(self) -> Connection:
        """A connection that may come to nothing: one whose handshake of TLS fails is never made, nor lost."""
        return Connection(self.on_head, self.await_head)

    def await_head(self, caller: Connection) -> None:
        """Give a connection that was made a while to send its request."""
        self.waiting.add(caller)
        caller.on_lost = lambda: self.waiting.discard(caller)
        asyncio.get_running_loop().call_later(HEAD_S, self.give_up, caller)
        if len(self.waiting) > MAX_WAITING:
            self.refuse(caller, Refused("too_many_connections"))

    def give_up(self, caller: Connection) -> None:
        """Close the connection of a caller who has sent no request in time."""
        if caller in self.waiting and not caller.has_head:
            caller.cut()

    def refuse(self, caller: Connection, refused: VoicememError) -> None:
        self.health.count_refused(refused.code)
        self.answer(caller, refusal(refused.code, refused.detail))

    def answer(self, caller: Connection, message: bytes) -> None:
        """Answer in place of an upstream, and close the connection."""
        if not caller.is_lost:
            caller.transport.write(message)
            caller.hang_up()

    def on_head(self, caller: Connection, head: bytes) -> None:
        """Take a request."""
        try:
            if not head:
                raise Refused("invalid_http", "The head of a request may have 64 KiB.")
            request = parse_request(head)
            if not request.target.startswith(PREFIX):
                peer = caller.transport.get_extra_info("peername")
                message = self.health.answer(request, str(peer[0]), self.draining)
                if message is not None:
                    self.answer(caller, message)
                    return
            wanted = read_request(request, self.settings)
            if self.draining:
                raise Refused("draining")
            if len(self.calls) >= self.settings.max_calls:
                raise Refused("too_many_connections", "The proxy has as many calls as it may have (--max-calls).")
        except Refused as refused:
            self.refuse(caller, refused)
            return
        self.begin(caller, wanted)

    def begin(self, caller: Connection, wanted: Wanted) -> None:
        """Make a call, in a task of its own."""
        call = Call(caller, wanted, self.memories, self.turns)
        task = asyncio.create_task(self.run(caller, call))
        self.calls[task] = call
        task.add_done_callback(self.calls.pop)

    async def run(self, caller: Connection, call: Call) -> None:
        try:
            call.key = await self.keys.key_for(call.wanted)
            self.waiting.discard(caller)
            await call.run(self.settings.connect_timeout)
        except VoicememError as refused:
            self.refuse(caller, refused)
            return
        except Exception:  # the other calls go on
            LOG.exception("A call has failed")
            if call.status is None:
                self.refuse(caller, Refused("internal"))
            call.end()
            return
        self.health.count_call(call)
        LOG.info("A call has ended", extra=call.facts())

    # The end

    def drain(self) -> None:
        """Take no new calls. The port stays open to say so, and to answer health checks."""
        self.draining = True

    async def wait_for_calls(self, timeout_s: float | None) -> None:
        """Wait until no call is left."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.calls:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            await asyncio.wait(self.calls, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cut the calls that are left, and deliver to the memory what it has not got yet, for a while."""
        if self.listening is not None:
            self.listening.close()
        for call in self.calls.values():
            call.cut()
        self.turns.work()
        await self.memories.close()
        await self.keys.close()


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    """TLS for callers. Raises `CannotStart` for files that hold no certificate and its key."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError):
        raise CannotStart("--tls-cert and --tls-key must name PEM files with a certificate and its key.") from None
    return context
