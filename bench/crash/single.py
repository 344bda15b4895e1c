"""Rounds with one service on a file of SQLite: each round is one life of it."""

from __future__ import annotations

import argparse
import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import apsw

from bench.crash.moments import Moment, draw_moment
from bench.crash.producers import World
from bench.crash.receiver import SECRET
from bench.crash.run import Run
from bench.crash.server import Front, Place, Server, free_ports

MOMENTS_OF_A_LIFE = {"start": 3, "drain": 3}
"""Moments that only these rounds have, and how often each is drawn."""
LONGEST_S = 1.5
"""Seconds after which a round ends whose moment does not come."""


class Plan(NamedTuple):
    """How one round ends."""

    moment: Moment
    seconds: float


def plan(seed: int, number: int) -> Plan:
    """Drawn from the seed and the round alone, so that it can be repeated (except for the machine's scheduling)."""
    rng = random.Random(f"{seed}/round/{number}")
    moment = draw_moment(rng, MOMENTS_OF_A_LIFE)
    return Plan(moment, rng.uniform(0.1, 0.5) if moment.kind == "start" else rng.uniform(0.05, 1.0))


class SingleRun(Run):
    """One server, which is killed and started again."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        super().__init__(options, folder)
        self.store = folder / "crash.db"
        rest, ingest = free_ports(2, random.Random())
        place = Place((rest, ingest), f"sqlite:{self.store}", self.store.with_suffix(".log"))
        self.server = Server(place, self.webhook_url, SECRET)

    async def start(self, stack: AsyncExitStack) -> None:
        stack.callback(self.server.kill)

    def world(self, http: aiohttp.ClientSession) -> World:
        front = Front(self.server.rest, self.server.ingest)
        return World([self.server], front, self.history, self.trigger, http)

    async def round(self, number: int) -> None:
        """One life of the service."""
        chosen = plan(self.options.seed, number)
        self.trigger.arm(chosen.moment, lambda server: self.server.kill())
        await self.server.spawn()
        if chosen.moment.kind == "start":
            await asyncio.sleep(chosen.seconds)
        elif await self.server.ready():
            await self.wait_for_moment(chosen.seconds if chosen.moment.kind in ("time", "drain") else LONGEST_S)
            if chosen.moment.kind == "drain":
                await self.drain(self.server, killed=number % 2 == 0)
        self.server.kill()
        await self.server.ended()
        self.kills += chosen.moment.kind != "drain"  # those are counted there
        self.faults[chosen.moment.kind] += 1

    async def recover(self) -> None:
        await self.server.spawn()
        await self.server.ready()

    async def end(self) -> None:
        code = await self.server.stop()
        if code != 0:
            self.history.find("", f"the service ended with {code}")
        for what in sound(self.store):
            self.history.find("", f"the database is damaged: {what}")
        self.check_log(self.server.log)


def sound(store: Path) -> list[str]:
    """The errors that SQLite's own check finds in a database."""
    connection = apsw.Connection(str(store))
    try:
        return [text for (text,) in connection.execute("pragma integrity_check") if text != "ok"]
    finally:
        connection.close()
