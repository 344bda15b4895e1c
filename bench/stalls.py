"""The causes of a late event loop: the functions that ran whenever it was late, with many calls and background work.

    python -m bench.stalls [--sessions 10000] [--connections 1000] [--lost 1000] [--rate 3000] [--seconds 15]
                           [--late 4] [--losses 3]

Sessions are open on some connections, and single events come at a steady rate while messages are indexed, calls that
have ended are erased (`ttl_seconds`), and metrics and a search are read every second. Then further connections, each
with a session of its own, are lost at once while the others continue. The acks of one more call are watched by a
process of its own, the victim; the baseline of its figures is the bare loop under the same load with the same losses.
The service runs with `bench.harness.stalling`, which costs it some percent. A loop is also late where it gets no
processor; on Linux that is told apart, so run it on a quiet machine, or look at what remains without it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.error
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from bench.harness.load.crowd import Paced, Plan
from bench.harness.load.crowds import Crowd, crowd, victim
from bench.harness.report import Measured, at_most, disk_folder, machine, number, percentile, show, table
from bench.harness.servers import Server, command, get, listening, post, raise_file_limit, serving, started, stop
from bench.harness.stalling import Stall

SPARE_FILES = 1_000
LAG_MS, HELD_MS = 5.0, 20.0
SETTLED_S = 3.0
"""After filling, until the measurement."""
ERASED = 500
"""Calls that end before, and are erased during the measurement."""
PHASES = ("filling", "steady", "lost connections", "stopping")
STALLS = "stalls"


class Options(Struct, kw_only=True):
    sessions: int
    connections: int
    lost: int
    rate: float
    seconds: float
    late: float
    losses: int


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000, help="open sessions (10000)")
    parser.add_argument("--connections", type=int, default=1_000, help="connections that share them (1000)")
    parser.add_argument("--lost", type=int, default=1_000, help="connections that are lost at once (1000)")
    parser.add_argument("--rate", type=float, default=3_000.0, help="events a second, all sessions together (3000)")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each phase (15)")
    parser.add_argument("--late", type=float, default=4.0, help="ms after which a stack is taken (4)")
    parser.add_argument("--losses", type=int, default=3, help="how often so many are lost (3)")
    return Options(**vars(parser.parse_args(arguments)))


# The service, and what it has to do


@contextlib.contextmanager
def watched(folder: Path, options: Options) -> Iterator[Server]:
    _, *arguments = command("voicemem", f"sqlite:{folder}/bench.db")
    with started("bench.harness.stalling", f"{folder}/{STALLS}", str(options.late), *arguments) as process:
        yield listening(process, with_rest=True)
        stop(process)


def plan(server: Server, name: str, sessions: int, connections: int, **more: Any) -> Plan:
    return Plan(
        host=server.host,
        port=server.port,
        path=server.path,
        sessions=sessions,
        connections=connections,
        turns=1,
        name=name,
        server_pid=server.process.pid,
        **({"settings": [{"idle_timeout": 0, "user_id": f"user{n}"} for n in range(170)]} | more),
    )


class Readers:
    """Metrics and a search, once a second, until they are stopped."""

    def __init__(self, rest: str) -> None:
        self.rest = rest
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        question = msgspec.json.encode({"query": "three nights with breakfast and parking", "user_id": "user7"})
        while not self.stopped.wait(1.0):
            with contextlib.suppress(urllib.error.URLError):
                get(f"{self.rest}/metrics")
                post(f"{self.rest}/v1/memories/search", question)

    def __enter__(self) -> Readers:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()


class Seen(NamedTuple):
    """Acks while nothing is lost and while connections are: those of the crowd that stays, and the victim's."""

    steady: Paced
    lost: list[Paced]
    """For each loss, as below."""
    victim_steady: list[float]
    """In ms, as below."""
    victim_lost: list[list[float]]


def measure(folder: Path, options: Options) -> tuple[Seen, float]:
    """What was seen, and the lag of the loop in the steady phase, as the service itself measures it."""
    found: list[dict[float, float]] = []
    with watched(folder, options) as server, contextlib.ExitStack() as stack:
        assert server.rest is not None
        rest = server.rest
        gone = plan(server, "gone", ERASED, 10, settings=[{"ttl_seconds": int(options.seconds)}])
        with crowd(gone) as ending:
            ending.end(ERASED)
        stack.enter_context(Readers(rest))

        def begin_phase() -> None:
            server.process.send_signal(signal.SIGUSR1)
            found.append(lags(rest))

        seen = phases(server, options, options.sessions, begin_phase)
        return seen, percentile_of(found[0], found[1], 0.999)


def bare(folder: Path, options: Options) -> Seen:
    """The same with the bare loop, which has no sessions: each connection counts as one."""
    with serving("bare", f"sqlite:{folder}/bare.db") as server:
        return phases(server, options, options.connections)


def phases(server: Server, options: Options, sessions: int, begin_phase: Callable[[], None] = lambda: None) -> Seen:
    """Sessions that stay, and others that are lost."""
    with contextlib.ExitStack() as stack:
        staying = stack.enter_context(crowd(plan(server, "bench", sessions, options.connections)))
        losing = [
            stack.enter_context(crowd(plan(server, f"lost{number}", options.lost, options.lost)))
            for number in range(options.losses)
        ]
        watching = stack.enter_context(victim(server.host, server.port, server.path))
        time.sleep(SETTLED_S)
        begin_phase()
        times = [time.monotonic()]
        steady, lost = staying.pace(options.seconds, options.rate), []
        begin_phase()
        for crowd_lost in losing:
            times.append(time.monotonic())
            lost.append(paced_while_lost(staying, crowd_lost, options))
        times.append(time.monotonic())
        begin_phase()
        acks = watching.acks()
    windows = [[ack.ms for ack in acks if since <= ack.sent_s < until] for since, until in itertools.pairwise(times)]
    return Seen(steady, lost, windows[0], windows[1:])


def paced_while_lost(staying: Crowd, losing: Crowd, options: Options) -> Paced:
    seconds = options.seconds / 3
    staying.say(f"rate {seconds} {options.rate}")
    time.sleep(seconds / 3)
    losing.process.kill()
    return staying.hear(Paced)


def lags(rest: str) -> dict[float, float]:
    """The service's histogram of its loop's lag."""
    found = re.findall(
        r'^voicemem_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)', get(f"{rest}/metrics").decode(), re.M
    )
    return {float(bound): float(count) for bound, count in found}


def percentile_of(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """The bound in ms below which this share is."""
    total = after[float("inf")] - before[float("inf")]
    return next(bound for bound in after if after[bound] - before[bound] >= share * total) * 1000


# What ran


def stalls(folder: Path) -> list[Stall]:
    return [msgspec.json.decode(line, type=Stall) for line in (folder / STALLS).read_bytes().splitlines()]


def name_of(stall: Stall) -> str:
    others = (
        f"; other threads: {', '.join(stall.others)}" if stall.others and not stall.ran.startswith("voicemem") else ""
    )
    return stall.ran + others


def stalls_table(found: Sequence[Stall]) -> str:
    by_name: dict[tuple[int, str], list[Stall]] = defaultdict(list)
    for stall in found:
        by_name[stall.phase, name_of(stall)].append(stall)
    rows = []
    for (phase, name), those in by_name.items():
        ms, own_ms = [one.ms for one in those], [one.own_ms for one in those]
        figures = sum(ms), max(ms), max(own_ms), sum(one.unscheduled_ms for one in those)
        rows.append((phase, -sum(ms), [str(len(ms)), *map(number, figures), name]))
    return table(
        ("phase", "stalls", "ms in all", "longest", "own work", "no processor", "what ran"),
        [(PHASES[phase], *cells) for phase, _, cells in sorted(rows)],
    )


def measured(found: Sequence[Stall], seen: Seen, beside: Seen, lag_ms: float) -> list[Measured]:
    loop = [stall for stall in found if not stall.ran.startswith("commit")]
    steady, lost = (sorted(stall.ms for stall in loop if stall.phase == phase) for phase in (1, 2))
    own = [max((stall.own_ms for stall in loop if stall.phase == phase), default=0.0) for phase in (1, 2)]
    ours = sorted(stall.ms - stall.unscheduled_ms for stall in loop if stall.phase == 1)
    wake_ups = max((stall.wake_ups for stall in found if stall.phase == 1), default=0)
    held, bare_held = (median(max(one, default=0.0) for one in run.victim_lost) for run in (seen, beside))
    return [
        Measured("lag_p999_ms", "lag of the loop, p99.9, as in /metrics", lag_ms, "ms", None, at_most(lag_ms, LAG_MS)),
        Measured(
            "late_p999_ms",
            "wake-ups every ms: p99.9 (0: below --late)",
            (late := late_p999(steady, wake_ups)),
            "ms",
            None,
            at_most(late, LAG_MS),
        ),
        Measured("ours_p999_ms", "  without what it waited for a processor", late_p999(ours, wake_ups), "ms"),
        Measured("late_worst_ms", "  the longest", max(steady, default=0.0), "ms"),
        Measured("late_own_ms", "  the longest work of its own", own[0], "ms"),
        Measured("steady_p99_ms", "acks, p99", seen.steady.p99_ms, "ms", beside.steady.p99_ms),
        Measured("generator_late_ms", "  how late the generator itself was, p99", seen.steady.late_p99_ms, "ms"),
        Measured("steady_worst_ms", "  the longest", seen.steady.worst_ms, "ms", beside.steady.worst_ms),
        *(
            Measured(f"victim_{key}_ms", f"the victim's acks, {name}", at(seen), "ms", at(beside))
            for key, name, at in (
                ("p99", "p99", partial(victim_at, 0.99)),
                ("p999", "p99.9", partial(victim_at, 0.999)),
                ("worst", "the longest", partial(victim_at, 1.0)),
            )
        ),
        Measured("lost_late_ms", "while connections are lost: the longest stall", max(lost, default=0.0), "ms"),
        Measured("lost_own_ms", "  the longest work of its own", own[1], "ms"),
        Measured("lost_p99_ms", "  acks, p99", median(one.p99_ms for one in seen.lost), "ms"),
        Measured("lost_worst_ms", "  the longest", median(one.worst_ms for one in seen.lost), "ms"),
        Measured("held_ms", "  the victim's longest", held, "ms", bare_held, at_most(held, HELD_MS)),
    ]


def late_p999(late: Sequence[float], wake_ups: int) -> float:
    """The p99.9 of so many wake-ups, of which these were late; 0 where it was not."""
    longest = late[-(wake_ups // 1000 + 1) :]
    return max(0.0, longest[0]) if len(longest) > wake_ups // 1000 else 0.0


def victim_at(share: float, seen: Seen) -> float:
    return percentile([(ms, 1) for ms in seen.victim_steady], share)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    raise_file_limit(2 * (options.connections + options.losses * options.lost) + SPARE_FILES)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as name:
        folder = Path(name)
        beside = bare(folder, options)
        seen, lag_ms = measure(folder, options)
        found = stalls(folder)
        print(stalls_table(found), end="\n\n")
        show("stalls", machine(folder), measured(found, seen, beside, lag_ms), options=msgspec.to_builtins(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
