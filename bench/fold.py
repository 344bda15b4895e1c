"""The fold in process: its rate, what an append costs late in a call, reading, memory and snapshots.

    python -m bench.fold [--events 100000] [--sessions 1000] [--turns 200]

No network and no disk: what is measured is the work on the events alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bench.footprint import idle_memory, snapshots
from bench.harness.folding import check, decode, entries, fold_into
from bench.harness.load import calls
from bench.harness.report import Goal, Measured, at_most, best, machine, seconds, show
from voicemem.config.session import validate_config
from voicemem.context.builder import ContextOptions, render_body, select_context
from voicemem.context.policy_registry import Policies
from voicemem.protocol import codec
from voicemem.runtime import Runtime, now_ms
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.port import Store
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.store.streams import Stream
from voicemem.telemetry import Telemetry
from voicemem.transcript.state import State, decode_state, encode_state

EARLY_CYCLES = 1
LATE_RATIO = 1.1
MIN_EVENTS = 2_000
REPEATS = 7
BATCH = 1_000
APPENDED = 10
"""Events in one timed append: enough that the way to the writer thread and back is not most of it."""
CONTEXT_CALLS = 200


# The rate


def rates(events: int) -> list[Measured]:
    """Measure events per second over calls of one cycle of turns each; the baseline only decodes them."""
    call = calls.cycle()
    rounds = max(1, events // len(call))
    total = rounds * len(call)

    def rate(work: Callable[[], object]) -> float:
        return total / best(lambda: [work() for _ in range(rounds)])

    bare = rate(lambda: decode(call))
    return [
        Measured("check_events_s", "decode and check", rate(lambda: check(call)), "events/s", bare),
        Measured("fold_events_s", "decode, check and fold", rate(lambda: fold_into(State(), call)), "events/s", bare),
    ]


# An append late in a call


def late_append(events: int) -> list[Measured]:
    """Fold the same turns of one long call early and late. The two alternate, and the best of each counts."""
    size = len(calls.cycle())
    late_cycles = max(EARLY_CYCLES + 1, events // size)
    early, late = (folded_until(cycles) for cycles in (EARLY_CYCLES, late_cycles))
    early_call, late_call = calls.cycle(EARLY_CYCLES), calls.cycle(late_cycles)
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        took[0].append(fold_time(early, early_call))
        took[1].append(fold_time(late, late_call))
    base, value = (min(times) / size * 1e6 for times in took)
    what = f"fold near event {late_cycles * size:,}, beside {EARLY_CYCLES * size:,}"
    return [Measured("late_fold_us", what, value, "µs", base, not_dearer(value, base))]


def not_dearer(late: float, early: float) -> Goal:
    goal = at_most(late / early, LATE_RATIO)
    return Goal(f"ratio {goal.text}", goal.reached)


def folded_until(cycles: int) -> bytes:
    return encode_state(fold_into(State(), calls.turns(calls.CYCLE * cycles)))


def fold_time(blob: bytes, texts: Sequence[bytes]) -> float:
    state = decode_state(blob)
    gc.collect()
    return seconds(lambda: fold_into(state, texts))


async def late_record(events: int) -> list[Measured]:
    """Append a few events at a time through the recorder, on a store in memory: journal, fold and answer.

    A short call and a long one alternate, so that other work on the machine affects both.
    """
    early = min(1000, events // 2)
    store = InMemoryStore()
    try:
        read_models = ReadModelCache(store)
        recorder = Recorder(store.journal, read_models, Runtime(), lambda settled: None, Telemetry.untraced())
        lines = [await recorded(recorder, read_models, store, length) for length in (early, events)]
        times: tuple[list[float], list[float]] = ([], [])
        for at in range(0, BATCH, APPENDED):
            for (line, texts), took in zip(lines, times, strict=True):
                took.append(await record_time(recorder, line, texts[at : at + APPENDED]))
    finally:
        await store.close_store()
    base, value = (statistics.median(one) / APPENDED * 1e6 for one in times)
    what = f"append (journal, fold) near {events:,}, beside {early:,}"
    return [Measured("late_append_us", what, value, "µs", base, not_dearer(value, base))]


async def recorded(
    recorder: Recorder, read_models: ReadModelCache, store: Store, length: int
) -> tuple[ProducerLease, list[bytes]]:
    """Make a call of so many events; returns the events that come next in it."""
    opened = await store.journal.open_producer("bench", f"call-{length}", "main", validate_config({}), None, now_ms())
    await read_models.get(opened.stream)
    line = ProducerLease(opened.stream, "main", opened.epoch, may_call_out=False)
    texts = calls.first(length + BATCH)
    for at in range(0, length, BATCH):
        await record_time(recorder, line, texts[at : min(at + BATCH, length)])
    return line, texts[length:]


async def record_time(recorder: Recorder, line: ProducerLease, texts: Iterable[bytes]) -> float:
    """Seconds until the events are acknowledged, including their decoding."""
    begin = time.perf_counter()
    done = await recorder.record(line, [codec.decode_event(text) for text in texts])
    assert not done.problems
    return time.perf_counter() - begin


# Reading


def reading(turns: int) -> list[Measured]:
    """Make all messages after each event of a call, compared with the fold alone; and the same at its end."""
    journal = entries(calls.turns(turns))
    last = len(calls.turns(min(turns, calls.CYCLE)))

    def follow(read: bool) -> tuple[float, float]:
        """µs per event over the call, and over its last turns."""
        read_model, marks = ReadModel(State()), []
        for entry in journal:
            read_model.fold([entry])
            if read:
                read_model.messages()
            marks.append(time.perf_counter())
        begin, tail = marks[0], marks[-last]
        return (marks[-1] - begin) / len(journal) * 1e6, (marks[-1] - tail) / last * 1e6

    whole, end = (min(one) for one in zip(*(follow(read=True) for _ in range(3)), strict=True))
    base, base_end = (min(one) for one in zip(*(follow(read=False) for _ in range(3)), strict=True))
    return [
        Measured("messages_us", f"fold and messages, each event of {turns} turns", whole, "µs", base),
        Measured("messages_end_us", "the same in the last turns", end, "µs", base_end),
    ]


async def contexts() -> list[Measured]:
    """The body of the next LLM request, of 200 messages, right after an event, compared with writing it by hand."""
    store = InMemoryStore()
    try:
        read_models = ReadModelCache(store)
        opened = await store.journal.open_producer("bench", "context", "main", validate_config({}), None, now_ms())
        read_model = await read_models.get(opened.stream)
        read_model.fold(entries(calls.turns(100)))
        following = entries(calls.turns(102)[len(calls.turns(100)) :], read_model.state.position + 1)[:CONTEXT_CALLS]
        by_hand = best(lambda: [{"role": m.role, "content": m.content} for m in read_model.messages()]) * 1e6
        default, whole = [], []
        for entry in following:
            read_model.fold([entry])
            whole.append(await context_time(read_models, opened.stream, ContextOptions(max_history=200)))
            default.append(await context_time(read_models, opened.stream, ContextOptions()))
    finally:
        await store.close_store()
    value = statistics.median(whole) * 1e6
    return [
        Measured(
            "context_us", "context of all 200 messages, after an event", value, "µs", by_hand, at_most(value, 100)
        ),
        Measured("context_32_us", "context of the newest 32 of 200", statistics.median(default) * 1e6, "µs"),
    ]


async def context_time(read_models: ReadModelCache, stream: Stream, options: ContextOptions) -> float:
    begin = time.perf_counter()
    await select_context(read_models, Policies(), stream, options, partial(render_body, options=options))
    return time.perf_counter() - begin


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fold", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000, help="events of the rate, and of the long call (100000)")
    parser.add_argument("--sessions", type=int, default=1000, help="sessions in memory at once (1000)")
    parser.add_argument("--turns", type=int, default=200, help="turns of the call that is read after each event (200)")
    given = parser.parse_args(arguments)
    if given.events < MIN_EVENTS:
        parser.error(f"a long call has at least {MIN_EVENTS} events")
    facts = machine()
    measured = [
        *idle_memory(given.sessions),
        *rates(given.events),
        *late_append(given.events),
        *asyncio.run(late_record(given.events)),
        *reading(given.turns),
        *asyncio.run(contexts()),
        *snapshots(given.turns),
    ]
    show("fold", facts, measured, options=vars(given))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
