"""Reading a memory over HTTP, compared with aiohttp answering the same bytes from a constant.

    python -m bench.history [--turns 100] [--connections 16] [--seconds 2] [--runs 2] [--only NAME]

Each server is a process of its own, and so is the load: connections that are kept alive, each with a session of its
own, which send their next request when the last was answered.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from bench.harness.baselines.constant import Constant
from bench.harness.load import calls
from bench.harness.load.readers import Ingest, Plan, Read
from bench.harness.report import Goal, Measured, disk_folder, machine, number, show, table
from bench.harness.servers import ROOT, Server, port_of, post, serving, started
from voicemem.config.service import SQLITE_PREFIX

GOALS = {"history": 0.8, "standard": 0.8, "context": 0.5, "not_modified": 0.9}
"""Of the constant's reads per second, by question."""
SPARE_S = 60.0
CHUNK = 4_000
"""Events per request."""
CHANGING = "changing"


class Question(NamedTuple):
    """What is asked of a session, and the status of a right answer; `known` sends the ETag of the last answer."""

    name: str
    what: str
    path: str
    status: int = 200
    known: bool = False


QUESTIONS = (
    Question("history", "history, all of it", "history"),
    Question("limit_20", "history, the newest 20", "history?limit=20"),
    Question("standard", "history, role and content", "history?fields=standard"),
    Question("context", "context of the next LLM call", "context?max_history=200"),
    Question("not_modified", "history, unchanged (304)", "history", 304, known=True),
    Question(CHANGING, "history, an event before each read", "history"),
)


class Options(Struct, kw_only=True):
    turns: int
    connections: int
    seconds: float
    runs: int
    only: str | None


class Run(NamedTuple):
    question: Question
    server: str
    read: Read


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=100, help="turns of each session, two messages each (100)")
    parser.add_argument("--connections", type=int, default=16, help="connections, each with its own session (16)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds measured, after a warm-up (2)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each server and question; the better counts (2)")
    parser.add_argument("--only", choices=[one.name for one in QUESTIONS], help="measure one question only")
    return Options(**vars(parser.parse_args(arguments)))


# The sessions


def prepare(server: Server, options: Options) -> None:
    """Store the same call in all sessions, and read each once: the first read folds everything."""
    events = calls.turns(options.turns)
    for session in range(options.connections):
        opening = {"session_id": f"bench-{session}", "idle_timeout": 0}
        post(f"{server.rest}/v1/sessions", msgspec.json.encode(opening))
        for begin in range(0, len(events), CHUNK):
            body = b"\n".join(events[begin : begin + CHUNK])
            told = post(f"{server.rest}/v1/sessions/bench-{session}/events", body)
            assert not told["errors"], told
        ask(server, QUESTIONS[0], session)


def changed(turns: int) -> str:
    """The caller's last words, corrected by every event; `{seq}` stands for its number."""
    event = {
        "type": "asr",
        "turn_id": turns,
        "item": f"user-{turns}",
        "text": "What would that cost all together, for the number {seq}.",
        "final": True,
        "user": "caller",
    }
    return json.dumps(event)[:-1] + ', "seq": {seq}}'


def ask(server: Server, question: Question, session: int, etag: str = "") -> Constant:
    """voicemem's answer, for the constant server to repeat."""
    connection = http.client.HTTPConnection(server.host, rest_port(server))
    with contextlib.closing(connection):
        headers = {"If-None-Match": etag} if etag else {}
        connection.request("GET", f"/v1/sessions/bench-{session}/{question.path}", headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
    return Constant(name=question.name, status=answer.status, etag=answer.headers.get("ETag", ""), body=body)


def rest_port(server: Server) -> int:
    return int((server.rest or "").rpartition(":")[2])


# The load


def read(plan: Plan) -> Read:
    done = subprocess.run(
        [sys.executable, "-m", "bench.harness.load.readers", msgspec.json.encode(plan).decode()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=plan.seconds + SPARE_S,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Read)


def our_plan(server: Server, question: Question, options: Options) -> Plan:
    tags = [ask(server, question, session).etag for session in range(options.connections)] if question.known else []
    changing = question.name == CHANGING
    return Plan(
        port=rest_port(server),
        path=f"/v1/sessions/bench-{{number}}/{question.path}",
        status=question.status,
        headers=[f"If-None-Match: {tag}\r\n" for tag in tags],
        connections=options.connections,
        seconds=options.seconds,
        warm_up=min(0.5, options.seconds / 4),
        server_pid=server.process.pid,
        changing=Ingest(server.host, server.port, server.path) if changing else None,
        changed=changed(options.turns),
    )


def constant_plan(ours: Plan, question: Question, port: int, pid: int) -> Plan:
    """The same load on the constant, which never changes."""
    path = f"/{question.name}/bench-{{number}}"
    return msgspec.structs.replace(ours, port=port, path=path, server_pid=pid, changing=None)


def measure(store: str, options: Options) -> tuple[list[Run], bool]:
    """All runs, and whether a history had all its messages."""
    questions = [one for one in QUESTIONS if options.only in (None, one.name)]
    runs: list[Run] = []
    with serving("voicemem", store) as server:
        prepare(server, options)
        asked = [(one, ask(server, one, 0)) for one in QUESTIONS]
        answers = [ask(server, one, 0, first.etag) if one.known else first for one, first in asked]
        whole = len(json.loads(asked[0][1].body)["contents"]) == 2 * options.turns
        with started("bench.harness.baselines.constant", told=msgspec.json.encode(answers).decode()) as constant:
            port = port_of(constant)
            for question in questions:
                ours = our_plan(server, question, options)
                for _ in range(options.runs):
                    runs.append(Run(question, "constant", read(constant_plan(ours, question, port, constant.pid))))
                    runs.append(Run(question, "voicemem", read(ours)))
    return runs, whole


# The report


def rate(run: Run) -> float:
    return run.read.requests / run.read.seconds


def cpu_us(run: Run) -> float:
    return run.read.server_cpu_s / max(1, run.read.requests) * 1e6


def measured(runs: Sequence[Run], question: Question) -> list[Measured]:
    own = [run for run in runs if run.question == question]
    ours, theirs = (max((run for run in own if run.server == name), key=rate) for name in ("voicemem", "constant"))
    name, ratio = question.name, rate(ours) / rate(theirs)
    least = GOALS.get(name)
    goal = None if least is None else Goal(f"ratio >= {least}", ratio >= least)
    return [
        Measured(f"{name}_s", question.what, rate(ours), "reads/s", rate(theirs), goal),
        Measured(f"{name}_p50_ms", "  p50", ours.read.p50_ms, "ms", theirs.read.p50_ms),
        Measured(f"{name}_p99_ms", "  p99", ours.read.p99_ms, "ms", theirs.read.p99_ms),
        Measured(f"{name}_cpu_us", "  server CPU of a read", cpu_us(ours), "µs", cpu_us(theirs)),
    ]


def runs_table(runs: Sequence[Run]) -> str:
    heading = ("question", "server", "reads/s", "p50 ms", "p99 ms", "server cpu s", "bytes")
    rows = []
    for question, server, told in runs:
        figures = [told.requests / told.seconds, told.p50_ms, told.p99_ms, told.server_cpu_s, told.body_bytes]
        rows.append((question.name, server, *map(number, figures)))
    return table(heading, rows)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        facts = machine(Path(folder))
        runs, whole = measure(f"{SQLITE_PREFIX}{folder}/bench.db", options)
    print(f"{options.connections} connections, {2 * options.turns} messages per session,", end=" ")
    print(f"{options.seconds} s; the better of {options.runs} counts\n")
    print(runs_table(runs), end="\n\n")
    errors = sorted({error for run in runs for error in run.read.errors})
    questions = dict.fromkeys(run.question for run in runs)
    results = [one for question in questions for one in measured(runs, question)]
    show("history", facts, results, options=msgspec.to_builtins(options), verified=whole, errors=errors)
    return 0 if whole and not errors else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
