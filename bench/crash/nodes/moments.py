"""What happens in a round with several nodes, and at which moment."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bench.crash.nodes.members import Node

if TYPE_CHECKING:
    from bench.crash.nodes.run import NodesRun

MOMENTS = {
    "time": 30,
    "acknowledged": 20,
    "end sent": 10,
    "end acknowledged": 10,
    "webhook arrived": 8,
    "webhook answered": 12,
    "opened": 4,
}


class Plan(NamedTuple):
    """What happens in a round, and when."""

    fault: str
    moment: str
    times: int
    """How many moments of this kind to wait for."""
    seconds: float
    draw: float
    """In [0, 1), for whatever else a fault decides."""


class Fault(NamedTuple):
    """What happens at the moment, and what follows until all is as before."""

    weight: int
    strike: Callable[[NodesRun, Node], None]
    recover: Callable[[NodesRun, Node, Plan], Awaitable[None]]


def plan(seed: int, number: int, faults: Sequence[str]) -> Plan:
    """Drawn from the seed and the round alone, so that it can be repeated (except for the machine's scheduling)."""
    rng = random.Random(f"{seed}/round/{number}")
    fault = rng.choices(faults, [FAULTS[name].weight for name in faults])[0]
    moment = rng.choices([*MOMENTS], [*MOMENTS.values()])[0]
    times = rng.choice([1, 10, 100, 300] if moment == "acknowledged" else [1, 2, 4])
    return Plan(fault, moment, times, rng.uniform(0.05, 1.0), rng.random())


def kill(run: NodesRun, node: Node) -> None:
    node.kill()


async def start_again(run: NodesRun, node: Node, chosen: Plan) -> None:
    run.kills += 1
    await node.restart()


FAULTS = {
    "kill": Fault(30, kill, start_again),
}
