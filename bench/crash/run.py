"""A run: rounds of faults while sessions stream, a time to settle, and what was counted."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp

from bench.crash.calls import SHAPES
from bench.crash.history import History
from bench.crash.moments import Trigger
from bench.crash.producers import World
from bench.crash.receiver import Receiver
from bench.crash.server import Server, free_ports
from bench.crash.sessions import Reader, Sessions

READERS = 6
SHOW_EVERY = 25
SETTLE_S = 600.0
DRAIN_S = 30.0
"""How long a drain may take on a busy machine."""


class Run(ABC):
    """What all runs have in common; a subclass says what is run, and what happens to it."""

    shapes: Mapping[str, int] = SHAPES
    ends_at_a_finding = False
    """Instead of letting the sessions come to their ends."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.history = History(lambda finding: print(f"FOUND in {finding} (--seed {options.seed})", flush=True))
        self.trigger = Trigger()
        (self.hook,) = free_ports(1, random.Random())
        self.faults: Counter[str] = Counter()
        """Rounds by what happened in them."""
        self.kills = self.drains = 0
        self.began = time.monotonic()

    @property
    def webhook_url(self) -> str:
        return f"http://127.0.0.1:{self.hook}/hook"

    @abstractmethod
    async def start(self, stack: AsyncExitStack) -> None:
        """Start what is to run; what must be ended goes onto the stack."""

    @abstractmethod
    def world(self, http: aiohttp.ClientSession) -> World: ...

    @abstractmethod
    async def round(self, number: int) -> None:
        """Let one fault happen."""

    @abstractmethod
    async def recover(self) -> None:
        """See to it that everything runs after the last round."""

    @abstractmethod
    async def end(self) -> None:
        """Stop everything in order, and check what is left."""

    async def run(self) -> None:
        """Do all of it; SIGTERM cancels it, so that no process is left behind."""
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        rng = random.Random(f"{self.options.seed}/readers")
        async with AsyncExitStack() as stack:
            receiver = Receiver(self.history, self.trigger, rng)
            await receiver.start(self.hook)
            stack.push_async_callback(receiver.stop)
            await self.start(stack)
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            world = self.world(http)
            sessions = Sessions(world, self.options.seed, self.shapes)
            slots = [asyncio.create_task(sessions.slot()) for _ in range(self.options.sessions)]
            readers = [asyncio.create_task(Reader(world, rng).run()) for _ in range(READERS)]
            try:
                await self.rounds([*slots, *readers])
                if not (self.history.findings and self.ends_at_a_finding):
                    await self.settle(world, sessions, slots)
            finally:
                working: list[asyncio.Task[Any]] = [*slots, *readers, *sessions.finishing]
                for task in working:
                    task.cancel()
                await asyncio.gather(*working, return_exceptions=True)

    async def rounds(self, working: Sequence[asyncio.Task[None]]) -> None:
        for number in range(self.options.first, self.options.first + self.options.rounds):
            self.history.round = number
            await self.round(number)
            for one in working:
                if one.done():
                    one.result()
            if self.history.findings and not self.options.go_on:
                break
            if (number + 1) % SHOW_EVERY == 0:
                self.show_progress(number + 1)

    async def settle(self, world: World, sessions: Sessions, slots: Sequence[asyncio.Task[None]]) -> None:
        """Let everything finish, and check all journals once more."""
        sessions.stopping = True
        self.trigger.disarm()
        await self.recover()
        try:
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*slots)
                await asyncio.gather(*sessions.finishing)
        except TimeoutError:
            self.history.find("", f"{len(self.history.calls)} sessions did not come to their end")
        listed = await list_sessions(world)
        begun = set(self.history.settled) | set(self.history.calls)
        if listed != begun:
            self.history.find(
                "", f"{len(listed - begun)} sessions are there too many, {len(begun - listed)} are missing"
            )
        for session in listed & set(self.history.settled):
            self.history.settled_again(session, await world.insist("GET", f"/v1/sessions/{session}/events"))
        await self.end()

    async def wait_for_moment(self, longest_s: float) -> None:
        """Wait for the moment that the trigger was armed for, but not longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self.trigger.fired.wait()

    async def drain(self, server: Server, killed: bool) -> None:
        """Send SIGTERM under load; half of the services are killed while they drain."""
        began = time.monotonic()
        stopping = asyncio.create_task(server.stop())
        if killed:
            await asyncio.sleep(random.uniform(0, 0.3))
            server.kill()
        code = await stopping
        if killed:
            self.kills += 1
        else:
            self.drains += 1
            if code != 0 or time.monotonic() - began > DRAIN_S:
                self.history.find("", f"a drain ended with {code} after {time.monotonic() - began:.1f} s")

    def check_log(self, log: Path) -> None:
        if b"Traceback" in log.read_bytes():
            self.history.find("", f"there is a traceback in {log}")

    def show_progress(self, rounds: int) -> None:
        counts, seconds = self.history.counts, (time.monotonic() - self.began) / self.faults.total()
        print(
            f"round {rounds} ({seconds:.2f} s each): {counts['sessions']} sessions checked,"
            f" {counts['events_acknowledged']} events acknowledged, {counts['reads']} reads,"
            f" {counts['notices']} notices, {len(self.history.findings)} findings",
            flush=True,
        )

    def results(self) -> dict[str, Any]:
        counts = self.history.counts
        names = (
            *("sessions", "entries", "events_sent", "events_resent", "events_acknowledged", "gaps", "superseded"),
            *("reads", "closes", "notices", "notices_late", "duplicates"),
        )
        return {
            "rounds": self.faults.total(),
            "kills": self.kills,
            "drains": self.drains,
            **{name: counts[name] for name in names},
            "findings": len(self.history.findings),
        }


async def list_sessions(world: World) -> set[str]:
    """The ids of all sessions that the service has."""
    found: set[str] = set()
    cursor = ""
    while True:
        (page,) = await world.insist("GET", f"/v1/sessions?limit=1000{cursor}")
        found |= {session["session_id"] for session in page["sessions"]}
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"
