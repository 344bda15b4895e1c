"""What the benches report: the machine, a table, and one line of JSON at the end."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

IN_MEMORY = ("tmpfs", "ramfs")
SYNCS = 100
TIGHT = "   "


class Goal(NamedTuple):
    """A goal, and whether a figure has reached it."""

    text: str
    reached: bool


def at_most(value: float, limit: float) -> Goal:
    return Goal(f"<= {number(limit)}", value <= limit)


def at_least(value: float, limit: float) -> Goal:
    return Goal(f">= {number(limit)}", value >= limit)


class Measured(NamedTuple):
    """One figure, with the baseline of the same run and the goal, if there are any."""

    key: str
    """Its name in the JSON line."""
    what: str
    value: float
    unit: str
    baseline: float | None = None
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline if self.baseline else None


def show(bench: str, facts: dict[str, Any], measured: Sequence[Measured], **more: Any) -> None:
    """Print the table of all figures, then everything once more as one line of JSON."""
    heading = ("what", "measured", "unit", "baseline", "ratio", "goal", "")
    print(table(heading, [cells(one) for one in measured]))
    print("  ".join(f"{name} {value};" for name, value in facts.items()))
    results = {one.key: as_json(one) for one in measured}
    print(msgspec.json.encode({"bench": bench, "machine": facts, "results": results, **more}).decode(), flush=True)


def cells(one: Measured) -> tuple[str, ...]:
    goal, verdict = (one.goal.text, "reached" if one.goal.reached else "NOT YET") if one.goal else ("", "")
    return (one.what, number(one.value), one.unit, number(one.baseline), number(one.ratio), goal, verdict)


def as_json(one: Measured) -> dict[str, Any]:
    told: dict[str, Any] = {"value": one.value, "unit": one.unit}
    if one.baseline is not None:
        told |= {"baseline": one.baseline, "ratio": one.ratio}
    if one.goal is not None:
        told |= {"goal": one.goal.text, "reached": one.goal.reached}
    return told


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with columns as wide as they need, the first aligned left and all others right."""
    lines = [tuple(heading), *(tuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        TIGHT.join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([shown[0].rstrip(), TIGHT.join("-" * width for width in widths), *map(str.rstrip, shown[1:])])


# The machine


def machine(folder: Path | None = None) -> dict[str, Any]:
    """What the figures depend on; of a folder, its file system and how long it takes to make a write durable."""
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "cpu": cpu_name(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "kernel": f"{platform.system()} {platform.release()}",
    }
    if folder is not None:
        facts |= {"filesystem": filesystem(folder), "fdatasync_ms": round(sync_ms(folder), 3)}
    return facts


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def filesystem(folder: Path) -> str:
    """The type of the file system that a folder is on, or `unknown`."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    holding = [(len(at), kind) for at, kind in mounts if folder.resolve().is_relative_to(at)]
    return max(holding)[1] if holding else "unknown"


def disk_folder() -> Path:
    """A folder for temporary files, on a disk if possible."""
    candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    return next((folder for folder in candidates if filesystem(folder) not in IN_MEMORY), candidates[0])


def sync_ms(folder: Path) -> float:
    """The median time to write 4 KiB durably."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1000


# Time


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process, which depend little on other work of the machine."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def best(work: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the fastest of several runs."""
    return min(seconds(work) for _ in range(repeats))


def percentile(samples: Sequence[tuple[float, int]], share: float) -> float:
    """The value that this share of weighted samples does not exceed; 0 of none."""
    left = share * sum(weight for _, weight in samples)
    for value, weight in sorted(samples):
        left -= weight
        if left <= 0:
            return value
    return 0.0
