"""How costs grow: with the events of a session, the sessions of a store, its users, and its index.

    python -m bench.growth [--part events|sessions|messages|memories] [--events 1000000] [--sessions 100000]
        [--messages 200000] [--memories 100000]

Each curve is measured at several sizes up to the largest, in CPU time of this process, on a SQLite store of its own.
Its exponent is the slope of the straight line that fits best on logarithmic axes: 0 does not grow, 1 is in proportion.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate, islice
from math import log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.harness.load import calls
from bench.harness.many_memories import memory, write
from bench.harness.planted_calls import Call
from bench.harness.report import Measured, at_most, disk_folder, machine, number, show, table
from bench.recall import hand_over, made_up_words, make_sessions, search
from voicemem.config.session import validate_config
from voicemem.memory.transcript_index import heard_messages
from voicemem.protocol import codec
from voicemem.runtime import Runtime, now_ms
from voicemem.search.words import query_words
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.engines import open_store
from voicemem.store.memories import MAX_ROWS
from voicemem.store.memory_filters import AnyOf, MemoryFilter
from voicemem.store.port import Store
from voicemem.store.session_filters import SessionFilter
from voicemem.store.sqlite.transcript_file import INDEX_FILES
from voicemem.telemetry import Telemetry

IN_PROPORTION, STEADY = 1.05, 0.15
"""The highest exponent of what is done for all of them, and of what is done for one of them."""
BATCH = 500
READS = 40
OPEN_AT_ONCE = 200
OWN_CALLS, OWN_MESSAGES = 2, 29
"""The calls of the user who searches, and messages in each: they stay as they are, however many others there are."""
CALL_LENGTH, OTHERS = 40, 500
NOW = 1_778_390_400_000


class Curve(NamedTuple):
    """What something costs at several sizes."""

    key: str
    what: str
    unit: str
    points: Sequence[tuple[int, float]]
    limit: float

    @property
    def exponent(self) -> float:
        """The slope of the best line through the logarithms; those of very small costs are of no use."""
        logs = [(log(size), log(max(cost, 1e-9))) for size, cost in self.points]
        x, y = (sum(axis) / len(logs) for axis in zip(*logs, strict=True))
        return float(sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs))


def decades(smallest: int, largest: int) -> list[int]:
    """Sizes from one to the other, each about three times the last."""
    sizes = [smallest]
    while sizes[-1] * 6 < largest:
        sizes.append(int(sizes[-1] * 10**0.5))
    return [*sizes, largest]


@asynccontextmanager
async def new_store() -> AsyncIterator[tuple[Store, Path]]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        path = Path(folder) / "bench.db"
        store = open_store(f"sqlite:{path}")
        try:
            yield store, path
        finally:
            await store.close_store()


async def took(work: Callable[[], Awaitable[object]], times: int = READS) -> float:
    """The median CPU time of some work in ms, all threads together."""
    taken = []
    for _ in range(times):
        begun = time.process_time()
        await work()
        taken.append(time.process_time() - begun)
    return median(taken) * 1000


# Events of a session


async def by_events(most: int) -> list[Curve]:
    """One session of each size: recorded, read after a new event, read whole for the first time, and indexed."""
    recorded, read, whole, indexed = list[tuple[int, float]](), [], [], []
    for size in decades(1_000, most):
        async with new_store() as (store, _):
            read_models = ReadModelCache(store)
            recorder = Recorder(store.journal, read_models, Runtime(), lambda settled: None, Telemetry.untraced())
            opened = await store.journal.open_producer("p", "call", "main", validate_config({}), None, now_ms())
            await read_models.get(opened.stream)
            lease = ProducerLease(opened.stream, "main", opened.epoch, may_call_out=False)
            call = map(codec.decode_event, calls.encoded())
            gc.collect()
            begun = time.process_time()
            for _ in range(0, size, BATCH):
                done = await recorder.record(lease, list(islice(call, BATCH)))
                assert not done.problems
            recorded.append((size, (time.process_time() - begun) * 1000))
            stream = await store.journal.get_session("p", "call")
            await read_models.get(stream)

            read.append((size, await took(partial(read_next, recorder, lease, call, read_models))))
            stream = await store.journal.get_session("p", "call")
            cold = ReadModelCache(store)
            begun = time.process_time()
            await cold.compute_as_of(
                stream.key, stream.position, partial(heard_messages, stream, None, None), background=True
            )
            whole.append((size, (time.process_time() - begun) * 1000))
            assert await cold.quarantined.find(stream.key) is None
            heard, taken = None, 0.0
            while heard is None or heard.update.rest:
                make = partial(heard_messages, stream, None, heard)
                heard = await cold.compute_as_of(stream.key, stream.position, make, background=True)
                begun = time.process_time()
                await store.transcript_index.index_messages([heard.update])
                taken += (time.process_time() - begun) * 1000
            indexed.append((size, taken))
    return [
        Curve("events_recorded", "a session's events recorded and folded", "ms", recorded, IN_PROPORTION),
        Curve("events_read", "an event, then the newest 20 messages", "ms", read, STEADY),
        Curve("events_whole", "folded again from the journal, with all passages", "ms", whole, IN_PROPORTION),
        Curve("events_indexed", "all its messages into the index", "ms", indexed, IN_PROPORTION),
    ]


async def read_next(recorder: Recorder, lease: ProducerLease, call: Iterator[Any], read_models: ReadModelCache) -> None:
    await recorder.record(lease, [next(call)])
    stream = await read_models.store.journal.get_session(lease.project, lease.session_id)
    assert (await read_models.get(stream)).current_messages()[-20:]


# Sessions of a store


async def by_sessions(most: int) -> list[Curve]:
    """Running sessions of one project, each with a user of its own: opened; then what looks at some of them."""
    opened, listed, of_user, swept, figures, started = list[tuple[int, float]](), [], [], [], [], []
    page = SessionFilter(project="p", limit=50)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        url = f"sqlite:{folder}/bench.db"
        store, before, cpu_ms = open_store(url), 0, 0.0
        for size in decades(1_000, most):
            begun = time.process_time()
            for first in range(before, size, OPEN_AT_ONCE):
                together = range(first, min(first + OPEN_AT_ONCE, size))
                await asyncio.gather(*(open_session(store, number) for number in together))
            cpu_ms += (time.process_time() - begun) * 1000
            opened.append((size, cpu_ms))
            of_one = SessionFilter(project="p", user_id=f"user-{size // 2}", limit=50)
            listed.append((size, await took(partial(store.journal.list_page, page))))
            of_user.append((size, await took(partial(store.journal.list_page, of_one))))
            swept.append((size, await took(partial(store.journal.find_due, NOW, 200))))
            figures.append((size, await took(partial(store.read_figures, NOW), 10)))
            await store.close_store()
            begun = time.process_time()
            store = open_store(url)
            started.append((size, (time.process_time() - begun) * 1000))
            before = size
        await store.close_store()
    return [
        Curve("sessions_opened", "sessions opened", "ms", opened, IN_PROPORTION),
        Curve("sessions_listed", "a page of 50 sessions", "ms", listed, STEADY),
        Curve("sessions_of_user", "the sessions of one user", "ms", of_user, STEADY),
        Curve("sessions_swept", "a look for sessions that are due", "ms", swept, STEADY),
        Curve("sessions_figures", "the store's figures for metrics", "ms", figures, IN_PROPORTION),
        Curve("sessions_started", "the store opened again, all being open", "ms", started, IN_PROPORTION),
    ]


async def open_session(store: Store, number: int) -> None:
    config = validate_config({"user_id": f"user-{number}", "idle_timeout": 0})
    await store.journal.open_producer("p", f"session-{number:07}", "main", config, None, NOW)


# The index of messages, and that of memories


class Words:
    """Made-up texts, of which a few words are frequent, as in a language."""

    def __init__(self) -> None:
        self.lots = random.Random(1)
        self.words = made_up_words()
        self.weights = list(accumulate(1 / (rank + 5) for rank in range(len(self.words))))

    def text(self, fewest: int = 3, most: int = 25) -> str:
        return " ".join(self.lots.choices(self.words, cum_weights=self.weights, k=self.lots.randint(fewest, most)))

    def call(self, name: str, user: str, messages: int) -> Call:
        return Call(name, user, "English", NOW, [self.text() for _ in range(messages)])


async def by_messages(most: int) -> list[Curve]:
    """Messages of many users: indexed; then searched by one who has few, and among all of the project."""
    indexed, sizes, own, whole = list[tuple[int, float]](), [], [], []
    words, before, cpu_ms = Words(), 0, 0.0
    async with new_store() as (store, path):
        mine = [words.call(f"own-{number}", "me", OWN_MESSAGES) for number in range(OWN_CALLS)]
        await hand_over(store, (await make_sessions(store, mine, "product"))[1])
        for size in decades(2_000, most):
            of_others = [
                words.call(f"call-{number}", f"user{number % OTHERS}", CALL_LENGTH)
                for number in range(before // CALL_LENGTH, size // CALL_LENGTH)
            ]
            updates = (await make_sessions(store, of_others, "product"))[1]
            begun = time.process_time()
            await hand_over(store, updates)
            cpu_ms += (time.process_time() - begun) * 1000
            indexed.append((size, cpu_ms))
            sizes.append((size, index_bytes(path) / 1024))
            questions = [words.text(6, 6) for _ in range(READS)]
            own.append((size, await took_each(lambda question: search(store, "me", question, 10), questions)))
            whole.append((size, await took_each(lambda question: search(store, None, question, 10), questions)))
            before = size
    return [
        Curve("index_made", "messages indexed", "ms", indexed, IN_PROPORTION),
        Curve("index_size", "the file of the index", "KiB", sizes, IN_PROPORTION),
        Curve("index_own", f"a search among {OWN_CALLS * OWN_MESSAGES} messages of a user", "ms", own, STEADY),
        Curve("index_whole", "a search among all of the project", "ms", whole, IN_PROPORTION),
    ]


def index_bytes(path: Path) -> int:
    return sum(Path(f"{path}{suffix}").stat().st_size for suffix in INDEX_FILES[:2])


async def took_each(work: Callable[[str], Awaitable[object]], questions: Sequence[str]) -> float:
    """The same, of work on each of some questions."""
    taken = []
    for question in questions:
        begun = time.process_time()
        await work(question)
        taken.append(time.process_time() - begun)
    return median(taken) * 1000


async def by_memories(most: int) -> list[Curve]:
    """Memories of many users: written; then found by one who has few, and listed."""
    written, found, listed = list[tuple[int, float]](), [], []
    words, before, cpu_ms = Words(), 0, 0.0
    async with new_store() as (store, _):
        users = [await store.journal.ensure_user("p", f"user{number}", NOW) for number in range(OTHERS)]
        me = await store.journal.ensure_user("p", "me", NOW)
        await write(store, me, [memory(me, f"own{place}", words.text(), place) for place in range(MAX_ROWS)])
        mine = MemoryFilter(project="p", user_ids=AnyOf(("me",)), unexpired_at_ms=NOW, limit=50)
        for size in decades(2_000, most):
            begun = time.process_time()
            for first in range(before, size, MAX_ROWS):
                user = users[first // MAX_ROWS % OTHERS]
                rows = [memory(user, f"m{first + place}", words.text(4, 20), place) for place in range(MAX_ROWS)]
                users[first // MAX_ROWS % OTHERS] = await write(store, user, rows)
            cpu_ms += (time.process_time() - begun) * 1000
            written.append((size, cpu_ms))
            find = partial(find_memories, store, mine)
            found.append((size, await took_each(find, [words.text(6, 6) for _ in range(READS)])))
            listed.append((size, await took(partial(store.memories.list_memories, mine))))
            before = size
    return [
        Curve("memories_written", "memories written", "ms", written, IN_PROPORTION),
        Curve("memories_found", f"a search among {MAX_ROWS} memories of a user", "ms", found, STEADY),
        Curve("memories_listed", "the memories of a user", "ms", listed, STEADY),
    ]


async def find_memories(store: Store, whose: MemoryFilter, question: str) -> object:
    return await store.memories.find_memories_by_words(whose, query_words(question), 10)


PARTS: dict[str, Callable[[int], Coroutine[Any, Any, list[Curve]]]] = {
    "events": by_events,
    "sessions": by_sessions,
    "messages": by_messages,
    "memories": by_memories,
}
LARGEST = {"events": 1_000_000, "sessions": 100_000, "messages": 200_000, "memories": 100_000}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="one of the parts (all)")
    for name, largest in LARGEST.items():
        parser.add_argument(f"--{name}", type=int, default=largest, help=f"the most {name} ({largest})")
    given = vars(parser.parse_args(arguments))
    measured = []
    for name in [given["part"]] if given["part"] else PARTS:
        curves = asyncio.run(PARTS[name](given[name]))
        heading = (name, *(f"{size:,}" for size, _ in curves[0].points))
        rows = [(f"{one.what}, {one.unit}", *(number(cost) for _, cost in one.points)) for one in curves]
        print(table(heading, rows), end="\n\n", flush=True)
        for one in curves:
            goal = at_most(one.exponent, one.limit)
            measured.append(Measured(one.key, one.what, one.exponent, "exponent", None, goal))
    show("growth", machine(disk_folder()), measured, options=given)
    return 0 if all(one.goal is None or one.goal.reached for one in measured) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
