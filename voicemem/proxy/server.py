"""The proxy's server: accepts callers, answers health checks and metrics requests, and drains calls when it stops."""

import asyncio
import hmac
import logging
import ssl
from collections import Counter
from contextlib import suppress

import msgspec

from voicemem.client.metrics import family
from voicemem.config.service import is_loopback
from voicemem.errors import CODES, CannotStart, Refused, VoicememError
from voicemem.proxy.call import SWITCHING, Call, Connection, tls_options
from voicemem.proxy.key_check import KeyCheck
from voicemem.proxy.memories import Memories
from voicemem.proxy.recording import ReadQueue
from voicemem.proxy.requests import END, PREFIX, Request, answer, parse_request, read_request, refusal
from voicemem.proxy.settings import Settings

LOG = logging.getLogger("voicemem.proxy")
JSON, TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"
LIVE, READY, METRICS = ("/healthz", "/livez"), "/readyz", "/metrics"
METRICS_PREFIX = "voicemem_proxy"


def traffic_counts(call: Call) -> Counter[tuple[str, str, str]]:
    if call.recording is None:
        return Counter()
    ways = {"caller": call.recording.from_caller, "upstream": call.recording.from_upstream}
    both = {("messages", call.dialect, sender): way.frames for sender, way in ways.items()}
    return Counter(both | {("bytes", call.dialect, sender): way.bytes for sender, way in ways.items()})


class ProxyServer:
    """Forwards calls from `start` on, until `drain` and `close`.

    A caller has `head_s` to send its request; at most `max_waiting` callers may be without a running call.
    """

    def __init__(self, settings: Settings, head_s: float = 10.0, max_waiting: int = 1_000) -> None:
        self.settings = settings
        self.head_s = head_s
        self.max_waiting = max_waiting
        self.memories = Memories(settings)
        self.keys = KeyCheck(settings)
        self.reads = ReadQueue()
        self.calls: dict[asyncio.Task[None], Call] = {}
        self.waiting: dict[Connection, str] = {}
        """Connections without a call, with their addresses, the oldest first."""
        self.draining = False
        self.listening: asyncio.Server | None = None
        self.over: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()
        self.traffic: Counter[tuple[str, str, str]] = Counter()
        """The traffic of calls that are over: counts by what, dialect and sender."""

    async def start(self) -> int:
        """Listen, and return the port. Raises `CannotStart`, and `OSError` for an address that cannot be bound."""
        tls = None
        if self.settings.tls_cert is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.minimum_version = ssl.TLSVersion.TLSv1_2
            try:
                tls.load_cert_chain(self.settings.tls_cert, self.settings.tls_key)
            except (OSError, ssl.SSLError):
                raise CannotStart(
                    "--tls-cert and --tls-key must name PEM files with a certificate and its key."
                ) from None
        self.listening = await asyncio.get_running_loop().create_server(
            lambda: Connection(self.on_head, self.await_head),  # if TLS fails it is neither made nor lost
            self.settings.listen.host,
            self.settings.listen.port,
            backlog=1024,
            **tls_options(tls, self.head_s),
        )
        port: int = self.listening.sockets[0].getsockname()[1]
        return port

    # Callers

    def await_head(self, caller: Connection) -> None:
        """Give a new connection a while to send its request."""
        self.waiting[caller] = str(caller.transport.get_extra_info("peername")[0])
        caller.on_lost = lambda: self.waiting.pop(caller, None)
        asyncio.get_running_loop().call_later(self.head_s, self.give_up, caller)
        if len(self.waiting) > self.max_waiting:
            self.make_room()

    def make_room(self) -> None:
        """Refuse the oldest connection without a request, of the address that has the most waiting connections.

        So someone who opens many connections blocks neither the calls nor the health checks of others.
        """
        crowd, _ = Counter(self.waiting.values()).most_common(1)[0]
        silent = [caller for caller in self.waiting if not caller.has_head]  # at least the newest
        caller = next((one for one in silent if self.waiting[one] == crowd), silent[0])
        del self.waiting[caller]
        self.refuse(caller, Refused("too_many_connections"))

    def give_up(self, caller: Connection) -> None:
        if caller in self.waiting and not caller.has_head:
            caller.cut()

    def refuse(self, caller: Connection, refused: VoicememError) -> None:
        self.refused[refused.code] += 1
        self.answer(caller, refusal(refused.code, refused.detail))

    def answer(self, caller: Connection, message: bytes) -> None:
        if not caller.is_lost:
            caller.transport.write(message.partition(END)[0] + END if caller.asks_for_head else message)
            caller.hang_up()

    def on_head(self, caller: Connection, head: bytes) -> None:
        """Answer a health check, or begin the requested call."""
        try:
            if not head:
                raise Refused("invalid_http", "The head of a request may have at most 64 KiB.")
            request = parse_request(head)
            caller.asks_for_head = request.method == "HEAD"
            if not request.target.startswith(PREFIX):
                peer = caller.transport.get_extra_info("peername")
                message = self.answer_health(request, str(peer[0]))
                if message is not None:
                    self.answer(caller, message)
                    return
            call_request = read_request(request, self.settings)
            if self.draining:
                raise Refused("draining")
            if len(self.calls) >= self.settings.max_calls:
                raise Refused("too_many_connections", "The proxy has reached its limit of calls (--max-calls).")
        except Refused as refused:
            self.refuse(caller, refused)
            return
        call = Call(caller, call_request, self.memories, self.reads)
        task = asyncio.create_task(self.run(caller, call))
        self.calls[task] = call
        task.add_done_callback(self.calls.pop)

    async def run(self, caller: Connection, call: Call) -> None:
        try:
            call.key = await self.keys.key_for(call.request)
            self.waiting.pop(caller, None)
            await call.run(self.settings.connect_timeout)
        except VoicememError as refused:
            self.refuse(caller, refused)
            return
        except Exception:  # the other calls continue
            LOG.exception("A call has failed")
            if call.status is None:
                self.refuse(caller, Refused("internal"))
            call.end()
            return
        if call.status in (None, SWITCHING):
            result = "abandoned" if call.status is None else "accepted"
        else:
            result = "failed" if call.failed else "refused"  # by the upstream
        self.over[call.dialect, result] += 1
        self.traffic += traffic_counts(call)
        LOG.info("A call has ended", extra=call.facts())

    # Health checks and metrics, on the port of the calls

    def answer_health(self, request: Request, peer: str) -> bytes | None:
        """Return the answer to a health check or a request for metrics; None for any other request."""
        path = request.target.partition("?")[0]
        if path not in (*LIVE, READY, METRICS):
            return None
        if request.method not in ("GET", "HEAD"):
            return refusal("method_not_allowed", CODES["method_not_allowed"].sentence)
        if path == METRICS:
            shown = (request.value("authorization") or "").partition(" ")[2].encode()
            is_operator = self.settings.key is not None and hmac.compare_digest(shown, self.settings.key.encode())
            if not (is_operator or is_loopback(peer) or self.settings.insecure):
                raise Refused("unauthorized", "Metrics need the proxy's own key.")
            return answer(200, TEXT, self.metrics().encode())
        if path == READY and self.draining:
            return refusal("draining", "The proxy takes no new calls.")
        connected = any(shared.client.transport is not None for shared in self.memories.clients.values())
        state = {"status": "ok", "calls": len(self.calls), "memory": "connected" if connected else "not connected"}
        return answer(200, JSON, msgspec.json.encode(state if path == READY else {"status": "ok"}))

    def metrics(self) -> str:
        now = sum((traffic_counts(call) for call in self.calls.values()), start=+self.traffic)
        clients = [shared.client for shared in self.memories.clients.values()]
        gauges = {
            "calls": len(self.calls),
            "buffered_bytes": self.memories.room.used,
            "memory_connected": sum(client.transport is not None for client in clients),
        }
        counters = {
            "calls_total": {f'dialect="{d}",result="{r}"': count for (d, r), count in self.over.items()},
            "refused_requests_total": {f'code="{c}"': count for c, count in self.refused.items()},
            "frames_total": {f'result="{r}"': count for r, count in self.memories.counts().items()},
        } | {
            f"{what}_total": {f'dialect="{d}",sender="{s}"': now[w, d, s] for w, d, s in now if w == what}
            for what in ("messages", "bytes")
        }
        return "".join(
            [family(name, "gauge", {"": value}, METRICS_PREFIX) for name, value in gauges.items()]
            + [family(name, "counter", samples, METRICS_PREFIX) for name, samples in counters.items()]
        )

    # The end

    def drain(self) -> None:
        """Accept no new calls. The port stays open to refuse them, and to answer health checks."""
        self.draining = True

    async def wait_for_calls(self, timeout_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.calls:
                    await asyncio.wait(self.calls)

    async def close(self) -> None:
        """Cut the remaining calls, and for a while deliver what the memory has not got yet."""
        if self.listening is not None:
            self.listening.close()
        for call in self.calls.values():
            call.cut()
        self.reads.work()
        await self.memories.close()
        await self.keys.close()
