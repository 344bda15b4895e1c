"""Rounds with several nodes on one PostgreSQL database: in each, something happens to one of them, or to it."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from bench.crash.calls import NODES_SHAPES
from bench.crash.nodes.database import Database
from bench.crash.nodes.faults import FAULTS, NEEDS_OWN_SERVER, NEEDS_STANDBY, plan
from bench.crash.nodes.members import LEASE_MS, Node, all_ready, make_node, unpack
from bench.crash.nodes.plants import PLANTS
from bench.crash.nodes.proxy import Proxy
from bench.crash.nodes.upstream import Upstream
from bench.crash.producers import World
from bench.crash.run import Run
from bench.crash.server import Server, free_ports, front_at
from bench.harness.postgresql import Cluster
from bench.harness.standby import Pair

LONGEST_S = 1.5
"""Seconds after which a fault comes whose moment does not."""
CALM_S = 1.0
"""Between two faults: all nodes run, and sessions have producers on several of them."""
OWN = "postgresql"
DATABASE = "crash"


class NodesRun(Run):
    """Several nodes, each with a proxy between it and the database."""

    shapes = NODES_SHAPES

    def __init__(self, options: argparse.Namespace, folder: Path, planted: str | None = None) -> None:
        """`planted` is the name of a fault of `PLANTS`."""
        super().__init__(options, folder)
        self.planted = planted
        self.ends_at_a_finding = planted is not None
        self.rng = random.Random(f"{options.seed}/nodes")
        self.possible = options.faults or [
            name
            for name in FAULTS
            if name not in NEEDS_STANDBY and (options.store == OWN or name not in NEEDS_OWN_SERVER)
        ]
        self.own_server: Cluster | None = None
        self.pair: Pair | None = None
        """The server of the database, where it is our own, or two of them, where there are failovers."""
        self.url: str = options.store
        self.nodes: list[Node] = []
        self.spares = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.database = Database(self.url, self.history)
        self.stack = AsyncExitStack()
        self.older = None if options.older is None else unpack(options.older, folder / "older")
        """A folder with an older version of the program, which some of the processes run."""
        self.fronts: tuple[int, int] = (0, 0)
        """Ports that lead to any of the nodes."""

    async def start(self, stack: AsyncExitStack) -> None:
        if self.url == OWN and NEEDS_STANDBY.isdisjoint(self.possible):
            self.own_server = Cluster()  # on the loop: if this were cancelled meanwhile, no one would remove it
            stack.callback(self.own_server.remove)
            self.own_server.execute(f"create database {DATABASE}")
            self.url = self.own_server.url(DATABASE)
        elif self.url == OWN:
            self.pair = Pair()
            stack.callback(self.pair.remove)
            self.pair.primary.execute(f"create database {DATABASE}")
            self.url = self.pair.url(DATABASE, target_session_attrs="read-write")
        self.database = Database(self.url, self.history)
        self.history.lease_ms = LEASE_MS
        self.stack = stack
        for _ in range(self.options.nodes):
            await self.add_node()
        await all_ready(self.nodes)
        if self.planted is not None and (statement := PLANTS[self.planted].statement) is not None:
            self.database.execute(statement)
        stack.push_async_callback(self.stop_tasks)
        self.later(self.database.watch())
        rest, ingest = free_ports(2, random.Random())
        self.fronts = rest, ingest
        for number, port in enumerate(self.fronts):
            front = Proxy(port, partial(self.listening, number))
            await front.start()
            stack.push_async_callback(front.stop)

    @property
    def cluster(self) -> Cluster | None:
        """The server that takes writes, where it is our own."""
        return self.own_server if self.pair is None else self.pair.primary

    def find_server(self) -> str:
        """The URL of the server of the moment."""
        return self.url if self.pair is None else self.pair.primary.url(DATABASE)

    async def add_node(self) -> Node:
        number = len(self.nodes) + self.spares
        trusted = "" if self.pair is None else "&failover=trusted"  # its standby is a synchronous one
        node = await make_node(self.stack, self.url, number, self.folder, self.webhook_url, self.find_server, trusted)
        node.plant, node.older = self.planted, self.older
        self.nodes.append(node)
        return node

    async def add_spare(self) -> Node:
        """One more node, for a while."""
        self.spares += 1
        spare = await self.add_node()
        await spare.spawn()
        await spare.ready()
        return spare

    async def remove_spare(self, spare: Node, killed: bool) -> None:
        await self.drain(spare, killed)
        self.nodes.remove(spare)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside the rounds."""
        self.tasks.add(asyncio.create_task(work))

    async def stop_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def listening(self, number: int) -> list[Upstream]:
        """Where the nodes take requests (0) or events (1)."""
        return [Upstream("127.0.0.1", node.ports[number]) for node in self.nodes]

    def world(self, http: aiohttp.ClientSession) -> World:
        return World(self.nodes, front_at(self.fronts), self.history, self.trigger, http)

    async def round(self, number: int) -> None:
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.discard(task)
            task.result()
        chosen = plan(self.options.seed, number, self.possible)
        if self.options.faults:
            chosen = chosen._replace(fault=self.possible[number % len(self.possible)])
        struck: list[Node] = []

        def strike(server: Server | None) -> None:
            node = server if isinstance(server, Node) else self.rng.choice(self.nodes)
            struck.append(node)
            FAULTS[chosen.fault].strike(self, node)

        await asyncio.sleep(CALM_S)
        self.trigger.arm(chosen.moment, strike)
        await self.wait_for_moment(chosen.seconds if chosen.moment.kind == "time" else LONGEST_S)
        if not struck:
            self.trigger.disarm()
            strike(None)
        await FAULTS[chosen.fault].recover(self, struck[0], chosen)
        self.faults[chosen.fault] += 1

    async def recover(self) -> None:
        await all_ready(self.nodes)

    async def end(self) -> None:
        for code in await asyncio.gather(*(node.stop() for node in self.nodes)):
            if code != 0:
                self.history.find("", f"a node ended with {code}")
        for log in self.folder.glob("*.log"):
            self.check_log(log)
        await self.stop_tasks()
        await self.database.check()
