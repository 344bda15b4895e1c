"""The alignment of a request's conversation with the memory: which messages are new. Pure, and linear in its size.

Clients send one message, a few, or the whole conversation each time. Their texts may differ from the memory's: other
transcripts, replies cut where they were heard, fillers and greetings that only they know. So the last message that the
memory knows is found by content and order, from the end of both; everything after it is new.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from voicemem.transcript.messages import Message

LOOK_BACK = 64
"""How many messages are compared before two places count as the same."""
MAX_PLACES = 8
"""How many messages of the memory, the newest first, are looked for in the request."""
UNSPOKEN = re.compile(r"[\W_]+")


class Spoken(Struct, frozen=True):
    """A message of a request with text, at its index there."""

    index: int
    role: str
    text: str
    after_turn: int = -1
    """The newest turn with a tool call that the memory knows and that stands before it in the request."""


class Meeting(Struct, frozen=True):
    """The newest message that both know: its place among the request's and among the memory's; -1 if there is none."""

    spoken: int = -1
    known: int = -1
    ignored: tuple[int, ...] = ()
    """Indexes of messages before it that the memory does not know, and that can no longer be taken."""


def text_key(text: str) -> str:
    """The letters and digits of a text, which tell whether two texts say the same."""
    return UNSPOKEN.sub("", text.casefold()) or text.strip()


def find_meeting(known: Sequence[Message], spoken: Sequence[Spoken], may_repeat: bool) -> Meeting:
    """The newest message that the memory and a request share.

    `may_repeat` says that a request's last words may be the memory's newest ones, sent again.
    """
    compared = Comparison(known, spoken)
    last_user = next((place for place in reversed(range(len(known))) if known[place].role == "user"), -1)

    def is_possible(walk: Walk) -> bool:
        one, message = spoken[walk.place], known[walk.other]
        is_last = walk.place == len(spoken) - 1
        if one.role == "user":
            again = not is_last or (walk.other == last_user and (may_repeat or walk.other == len(known) - 1))
            return one.after_turn < message.turn_id and again
        return not is_last or walk.place == 0 or walk.length > 1

    walks = (compared.walk(*pair) for pair in compared.candidates())
    best = max(filter(is_possible, walks), key=attrgetter("rank"), default=None)
    if best is None:
        return Meeting()
    return Meeting(best.place, best.other, tuple(compared.unknown_before(best.place, best.other)))


class Walk(NamedTuple):
    """Two conversations compared backwards from a place in each."""

    place: int
    """Among the request's messages."""
    other: int
    """Among the memory's."""
    length: int
    rank: tuple[int, bool, int, int, int]
    """How likely it is that the places are the same; the greatest is."""


class Comparison:
    """A request's messages beside the memory's newest, as many as it may mean."""

    def __init__(self, known: Sequence[Message], spoken: Sequence[Spoken]) -> None:
        self.known = known
        self.spoken = spoken
        self.first = max(0, len(known) - 2 * len(spoken) - LOOK_BACK)
        """The first message of the memory that is compared."""
        self.keys = [(one.role, text_key(one.text)) for one in spoken]
        self.known_keys = [known_keys(message) for message in known[self.first :]]
        self.places = defaultdict[tuple[str, str], list[int]](list)
        for place, key in enumerate(self.keys):
            self.places[key].append(place)
        self.all_known = {key for keys in self.known_keys for key in keys}
        self.cut = [
            place for place, key in enumerate(self.keys) if key[0] == "assistant" and key not in self.all_known
        ][-LOOK_BACK:]
        """The agent's messages that the memory does not have like this; they may be the beginnings of its replies."""

    def candidates(self) -> Iterator[tuple[int, int]]:
        """Pairs of places at which both have the same message."""
        found = 0
        for other in reversed(range(self.first, len(self.known))):
            keys = self.known_keys[other - self.first]
            places = {place for key in keys for place in self.places.get(key, ())[-LOOK_BACK:]}
            if other >= len(self.known) - LOOK_BACK:
                places.update(place for place in self.cut if begins(self.keys[place], keys))
            yield from ((place, other) for place in places)
            found += bool(places)
            if found == MAX_PLACES:
                return

    def is_same(self, place: int, other: int) -> bool:
        key, keys = self.keys[place], self.known_keys[other - self.first]
        return key in keys or begins(key, keys)

    def walk(self, begin: int, end: int) -> Walk:
        place, other, length, contradicts = begin, end, 0, False
        while place >= 0 and other >= self.first and length < LOOK_BACK and begin - place < 2 * LOOK_BACK:
            steps = self.step(place, other)
            if steps is None:
                contradicts = True
                break
            length += steps == (1, 1) and self.is_same(place, other)
            place, other = place - steps[0], other - steps[1]
        at_start = other < 0 and not contradicts
        whole = 2 if (begin == end or (at_start and place < 0)) and not contradicts else int(at_start)
        if whole == 1 and begin == len(self.spoken) - 1 and self.known[end].role == "user":
            whole = 0  # that the last words are sent again needs better evidence
        rank = (whole, not contradicts, length, end, begin) if contradicts or whole else (0, True, end, length, begin)
        return Walk(begin, end, length, rank)

    def step(self, place: int, other: int) -> tuple[int, int] | None:
        """How far to go back in each; None where they contradict each other."""
        if self.is_same(place, other):
            return 1, 1
        is_new = self.keys[place] not in self.all_known
        is_left_out = not any(key in self.places for key in self.known_keys[other - self.first])
        if is_new and is_left_out and self.keys[place][0] == self.known[other].role == "user":
            return 1, 1  # another transcript
        if is_new:
            return 1, 0
        return (0, 1) if is_left_out else None

    def unknown_before(self, place: int, other: int) -> Iterator[int]:
        """The indexes of messages before a place that have no counterpart in the memory."""
        while place >= 0 and other >= self.first:
            steps = self.step(place, other) or (1, 1)
            if steps == (1, 0):
                yield self.spoken[place].index
            place, other = place - steps[0], other - steps[1]
        yield from (self.spoken[one].index for one in range(place + 1) if other < 0)


def known_keys(message: Message) -> tuple[tuple[str, str], ...]:
    """The keys of a message: of what was heard, and of what was generated."""
    key, original = (message.role, text_key(message.content)), message.metadata.get("original")
    return (key, (message.role, text_key(original))) if isinstance(original, str) else (key,)


def begins(key: tuple[str, str], keys: Sequence[tuple[str, str]]) -> bool:
    """True if a reply of the request is the beginning of one that the memory has whole."""
    return key[0] == "assistant" and any(role == "assistant" and text.startswith(key[1]) for role, text in keys)
