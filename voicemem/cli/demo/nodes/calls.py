"""The calls of the demo: one recording, played as several calls, each by three producers with a connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from voicemem.cli.demo.nodes.servers import Proxy
from voicemem.client import Client, Options
from voicemem.client.replay import pauses_before
from voicemem.client.session import ProducerSession
from voicemem.config.service import Address
from voicemem.protocol.types import JsonObject

PRODUCERS = ("asr", "llm", "tts")
OPTIONS = Options(open_timeout_s=15, close_timeout_s=15)
NEXT_CALL_S = 0.1
"""How much later than the call before it each call begins; divided by the pace."""


class Call:
    """A call of which each part of the voice engine sends its own events."""

    def __init__(self, session_id: str, events: Sequence[JsonObject]) -> None:
        self.session_id = session_id
        self.events = events
        self.producers: dict[str, ProducerSession] = {}
        self.nodes: dict[str, Address] = {}
        """Where each producer was connected first."""
        self.sent = dict.fromkeys(PRODUCERS, 0)

    @property
    def total(self) -> int:
        """How many events it has; each producer sends an end of its own."""
        return len(self.events) - 1 + len(PRODUCERS)

    @property
    def acked(self) -> int:
        """How many events are on disk and acknowledged."""
        return sum(self.sent.values()) - sum(producer.unacknowledged for producer in self.producers.values())

    async def open(self, url: str, proxy: Proxy, stack: AsyncExitStack) -> None:
        """Connect the producers, one after the other, and note to which node each one comes."""
        for name in PRODUCERS:
            client = await stack.enter_async_context(Client(url, options=OPTIONS))
            self.producers[name] = await client.open(self.session_id, producer=name)
            assert proxy.newest is not None
            self.nodes[name] = proxy.newest

    async def play(self, pace: float, delay_s: float) -> None:
        """Send everything at `pace` times the call's own speed, and wait until all of it is acknowledged."""
        await asyncio.sleep(delay_s)
        for event, pause_s in zip(self.events, pauses_before(self.events, pace), strict=True):
            await asyncio.sleep(pause_s)
            unnumbered = {name: value for name, value in event.items() if name not in ("seq", "last_seq")}
            for name in PRODUCERS if event["type"] == "session.end" else (producer_of(event),):
                self.producers[name].send(unnumbered)
                self.sent[name] += 1
        await asyncio.gather(*(producer.flush() for producer in self.producers.values()))

    def reopened_since(self, node: Address) -> list[bool]:
        """Of each producer that was connected to a node: whether it has been opened again since."""
        return [self.producers[name].epoch != 1 for name in PRODUCERS if self.nodes[name] == node]

    def unacknowledged_on(self, node: Address) -> int:
        """How many events the producers of a node have sent that are not acknowledged yet."""
        return sum(self.producers[name].unacknowledged for name in PRODUCERS if self.nodes[name] == node)


def producer_of(event: JsonObject) -> str:
    """The part of a voice engine that an event comes from."""
    if event["type"] in ("asr", "interrupt"):
        return "asr"
    return "tts" if event["type"] == "tts" else "llm"
