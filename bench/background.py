"""What acks cost while the memory works in the background: 100,000 messages are indexed, 50 sessions are extracted.

    python -m bench.background [--messages 100000] [--extractions 50] [--connections 100] [--seconds 15] [--runs 2]

One store on a disk, prepared once. `quiet` runs have nothing else to do; before a `busy` one the file of the index is
deleted, so that the server makes it again while it serves, and once the load is on, the extractions are asked for. The
LLM is a process of its own and answers at once. Runs alternate, so that two of a kind show how much they differ anyway.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from bench.harness.load.generator import Loaded
from bench.harness.report import Measured, disk_folder, machine, number, show, table
from bench.harness.servers import Server, command, get, listening, port_of, post, raise_file_limit, started, stop
from bench.ingest import SPARE_FILES, load
from bench.ingest import Options as LoadOptions
from bench.recall import made_up_words
from voicemem.config.service import SQLITE_PREFIX
from voicemem.store.sqlite.transcript_file import INDEX_FILES

SESSION_LENGTH = 50
USERS = 170
LOAD_FIRST_S = 2.0
"""Seconds of load before extractions are asked for."""
PATIENCE_S = 300.0
EXTRACTED = b'{"memory": {"extract": {"strategy": "discrete"}}}'


class Options(Struct, kw_only=True):
    messages: int
    extractions: int
    connections: int
    rate: float
    seconds: float
    runs: int


class Run(NamedTuple):
    """One run under load; of a busy one, how long the background took, counted from the start of the server."""

    kind: str
    loaded: Loaded
    indexed_s: float | None = None
    extracted_s: float | None = None


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.background", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="messages to index (100000)")
    parser.add_argument("--extractions", type=int, default=50, help="sessions to extract in each busy run (50)")
    parser.add_argument("--connections", type=int, default=100, help="connections, each with one session (100)")
    parser.add_argument("--rate", type=float, default=10.0, help="events per second and connection (10)")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds measured, after a warm-up (15)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each kind (2)")
    return Options(**vars(parser.parse_args(arguments)))


# What is in the store


def prepare(rest: str, options: Options) -> None:
    """Sessions of 50 messages; the first ones are those to be extracted."""
    lots, words = random.Random(1), made_up_words()
    for place in range(options.messages // SESSION_LENGTH):
        name = f"said-{place}"
        opening = {"session_id": name, "user_id": f"user{place % USERS}", "idle_timeout": 0}
        post(f"{rest}/v1/sessions", msgspec.json.encode(opening))
        events = [said(turn, " ".join(lots.choices(words, k=lots.randint(3, 25)))) for turn in range(SESSION_LENGTH)]
        told = post(f"{rest}/v1/sessions/{name}/events", msgspec.json.encode(events))
        assert not told["errors"], told


def said(place: int, text: str) -> dict[str, Any]:
    role, source = (("user", "message"), ("assistant", "llm"))[place % 2]
    return {"type": "message", "turn_id": place // 2 + 1, "role": role, "source": source, "text": text}


# One run


@contextmanager
def running(store: str, llm: int) -> Iterator[Server]:
    more = ("--llm-url", f"http://127.0.0.1:{llm}/v1", "--llm-model", "bench", "--allow-address", "127.0.0.0/8")
    _, *arguments = command("voicemem", store)
    with started("voicemem", *arguments, *more) as process:
        yield listening(process, with_rest=True)
        stop(process)


def one_run(kind: str, store: str, llm: int, options: Options, place: int) -> Run:
    if kind == "busy":
        for ending in INDEX_FILES:
            Path(store.removeprefix(SQLITE_PREFIX) + ending).unlink(missing_ok=True)
    plan = LoadOptions(
        connections=options.connections,
        seconds=options.seconds,
        frame=1,
        window=1,
        rate=options.rate,
        store=store,
        runs=1,
    )
    with running(store, llm) as server:
        assert server.rest is not None
        if kind == "quiet":
            wait_for_index(server.rest)
            return Run(kind, load(server, plan, first=place * options.connections))
        background = Background(server.rest, range(place * options.extractions, (place + 1) * options.extractions))
        background.start()
        loaded = load(server, plan, first=place * options.connections)
        background.join()
        return Run(kind, loaded, background.indexed_s, background.extracted_s)


class Background(threading.Thread):
    """Asks for the extractions once the load is on, and notes when these and the index were done."""

    def __init__(self, rest: str, places: range) -> None:
        super().__init__()
        self.rest, self.names = rest, [f"said-{place}" for place in places]
        self.began = time.monotonic()
        self.indexed_s: float | None = None
        self.extracted_s: float | None = None

    def run(self) -> None:
        time.sleep(LOAD_FIRST_S)
        for name in self.names:
            post(f"{self.rest}/v1/sessions/{name}", EXTRACTED, "PATCH")
            post(f"{self.rest}/v1/sessions/{name}/memories/extract", b"")
        wait(lambda: all(is_extracted(self.rest, name) for name in self.names))
        self.extracted_s = time.monotonic() - self.began
        wait_for_index(self.rest)
        self.indexed_s = time.monotonic() - self.began


def wait_for_index(rest: str) -> None:
    query = msgspec.json.encode({"query": "nothing", "user_id": "user1", "limit": 1})
    wait(lambda: bool(post(f"{rest}/v1/memories/search", query)["complete"]))


def is_extracted(rest: str, name: str) -> bool:
    extraction = json.loads(get(f"{rest}/v1/sessions/{name}/stats"))["extraction"]
    return bool(extraction["state"] == "current" and extraction["calls"])


def wait(is_done: Callable[[], bool]) -> None:
    """Raises `RuntimeError` if it takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_done():
        if time.monotonic() > deadline:
            raise RuntimeError("The background did not get done.")
        time.sleep(0.2)


# The figures


def measured(runs: Sequence[Run]) -> list[Measured]:
    """Means of both kinds; the spread is that of the quiet runs among themselves, as a share of their mean."""
    found = []
    for key, what in (("p50_ms", "send to ack p50"), ("p99_ms", "send to ack p99")):
        quiet, busy = (values(runs, kind, key) for kind in ("quiet", "busy"))
        mean = sum(quiet) / len(quiet)
        found.append(Measured(key, what, sum(busy) / len(busy), "ms", mean))
        found.append(Measured(f"{key}_spread", "  spread of quiet runs", 100 * (max(quiet) - min(quiet)) / mean, "%"))
    return found


def values(runs: Sequence[Run], kind: str, key: str) -> list[float]:
    return [getattr(run.loaded, key) for run in runs if run.kind == kind]


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    raise_file_limit(options.connections + SPARE_FILES)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder, remembering() as llm:
        facts, store = machine(Path(folder)), f"{SQLITE_PREFIX}{folder}/bench.db"
        with running(store, llm) as server:
            assert server.rest is not None
            prepare(server.rest, options)
            wait_for_index(server.rest)
        kinds = ["quiet", "busy"] * options.runs
        runs = [one_run(kind, store, llm, options, place) for place, kind in enumerate(kinds)]
    heading = ("run", "p50 ms", "p99 ms", "events", "server cpu s", "indexed after s", "extracted after s")
    print(table(heading, [cells(run) for run in runs]), end="\n\n")
    errors = sorted({error for run in runs for error in run.loaded.errors})
    show("background", facts, measured(runs), options=msgspec.to_builtins(options), errors=errors)
    return 1 if errors else 0


def cells(run: Run) -> tuple[str, ...]:
    one = run.loaded
    figures = [one.p50_ms, one.p99_ms, one.events, one.server_cpu_s, run.indexed_s, run.extracted_s]
    return (run.kind, *map(number, figures))


@contextmanager
def remembering() -> Iterator[int]:
    """The port of an LLM that makes one memory of what it is shown."""
    with started("bench.harness.remembering_llm") as process:
        yield port_of(process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
