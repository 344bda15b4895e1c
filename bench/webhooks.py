"""From the end of a session to its webhook: one by one on an idle machine, and ten thousand at once.

    python -m bench.webhooks [--sessions 10000] [--receivers 200] [--single 50] [--turns 2] [--only one|many]

Measured with the operator's one receiver (eight requests in flight) and with many receivers of the sessions' own. The
receiver is a process of its own and verifies the signatures of a sample. The baseline is bare POSTs by aiohttp's
client: as many, of the same size, to the same receivers, with as many in flight.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from bench.harness import receiver
from bench.harness.baselines import poster
from bench.harness.load import crowd
from bench.harness.load.crowds import crowd as crowd_of
from bench.harness.load.generator import usage
from bench.harness.report import Measured, at_most, disk_folder, machine, number, percentile, show, table
from bench.harness.servers import ROOT, Server, get, raise_file_limit, serving, started
from voicemem.config.service import SQLITE_PREFIX
from voicemem.webhooks.outbox import MAX_IN_FLIGHT

GOAL_MS, GOAL_S = 100, 30
HOSTS = [f"127.0.0.{last}" for last in range(1, 9)]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SAMPLE = 10
GAP_S = 0.1
"""Pause after the end of each single session."""
WAIT_S = 300.0
CONNECTIONS = 100
SPARE_FILES = 4_000


class Options(Struct, kw_only=True):
    sessions: int
    receivers: int
    single: int
    turns: int
    only: str | None


class Run(NamedTuple):
    """Webhooks to some receivers: single ones (ms), then all at once (s), from the end of the session to arrival."""

    sender: str
    receivers: int
    single_p50_ms: float
    single_p99_ms: float
    all_s: float
    all_p50_s: float
    acked_s: float
    """Seconds until the ends themselves were acknowledged."""
    cpu_us: float
    """CPU µs of the sender for each, including the end of its session."""
    delivered: int
    repeated: int
    verified: int
    wrong: int


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000, help="sessions that end at once (10000)")
    parser.add_argument("--receivers", type=int, default=200, help="receivers of the sessions' own (200)")
    parser.add_argument("--single", type=int, default=50, help="sessions that end one by one (50)")
    parser.add_argument("--turns", type=int, default=2, help="turns of each session, two messages each (2)")
    parser.add_argument("--only", choices=["one", "many"], help="only the operator's receiver, or the sessions' own")
    return Options(**vars(parser.parse_args(arguments)))


class Receivers:
    """The receiver's process, asked over HTTP."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.urls: list[str] = json.loads(process.stdout.readline())
        self.base = self.urls[0].removesuffix("/hook")

    def report_when(self, webhook_events: int) -> receiver.Report:
        """The receiver's report, once so many different webhook events have come, or after a long wait."""
        deadline = time.monotonic() + WAIT_S
        while int(get(f"{self.base}/count")) < webhook_events and time.monotonic() < deadline:
            time.sleep(0.05)
        return msgspec.json.decode(get(f"{self.base}/report"), type=receiver.Report)


def one_run(folder: Path, count: int, options: Options) -> list[Run]:
    """Run voicemem with so many receivers (one is the operator's), then the bare POSTs."""
    plan = receiver.Plan(hosts=HOSTS, receivers=count, secret=SECRET, sample=SAMPLE)
    with started("bench.harness.receiver", msgspec.json.encode(plan).decode()) as process:
        receivers = Receivers(process)
        operators = ("--webhook-url", receivers.urls[0], "--webhook-secret", SECRET)
        more = operators if count == 1 else ("--allow-address", "127.0.0.0/8")
        with serving("voicemem", f"{SQLITE_PREFIX}{folder}/bench.db", *more) as server:
            ours, body = voicemem_run(server, receivers, options)
        plain = msgspec.structs.replace(plan, sample=0)
    with started("bench.harness.receiver", msgspec.json.encode(plain).decode()) as process:
        return [bare_run(Receivers(process), body, options), ours]


def voicemem_run(server: Server, receivers: Receivers, options: Options) -> tuple[Run, str]:
    """The run, and the body of one of the webhooks."""
    own = [{"idle_timeout": 0, "webhook": {"url": url, "secret": SECRET}} for url in receivers.urls]
    plan = crowd.Plan(
        host=server.host,
        port=server.port,
        path=server.path,
        sessions=options.sessions + options.single,
        connections=min(CONNECTIONS, options.sessions),
        turns=options.turns,
        settings=[{"idle_timeout": 0}] if len(receivers.urls) == 1 else own,
        server_pid=server.process.pid,
    )
    with crowd_of(plan) as sessions:
        single = sessions.end(options.single, GAP_S)
        alone = receivers.report_when(options.single)
        before = usage(server.process.pid).server_cpu or 0.0
        ended = sessions.end(options.sessions)
        together = receivers.report_when(options.sessions)
        cpu_s = (usage(server.process.pid).server_cpu or 0.0) - before
    run = told("voicemem", receivers, (single.sent, alone), (ended.sent, together), cpu_s)
    return run._replace(acked_s=ended.acked - min(ended.sent.values())), together.bodies[0]


def bare_run(receivers: Receivers, body: str, options: Options) -> Run:
    session = json.loads(body)["sid"]
    plan = poster.Plan(
        urls=receivers.urls[:1], posts=options.single, in_flight=1, body=body.replace(session, "SESSION"), gap=GAP_S
    )
    single = post(plan)
    alone = receivers.report_when(options.single)
    ended = post(
        msgspec.structs.replace(plan, urls=receivers.urls, posts=options.sessions, in_flight=MAX_IN_FLIGHT, gap=0.0)
    )
    together = receivers.report_when(options.sessions)
    return told("bare", receivers, (single.sent, alone), (ended.sent, together), ended.cpu_s)


def post(plan: poster.Plan) -> poster.Posted:
    done = subprocess.run(
        [sys.executable, "-m", "bench.harness.baselines.poster"],
        cwd=ROOT,
        input=msgspec.json.encode(plan),
        stdout=subprocess.PIPE,
        timeout=WAIT_S,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=poster.Posted)


Measurement = tuple[dict[str, float], receiver.Report]


def told(sender: str, receivers: Receivers, single: Measurement, together: Measurement, cpu_s: float) -> Run:
    """The figures of the single sessions, and of all that ended at once."""
    alone = waits(*single)
    sent, report = together
    begin = min(sent.values())
    arrivals = [(at - begin, 1) for at in report.arrived.values()]
    return Run(
        sender=sender,
        receivers=len(receivers.urls),
        single_p50_ms=percentile(alone, 0.5) * 1000,
        single_p99_ms=percentile(alone, 0.99) * 1000,
        all_s=max(arrivals)[0],
        all_p50_s=percentile(arrivals, 0.5),
        acked_s=0.0,
        cpu_us=cpu_s / max(1, len(arrivals)) * 1e6,
        delivered=len(report.arrived.keys() & sent.keys()),
        repeated=report.requests - report.webhook_events,
        verified=single[1].verified + report.verified,
        wrong=single[1].wrong + report.wrong,
    )


def waits(sent: dict[str, float], report: receiver.Report) -> list[tuple[float, int]]:
    return [(report.arrived[session] - at, 1) for session, at in sent.items() if session in report.arrived]


def measured(bare: Run, ours: Run, options: Options) -> list[Measured]:
    one = ours.receivers == 1
    name, what = ("one", "one receiver") if one else ("many", f"{ours.receivers} receivers")
    whole = options.sessions == 10_000
    p50, last = ours.single_p50_ms, ours.all_s
    all_goal = at_most(last, GOAL_S) if whole else None
    return [
        Measured(
            f"{name}_p50_ms", f"end to webhook, {what}, p50", p50, "ms", bare.single_p50_ms, at_most(p50, GOAL_MS)
        ),
        Measured(f"{name}_p99_ms", "  p99", ours.single_p99_ms, "ms", bare.single_p99_ms),
        Measured(f"{name}_all_s", f"  {options.sessions:,} at once, the last", last, "s", bare.all_s, all_goal),
        Measured(f"{name}_all_p50_s", "  half of them", ours.all_p50_s, "s", bare.all_p50_s),
        Measured(f"{name}_s", "  webhooks a second", ours.delivered / last, "/s", bare.delivered / bare.all_s),
        Measured(f"{name}_cpu_us", "  CPU of one", ours.cpu_us, "µs", bare.cpu_us),
        Measured(f"{name}_acked_s", "  the ends acknowledged", ours.acked_s, "s"),
    ]


def runs_table(runs: Sequence[Run]) -> str:
    heading = ("sender", *(name.replace("_", " ") for name in Run._fields[1:]))
    return table(heading, [(sender, *map(number, figures)) for sender, *figures in runs])


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    raise_file_limit(SPARE_FILES + 2 * MAX_IN_FLIGHT * options.receivers)
    counts = [1] * (options.only != "many") + [options.receivers] * (options.only != "one")
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        facts = machine(Path(folder))
        for count in counts:
            runs += one_run(Path(folder), count, options)
    print(
        f"{options.single} sessions one by one, then {options.sessions:,} at once, {2 * options.turns} messages each\n"
    )
    print(runs_table(runs), end="\n\n")
    whole = all(run.delivered == options.sessions and not run.wrong for run in runs)
    results = [one for bare, ours in zip(runs[::2], runs[1::2], strict=True) for one in measured(bare, ours, options)]
    show("webhooks", facts, results, options=msgspec.to_builtins(options), verified=whole)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
