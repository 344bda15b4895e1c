"""How much later the first token comes through the gateway than directly from the LLM, with the same client.

    python -m bench.gateway [--messages 200] [--calls 200] [--at-once 16] [--chunks 20] [--pause 0.005] [--runs 2]

The LLM is a process of its own that answers at once (`bench.harness.llm`), voicemem another one on a SQLite file.
Through the gateway and `direct` the client sends the last message only; `with all` it sends the whole conversation
itself, as the gateway does for it. The three alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from openai import AsyncOpenAI

from bench.harness.report import Measured, disk_folder, machine, number, percentile, show, table
from bench.harness.servers import Server, port_of, post, serving, started
from voicemem.config.service import SQLITE_PREFIX

QUESTION = "What would that cost all together, for the number {}?"
Ways = dict[str, tuple[list[AsyncOpenAI], list[dict[str, str]]]]
FIRST_CALLS = 5
"""Requests of each kind before anything is measured."""


class Options(Struct, kw_only=True):
    messages: int
    calls: int
    at_once: int
    chunks: int
    pause: float
    runs: int


class Call(NamedTuple):
    """One request, in ms."""

    first: float
    whole: float


class Run(NamedTuple):
    way: str
    at_once: int
    calls: list[Call]
    cpu_us: float
    """CPU µs of voicemem for each request; 0 where it has no part."""


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=200, help="messages in each conversation (200)")
    parser.add_argument("--calls", type=int, default=200, help="requests in each run (200)")
    parser.add_argument("--at-once", type=int, default=16, help="requests under way at once, in the second part (16)")
    parser.add_argument("--chunks", type=int, default=20, help="chunks of an answer (20)")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds between chunks (0.005)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each kind; the better one counts (2)")
    return Options(**vars(parser.parse_args(arguments)))


def conversation(messages: int) -> list[dict[str, str]]:
    """Messages of 60 characters, the user first."""
    texts = [f"Line {number:4} of a call about two tickets to Lisbon, all right." for number in range(messages)]
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def prepare(server: Server, options: Options) -> None:
    """Make sessions with the conversation, except for its last message, which comes with each request."""
    sources = {"user": "message", "assistant": "llm"}
    for session in range(options.at_once):
        llm = {"max_history": min(1024, options.messages)}
        opening = {"session_id": f"bench-{session}", "idle_timeout": 0, "llm": llm}
        post(f"{server.rest}/v1/sessions", msgspec.json.encode(opening))
        events = [
            {"type": "message", "turn_id": place // 2 + 1, "role": role, "source": sources[role], "text": text}
            for place, (role, text) in enumerate(one.values() for one in conversation(options.messages - 1))
        ]
        told = post(f"{server.rest}/v1/sessions/bench-{session}/events", msgspec.json.encode(events))
        assert not told["errors"], told


async def call(client: AsyncOpenAI, messages: Any, chunks: int) -> Call:
    """Send one request. Raises `RuntimeError` if the answer is incomplete."""
    began, first, count = time.perf_counter(), 0.0, 0
    async for chunk in await client.chat.completions.create(model="bench", messages=messages, stream=True):
        first = first or time.perf_counter()
        count += bool(chunk.choices[0].delta.content)
    if count != chunks:
        raise RuntimeError(f"{count} chunks came instead of {chunks}.")
    return Call((first - began) * 1000, (time.perf_counter() - began) * 1000)


async def calls(options: Options, clients: list[AsyncOpenAI], before: list[dict[str, str]], count: int) -> list[Call]:
    """Send so many requests; each client has one under way at a time."""

    async def one(client: AsyncOpenAI, numbers: range) -> list[Call]:
        done = []
        for number_ in numbers:
            messages = [*before, {"role": "user", "content": QUESTION.format(number_)}]
            done.append(await call(client, messages, options.chunks))
        return done

    share = max(1, count // len(clients))
    several = await asyncio.gather(*(one(client, range(share)) for client in clients))
    return [done for some in several for done in some]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def clients_of(base_urls: Iterable[str]) -> list[AsyncOpenAI]:
    return [AsyncOpenAI(base_url=url, api_key="-") for url in base_urls]


async def measure(server: Server, llm_port: int, options: Options) -> list[Run]:
    """All runs, alternating."""
    whole = conversation(options.messages - 1)
    runs: list[Run] = []
    for at_once in dict.fromkeys((1, options.at_once)):
        direct = clients_of([f"http://127.0.0.1:{llm_port}/v1"] * at_once)
        through = clients_of(f"{server.rest}/v1/sessions/bench-{session}" for session in range(at_once))
        ways: Ways = {"direct": (direct, []), "with all": (direct, whole), "gateway": (through, [])}
        for clients, before in ways.values():
            await calls(options, clients, before, FIRST_CALLS * at_once)
        for _ in range(options.runs):
            for way, (clients, before) in ways.items():
                began = cpu_s(server.process.pid)
                done = await calls(options, clients, before, options.calls)
                used = (cpu_s(server.process.pid) - began) / len(done) * 1e6
                runs.append(Run(way, at_once, done, used if way == "gateway" else 0.0))
        for client in (*direct, *through):
            await client.close()
    return runs


# The report


def first_ms(run: Run) -> float:
    return statistics.median(one.first for one in run.calls)


def p99(times: Sequence[float]) -> float:
    return percentile([(one, 1) for one in times], 0.99)


def better(runs: Sequence[Run], way: str, at_once: int) -> Run:
    return min((run for run in runs if (run.way, run.at_once) == (way, at_once)), key=first_ms)


def measured(runs: Sequence[Run], at_once: int, name: str) -> list[Measured]:
    ours, theirs = better(runs, "gateway", at_once), better(runs, "direct", at_once)
    all_sent = better(runs, "with all", at_once)
    what = f"first token, {at_once} at once" if at_once > 1 else "first token, one call at a time"
    whole = [statistics.median(one.whole for one in run.calls) for run in (ours, theirs)]
    late = [p99([one.first for one in run.calls]) for run in (ours, theirs)]
    return [
        Measured(f"{name}_first_p50_ms", what, first_ms(ours), "ms", first_ms(theirs)),
        Measured(f"{name}_first_p99_ms", "  p99", late[0], "ms", late[1]),
        Measured(f"{name}_later_ms", "  later than directly, p50", first_ms(ours) - first_ms(theirs), "ms"),
        Measured(f"{name}_with_all_ms", "  p50 where the client sends all", first_ms(all_sent), "ms", first_ms(theirs)),
        Measured(f"{name}_whole_p50_ms", "  until [DONE], all on disk", whole[0], "ms", whole[1]),
        Measured(f"{name}_cpu_us", "  CPU of voicemem for a call", ours.cpu_us, "µs"),
    ]


def runs_table(runs: Sequence[Run]) -> str:
    heading = ("way", "at once", "calls", "first p50 ms", "first p99 ms", "whole p50 ms", "voicemem cpu µs")
    rows = []
    for run in runs:
        whole = statistics.median(one.whole for one in run.calls)
        figures = (first_ms(run), p99([one.first for one in run.calls]), whole, run.cpu_us)
        rows.append((run.way, str(run.at_once), str(len(run.calls)), *map(number, figures)))
    return table(heading, rows)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder,
        started("bench.harness.llm", str(options.chunks), str(options.pause)) as llm,
    ):
        facts = machine(Path(folder))
        port = port_of(llm)
        with serving(
            "voicemem", f"{SQLITE_PREFIX}{folder}/bench.db", "--llm-url", f"http://127.0.0.1:{port}/v1"
        ) as server:
            prepare(server, options)
            runs = asyncio.run(measure(server, port, options))
    print(f"{options.messages} messages per conversation, answers of {options.chunks} chunks,", end=" ")
    print(f"{options.pause} s apart; the better of {options.runs} counts\n")
    print(runs_table(runs), end="\n\n")
    results = measured(runs, 1, "one")
    if options.at_once > 1:
        results += measured(runs, options.at_once, "many")
    show("gateway", facts, results, options=msgspec.to_builtins(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
