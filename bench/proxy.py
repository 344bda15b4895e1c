"""What the proxy adds to a frame's way, and what it costs: callers, proxy, vendor and memory as processes of their own.

    python -m bench.proxy [--seconds 10] [--runs 3] [--calls 20] [--many 100]

Delays are of frames from the vendor to the caller while both sides send 40 frames of audio a second on each of 20
calls. The baseline is the same without the proxy, in turns with it. The share of a core is CPU time of the proxy, its
handshakes included, over the time for which 100 calls of 24 kHz audio last, at 25 frames a second each way.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.harness.audio_calls import WARM_UP_S
from bench.harness.report import Measured, at_most, machine, show
from bench.harness.servers import serving, started

DIALECT = "openai-realtime"
CALLS = "bench.harness.audio_calls"
MAX_P50_MS, MAX_P99_MS, MAX_SHARE = 0.3, 5.0, 1.0
RATE, RATE_OF_MANY = 40.0, 25.0
TICKS = os.sysconf("SC_CLK_TCK")


class Run(NamedTuple):
    """What one run has shown."""

    delays_us: list[int]
    cpu_s: float
    """Of the proxy; 0 without it."""

    def quantile_ms(self, share: float) -> float:
        return self.delays_us[min(len(self.delays_us) - 1, int(share * len(self.delays_us)))] / 1_000


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def callers(url: str, calls: int, rate: float, seconds: float, pid: int | None) -> Run:
    """Let all calls be made, and wait until they are over."""
    spent = cpu_s(pid) if pid else 0.0
    arguments = ("--calls", str(calls), "--rate", str(rate), "--seconds", str(seconds))
    with started(CALLS, "callers", "--url", url, *arguments) as process:
        told, _ = process.communicate(timeout=seconds * 10 + 120)
    spent = cpu_s(pid) - spent if pid else 0.0
    return Run(msgspec.json.decode(told)["delays_us"], spent)


@contextmanager
def vendor(rate: float) -> Iterator[str]:
    """The URL of a vendor."""
    with started(CALLS, "vendor", "--rate", str(rate)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield f"ws://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()
        process.stdin = None
        process.wait(10)


@contextmanager
def proxy(upstream: str, ingest: str, rest: str) -> Iterator[tuple[str, int]]:
    """Where calls go, and the proxy's process."""
    addresses = ("--ingest-url", ingest, "--url", rest, "--listen", "127.0.0.1:0")
    with started("voicemem", "proxy", "--upstream", f"{DIALECT}={upstream}", *addresses) as process:
        assert process.stdout is not None
        line = ""
        while "->" not in line:
            line = process.stdout.readline()
        yield line.split()[0], process.pid


def in_turns(rate: float, calls: int, seconds: float, runs: int, ingest: str, rest: str) -> tuple[list[Run], list[Run]]:
    """Runs without the proxy and with it."""
    direct, proxied = [], []
    with vendor(rate) as url, proxy(url, ingest, rest) as (through, pid):
        for _ in range(runs):
            direct.append(callers(url, calls, rate, seconds, None))
            proxied.append(callers(through, calls, rate, seconds, pid))
    return direct, proxied


def best(runs: list[Run], share: float) -> float:
    """Of the run that other work on the machine has disturbed least."""
    return min(run.quantile_ms(share) for run in runs)


def measure(calls: int, many: int, seconds: float, runs: int) -> list[Measured]:
    measured = []
    with serving("voicemem", "memory:") as server:
        ingest, rest = f"ws://{server.host}:{server.port}", str(server.rest)
        direct, proxied = in_turns(RATE, calls, seconds, runs, ingest, rest)
        for name, share, limit in (("p50", 0.5, MAX_P50_MS), ("p99", 0.99, MAX_P99_MS)):
            without, through = best(direct, share), best(proxied, share)
            added = through - without
            what = f"added to a frame at {calls} calls x {RATE:g}/s, {name}"
            measured.append(Measured(f"added_{name}_ms", what, added, "ms", without, at_most(added, limit)))
        _, loaded = in_turns(RATE_OF_MANY, many, seconds, 1, ingest, rest)
    expected = many * RATE_OF_MANY * seconds
    share = loaded[0].cpu_s / (seconds + WARM_UP_S)
    frames = len(loaded[0].delays_us) / expected
    return [
        *measured,
        Measured("core_share", f"of {many} calls of 24 kHz audio", share, "cores", None, at_most(share, MAX_SHARE)),
        Measured("arrived_share", "of their frames that came in time", frames, "of 1"),
        Measured("many_p99_ms", "from vendor to caller among them, p99", loaded[0].quantile_ms(0.99), "ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20, help="calls whose frames are timed")
    parser.add_argument("--many", type=int, default=100, help="calls that the proxy is to carry on a core")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run, after a second to warm up")
    parser.add_argument("--runs", type=int, default=3, help="runs with and without the proxy; the best of each counts")
    chosen = parser.parse_args()
    facts = machine()
    measured = measure(chosen.calls, chosen.many, chosen.seconds, chosen.runs)
    show("proxy", facts, measured, load_after=round(os.getloadavg()[0], 2))


if __name__ == "__main__":
    main()
