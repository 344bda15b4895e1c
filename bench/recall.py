"""How well what was said is found by words: recall of the message that answers a question, in three languages.

    python -m bench.recall [--part messages|conversations|memories] [--users 40] [--seed 1] [--messages 100000]
        [--store memory:|sqlite:PATH|postgresql|postgresql://…]

Calls with planted facts go into the index of a store, and questions about them are searched, each among the calls of
its user. Beside what the product does: each message alone, and with the message before it but without the day. Then how
long indexing and searching take with `--messages` of 170 users in the index.
`--part conversations` asks about generated conversations of many calls, and shows the recall by kind of question.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import fmean
from typing import Any

from bench.harness.conversations import Asked, Conversation, Place, conversations
from bench.harness.many_memories import speed_of_memories
from bench.harness.planted_calls import SMALL_TALK, Call, Question, planted
from bench.harness.postgresql import Cluster
from bench.harness.report import Measured, at_least, at_most, machine, percentile, show
from voicemem.config.session import validate_config
from voicemem.search.passages import Passage
from voicemem.search.words import query_words
from voicemem.store.engines import open_store
from voicemem.store.port import Store
from voicemem.store.scopes import Scope, scope_of
from voicemem.store.transcript_index import TranscriptUpdate
from voicemem.store.transcript_search import TranscriptQuery

DEPTHS = (5, 10, 20)
GOALS = {5: 57.0, 10: 67.0, 20: 73.0}
USERS_OF_MANY, CALL_LENGTH, SESSIONS_AT_ONCE = 170, 40, 25
SEARCHES = 400
INDEX_US, P50_MS, P99_MS = 110, 5, 25
POSTGRESQL = "postgresql"
VARIANTS = ("alone", "before", "product")


async def main() -> None:
    arguments = parsed()
    cluster = Cluster() if arguments.store == POSTGRESQL else None
    if cluster is not None:
        arguments.store = cluster.url("postgres")
    try:
        await measure(arguments)
    finally:
        if cluster is not None:
            cluster.remove()


async def measure(arguments: argparse.Namespace) -> None:
    if arguments.part == "memories":
        async with opened(arguments.store) as store:
            lots = random.Random(arguments.seed)
            show("memories", machine(), await speed_of_memories(store, arguments.messages, lots, made_up_words()))
        return
    if arguments.part == "conversations":
        async with opened(arguments.store) as store:
            talks, asked = conversations(arguments.seed)
            facts = machine() | {"messages": sum(len(talk.texts) for talk in talks), "questions": len(asked)}
            show("conversations", facts, await recall_by_kind(store, talks, asked))
        return
    calls, questions = planted(arguments.seed, arguments.users)
    measured: list[Measured] = []
    by_variant = {}
    for variant in VARIANTS:
        async with opened(arguments.store) as store:
            by_variant[variant] = await recall_of(store, variant, calls, questions)
    for depth in DEPTHS:
        for variant in VARIANTS:
            value = overall(by_variant[variant], depth)
            goal = at_least(value, GOALS[depth]) if variant == "product" else None
            baseline = overall(by_variant["alone"], depth)
            measured.append(Measured(f"{variant}@{depth}", f"{variant}, recall@{depth}", value, "%", baseline, goal))
    for group, recalls in sorted(by_variant["product"].items()):
        measured += [
            Measured(f"{group}@{depth}", f"  {group}, recall@{depth}", fmean(recalls[depth]), "%") for depth in DEPTHS
        ]
    async with opened(arguments.store) as store:
        measured += await speed_of(store, arguments.messages, arguments.seed)
    facts = machine() | {"messages": sum(len(call.texts) for call in calls), "questions": len(questions)}
    show("recall", facts, measured)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=40, help="of each language")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=100_000, help="in the index while searches are timed")
    parser.add_argument(
        "--part", choices=("messages", "conversations", "memories"), default="messages", help="what is measured"
    )
    parser.add_argument("--store", default="memory:", help="one that is empty; `postgresql` starts a server for it")
    return parser.parse_args()


class opened(AsyncExitStack):  # noqa: N801 (used as a function)
    """A store, whose index is empty, for one block."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    async def __aenter__(self) -> Store:  # type: ignore[override]
        store = open_store(self.url)
        self.push_async_callback(store.close_store)
        await store.transcript_index.clear_index()
        return store


Recalls = dict[str, dict[int, list[float]]]


async def recall_of(store: Store, variant: str, calls: Sequence[Call], questions: Sequence[Question]) -> Recalls:
    """By language and kind of question: the recalls at each depth, in percent."""
    names = await index_calls(store, calls, variant)
    found: Recalls = defaultdict(lambda: {depth: [] for depth in DEPTHS})
    for question in questions:
        messages = await search(store, question.user, question.text, max(DEPTHS))
        places = [(names[key], turn - 1) for key, turn in messages]
        for group in (question.language, question.kind):
            for depth in DEPTHS:
                hits = question.evidence & set(places[:depth])
                found[group][depth].append(100 * len(hits) / len(question.evidence))
    return found


async def recall_by_kind(store: Store, talks: Sequence[Conversation], asked: Sequence[Asked]) -> list[Measured]:
    """The recalls by kind of question, then by language; how long the searches take."""
    calls = [Call(talk.session_id, talk.user, "", talk.started_ms, talk.texts) for talk in talks]
    names = await index_calls(store, calls, "product")
    found: Recalls = defaultdict(lambda: {depth: [] for depth in DEPTHS})
    taken = []
    for question in asked:
        begun = time.perf_counter()
        messages = await search(store, question.user, question.text, max(DEPTHS), question.asked_ms)
        taken.append(((time.perf_counter() - begun) * 1e3, 1))
        places = [Place(names[key], turn - 1) for key, turn in messages]
        for group in ("all", question.kind, question.language, f"{question.language}, {question.kind}"):
            for depth in DEPTHS:
                hits = question.evidence & set(places[:depth])
                found[group][depth].append(100 * len(hits) / len(question.evidence))
    measured = [
        Measured(f"{group}@{depth}", f"{group} ({len(recalls[depth])}), recall@{depth}", fmean(recalls[depth]), "%")
        for group, recalls in sorted(found.items())
        for depth in DEPTHS
    ]
    p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
    return [*measured, Measured("p50_ms", "a search, p50", p50, "ms"), Measured("p99_ms", "a search, p99", p99, "ms")]


def overall(recalls: Recalls, depth: int) -> float:
    """The mean over all questions."""
    return fmean(value for language in SMALL_TALK for value in recalls[language][depth])


async def search(
    store: Store, user: str | None, text: str, limit: int, now_ms: int = 1_780_000_000_000
) -> list[tuple[int, int]]:
    query = TranscriptQuery(
        Scope("p", user_id=user).query(), query_words(text), limit=limit, question=text, now_ms=now_ms
    )
    return [(message.key, message.turn_id) for message in await store.transcript_index.find_messages(query)]


async def index_calls(store: Store, calls: Sequence[Call], variant: str) -> dict[int, str]:
    """Index calls, each message as a turn of its own; their ids by key."""
    names, updates = await make_sessions(store, calls, variant)
    await hand_over(store, updates)
    return names


async def make_sessions(
    store: Store, calls: Sequence[Call], variant: str
) -> tuple[dict[int, str], list[TranscriptUpdate]]:
    """The sessions of calls, by key, and what is to be indexed of them."""
    names: dict[int, str] = {}
    updates: list[TranscriptUpdate] = []
    for call in calls:
        config = validate_config({"user_id": call.user})
        stream, _ = await store.journal.create_session("p", f"{variant}-{call.session_id}", config, call.started_ms)
        names[stream.key] = call.session_id
        turns = {number: [passage_of(call, number, variant)] for number in range(1, len(call.texts) + 1)}
        begun = call.started_ms if variant == "product" else 0
        updates.append(TranscriptUpdate(stream.key, 1, scope_of(stream), begun, turns))
    return names, updates


async def hand_over(store: Store, updates: Sequence[TranscriptUpdate]) -> None:
    for first in range(0, len(updates), SESSIONS_AT_ONCE):
        await store.transcript_index.index_messages(updates[first : first + SESSIONS_AT_ONCE])


def passage_of(call: Call, number: int, variant: str) -> Passage:
    before = "" if variant == "alone" or number == 1 else call.texts[number - 2]
    role: Any = "assistant" if number % 2 else "user"
    return Passage(number, 0, number, role, call.started_ms + number, call.texts[number - 1], before)


# Speed


async def speed_of(store: Store, count: int, seed: int) -> list[Measured]:
    """What a message costs to index, and how long a search among one user's messages takes."""
    lots = random.Random(seed)
    words = made_up_words()
    weights = [1 / (rank + 5) for rank in range(len(words))]
    calls = []
    for number in range(count // CALL_LENGTH):
        texts = [" ".join(lots.choices(words, weights, k=lots.randint(3, 25))) for _ in range(CALL_LENGTH)]
        user = f"user{number % USERS_OF_MANY}"
        calls.append(Call(f"many-{number}", user, "English", 1_750_000_000_000 + number, texts))
    _, updates = await make_sessions(store, calls, "product")
    begun, begun_cpu = time.perf_counter(), time.process_time()
    await hand_over(store, updates)
    each_us = (time.perf_counter() - begun) / (len(calls) * CALL_LENGTH) * 1e6
    cpu_us = (time.process_time() - begun_cpu) / (len(calls) * CALL_LENGTH) * 1e6
    begun_cpu = time.process_time()
    taken = []
    for _ in range(SEARCHES):
        query = " ".join(lots.choices(words, weights, k=6))
        begun = time.perf_counter()
        await search(store, f"user{lots.randrange(USERS_OF_MANY)}", query, 10)
        taken.append(((time.perf_counter() - begun) * 1e3, 1))
    cpu_ms = (time.process_time() - begun_cpu) / SEARCHES * 1e3
    p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
    return [
        Measured("index_us", "indexing a message", each_us, "us", None, at_most(each_us, INDEX_US)),
        Measured("index_cpu_us", "indexing a message, CPU of this process", cpu_us, "us"),
        Measured("search_cpu_ms", "a search, CPU of this process", cpu_ms, "ms"),
        Measured("search_p50_ms", f"search among {count} messages, p50", p50, "ms", None, at_most(p50, P50_MS)),
        Measured("search_p99_ms", f"search among {count} messages, p99", p99, "ms", None, at_most(p99, P99_MS)),
    ]


def made_up_words() -> list[str]:
    return [f"{first}{second}" for first in SYLLABLES for second in SYLLABLES]


SYLLABLES = [f"{consonant}{vowel}" for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


if __name__ == "__main__":
    asyncio.run(main())
