"""Conversations of two people over many calls, and questions about them, in three languages (bench.recall).

Both tell of themselves, often of the same things, address each other by name and make small talk. A question is about
one of them: about a single message (`single-hop`), about messages of several calls (`multi-hop`), when something was or
what was at a time (`temporal`), what follows from messages that do not say it (`open-domain`), or about the caller
without a name (`pronoun`). The set is fixed by its seed. What is asked for is often said in other words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import NamedTuple

import msgspec
from msgspec import Struct

DAY_MS = 86_400_000
BEGIN_MS = 1_736_000_000_000
DAYS, CALLS, TOPICS_OF_A_PERSON, SHARE_SPOKEN_TO = 420, 24, 8, 0.4
SHARE_LED, SHARE_BESIDE, SHARE_VAGUE, TELLING = 0.7, 0.25, 0.4, 6
"""How often a statement begins with words of its topic, small talk has them, and a question lacks a longer word."""
PAIRS = {"English": 24, "German": 8, "Chinese": 8}
SINGLES, PRONOUNS, WHENS = 10, 4, 4
"""Questions of these kinds about each pair."""
AGENT, CALLER = 0, 1
"""The first message of a call is the agent's, and so is every second one."""


class Told(Struct, frozen=True):
    """A statement, a question that it alone answers, what the other says to it, and when it was, as a question."""

    text: str
    question: str
    reaction: str
    when: str = ""


class Topic(Struct, frozen=True):
    """Statements on one thing; what asks for all of them, what only follows from them, and what asks for a time."""

    several: str
    tells: tuple[Told, ...]
    leads: tuple[str, ...]
    """What a statement often begins with."""
    inferred: str = ""
    at: str = ""


class TimeWords(Struct, frozen=True):
    """Words for a time, seen from the day of the question: the newest such months, or so many years or months ago."""

    text: str
    months: tuple[int, ...] = ()
    years_ago: int | None = None
    months_ago: int | None = None

    def covers(self, said: datetime, asked: datetime) -> bool:
        if self.years_ago is not None:
            return said.year == asked.year - self.years_ago
        if self.months_ago is not None:
            return 12 * said.year + said.month == 12 * asked.year + asked.month - self.months_ago
        year = asked.year if self.months[0] < asked.month else asked.year - 1
        return said.year == year and said.month in self.months


class Language(Struct, frozen=True):
    names: tuple[str, ...]
    topics: tuple[Topic, ...]
    chat: tuple[str, ...]
    reactions: tuple[str, ...]
    greetings: tuple[str, ...]
    addresses: tuple[str, ...]
    times: tuple[TimeWords, ...]
    pronoun: str
    """Stands for a name in a question."""


class Place(NamedTuple):
    session_id: str
    message: int
    """Its place in the call."""


class Asked(NamedTuple):
    """A question, when it is asked, and the messages that answer it."""

    language: str
    kind: str
    text: str
    user: str
    asked_ms: int
    evidence: frozenset[Place]


class Conversation(NamedTuple):
    """A call of a user: the agent speaks first, then both in turn."""

    session_id: str
    user: str
    started_ms: int
    texts: list[str]


class Statement(NamedTuple):
    """Something that a person said, where, and when."""

    person: int
    topic: Topic
    told: Told
    place: Place
    said_ms: int


def languages() -> dict[str, Language]:
    text = resources.files("bench.harness").joinpath("conversation_topics.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Language])


def conversations(seed: int) -> tuple[list[Conversation], list[Asked]]:
    lots = random.Random(seed)
    calls: list[Conversation] = []
    questions: list[Asked] = []
    for name, language in languages().items():
        for number in range(PAIRS[name]):
            names = lots.sample(language.names, 2)
            made, statements = calls_of_pair(f"{name}-{number}", language, names, lots)
            calls += made
            asked_ms = made[-1].started_ms + 3 * DAY_MS
            for kind, text, evidence in questions_about(statements, language, names, asked_ms, lots):
                places = frozenset(statement.place for statement in evidence)
                questions.append(Asked(name, kind, text, made[0].user, asked_ms, places))
    return calls, questions


def calls_of_pair(
    user: str, language: Language, names: Sequence[str], lots: random.Random
) -> tuple[list[Conversation], list[Statement]]:
    """Calls over more than a year, in which each statement is made once."""
    days = sorted(lots.sample(range(DAYS), CALLS))
    calls = [Conversation(f"{user}-{number}", user, BEGIN_MS + day * DAY_MS, []) for number, day in enumerate(days)]
    due: list[list[tuple[int, Topic, Told]]] = [[] for _ in calls]
    for person, topic, tells in topics_of_pair(language, lots):
        for place, told in zip(lots.sample(range(CALLS), len(tells)), tells, strict=True):
            due[place].append((person, topic, told))
    statements: list[Statement] = []
    for call, statements_due in zip(calls, due, strict=True):
        lots.shuffle(statements_due)
        statements += write_call(call, statements_due, language, names, lots)
    return calls, statements


def topics_of_pair(language: Language, lots: random.Random) -> Iterator[tuple[int, Topic, Sequence[Told]]]:
    """What each of the two tells: up to four things of a topic, half of them where both speak of it."""
    own = [lots.sample(language.topics, min(TOPICS_OF_A_PERSON, len(language.topics) - 1)) for _ in (AGENT, CALLER)]
    for topic in language.topics:
        tells = lots.sample(topic.tells, len(topic.tells))
        if topic in own[AGENT] and topic in own[CALLER]:
            half = len(tells) // 2
            yield AGENT, topic, tells[:half]
            yield CALLER, topic, tells[half:]
        elif topic in own[AGENT] or topic in own[CALLER]:
            yield (AGENT if topic in own[AGENT] else CALLER), topic, tells[:4]


def write_call(
    call: Conversation,
    due: Sequence[tuple[int, Topic, Told]],
    language: Language,
    names: Sequence[str],
    lots: random.Random,
) -> Iterator[Statement]:
    texts = call.texts
    texts += [lots.choice(language.greetings).format(name=names[1 - person]) for person in (AGENT, CALLER)]
    for person, topic, told in due:
        for _ in range(lots.randrange(3)):
            texts.append(chat(language, names[1 - len(texts) % 2], lots))
        if len(texts) % 2 != person:
            texts.append(chat(language, names[1 - len(texts) % 2], lots))
        yield Statement(person, topic, told, Place(call.session_id, len(texts)), call.started_ms)
        texts.append(f"{lots.choice(topic.leads)} {told.text}" if lots.random() < SHARE_LED else told.text)
        reaction = told.reaction if lots.random() < 0.5 else lots.choice(language.reactions)
        texts.append(spoken_to(reaction, names[person], language, lots))
    texts += [chat(language, names[1 - len(texts) % 2], lots) for _ in range(lots.randrange(4, 16))]


def chat(language: Language, other: str, lots: random.Random) -> str:
    """Something that says nothing, sometimes in the words of a topic."""
    topic = lots.choice(language.topics)
    text = lots.choice(topic.leads if lots.random() < SHARE_BESIDE else language.chat)
    return spoken_to(text, other, language, lots)


def spoken_to(text: str, name: str, language: Language, lots: random.Random) -> str:
    """The text, often with the name of who it is said to."""
    return lots.choice(language.addresses).format(name=name, text=text) if lots.random() < SHARE_SPOKEN_TO else text


def questions_about(
    statements: Sequence[Statement], language: Language, names: Sequence[str], asked_ms: int, lots: random.Random
) -> Iterator[tuple[str, str, Sequence[Statement]]]:
    for one in lots.sample(statements, min(SINGLES, len(statements))):
        yield "single-hop", vague(one.told.question, lots).format(name=names[one.person]), [one]
    callers = [one for one in statements if one.person == CALLER]
    for one in lots.sample(callers, min(PRONOUNS, len(callers))):
        yield "pronoun", vague(one.told.question, lots).format(name=language.pronoun), [one]
    when = [one for one in statements if one.told.when]
    for one in lots.sample(when, min(WHENS, len(when))):
        yield "temporal", vague(one.told.when, lots).format(name=names[one.person]), [one]
    for person in (AGENT, CALLER):
        for topic in language.topics:
            evidence = [one for one in statements if one.person == person and one.topic is topic]
            if not evidence:
                continue
            if len(evidence) > 1:
                yield "multi-hop", topic.several.format(name=names[person]), evidence
            if topic.inferred:
                yield "open-domain", topic.inferred.format(name=names[person]), evidence
            if topic.at:
                yield from questions_of_times(topic.at, evidence, language, names[person], asked_ms, lots)


def vague(question: str, lots: random.Random) -> str:
    """A question without some of its telling words."""
    return " ".join(
        word for word in question.split() if "{" in word or len(word) < TELLING or lots.random() >= SHARE_VAGUE
    )


def questions_of_times(
    question: str, evidence: Sequence[Statement], language: Language, name: str, asked_ms: int, lots: random.Random
) -> Iterator[tuple[str, str, Sequence[Statement]]]:
    """What was at a time, where the words for the time tell statements on one topic apart."""
    for words in lots.sample(language.times, len(language.times)):
        inside = [one for one in evidence if words.covers(day_of(one.said_ms), day_of(asked_ms))]
        if 0 < len(inside) < len(evidence):
            yield "temporal", question.format(name=name, when=words.text), inside
            return


def day_of(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
