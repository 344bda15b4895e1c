"""What one producer says, event by event: runs of digits go on over the borders of events.

What the agent says is a text from the beginning of its reply on, so that what was heard of it stays comparable. What
users say is one text: a run goes on from one final to the next, whoever answers in between. What is remembered is
bounded, and can be found again from the newest events in the journal, since what was redacted gives the same again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from voicemem.redaction.rules import Rules
from voicemem.redaction.runs import START, Run, close
from voicemem.redaction.texts import FRESH, Place, redact_piece, redact_text

MAX_SEGMENTS = 32
"""Segments of which it is remembered where they began."""
MAX_REPLIES = 64
"""Texts in pieces of which it is remembered where they stand."""
MAX_WORDS = 64
"""Words of one reply that may come again."""


class UserSpeech:
    """What users say: segments, of which each begins where the one before it ended."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.base = START
        """Where the newest segment ends so far."""
        self.restated = START
        """Where the newest text ended that says the segments before it again."""
        self.segments: OrderedDict[Hashable, tuple[Run, Run]] = OrderedDict()
        """Where a segment began, and how far it is, the newest last."""
        self.finals = 0
        """How many segments without a key have become final."""

    def find(self, key: Hashable) -> tuple[Run, Run]:
        """Where a segment began, and how far it is: a new one goes on from the one before it."""
        start = self.closed(self.base)
        return self.segments.get(key) or (start, start)

    def closed(self, run: Run) -> Run:
        return run if self.rules.limit is None else close(run, self.rules.limit)

    def keep(self, key: Hashable, start: Run, end: Run) -> None:
        if key not in self.segments or key == next(reversed(self.segments)):
            self.base = end
        self.segments[key] = start, end
        if len(self.segments) > MAX_SEGMENTS:
            self.segments.popitem(last=False)

    def whole(self, text: str, key: Hashable | None, final: bool) -> str:
        """All of a segment so far; one without a key ends with its final."""
        place = (self.finals,) if key is None else key
        if key is None and final:
            self.finals += 1
        if not text and place not in self.segments:
            return text
        start, _ = self.find(place)
        shown, end = redact_text(text, start, self.rules, complete=final)
        self.keep(place, start, end)
        return shown

    def piece(self, text: str, key: Hashable) -> str:
        """More of a segment."""
        start, so_far = self.find(key)
        shown, end = redact_text(text, so_far, self.rules, complete=False)
        self.keep(key, start, end)
        return shown

    def next(self, text: str, key: Hashable) -> str:
        """What may come next in a segment."""
        return redact_text(text, self.closed(self.find(key)[1]), self.rules, complete=False)[0]

    def restate(self, text: str, key: Hashable) -> str:
        """A text that says again what came in segments before it."""
        start = self.segments[key][0] if key in self.segments else self.restated
        shown, end = redact_text(text, start, self.rules)
        self.keep(key, start, end)
        self.restated = end
        return shown

    def words(self, texts: Iterable[str], key: Hashable | None) -> list[str]:
        """The words of a segment, to be asked for before its text."""
        run, found = self.find((self.finals,) if key is None else key)[0], []
        for text in texts:
            shown, run = redact_text(text, run, self.rules)
            found.append(shown)
        return found

    def end(self, key: Hashable) -> None:
        """No more pieces follow in this segment."""
        self.base = self.closed(self.base)
        self.segments.pop(key, None)


class Pieces(NamedTuple):
    """A text in pieces, as far as it has come."""

    place: Place
    beginning: str = ""
    """Its first characters, as they were kept."""


class Words:
    """The words of a reply with their times; an engine may say some of them again."""

    def __init__(self) -> None:
        self.place = FRESH
        self.before: OrderedDict[int, Place] = OrderedDict()
        """Where the text stood before the word of a time."""


class AgentSpeech:
    """What the agent says: each reply is a text of its own, which comes in pieces, whole, or as words."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.pieces: OrderedDict[Hashable, Pieces] = OrderedDict()
        self.words: OrderedDict[Hashable, Words] = OrderedDict()
        self.parts = UserSpeech(rules)
        """The sentences of a reply, each of which may come again."""

    def whole(self, text: str, key: Hashable | None = None, complete: bool = True) -> str:
        """A text from the beginning of a reply on; with a key, all of it so far."""
        shown, place = redact_piece(text, FRESH, self.rules, complete)
        if key is not None:
            self.keep(key, Pieces(place, shown[:MAX_BEGINNING]))
        return shown

    def piece(self, text: str, key: Hashable) -> str:
        """More of a reply."""
        so_far = self.pieces.get(key) or Pieces(FRESH)
        shown, place = redact_piece(text, so_far.place, self.rules)
        self.keep(key, Pieces(place, (so_far.beginning + shown)[:MAX_BEGINNING]))
        return shown

    def keep(self, key: Hashable, pieces: Pieces) -> None:
        self.pieces[key] = pieces
        self.pieces.move_to_end(key)
        if len(self.pieces) > MAX_REPLIES:
            self.pieces.popitem(last=False)

    def grown(self, text: str, key: Hashable) -> str:
        """All of a reply so far, or only what is new of it."""
        so_far = self.pieces.get(key)
        if so_far is None:
            return self.whole(text, key, complete=False)
        shown = redact_piece(text, FRESH, self.rules)[0]
        if shown.startswith(so_far.beginning) or "".join(shown.split()).startswith("".join(so_far.beginning.split())):
            return self.whole(text, key, complete=False)
        return self.piece(f" {text}" if text[:1].isalnum() else text, key).removeprefix(" ")

    def word(self, text: str, key: Hashable, at_ms: int | None = None) -> str:
        """A word of a reply, and when it sounds."""
        words = self.words.setdefault(key, Words())
        self.words.move_to_end(key)
        if len(self.words) > MAX_REPLIES:
            self.words.popitem(last=False)
        before = words.place if at_ms is None else words.before.get(at_ms, words.place)
        shown, after = redact_piece(text, before, self.rules, complete=True)
        words.place = Place(after.run)
        if at_ms is not None:
            words.before[at_ms] = before
            words.before.move_to_end(at_ms)
            if len(words.before) > MAX_WORDS:
                words.before.popitem(last=False)
        return shown

    def end(self, key: Hashable) -> None:
        """The next piece under this key is another reply's."""
        self.pieces.pop(key, None)
        self.words.pop(key, None)
        if key == PARTS:
            self.parts = UserSpeech(self.rules)


MAX_BEGINNING = 256
PARTS = "parts"
"""The key of sentences that make up a reply."""


class Speech:
    """All that one producer says."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.users: dict[str, UserSpeech] = {}
        """By channel: a stack may say in two ways what the user said."""
        self.agent = AgentSpeech(rules)
        self.fragments: OrderedDict[str, dict[int, str]] = OrderedDict()
        """Parts of messages that cannot be read before all are there."""

    def user(self, channel: str = "") -> UserSpeech:
        return self.users.setdefault(channel, UserSpeech(self.rules))
