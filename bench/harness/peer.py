"""Runs one peer for `bench.peers`, in an interpreter that has it, with the standard library alone.

    python -m bench.harness.peer NAME FOLDER MESSAGES SESSIONS READS     prints its `figures` as JSON

Each is used through its public interface, with its default settings; an append is one message. Synchronous libraries
run on 32 threads when many sessions append at once, asynchronous ones on one event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

APPENDS = 20
"""Messages for each of the sessions at once."""
HISTORY = 200
AROUND = 10
"""How many appends around one give its median."""
THREADS = 32
NOT_INSTALLED = 3
ROLES = ("assistant", "user")
SENTENCE = "The booking for two nights in the harbour hotel begins on the fourteenth, and the parking is paid for"

Append = Callable[[int], Awaitable[object]]
"""Append the message with this number, from 1; returns when it is durable."""
Read = Callable[[], Awaitable[int]]
"""Read the whole history; returns the number of messages."""


def text(number: int) -> str:
    """A message of about 115 characters."""
    return f"{SENTENCE}, number {number:05}."


# The work


async def growing(append: Append, messages: int) -> list[float]:
    """Append to one session; returns the seconds of each append."""
    took = []
    for number in range(1, messages + 1):
        begin = time.perf_counter()
        await append(number)
        took.append(time.perf_counter() - begin)
    return took


class Many(NamedTuple):
    """Append to many sessions at once; returns seconds in all, seconds of each append, and how many failed."""

    seconds: float
    took: list[float]
    errors: int


async def at_once(appends: Sequence[Append]) -> Many:
    errors: list[Exception] = []

    def tolerant(append: Append) -> Append:
        async def one(number: int) -> None:
            try:
                await append(number)
            except Exception as error:  # each system has errors of its own; the type is reported
                errors.append(error)

        return one

    begin = time.perf_counter()
    took = await asyncio.gather(*(growing(tolerant(append), APPENDS) for append in appends))
    seconds = time.perf_counter() - begin
    if errors:
        print(f"{len(errors)} appends failed, the first with {type(errors[0]).__name__}", file=sys.stderr)
    return Many(seconds, [one for of_session in took for one in of_session], len(errors))


async def reading(read: Read, reads: int) -> list[float]:
    took = []
    for _ in range(reads):
        begin = time.perf_counter()
        held = await read()
        took.append(time.perf_counter() - begin)
        if held != HISTORY:
            raise RuntimeError("The history does not hold what was appended.")
    return took


def figures(alone: list[float], many: Many, reads: list[float], kib: float) -> dict[str, float]:
    """All figures of a system: times in milliseconds, and `kib` of memory for each of the many sessions."""
    return {
        "appends_s": len(alone) / sum(alone),
        "at_10_ms": around(alone, 10),
        "at_1000_ms": around(alone, 1_000),
        "at_end_ms": around(alone, len(alone)),
        "many_appends_s": (len(many.took) - many.errors) / many.seconds,
        "many_p50_ms": share(many.took, 0.5),
        "many_p99_ms": share(many.took, 0.99),
        "errors": many.errors,
        "read_p50_ms": share(reads, 0.5),
        "read_p99_ms": share(reads, 0.99),
        "kib_per_session": kib,
    }


def around(took: Sequence[float], number: int) -> float:
    """The median of the appends around one, or of the last few."""
    end = min(len(took), number + AROUND // 2)
    return statistics.median(took[max(0, end - AROUND) : end]) * 1000


def share(took: Sequence[float], of_all: float) -> float:
    return sorted(took)[min(len(took) - 1, int(len(took) * of_all))] * 1000


# The peers


def openai_agents(path: Path, _: ThreadPoolExecutor) -> tuple[Callable[[str], Append], Callable[[str], Read]]:
    """`SQLiteSession` of openai-agents: SQLite in WAL mode, synchronous FULL."""
    session_class: Any = import_module("agents").SQLiteSession
    file = path / "agents.db"

    def append_to(name: str) -> Append:
        session = session_class(name, file)
        return lambda number: session.add_items([{"role": ROLES[number % 2], "content": text(number)}])

    def read_of(name: str) -> Read:
        session = session_class(name, file)

        async def read() -> int:
            return len(await session.get_items())

        return read

    return append_to, read_of


def langchain_community(
    path: Path, threads: ThreadPoolExecutor
) -> tuple[Callable[[str], Append], Callable[[str], Read]]:
    """`SQLChatMessageHistory` of langchain-community: SQLite in DELETE mode, synchronous FULL."""
    history_class: Any = import_module("langchain_community.chat_message_histories").SQLChatMessageHistory
    messages: Any = import_module("langchain_core.messages")
    kinds = (messages.AIMessage, messages.HumanMessage)
    engine: Any = import_module("sqlalchemy").create_engine(f"sqlite:///{path}/langchain.db")

    def append_to(name: str) -> Append:
        history = history_class(name, connection=engine)

        def add(number: int) -> None:
            history.add_message(kinds[number % 2](content=text(number)))

        return lambda number: asyncio.get_running_loop().run_in_executor(threads, add, number)

    def read_of(name: str) -> Read:
        history = history_class(name, connection=engine)

        async def read() -> int:
            return len(await asyncio.get_running_loop().run_in_executor(threads, lambda: history.messages))

        return read

    return append_to, read_of


PEERS = {"openai-agents": openai_agents, "langchain-community": langchain_community}


def rss_kib() -> float:
    """Resident memory of this process; 0 where it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    except OSError:
        return 0.0


async def work(name: str, folder: Path, messages: int, sessions: int, reads: int) -> dict[str, float]:
    with ThreadPoolExecutor(THREADS) as threads:
        append_to, read_of = PEERS[name](folder, threads)
        alone = await growing(append_to("one"), messages)
        before = rss_kib()
        many = await at_once([append_to(f"many-{number}") for number in range(sessions)])
        kib = (rss_kib() - before) / sessions
        await growing(append_to("read"), HISTORY)
        return figures(alone, many, await reading(read_of("read"), reads), kib)


def main(arguments: Sequence[str]) -> int:
    name, folder, *numbers = arguments
    try:
        print(json.dumps(asyncio.run(work(name, Path(folder), *map(int, numbers)))))
    except ImportError as error:
        print(f"{name} is not installed: {error}.", file=sys.stderr)
        return NOT_INSTALLED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
