"""How long the answer to a platform takes at the start of a call, with many memories of many users in the store.

    python -m bench.call_starts [--memories 100000] [--users 10000] [--calls 1000] [--asks 1000]

The questions are Retell's, signed, by the caller's number; one at a time, and 16 at once. Of the callers that have
called before, `--calls` have a call of four messages. The baseline is a question about a caller who is not known.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
from msgspec import Struct

from bench.harness.many_memories import Taken, memory, write
from bench.harness.report import Measured, at_most, disk_folder, machine, percentile, show
from bench.harness.servers import serving
from voicemem.config.service import SQLITE_PREFIX
from voicemem.protocol.types import JsonObject
from voicemem.runtime import now_ms
from voicemem.security.caller_ids import Callers
from voicemem.store.engines import open_store
from voicemem.store.memories import MAX_ROWS
from voicemem.store.port import Store

SECRET = "key_of_the_bench"
PROJECT = "default"
AT_ONCE = 16
SOURCES = {"user": "message", "assistant": "llm"}
AT = 1_790_000_000_000
P99_MS, LONGEST_MS = 100, 300
INDEXED_S = 5.0
"""How long what was said may take to be in the index."""
WORDS = ("walnut", "garden", "Tuesday", "doctor", "invoice", "parcel", "window", "bicycle", "station", "letter")
CONFIG = f"""
[hook-secret]
retell = "{SECRET}"
[identify]
retell = "number"
"""


class Options(Struct, kw_only=True):
    memories: int
    users: int
    calls: int
    asks: int
    seed: int


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.call_starts", description=__doc__.splitlines()[0])
    parser.add_argument("--memories", type=int, default=100_000, help="memories in the store (100000)")
    parser.add_argument("--users", type=int, default=10_000, help="users that they are of (10000)")
    parser.add_argument("--calls", type=int, default=1_000, help="users who called before (1000)")
    parser.add_argument("--asks", type=int, default=1_000, help="questions of each kind (1000)")
    parser.add_argument("--seed", type=int, default=1)
    return Options(**vars(parser.parse_args(arguments)))


def number_of(user: int) -> str:
    return f"+4930{2_000_000 + user}"


async def fill_memories(path: str, options: Options) -> list[str]:
    """Store the memories; the ids of the users."""
    store = open_store(path)
    try:
        callers = Callers(store, now_ms)
        users = [await callers.find(PROJECT, number_of(user)) for user in range(options.users)]
        lots, each = random.Random(options.seed), options.memories // options.users
        places = iter(enumerate(users))

        async def work() -> None:
            for place, user in places:
                await remember(store, str(user), place, each, lots)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return [str(user) for user in users]
    finally:
        await store.close_store()


async def remember(store: Store, user_id: str, place: int, count: int, lots: random.Random) -> None:
    user = await store.journal.ensure_user(PROJECT, user_id, now_ms())
    for first in range(0, count, MAX_ROWS):
        rows = [
            msgspec.structs.replace(
                memory(user, f"m{place}-{first + number}", " ".join(lots.choices(WORDS, k=12)), number), project=PROJECT
            )
            for number in range(min(MAX_ROWS, count - first))
        ]
        user = await write(store, user, rows)


async def fill_calls(http: aiohttp.ClientSession, users: Sequence[str]) -> None:
    numbered = iter(enumerate(users))

    async def work() -> None:
        for number, user in numbered:
            said = [
                {
                    "type": "message",
                    "role": role,
                    "source": SOURCES[role],
                    "text": f"The {word}.",
                    "ts": AT + turn,
                }
                for turn, (role, word) in enumerate(zip(("user", "assistant") * 2, WORDS, strict=False))
            ]
            await post(http, "/v1/sessions", {"session_id": f"call-{number}", "user_id": user})
            await post(http, f"/v1/sessions/call-{number}/events", said)
            await post(http, f"/v1/sessions/call-{number}/end", {})

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def post(http: aiohttp.ClientSession, path: str, body: object) -> None:
    async with http.post(path, json=body) as answer:
        if answer.status >= 300:
            raise RuntimeError(f"{path}: {await answer.text()}")


async def ask(http: aiohttp.ClientSession, number: str) -> tuple[float, JsonObject]:
    """The time of an answer in ms, and the variables in it."""
    body = msgspec.json.encode(
        {"event": "call_inbound", "call_inbound": {"from_number": number, "to_number": "+49302000000", "agent_id": "a"}}
    )
    now = str(now_ms())
    digest = hmac.digest(SECRET.encode(), body + now.encode(), "sha256").hex()
    headers = {"X-Retell-Signature": f"v={now},d={digest}", "Content-Type": "application/json"}
    begun = time.perf_counter()
    async with http.post("/v1/hooks/retell", data=body, headers=headers) as answer:
        answered = msgspec.json.decode(await answer.read())
    return (time.perf_counter() - begun) * 1000, answered["call_inbound"]["dynamic_variables"]


class Answers(NamedTuple):
    """The times of answers in ms, and how many of them knew the caller."""

    taken: Taken
    known: int


async def asks(http: aiohttp.ClientSession, numbers: Sequence[str], at_once: int) -> Answers:
    taken, known, left = Taken(), list[bool](), iter(numbers)

    async def work() -> None:
        for number in left:
            ms, variables = await ask(http, number)
            known.append(variables["caller_known"] == "yes")
            taken.append((ms, 1))

    await asyncio.gather(*(work() for _ in range(at_once)))
    return Answers(taken, sum(known))


async def measure(rest: str, users: Sequence[str], options: Options) -> list[Measured]:
    lots = random.Random(options.seed)
    known = [number_of(lots.randrange(options.calls)) for _ in range(options.asks)]
    strangers = [number_of(options.users + one) for one in range(options.asks)]
    async with aiohttp.ClientSession(base_url=rest) as http:
        await fill_calls(http, users[: options.calls])
        await asyncio.sleep(INDEXED_S)
        await ask(http, known[0])
        nobody = await asks(http, strangers, 1)
        one, many = await asks(http, known, 1), await asks(http, known, AT_ONCE)
    if nobody.known:
        raise RuntimeError("Strangers are known.")
    return [*figures("one", "one at a time", one, nobody), *figures("many", f"{AT_ONCE} at once", many, nobody)]


def figures(name: str, what: str, answers: Answers, beside: Answers) -> list[Measured]:
    p50, p99, most = (percentile(answers.taken, share) for share in (0.5, 0.99, 1.0))
    base = [percentile(beside.taken, share) for share in (0.5, 0.99, 1.0)]
    late = len(answers.taken) - answers.known
    return [
        Measured(f"{name}_p50_ms", f"{what}, p50", p50, "ms", base[0]),
        Measured(f"{name}_p99_ms", f"{what}, p99", p99, "ms", base[1], at_most(p99, P99_MS)),
        Measured(f"{name}_longest_ms", f"{what}, the longest", most, "ms", base[2], at_most(most, LONGEST_MS)),
        Measured(f"{name}_late", f"{what}, without what is known", late, "", None, at_most(late, 0)),
    ]


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped as well
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as name:
        folder = Path(name)
        settings, store = folder / "voicemem.toml", f"{SQLITE_PREFIX}{folder}/bench.db"
        settings.write_text(CONFIG)
        users = asyncio.run(fill_memories(store, options))
        with serving("voicemem", store, "--config", str(settings)) as server:
            found = asyncio.run(measure(str(server.rest), users, options))
        show("call_starts", machine(folder), found, options=msgspec.to_builtins(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
