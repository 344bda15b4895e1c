"""How the proxy is: health checks and metrics, on the port of the calls."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Collection

import msgspec

from voicemem.client.metrics import family
from voicemem.config.service import is_loopback
from voicemem.errors import CODES, Refused
from voicemem.proxy.call import SWITCHING, Call
from voicemem.proxy.heads import Request, answer, refusal
from voicemem.proxy.memories import Memories
from voicemem.proxy.settings import Settings

JSON, TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"
LIVE, READY, METRICS = ("/healthz", "/livez"), "/readyz", "/metrics"
PREFIX = "voicemem_proxy"


class Health:
    """Counts, and answers those who ask. `running` gives the calls that last."""

    def __init__(self, settings: Settings, memories: Memories, running: Callable[[], Collection[Call]]) -> None:
        self.settings = settings
        self.memories = memories
        self.running = running
        self.over: Counter[tuple[str, str]] = Counter()
        """Calls that are over by dialect and result."""
        self.refused: Counter[str] = Counter()
        """Requests that the proxy refused, by code."""
        self.crossed: Counter[tuple[str, str, str]] = Counter()
        """What crossed the calls that are over: by what, dialect and sender."""

    def count_refused(self, code: str) -> None:
        self.refused[code] += 1

    def count_call(self, call: Call) -> None:
        """Count a call that is over."""
        self.over[call.dialect, result_of(call)] += 1
        self.crossed += crossed(call)

    def answer(self, request: Request, peer: str, draining: bool) -> bytes | None:
        """The answer to a request about the proxy; None for any other request."""
        path = request.target.partition("?")[0]
        if path not in (*LIVE, READY, METRICS):
            return None
        if request.method != "GET":
            return refusal("method_not_allowed", CODES["method_not_allowed"].sentence)
        if path == METRICS:
            self.check_reader(request, peer)
            return answer(200, TEXT, self.metrics().encode())
        if path == READY and draining:
            return refusal("draining", "The proxy takes no new calls.")
        connected = any(shared.client.transport is not None for shared in self.memories.clients.values())
        state = {"status": "ok", "calls": len(self.running()), "memory": "connected" if connected else "not connected"}
        return answer(200, JSON, msgspec.json.encode(state if path == READY else {"status": "ok"}))

    def check_reader(self, request: Request, peer: str) -> None:
        """Metrics are for this machine, and for who shows the proxy's own key. Raises `Refused`."""
        shown = (request.value("authorization") or "").partition(" ")[2].encode()
        is_operator = self.settings.key is not None and hmac.compare_digest(shown, self.settings.key.encode())
        if not (is_operator or is_loopback(peer) or self.settings.insecure):
            raise Refused("unauthorized", "Metrics need the proxy's own key.")

    def metrics(self) -> str:
        """All metrics, in the text format of Prometheus."""
        running = self.running()
        now = sum((crossed(call) for call in running), start=+self.crossed)
        clients = [shared.client for shared in self.memories.clients.values()]
        families: list[tuple[str, str, dict[str, int]]] = [
            ("calls", "gauge", {"": len(running)}),
            ("calls_total", "counter", {labels(dialect=d, result=r): count for (d, r), count in self.over.items()}),
            ("refused_requests_total", "counter", {labels(code=c): count for c, count in self.refused.items()}),
            *(
                (
                    f"{what}_total",
                    "counter",
                    {labels(dialect=d, sender=s): now[w, d, s] for w, d, s in now if w == what},
                )
                for what in ("messages", "bytes")
            ),
            ("frames_total", "counter", {labels(result=r): count for r, count in self.memories.counts().items()}),
            ("buffered_bytes", "gauge", {"": self.memories.buffered_bytes}),
            ("memory_connected", "gauge", {"": sum(client.transport is not None for client in clients)}),
        ]
        return "".join(family(name, kind, samples, PREFIX) for name, kind, samples in families)


def result_of(call: Call) -> str:
    """`accepted`, `refused` by the upstream, `failed` without an answer of it, or `abandoned` by the caller."""
    if call.status is None:
        return "abandoned"
    if call.status == SWITCHING:
        return "accepted"
    return "failed" if call.failed else "refused"


def crossed(call: Call) -> Counter[tuple[str, str, str]]:
    """How many messages and bytes have crossed a call."""
    if call.recording is None:
        return Counter()
    ways = {"caller": call.recording.from_caller, "upstream": call.recording.from_upstream}
    both = {("messages", call.dialect, sender): way.frames for sender, way in ways.items()}
    return Counter(both | {("bytes", call.dialect, sender): way.bytes for sender, way in ways.items()})


def labels(**values: str) -> str:
    return ",".join(f'{name}="{value}"' for name, value in values.items())
