"""The sessions of a crash run, from their first event to the check of everything that was seen of them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from bench.crash.calls import SHAPES, Script, script
from bench.crash.checker import Final, closes_to_tell
from bench.crash.client import ClientProducer
from bench.crash.producers import GONE, HttpProducer, Producer, SocketProducer, World
from voicemem.client import ClientError

CLOSE_S = NOTICE_S = 300.0
"""Longer than any lease, on a machine however busy: what has not come by then never will. `bench.nodes` measures how
soon it comes."""
TRANSPORTS: dict[str, type[Producer]] = {"websocket": SocketProducer, "http": HttpProducer, "client": ClientProducer}


class Sessions:
    """Runs so many sessions at a time; a new one begins when another's producers are done."""

    def __init__(self, world: World, seed: int, shapes: Mapping[str, int] = SHAPES) -> None:
        self.world = world
        self.history = world.history
        self.seed = seed
        self.shapes = shapes
        self.numbers = itertools.count(1)
        self.stopping = False
        self.finishing: set[asyncio.Task[bool]] = set()

    async def slot(self) -> None:
        """Run one session after the other, until the run stops."""
        while not self.stopping:
            drawn = script(self.seed, next(self.numbers), self.shapes)
            if await self.watched(drawn, self.stream(drawn)):
                task = asyncio.create_task(self.watched(drawn, self.finish(drawn)))
                self.finishing.add(task)
                task.add_done_callback(self.finishing.discard)

    async def watched(self, drawn: Script, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work on a session was completed; an answer that the service must never give is a finding."""
        done = True
        try:
            await work
        except* (ClientError, RuntimeError) as errors:
            self.history.find(drawn.session, f"it could not go on: {errors.exceptions[0]}")
            done = False
        return done

    async def stream(self, drawn: Script) -> None:
        """Run the producers of a session, and the changes from outside."""
        rng = random.Random(f"{self.seed}/{drawn.session}")
        self.history.begin(drawn.session, drawn.config)
        if any(part.transport == "http" for part in drawn.parts) or rng.random() < 0.2:
            await self.world.insist("POST", "/v1/sessions", {"session_id": drawn.session, **drawn.config})
        async with asyncio.TaskGroup() as group:
            for part in drawn.parts:
                seeded = random.Random(f"{self.seed}/{drawn.session}/{part.producer}")
                group.create_task(TRANSPORTS[part.transport](self.world, drawn, part, seeded).run())
            group.create_task(self.patch(drawn, rng))

    async def patch(self, drawn: Script, rng: random.Random) -> None:
        """Change the configuration, each change requested once."""
        for number in range(drawn.patches):
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            label = f"patch-{number}"
            self.history.patched(drawn.session, label, False)
            with suppress(*GONE):
                status, _ = await self.world.ask("PATCH", f"/v1/sessions/{drawn.session}", {"labels": {label: "set"}})
                self.history.patched(drawn.session, label, status == 200)

    async def finish(self, drawn: Script) -> None:
        """Wait for the close and its webhooks, then check; again if what was read meanwhile could still be lost."""
        session = drawn.session
        if drawn.ended_over_rest:
            await self.world.insist("POST", f"/v1/sessions/{session}/end", {"reason": "hung up"})
        while True:
            while not self.history.reads_count:  # noqa: ASYNC110 (as below)
                await asyncio.sleep(0.05)
            unsafe_times = self.history.unsafe_times
            final = await self.see_end(session, unsafe_times)
            if unsafe_times == self.history.unsafe_times:
                break
        self.history.settle(session, final)

    async def see_end(self, session: str, unsafe_times: int) -> Final:
        """What the service says of a session that is closed, once the receiver has its webhooks or may be lost."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.world.closed(session)
        except TimeoutError:
            self.history.find(session, f"it was not closed within {CLOSE_S:.0f} s of its end")
        final = await self.read(session)
        closes, call = closes_to_tell(final.rows), self.history.calls[session]
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_S):
                while not call.told() >= closes and unsafe_times == self.history.unsafe_times:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        return final

    async def read(self, session: str) -> Final:
        at = f"/v1/sessions/{session}"
        (shown,) = await self.world.insist("GET", at)
        (history,) = await self.world.insist("GET", f"{at}/history")
        (turns,) = await self.world.insist("GET", f"{at}/turns")
        return Final(await self.world.insist("GET", f"{at}/events"), shown, history["contents"], turns["turns"])


class Reader:
    """Reads sessions at random while they run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.history = world.history
        self.rng = rng

    async def run(self) -> None:
        while True:
            if self.history.calls:
                with suppress(*GONE):
                    await self.read(self.rng.choice([*self.history.calls]))
            await asyncio.sleep(self.rng.uniform(0.005, 0.03))

    async def read(self, session: str) -> None:
        call, acked = self.history.calls[session], self.history.acked(session)
        floor, at = call.position, f"/v1/sessions/{session}"
        kind = self.rng.choice(["history", "history", "events", "turns"])
        after = self.rng.choice([0, floor // 2, floor])
        turns, created = call.turns, any(line.epoch or line.acked for line in call.lines.values())
        status, body = await self.world.ask("GET", at + (f"/events?after={after}" if kind == "events" else f"/{kind}"))
        if status != 200 or self.history.calls.get(session) is not call:
            if status not in (200, 503) and (status != 404 or created):
                self.history.find(session, f"a read was answered with {status}")
            return
        shown: list[Any] = [msgspec.json.decode(line) for line in body.splitlines()]
        if kind == "history":
            self.history.read_history(session, shown[0], acked, floor)
        elif kind == "turns":
            self.history.read_turns(session, shown[0]["turns"], turns)
        else:
            self.history.read_rows(session, after, shown, floor, whole=True)
