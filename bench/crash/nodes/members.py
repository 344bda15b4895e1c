"""The nodes of a run, each a process of its own that reaches the database through a proxy of its own."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bench.crash.nodes.proxy import Proxy
from bench.crash.nodes.upstream import upstream_of, url_through
from bench.crash.receiver import SECRET
from bench.crash.server import Place, Server, free_ports
from bench.harness.servers import ROOT

LEASE_MS = 3_000
"""A tenth of it is the time between two heartbeats; both are three tenths of what they are otherwise."""
SKEWS_MS = (0, 300_000, -300_000)
ENTRY = Path(__file__).with_name("node.py")


class Node(Server):
    """A node; each of its processes has a clock that is wrong in another way."""

    def __init__(self, place: Place, proxy: Proxy, webhook_url: str) -> None:
        super().__init__(place, webhook_url, SECRET)
        self.proxy = proxy
        self.plant: str | None = None
        self.older: Path | None = None

    async def spawn(self) -> None:
        ahead_ms = random.choice(SKEWS_MS)
        options = ["--lease-ms", str(LEASE_MS), "--ahead-ms", str(ahead_ms)]
        if self.plant is not None:
            options += ["--plant", self.plant]
        self.folder = ROOT if self.older is None or random.random() < 0.5 else self.older
        self.program = [sys.executable, "-P", str(ENTRY), *options]
        await super().spawn()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def stand_still(self) -> None:
        """Stop it in the midst of what it does."""
        self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.send(signal.SIGCONT)

    async def restart(self) -> bool:
        """Start the next process once the last one has ended; False if that is killed while it starts."""
        if self.process is not None:
            await self.ended()
        await self.spawn()
        return await self.ready()


def unpack(commit: str, folder: Path) -> Path:
    """The program as it was at a commit."""
    folder.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=packed)
    return folder


async def make_node(
    stack: AsyncExitStack,
    url: str,
    number: int,
    folder: Path,
    webhook_url: str,
    find_server: Callable[[], str],
    own_options: str = "",
) -> Node:
    """A node that does not run yet, with a proxy that does, to the server whose URL `find_server` returns.

    `own_options` are added to its own URL.
    """
    rest, ingest, proxied = free_ports(3, random.Random())
    proxy = Proxy(proxied, lambda: [upstream_of(find_server())])
    await proxy.start()
    stack.push_async_callback(proxy.stop)
    place = Place((rest, ingest), url_through(url, proxied) + own_options, folder / f"node-{number}.log")
    node = Node(place, proxy, webhook_url)
    stack.callback(node.kill)
    return node


async def all_ready(nodes: list[Node]) -> None:
    """Start those that do not run."""
    down = [node for node in nodes if not node.is_running]
    for node in down:
        await node.spawn()
    await asyncio.gather(*(node.ready() for node in down))
