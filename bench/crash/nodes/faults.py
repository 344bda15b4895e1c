"""What happens in a round with several nodes, and at which moment."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bench.crash.moments import Moment, draw_moment
from bench.crash.nodes.members import LEASE_MS, Node

if TYPE_CHECKING:
    from bench.crash.nodes.run import NodesRun

LEASE_S = LEASE_MS / 1000
PARTITION_S = 5.0
CUTS, CUT_S = 3, 1.0
"""How many answers to commits a proxy drops, and how long it waits for them."""
AFTERWARDS_MS = 3_000
"""For how long after it goes on a node may still count as dead."""


class Plan(NamedTuple):
    """What happens in a round, and when."""

    fault: str
    moment: Moment
    seconds: float
    draw: float
    """In [0, 1), for whatever else a fault decides."""


class Fault(NamedTuple):
    """What happens at the moment, and what follows until all is as before."""

    weight: int
    strike: Callable[[NodesRun, Node], object]
    recover: Callable[[NodesRun, Node, Plan], Awaitable[None]]


def plan(seed: int, number: int, faults: Sequence[str]) -> Plan:
    """Drawn from the seed and the round alone, so that it can be repeated (except for the machine's scheduling)."""
    rng = random.Random(f"{seed}/round/{number}")
    fault = rng.choices(faults, [FAULTS[name].weight for name in faults])[0]
    return Plan(fault, draw_moment(rng), rng.uniform(0.05, 1.0), rng.random())


# A node dies


def kill(run: NodesRun, node: Node) -> None:
    run.kills += 1
    node.kill()


async def start_again(run: NodesRun, node: Node, chosen: Plan) -> None:
    """Half of the nodes come back only when the others have noticed."""
    await asyncio.sleep(0 if chosen.draw < 0.5 else LEASE_S * 2 * chosen.draw)
    await node.restart()


def kill_all(run: NodesRun, node: Node) -> None:
    for one in run.nodes:
        kill(run, one)


async def start_all_again(run: NodesRun, node: Node, chosen: Plan) -> None:
    with run.history.troubled("", 0):
        await asyncio.gather(*(one.restart() for one in run.nodes))


async def kill_the_next_too(run: NodesRun, node: Node, chosen: Plan) -> None:
    """The next process is killed while it starts, or soon after."""
    await node.ended()
    await node.spawn()
    await asyncio.sleep(3 * chosen.draw)
    kill(run, node)
    await node.restart()


def end(run: NodesRun, node: Node) -> None:
    node.send(signal.SIGTERM)


async def deploy(run: NodesRun, node: Node, chosen: Plan) -> None:
    """It drains, and the next one comes in its place; a third of them are killed while they drain."""
    await run.drain(node, killed=chosen.draw < 0.3)
    await node.restart()


# A node stands still


def stand_still(run: NodesRun, node: Node) -> None:
    node.stand_still()


async def go_on_soon(run: NodesRun, node: Node, chosen: Plan) -> None:
    """Before its lease is over."""
    await asyncio.sleep(0.3 * LEASE_S)
    node.go_on()


async def go_on_late(run: NodesRun, node: Node, chosen: Plan) -> None:
    """When the others have retired it."""
    with run.history.troubled(node.rest, AFTERWARDS_MS):
        await asyncio.sleep((1.3 + 1.2 * chosen.draw) * LEASE_S)
        node.go_on()


async def replace(run: NodesRun, node: Node, chosen: Plan) -> None:
    """A third node comes, and takes over what the frozen one held; then that one goes on, and the third one leaves."""
    with run.history.troubled(node.rest, AFTERWARDS_MS):
        spare = await run.add_spare()
        await asyncio.sleep(LEASE_S)
        node.go_on()
    await asyncio.sleep(chosen.seconds)
    await run.remove_spare(spare, killed=chosen.draw < 0.5)


# The way to the database, and the database


def cut(run: NodesRun, node: Node) -> None:
    node.proxy.cuts = CUTS


async def stop_cutting(run: NodesRun, node: Node, chosen: Plan) -> None:
    await asyncio.sleep(CUT_S)
    run.history.counts["cuts"] += CUTS - node.proxy.cuts
    node.proxy.cuts = 0


def part(run: NodesRun, node: Node) -> None:
    node.proxy.passing.clear()


async def join(run: NodesRun, node: Node, chosen: Plan) -> None:
    with run.history.troubled(node.rest, LEASE_MS + AFTERWARDS_MS):
        await asyncio.sleep(PARTITION_S)
        node.proxy.passing.set()


def end_backends(run: NodesRun, node: Node) -> None:
    run.later(run.database.end_backends())


async def go_on(run: NodesRun, node: Node, chosen: Plan) -> None:
    await asyncio.sleep(chosen.seconds)


def kill_postgresql(run: NodesRun, node: Node) -> None:
    assert run.cluster is not None
    run.cluster.kill()


async def start_postgresql(run: NodesRun, node: Node, chosen: Plan) -> None:
    assert run.cluster is not None
    with run.history.troubled("", LEASE_MS + 2 * AFTERWARDS_MS):
        await asyncio.sleep(chosen.seconds)
        await asyncio.to_thread(run.cluster.start_again)


def kill_primary(run: NodesRun, node: Node) -> None:
    assert run.pair is not None
    run.pair.primary.kill()


async def fail_over(run: NodesRun, node: Node, chosen: Plan) -> None:
    """The standby takes its place, and the old primary comes back as a standby."""
    assert run.pair is not None
    with run.history.troubled("", LEASE_MS + 2 * AFTERWARDS_MS):
        await asyncio.to_thread(run.pair.promote)
        await asyncio.to_thread(run.pair.rejoin)


def do_nothing(run: NodesRun, node: Node) -> None: ...


async def fail_over_behind(run: NodesRun, node: Node, chosen: Plan) -> None:
    """The standby falls behind, and waits for it are cut: such commits can be seen, and are lost by the failover."""
    assert run.pair is not None
    with run.history.troubled("", LEASE_MS + 2 * AFTERWARDS_MS), run.history.unsafe_reads():
        await asyncio.to_thread(run.pair.standby.stop, "fast")
        for _ in range(3):
            await asyncio.sleep(chosen.seconds)
            await run.database.end_backends()
        await asyncio.sleep(chosen.seconds)
        run.pair.primary.kill()
        await asyncio.to_thread(run.pair.standby.start)
        await asyncio.to_thread(run.pair.promote)
        await asyncio.to_thread(run.pair.rejoin)


FAULTS = {
    "kill": Fault(30, kill, start_again),
    "kill all": Fault(4, kill_all, start_all_again),
    "kill twice": Fault(5, kill, kill_the_next_too),
    "deploy": Fault(10, end, deploy),
    "pause": Fault(8, stand_still, go_on_soon),
    "freeze": Fault(8, stand_still, go_on_late),
    "replace": Fault(6, stand_still, replace),
    "cut": Fault(15, cut, stop_cutting),
    "partition": Fault(5, part, join),
    "backend": Fault(12, end_backends, go_on),
    "postgres": Fault(6, kill_postgresql, start_postgresql),
    "failover": Fault(10, kill_primary, fail_over),
    "failover behind": Fault(10, do_nothing, fail_over_behind),
}
NEEDS_STANDBY = frozenset({"failover", "failover behind"})
"""They happen only where they are asked for: commits wait for the standby in all rounds then."""
NEEDS_OWN_SERVER = NEEDS_STANDBY | {"postgres"}
