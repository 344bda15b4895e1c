"""The benches run, print a table, and end with one line of JSON; how fast they are is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MACHINE = {"cores", "cpu", "load_before", "python", "sqlite", "kernel"}
INGEST = {"events_s", "p50_ms", "p99_ms", "server_cpu", "us_per_event", "rss_mib"}
FOLD = {
    *("check_events_s", "fold_events_s", "late_fold_us", "late_append_us", "messages_us", "messages_end_us"),
    *("context_us", "context_32_us", "idle_kib", "idle_unread_kib", "idle_restored_kib", "idle_rss_kib"),
    *("snapshot_idle_kib", "snapshot_idle_us", "restore_idle_us"),
    *("snapshot_long_kib", "snapshot_long_us", "restore_long_us"),
}


def bench(name: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
    """The lines of the table, and what the last line says."""
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    told = json.loads(last)
    assert told["bench"] == name
    return lines, told


def check_results(told: dict[str, Any], keys: set[str]) -> None:
    assert told["results"].keys() == keys
    assert all(isinstance(result["value"], (int, float)) and result["unit"] for result in told["results"].values())
    assert told["machine"].keys() >= MACHINE


@pytest.mark.parametrize("frame", ["1", "5"])
def test_ingest(frame: str) -> None:
    lines, told = bench(
        "ingest", "--connections", "3", "--seconds", "0.3", "--frame", frame, "--window", "10", "--runs", "1"
    )
    check_results(told, INGEST | {"ratio"})
    assert told["results"]["events_s"]["value"] > 0
    assert told["verified"] is True
    assert told["errors"] == []
    assert told["machine"]["filesystem"]
    assert [line.split()[-1] for line in lines if line.startswith(("bare ", "voicemem "))][:2] == ["exact", "exact"]


def test_ingest_at_a_fixed_load_in_memory() -> None:
    arguments = ["--latency", "--connections", "3", "--seconds", "0.5", "--runs", "1", "--store", "memory:"]
    _, told = bench("ingest", *arguments)
    check_results(told, INGEST)
    assert told["verified"] is True
    assert told["options"]["rate"] == 10
    assert told["options"]["store"] == "memory"


def test_ingest_leaves_nothing_behind(tmp_path: Path) -> None:
    store = tmp_path / "bench.db"
    bench("ingest", "--connections", "2", "--seconds", "0.2", "--runs", "1", "--store", f"sqlite:{store}")
    assert list(tmp_path.iterdir()) == []


def test_ingest_takes_no_file_that_is_there(tmp_path: Path) -> None:
    store = tmp_path / "calls.db"
    store.write_bytes(b"somebody's")
    command = [sys.executable, "-m", "bench.ingest", "--store", f"sqlite:{store}"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode == 2
    assert store.read_bytes() == b"somebody's"


def test_fold() -> None:
    lines, told = bench("fold", "--events", "2000", "--sessions", "10", "--turns", "20")
    check_results(told, FOLD)
    assert any(line.startswith("idle session of 20 messages") for line in lines)
    assert told["results"]["context_us"]["goal"] == "<= 100"
