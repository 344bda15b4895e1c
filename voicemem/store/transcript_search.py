"""The search for heard messages: the best by words, ordered by the speaker and the time that a question means.

Messages count more if their speaker is named in the question (or the caller by a pronoun), if they were said at a time
that the question names, and if they say much. A message is also found by the words of the previous one, so the answer
to a message with the words passes on some of its score. The order is the same on every engine.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from voicemem.search.speakers import speaker_by_pronoun, speakers_by_name
from voicemem.search.times import span_in
from voicemem.search.words import QueryWord
from voicemem.store.scopes import FIRST_MS, LAST_MS, QueryScope
from voicemem.transcript.messages import Role

POOL = 100
"""How many of the best messages by words are reordered; the others stay after them."""
NAMED_BY = 50
"""Messages that are searched for the names of speakers."""
OF_SPEAKER, OF_TIME = 3.0, 2.0
"""The factor for a message of the speaker, or of the time, that the question means."""
OF_QUESTIONS = 0.5
"""Weight of a message that only asks: a statement answers more."""
FEW_WORDS = 2
"""A query of so few words is no question, but looks for where they were said."""
SHORTEST, LONGEST, OF_LENGTH = 20, 200, 0.4
"""The bytes between which a longer message counts more, and the exponent: engines prefer short ones too much."""
SENTENCE_ENDS = ".!?。！？"
OF_ANSWER = 0.3
"""The part of a message's score that counts for the message before it, whose words it was found by."""
MAX_SLACK_MS = 7 * 86_400_000
"""How long after a time people still speak of it; of a short time as long as it was."""
MAX_FOUND = 1_000
"""The best messages of a query that may be read, in pages."""


class MessagePlace(NamedTuple):
    key: int
    turn_id: int
    number: int


class TranscriptQuery(Struct, frozen=True):
    """A query for messages with any of the words, best first; the page begins after `offset` of them.

    `since_ms` and `until_ms` bound when a message was said, without the moment `until_ms`.
    """

    scope: QueryScope
    words: Sequence[QueryWord]
    since_ms: int | None = None
    until_ms: int | None = None
    offset: int = 0
    limit: int = 10
    question: str = ""
    """The text of the words: with it, speaker and time count too."""
    now_ms: int | None = None
    """When the question is asked; times in it are relative to this."""

    @property
    def values(self) -> dict[str, int]:
        """The values of its page, and of when a message was said."""
        return {"limit": self.limit, "offset": self.offset, **said_between(self.since_ms, self.until_ms)}


class FoundMessage(NamedTuple):
    """A message that was found, and its score: higher is better; comparable within one query only."""

    key: int
    turn_id: int
    number: int
    position: int
    role: Role
    said_ms: int
    text: str
    score: float

    @property
    def place(self) -> MessagePlace:
        return MessagePlace(self.key, self.turn_id, self.number)


Find = Callable[[TranscriptQuery], list[FoundMessage]]


def find_messages(find: Find, query: TranscriptQuery) -> list[FoundMessage]:
    """Return a page of the messages that answer a question, the best first, of equal ones the newest first.

    `find` gives those with the words, in the order of the words alone.
    """
    end = query.offset + query.limit
    if not query.question:
        return find(query)
    messages = find(replace(query, offset=0, limit=max(POOL, end)))
    if not messages:
        return []
    best, rest = ranked(query, messages[:POOL]), messages[POOL:]
    lowest = best[-1].score
    return [*best, *(message._replace(score=min(message.score, lowest)) for message in rest)][query.offset : end]


def ranked(query: TranscriptQuery, messages: Sequence[FoundMessage]) -> list[FoundMessage]:
    """Return the best messages by words, the question's speaker and time first."""
    said = [(message.role, message.text) for message in messages[:NAMED_BY]]
    names = speakers_by_name(query.question, said) if len({role for role, _ in said}) == 2 else {}
    speakers = set(names.values())
    speaker = speakers.pop() if len(speakers) == 1 else None if names else speaker_by_pronoun(query.question)
    span = None if query.now_ms is None else span_in(query.question, query.now_ms)
    best = []
    for message in messages:
        score = message.score * (substance_of(message.text) if len(query.words) > FEW_WORDS else 1)
        if message.role == speaker:
            score *= OF_SPEAKER
        if span is not None and span[0] <= message.said_ms <= span[1] + min(MAX_SLACK_MS, span[1] - span[0]):
            score *= OF_TIME
        best.append(message._replace(score=score))
    return sorted(with_answers(best), key=lambda one: (one.score, one.said_ms, *one.place), reverse=True)


def substance_of(text: str) -> float:
    """Measure how much a message says, by its length and by how many of its sentences are questions."""
    questions, ends = text.count("?") + text.count("？"), sum(map(text.count, SENTENCE_ENDS))
    length = min(max(len(text.encode()), SHORTEST), LONGEST) / LONGEST
    return float(length**OF_LENGTH) * (1 - (1 - OF_QUESTIONS) * questions / max(1, ends))


def with_answers(messages: Sequence[FoundMessage]) -> list[FoundMessage]:
    """Return the messages; of two consecutive ones the first counts more, since the answer has its words too."""
    in_order = sorted(messages, key=attrgetter("place"))
    scores = [message.score for message in in_order]
    for place, (first, second) in enumerate(pairwise(in_order)):
        if is_followed_by(first, second):
            scores[place] += OF_ANSWER * second.score
            scores[place + 1] -= OF_ANSWER * min(first.score, second.score)
    return [message._replace(score=score) for message, score in zip(in_order, scores, strict=True)]


def is_followed_by(first: FoundMessage, second: FoundMessage) -> bool:
    """Return whether the second message is the next one of the call, as far as their places say."""
    if (first.key, first.turn_id) == (second.key, second.turn_id):
        return second.number == first.number + 1
    return first.key == second.key and second.turn_id == first.turn_id + 1 and second.number == 0


def said_between(since_ms: int | None, until_ms: int | None) -> dict[str, int]:
    """Return the bounds of a query as values; a missing bound lies beyond all times."""
    return {
        "since_ms": FIRST_MS if since_ms is None else since_ms,
        "until_ms": LAST_MS if until_ms is None else until_ms,
    }
