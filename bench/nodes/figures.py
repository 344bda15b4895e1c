"""What runs under load say: figures beside SQLite's of the same run, and goals, of which ratios bind."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness.report import Goal, Measured, at_least, at_most
from bench.nodes.loads import ONE, SNAPSHOT, SQLITE, STANDBY, TWO, Load, Run, run
from bench.nodes.stage import database

LATENCY_GOALS = {(ONE, "p50"): 2.5, (ONE, "p99"): 2.5, (STANDBY, "p50"): 4.5, (STANDBY, "p99"): 4.5}
"""How many times SQLite's a time may be: with a standby 7 ms where 4 are without one, and 35 where 20 are."""


def run_in_turns(names: Sequence[str], load: Load, runs: int) -> list[Run]:
    """So many runs of each, alternating."""
    with database() as alone:
        if STANDBY not in names:
            return [run(name, load, alone) for _ in range(runs) for name in names]
        with database(with_standby=True) as pair:
            return [run(name, load, pair if name == STANDBY else alone) for _ in range(runs) for name in names]


def best_of(runs: Sequence[Run], name: str, by_latency: bool) -> Run:
    own = [one for one in runs if one.name == name]
    return min(own, key=lambda one: one.p99_ms if by_latency else -one.events_s)


def measure_load(connections: int, seconds: float, runs: int) -> tuple[list[Measured], list[Run]]:
    done = run_in_turns((SQLITE, ONE, TWO, SNAPSHOT), Load(connections=connections, seconds=seconds), runs)
    sqlite, one, two, held = (best_of(done, name, by_latency=False) for name in (SQLITE, ONE, TWO, SNAPSHOT))
    return [
        rate("one", "one node", one, sqlite, 0.75),
        rate("two", "two nodes, beside one", two, one, 1.2),
        rate("snapshot", "while a snapshot is held, beside one without", held, one, 0.9),
        cost("one", "one node", one, sqlite),
        cost("two", "two nodes", two, sqlite),
    ], done


def measure_short(connections: int, seconds: float, runs: int) -> tuple[list[Measured], list[Run]]:
    load = Load(connections=connections, window=2, seconds=seconds)
    done = run_in_turns((SQLITE, ONE), load, runs)
    sqlite, one = (best_of(done, name, by_latency=False) for name in (SQLITE, ONE))
    figures = rate("short", "runs of one or two events", one, sqlite)._replace(goal=at_least(one.events_s, 40_000))
    return [figures, cost("short", "runs of one or two events", one, sqlite)], done


def measure_latency(connections: int, seconds: float, runs: int) -> tuple[list[Measured], list[Run]]:
    done = run_in_turns((SQLITE, ONE, STANDBY), Load(connections=connections, rate=10.0, seconds=seconds), runs)
    sqlite = best_of(done, SQLITE, by_latency=True)
    figures = []
    for name, key in ((ONE, "one"), (STANDBY, "standby")):
        best = best_of(done, name, by_latency=True)
        for share, ours, theirs in (("p50", best.p50_ms, sqlite.p50_ms), ("p99", best.p99_ms, sqlite.p99_ms)):
            goal = within(ours, theirs, LATENCY_GOALS[name, share])
            figures.append(Measured(f"{key}_{share}_ms", f"{name}: send to ack {share}", ours, "ms", theirs, goal))
        figures.append(cost(key, name, best, sqlite))
    return figures, done


def rate(key: str, what: str, ours: Run, theirs: Run, share: float | None = None) -> Measured:
    """Events a second, and whether they are that share of the others'."""
    goal = None if share is None else beside(at_least(ours.events_s / theirs.events_s, share))
    return Measured(f"{key}_events_s", f"{what}: acknowledged", ours.events_s, "events/s", theirs.events_s, goal)


def cost(key: str, what: str, ours: Run, theirs: Run) -> Measured:
    return Measured(f"{key}_us", f"{what}: CPU of an event, all processes", ours.costs[-1], "µs", theirs.costs[-1])


def within(ours: float, theirs: float, times: float) -> Goal:
    return beside(at_most(ours / theirs if theirs else 0.0, times))


def beside(goal: Goal) -> Goal:
    """A goal for the ratio."""
    return goal._replace(text=f"{goal.text} x")
