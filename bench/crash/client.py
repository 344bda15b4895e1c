"""A producer of a crash run that leaves everything to `voicemem.client`: it sends an event once, and awaits its ack."""

from __future__ import annotations

import asyncio
import random

from bench.crash.calls import Part, Script
from bench.crash.producers import Producer, World
from voicemem.client import Ack, Client, EventRefused, Options, ProducerSession, SessionEnded

OPTIONS = Options(first_delay_s=0.02, longest_delay_s=0.2, connect_timeout_s=2.0, open_timeout_s=None)
"""The service is down for about a second at a time."""


class ClientProducer(Producer):
    """Streams with a client of its own, which does not know that the service is killed."""

    def __init__(self, world: World, script: Script, part: Part, rng: random.Random) -> None:
        super().__init__(world, script, part, rng)
        self.acks: asyncio.Queue[Ack | None] = asyncio.Queue()

    async def run(self) -> None:
        async with Client(self.world.front.ingest, self.world.front.rest, options=OPTIONS) as client:
            config = self.script.config
            session = await client.open(self.session, producer=self.name, config=config, allow_ended=True)
            listening = asyncio.create_task(self.listen())
            await self.stream(session)
            self.acks.put_nowait(None)
            await listening

    async def stream(self, session: ProducerSession) -> None:
        seq = 1
        while seq <= self.last:
            for event in self.take(seq, self.rng.randint(1, 6)):
                ack = session.send(event)
                if isinstance(ack.error, SessionEnded):
                    return
                self.acks.put_nowait(ack)
                seq = event["seq"] + 1
            if seq > self.last and self.part.events[-1]["type"] == "session.end":
                self.world.trigger.hit("end sent")
            await asyncio.sleep(self.rng.uniform(0, 0.08))

    async def listen(self) -> None:
        while (ack := await self.acks.get()) is not None:
            try:
                await ack
            except SessionEnded:
                continue
            except EventRefused as refused:
                self.history.refused(self.session, self.name, ack.seq, refused.code)
            self.history.acknowledged(self.session, self.name, ack.seq)
            self.world.trigger.hit("acknowledged")
            if ack.seq == self.last:
                self.world.trigger.hit("end acknowledged")
