"""The alignment of a request's conversation with the memory: which messages are new. Pure, and linear in its size.

Clients send one message, a few, or the whole conversation each time. Their texts may differ from the memory's: other
transcripts, replies cut where they were heard, fillers and greetings that only they know. So the ends of both are
aligned in the way that scores best: messages that both have add to the score, and messages that only one of them has
take from it. Everything in the request after the last message that both have is new.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from voicemem.search.words import words_of
from voicemem.transcript.gateway_matching import text_key
from voicemem.transcript.messages import Message

REQUEST_BACK = 48
"""How many of the request's newest messages go into the table; of the older ones only the texts are compared."""
KNOWN_BACK = 80
"""How many of the memory's newest messages go into the table."""
CERTAIN = 12
"""With so many equal messages in a row at both ends, no table is needed."""
MANY = 8
"""So many known messages in a request are no coincidence."""

# A pair of messages adds 1 to the score, or less where their texts differ.
BEGINNING = 0.9
"""A reply in the request that is the beginning of the memory's."""
TRANSCRIPT, OTHER_WORDS = 0.6, -0.1
"""Speech in other words: with at least half of the words in common, or with fewer."""
# The cost of a message that only one of them has.
LACKED_WORDS, LACKED_SPEECH, LACKED_REPLY = 1.0, 0.5, 0.2
"""A message of the memory's that the request lacks, between messages that both have."""
UNKNOWN_WORDS, UNKNOWN_REPLY = 1.0, 0.3
"""A message of the request's that the memory lacks and can no longer take."""
EARLIER_WORDS, EARLIER_REPLY, EARLIER = 0.5, 0.1, 0.6
"""A message from before the memory begins: each, and all together at most."""
NEWER_WORDS, NEWER_SPEECH, NEWER_REPLY, NEWER = 0.8, 0.2, 0.02, 0.8
"""A message of the memory's after the last one that both have: each, and all together at most."""
AFTER_CALL = 0.45
"""The cost of words before a tool call, where the memory's are of a later turn: some clients add calls late."""
BEFORE_LAST = 0.3
"""The cost of words before the last ones, where the memory's are speech that waits for an answer."""
ASKED_AGAIN, ASKED_AGAIN_IN_PART = 0.6, 1.5
"""The cost of an answered request that is repeated by a client that sends the whole conversation, or only its end."""


class Spoken(Struct, frozen=True):
    """A message of a request that has text, with its index there."""

    index: int
    role: str
    text: str
    after_turn: int = -1
    """The newest turn with a tool call that is before it in the request and in the memory."""
    after_ms: int = -1
    """Unix ms of the newest such call in an earlier message: a reply after the call began later."""
    before_ms: int | None = None
    """Unix ms of the first tool call of the same message that the memory knows: the reply began before it."""
    before_turn: int | None = None
    """The turn of the next such call in a later message; mostly the words are of no later turn."""


class LastMatch(Struct, frozen=True):
    """The newest message that both have: its place among the request's and among the memory's; -1 if there is none."""

    spoken: int = -1
    known: int = -1
    ignored: tuple[int, ...] = ()
    """Indexes of earlier messages that the memory lacks and can no longer take."""
    begun: tuple[tuple[int, int], ...] = ()
    """Replies that the request has only the beginning of: their places among its messages and among the memory's."""


def may_be_same_speech(one: str, other: str) -> bool:
    """Return whether two texts may be transcripts of the same words: the longer one has half of the shorter one's."""
    fewer, more = sorted((words_of(one), words_of(other)), key=len)
    known = set(more)
    return bool(fewer) and 2 * sum(word in known for word in fewer) >= len(fewer)


class Hints(NamedTuple):
    """Facts about a request besides its messages."""

    may_repeat: bool
    """Its last words may be the newest words of the memory."""
    is_unanswered: bool
    """The answer to these words failed, or its client left."""
    ends_with_words: bool
    """Only instructions follow the last message with text."""
    has_replies: bool
    """It has messages of the agent."""


def find_last_match(known: Sequence[Message], spoken: Sequence[Spoken], hints: Hints) -> LastMatch:
    """Return the newest message that the memory and a request share."""
    if len(spoken) == 1 and spoken[0].role == "user" and hints.ends_with_words and not hints.may_repeat:
        return LastMatch()  # it has only new words
    return Comparison(known, spoken, hints).last_match() if known and spoken else LastMatch()


class PrefixLengths(NamedTuple):
    """The lengths of the two prefixes that are aligned: numbers of messages of the request, and of the memory."""

    request: int
    known: int


class Comparison:
    """The comparison of a request's messages with the newest of the memory, as many as it may refer to."""

    def __init__(self, known: Sequence[Message], spoken: Sequence[Spoken], hints: Hints) -> None:
        self.first = max(0, len(known) - 2 * len(spoken) - KNOWN_BACK)
        """The first message of the memory that is compared."""
        self.known = known[self.first :]
        self.spoken = spoken
        self.keys = [(one.role, text_key(one.text)) for one in spoken]
        self.known_keys = [known_keys(message) for message in self.known]
        self.all_known = {key for keys in self.known_keys for key in keys}
        self.last_user = next((at for at in reversed(range(len(self.known))) if self.known[at].role == "user"), -1)
        self.answered = {one.turn_id for one in self.known if one.role == "assistant" and one.content}
        """The turns in which a reply was heard."""
        self.newest_words = len(spoken) - 1 if hints.ends_with_words and spoken[-1].role == "user" else -1
        """The place of the words that the request ends with: they are new, unless they are the memory's newest."""
        self.may_repeat = hints.may_repeat
        self.is_unanswered = hints.is_unanswered
        self.is_words_alone = not hints.has_replies

    def last_match(self) -> LastMatch:
        ends = self.equal_ends()
        if ends is not None:
            return self.match_at(ends, [])
        table = AlignmentTable(self, PrefixLengths(len(self.spoken), len(self.known)))
        if not table.has_same:  # its newest messages are all new: find the last one that is not
            request = next((at for at in reversed(range(len(self.keys))) if self.keys[at] in self.all_known), -1)
            if request < 0:
                return LastMatch()
            other = next(at for at in reversed(range(len(self.known))) if self.keys[request] in self.known_keys[at])
            table = AlignmentTable(self, PrefixLengths(request + 1, other + 1))
        end = table.best_end()
        return self.last_resort() if end is None else self.match_at(end, table.steps_back(end))

    def last_resort(self) -> LastMatch:
        """Return the last match of a request that contradicts the memory but has mostly known messages."""
        places = [at for at, key in enumerate(self.keys) if key in self.all_known and at != self.newest_words]
        if len(places) < max(MANY, len(self.keys) // 2):
            return LastMatch()
        other = next(at for at in reversed(range(len(self.known))) if self.keys[places[-1]] in self.known_keys[at])
        return LastMatch(places[-1], self.first + other)

    def equal_ends(self) -> PrefixLengths | None:
        """Return the lengths if the request, without its last words, ends as the memory does."""
        end = len(self.spoken) - (self.newest_words >= 0)
        count = min(CERTAIN, len(self.known))
        is_sent_again = self.newest_words >= 0 and self.keys[-1] in self.known_keys[self.last_user]
        if count > end or self.known[-1].role == "user" or is_sent_again:
            return None
        pairs = zip(self.keys[end - count : end], self.known_keys[-count:], strict=True)
        return PrefixLengths(end, len(self.known)) if all(key in keys for key, keys in pairs) else None

    def match_at(self, end: PrefixLengths, steps: list[tuple[PrefixLengths, PrefixLengths]]) -> LastMatch:
        """Return the last match, with the earlier messages of the request that are not in the memory."""
        unknown = [before.request for place, before in steps if before == (place.request - 1, place.known)]
        begin = steps[-1][1] if steps else end
        unknown += self.unknown_before(begin)
        indexes = sorted(self.spoken[place].index for place in unknown)
        diagonal = [before for at, before in steps if before == (at.request - 1, at.known - 1)]
        # The request may have only the beginning of a reply.
        begun = tuple(
            (request, self.first + known)
            for request, known in diagonal
            if self.keys[request] not in self.known_keys[known] and begins(self.keys[request], self.known_keys[known])
        )
        return LastMatch(end.request - 1, self.first + end.known - 1, tuple(indexes), begun)

    def unknown_before(self, end: PrefixLengths) -> Iterator[int]:
        """Yield the places of messages before the table's that have no counterpart in the memory."""
        request, known = end
        everywhere = set(self.keys[:request])
        while request and known:
            key, keys = self.keys[request - 1], self.known_keys[known - 1]
            is_new = key not in self.all_known
            is_left_out = everywhere.isdisjoint(keys)
            if key in keys or begins(key, keys) or (is_left_out and self.is_other_transcript(request - 1, known - 1)):
                request, known = request - 1, known - 1
            elif is_left_out and keys[0][0] == "assistant":  # the words may be another transcript of the speech before
                known -= 1
            elif is_new:
                yield request - 1
                request -= 1
            elif is_left_out:
                known -= 1
            else:
                return
        yield from (() if self.first else range(request))

    def is_other_transcript(self, request: int, known: int) -> bool:
        """Return whether the request's words may be the memory's speech, transcribed otherwise."""
        message = self.known[known]
        if not self.keys[request][0] == message.role == "user" or message.metadata.get("source") != "asr":
            return False
        return self.keys[request] not in self.all_known or may_be_same_speech(
            self.spoken[request].text, message.content
        )

    def is_possible(self, request: int, known: int) -> bool:
        """Return whether a message of the user may be this one of the memory, by their places."""
        if self.spoken[request].after_turn >= self.known[known].turn_id:
            return False
        return request != self.newest_words or (self.may_repeat and known == self.last_user)

    def sameness(self, request: int, known: int) -> float | None:
        """Return the score of two messages that may be the same; None if they cannot be."""
        key, keys = self.keys[request], self.known_keys[known]
        if key[0] != keys[0][0]:
            return None
        if key[0] == "assistant":
            one, begin = self.spoken[request], self.known[known].timestamp
            if begin < one.after_ms or (one.before_ms is not None and begin > one.before_ms):
                return None
            return 1.0 if key in keys else BEGINNING if begins(key, keys) else None
        if not self.is_possible(request, known):
            return None
        count = self.sameness_of_words(request, known)
        if count is None:
            return None
        before, turn = self.spoken[request].before_turn, self.known[known].turn_id
        waits = known == len(self.known) - 1 and request < self.newest_words
        return count - AFTER_CALL * (before is not None and before < turn) - BEFORE_LAST * waits

    def sameness_of_words(self, request: int, known: int) -> float | None:
        """Return the score of the texts of two messages of the user; None if they cannot be the same."""
        if self.keys[request] in self.known_keys[known]:
            return 1.0
        if self.known[known].metadata.get("source") != "asr":
            return None
        is_newest = known == len(self.known) - 1
        has_answer = self.is_words_alone and self.known[known].turn_id in self.answered
        if not self.is_unanswered and (request == self.newest_words if is_newest else has_answer):
            return None  # it has no answer yet, or the request has no replies to tell by
        return TRANSCRIPT if may_be_same_speech(self.spoken[request].text, self.known[known].content) else OTHER_WORDS


class AlignmentTable:
    """The best alignments of all prefixes of a request's messages with those of the memory: dynamic programming."""

    def __init__(self, compared: Comparison, end: PrefixLengths) -> None:
        self.compared = compared
        self.end = end
        self.begin = PrefixLengths(max(0, end.request - REQUEST_BACK), max(0, end.known - KNOWN_BACK))
        self.is_whole = self.begin.known == compared.first == 0
        """True if the table begins where the memory does."""
        self.has_same = False
        known = compared.known[self.begin.known : end.known]
        self.lacked = [cost_of(one, LACKED_WORDS, LACKED_SPEECH, LACKED_REPLY if one.content else 0.0) for one in known]
        self.origins: dict[PrefixLengths, PrefixLengths] = {}
        """The place before each place in its best alignment."""
        self.ends: dict[PrefixLengths, tuple[float, PrefixLengths]] = {}
        """The best score of an alignment that ends with a message that both have, and the place before it."""
        self.fill()

    def fill(self) -> None:
        begin, compared = self.begin, self.compared
        above, row = list[float](), [0.0] * (self.end.known - begin.known + 1)
        for request in range(begin.request, self.end.request):
            is_words = compared.keys[request][0] == "user"
            unknown = UNKNOWN_WORDS if is_words else UNKNOWN_REPLY
            earlier = EARLIER_WORDS if is_words else EARLIER_REPLY
            before, above = above, row
            row = [max(-EARLIER, above[0] - earlier) if self.is_whole else 0.0]
            self.origins[PrefixLengths(request + 1, begin.known)] = PrefixLengths(request, begin.known)
            for at, lacked in enumerate(self.lacked):
                known = begin.known + at
                place = PrefixLengths(request + 1, known + 1)
                best, origin = row[at] - lacked, PrefixLengths(request + 1, known)
                if above[at + 1] - unknown >= best:
                    best, origin = above[at + 1] - unknown, PrefixLengths(request, known + 1)
                for count, from_ in self.joins(request, known, before, above):
                    if place not in self.ends or count > self.ends[place][0]:
                        self.ends[place] = count, from_
                    if count >= best:
                        best, origin = count, from_
                row.append(best)
                self.origins[place] = origin

    def joins(
        self, request: int, known: int, before: list[float], above: list[float]
    ) -> Iterator[tuple[float, PrefixLengths]]:
        """Yield the scores of alignments that end with a match: of one message each, or of one with two."""
        compared, at = self.compared, known - self.begin.known
        same = compared.sameness(request, known)
        if same is not None:
            self.has_same = self.has_same or same > 0
            yield above[at] + same, PrefixLengths(request, known)
        key, keys = compared.keys[request], compared.known_keys[known]
        if not key[0] == keys[0][0] == "user" or key in keys or not compared.is_possible(request, known):
            return
        if at and is_joined(key, compared.known_keys[known - 1][0], keys[0]):
            yield above[at - 1] + 1, PrefixLengths(request, known - 1)
        if before and is_joined(keys[0], compared.keys[request - 1], key):
            yield before[at] + 1, PrefixLengths(request - 1, known)

    def best_end(self) -> PrefixLengths | None:
        """Return the end of the alignment with the best score; None if none has a score above 0."""
        compared, newer = self.compared, 0.0
        best: tuple[float, PrefixLengths] | None = None
        for known in range(len(compared.known), self.begin.known, -1):
            if known <= self.end.known:
                for request in range(self.end.request, self.begin.request, -1):
                    place = PrefixLengths(request, known)
                    count = self.ends[place][0] - newer if place in self.ends else 0.0
                    if count > 0 and (best is None or count > best[0]):
                        count -= self.cost_of_repeating(place)
                        best = (count, place) if count > 0 and (best is None or count > best[0]) else best
            newer = min(NEWER, newer + cost_of(compared.known[known - 1], NEWER_WORDS, NEWER_SPEECH, NEWER_REPLY))
        return None if best is None else best[1]

    def cost_of_repeating(self, end: PrefixLengths) -> float:
        """Return the cost of an alignment in which the request's words were answered, but it lacks the answer."""
        compared = self.compared
        if end.known == len(compared.known) or compared.is_unanswered or compared.keys[end.request - 1][0] != "user":
            return 0.0
        begin = self.steps_back(end)[-1][1]
        if self.is_whole if begin.known == self.begin.known else begin.request == self.begin.request > 0:
            return ASKED_AGAIN if end.request - 1 == compared.newest_words else 0.0
        return ASKED_AGAIN_IN_PART

    def steps_back(self, end: PrefixLengths) -> list[tuple[PrefixLengths, PrefixLengths]]:
        """Return the steps of an alignment from its end back: each place, and the one before it."""
        steps = [(end, self.ends[end][1])]
        while (place := steps[-1][1]) in self.origins and place.known > self.begin.known:
            steps.append((place, self.origins[place]))
        return steps


def cost_of(message: Message, words: float, speech: float, reply: float) -> float:
    """Return the cost of a message of the memory: of typed words, of speech, or of a reply."""
    if message.role == "user":
        return speech if message.metadata.get("source") == "asr" else words
    return reply


def known_keys(message: Message) -> tuple[tuple[str, str], ...]:
    """Return the keys of a message: of the heard text, and of the generated one if that differs."""
    key, original = (message.role, text_key(message.content)), message.metadata.get("original")
    return (key, (message.role, text_key(original))) if isinstance(original, str) else (key,)


def begins(key: tuple[str, str], keys: Sequence[tuple[str, str]]) -> bool:
    """Return whether a reply of the request is the beginning of one of the memory."""
    return key[0] == "assistant" and any(role == "assistant" and text.startswith(key[1]) for role, text in keys)


def is_joined(whole: tuple[str, str], one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Return whether a message says what two others say, one after the other."""
    return one[0] == whole[0] and whole[1] == one[1] + other[1]
