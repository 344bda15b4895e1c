"""The body of the next LLM request under each context policy, in process, compared with writing all messages by hand.

    python -m bench.contexts [--turns 100,10000] [--calls 100] [--live 1000] [--rate 10000] [--seconds 5]

Before each context an event is folded, as during a call: this measures what a client waits for. Then over
HTTP, one request after the other, while `--live` sessions stream, compared with the same while none does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

from bench.harness.folding import entries
from bench.harness.load import calls
from bench.harness.load.crowd import Paced, Plan
from bench.harness.load.crowds import crowd
from bench.harness.report import Measured, at_most, best, disk_folder, machine, percentile, show
from bench.harness.servers import Server, serving
from voicemem.config.context import ContextConfig, RecallConfig
from voicemem.config.service import SQLITE_PREFIX
from voicemem.config.session import validate_config
from voicemem.context.builder import ContextOptions, render_body, select_context
from voicemem.context.policy_registry import Policies
from voicemem.context.recall import Recall
from voicemem.llm.tokens import counter
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.records import MemoryDraft
from voicemem.protocol.codec import decode_journaled
from voicemem.runtime import now_ms
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.port import Store
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.transcript.fold import DecodedRow

POLICIES = (
    ("none", ContextConfig()),
    ("recent", ContextConfig(policy="recent", max_messages=200)),
    ("full", ContextConfig(policy="full")),
    ("window", ContextConfig(policy="window", max_tokens=4000)),
    ("priority", ContextConfig(policy="priority", max_messages=32)),
    ("summary", ContextConfig(policy="summary", max_tokens=16_000)),
)
GOAL_US = 100
WITH_GOAL = ("recent", "full")
"""The goal is for a context of 200 messages."""
LIVE_CONNECTIONS, LIVE_TURNS = 100, 20
KNOWN, KNOWN_CONTEXTS = 500, 100
"""Memories that a user has, and contexts with them."""
THINGS = ("table", "chair", "lamp", "bed", "shelf", "desk", "sofa", "rug", "mirror", "clock")
"""What the memories are about: the caller's words find one in ten of them."""
KNOWN_GOAL_US = 5_000
"""More than without them."""
PAUSE_S = 0.005
SUMMARY = b'{"type":"memory.summary","through_turn":%d,"text":"They spoke of a booking.","messages":%d}'


def written_by_hand(read_model: ReadModel) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in read_model.current_messages()]


async def contexts(turns: int, count: int) -> list[Measured]:
    """Measure each policy on a call of so many turns, two messages each."""
    store = InMemoryStore()
    measured = []
    try:
        opened = await store.journal.open_producer(
            "bench", f"call-{turns}", "main", validate_config({}), None, now_ms()
        )
        for name, wanted in POLICIES:
            read_models = ReadModelCache(store)
            read_model = await read_models.get(opened.stream)
            read_model.fold(entries(calls.turns(turns)))
            if name == "summary":
                journaled = decode_journaled(SUMMARY % (turns - 20, 2 * turns - 40))
                read_model.fold([DecodedRow(read_model.state.position + 1, now_ms(), journaled)])
            by_hand = best(partial(written_by_hand, read_model)) * 1e6
            following = entries(calls.turns(turns + 20)[len(calls.turns(turns)) :], read_model.state.position + 1)[
                :count
            ]
            taken = []
            for entry in following:
                read_model.fold([entry])
                begin = time.perf_counter()
                options = ContextOptions(memory=wanted)
                render = partial(render_body, options=options)
                await select_context(read_models, Policies(), opened.stream, options, render)
                taken.append(time.perf_counter() - begin)
            value = statistics.median(taken) * 1e6
            goal = at_most(value, GOAL_US) if name in WITH_GOAL and turns == 100 else None
            what = f"{name}, of {2 * turns:,} messages"
            measured.append(Measured(f"{name}_{2 * turns}_us", what, value, "µs", by_hand, goal))
        measured.append(await with_memories(store, turns))
    finally:
        await store.close_store()
    return measured


async def with_memories(store: Store, turns: int) -> Measured:
    """Measure the same with what is known from earlier calls, by the words that the caller said last."""
    config = {"user_id": "ann", "memory": {"memories": {}, "policy": "recent", "max_messages": 200}}
    opened = await store.journal.open_producer(
        "bench", f"known-{turns}", "main", validate_config(config), None, now_ms()
    )
    read_models, recall = ReadModelCache(store), Recall(store, now_ms)
    drafts = [
        MemoryDraft(text=f"Ann asked for the {THINGS[number % len(THINGS)]} of order {number}.", user_id="ann")
        for number in range(KNOWN)
    ]
    await LongTermMemory(store, read_models, now_ms).add("bench", drafts)
    read_model = await read_models.get(opened.stream)
    read_model.fold(entries(calls.turns(turns)))
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * KNOWN_CONTEXTS):
        wanted = RecallConfig(max_tokens=300 if number % 2 else 0)
        options = ContextOptions(memory=ContextConfig(memories=wanted), peek=True)
        begin = time.perf_counter()
        said = "Do you have the table for me?"
        render = partial(render_body, options=options)
        await select_context(read_models, Policies(), opened.stream, options, render, recall, said)
        taken[bool(number % 2)].append(time.perf_counter() - begin)
    shown, without = (statistics.median(taken[key]) * 1e6 for key in (True, False))
    goal = at_most(shown - without, KNOWN_GOAL_US)
    what = f"recent, with {KNOWN} memories of the user, of {2 * turns:,} messages"
    return Measured(f"memories_{2 * turns}_us", what, shown, "µs", without, goal)


def live(sessions: int, rate: float, seconds: float) -> list[Measured]:
    """Measure what one client waits for over HTTP, with sessions of 40 messages each under the policy `window`."""
    with (
        tempfile.TemporaryDirectory(dir=disk_folder()) as folder,
        serving("voicemem", f"{SQLITE_PREFIX}{folder}/b.db") as server,
    ):
        plan = Plan(
            host=server.host,
            port=server.port,
            path=server.path,
            sessions=sessions,
            connections=min(sessions, LIVE_CONNECTIONS),
            turns=LIVE_TURNS,
            settings=[{"memory": {"policy": "window", "max_tokens": 4000}}],
            server_pid=server.process.pid,
        )
        with crowd(plan) as streaming:
            silent = asked(server, sessions, seconds)
            streaming.say(f"rate {seconds + 1} {rate}")
            time.sleep(0.5)
            among = asked(server, sessions, seconds)
            paced = streaming.hear(Paced)
    what = f"over HTTP, while {sessions:,} sessions stream {paced.events / (seconds + 1):,.0f} events/s"
    return [
        Measured("live_p50_ms", f"{what}: p50", share_of(among, 0.5), "ms", share_of(silent, 0.5)),
        Measured("live_p99_ms", "  p99", share_of(among, 0.99), "ms", share_of(silent, 0.99)),
    ]


def share_of(taken: list[float], share: float) -> float:
    return percentile([(one, 1) for one in taken], share)


def asked(server: Server, sessions: int, seconds: float) -> list[float]:
    """Milliseconds of each request, one at a time, to the sessions in turn."""
    connection = http.client.HTTPConnection((server.rest or "").removeprefix("http://"))
    taken: list[float] = []
    end = time.perf_counter() + seconds
    with contextlib.closing(connection):
        while (begin := time.perf_counter()) < end:
            connection.request("GET", f"/v1/sessions/bench-{len(taken) % sessions:05}/context")
            answer = connection.getresponse()
            body = answer.read()
            taken.append((time.perf_counter() - begin) * 1000)
            assert answer.status == HTTPStatus.OK, body
            time.sleep(PAUSE_S)
    return taken


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.contexts", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", default="100,10000", help="turns of the calls, separated by commas (100,10000)")
    parser.add_argument("--calls", type=int, default=100, help="contexts timed for each policy (100)")
    parser.add_argument("--live", type=int, default=1000, help="sessions that stream (1000); 0 leaves this part out")
    parser.add_argument("--rate", type=float, default=10_000, help="events per second, all sessions together (10000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of requests (5)")
    given = parser.parse_args(arguments)
    facts = machine() | {"counter": counter("o200k").name}
    lengths = [int(text) for text in given.turns.split(",")]
    measured = [one for turns in lengths for one in asyncio.run(contexts(turns, given.calls))]
    if given.live:
        measured += live(given.live, given.rate, given.seconds)
    show("contexts", facts, measured, options=vars(given))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
