"""Passages: the messages of a call as they are indexed, each with the words before it.

Only a heard message is one. A reply that may still be playing is not one yet: an interruption could still cut it.

A memory that lasts beyond a call is found by its own words, and by those of its topics, entities and day.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from voicemem.protocol.memories import date_of
from voicemem.search.words import words_of
from voicemem.transcript.history import MessageEntry, turn_entries
from voicemem.transcript.messages import OF_CLIENT, Forgotten, Role
from voicemem.transcript.state import Reply, State, Turn

MAX_WORDS, MAX_WORDS_BEFORE = 4_000, 200
"""How many of a message's first words, and of the previous message's last words, are indexed."""
MAX_WORD = 32
"""Characters read per indexed word: a message may have millions."""
BEFORE_WEIGHT = 0.9
"""The weight of a word of the previous message, relative to the message's own words, so that its own rank first."""
LOOK_BACK = 8
"""How many earlier turns are searched for the message before a turn's first one; some turns have none."""
MAX_SPEAKER = 64
"""Characters of a speaker's name that a message is found by."""
ABOUT_WEIGHT = 0.5
"""The weight of a word of a topic, an entity or the day, relative to a word of the text."""
FIRST_DAY_MS, LAST_DAY_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999."""
DAY_MS = 86_400_000
MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905


class Passage(Struct, frozen=True, gc=False):
    """One message that was heard. `before` is the previous message, which shows what a "yes" answered."""

    turn_id: int
    number: int
    """Its place among the passages of its turn, from 0."""
    position: int
    """The journal position of its first event."""
    role: Role
    said_ms: int
    text: str
    before: str
    speaker: str = ""
    """The name of the speaker, where the producer states one."""


def passages_in(state: State, number: int) -> list[Passage]:
    turn = state.turns.get(number)
    if turn is None:
        return []
    passages = list[Passage]()
    before = text_before(state, number)  # first: the memo keeps the entries of one usual turn at a time
    for place, entry in enumerate(heard_entries(state, turn)):
        message = entry.message
        user = message.metadata.get("user")
        speaker = user[:MAX_SPEAKER] if isinstance(user, str) else ""
        said = message.role, message.timestamp, message.content
        passages.append(Passage(number, place, entry.position, *said, before, speaker))
        before = message.content
    return passages


def heard_entries(state: State, turn: Turn) -> Iterator[MessageEntry]:
    """The messages of a turn that were heard and are not forgotten."""
    return (entry for entry in turn_entries(state, turn) if is_passage(state, entry))


def is_passage(state: State, entry: MessageEntry) -> bool:
    """Return whether a message has text, is final and is not forgotten."""
    covers = (state.forgotten or Forgotten()).covers
    is_said = bool(entry.message.content.strip()) and is_final(state, entry)
    return is_said and not covers(entry.message.turn_id, entry.position)


def is_final(state: State, entry: MessageEntry) -> bool:
    """Return whether it is final what was heard of a message: a reply must be over."""
    reply = entry.made_of
    if not isinstance(reply, Reply) or entry.interruption is not None or state.closed_ts is not None:
        return True
    if OF_CLIENT in entry.message.metadata:
        return True
    if reply.heard_ts is not None or reply.restored or reply.over or reply.turn < state.final_turn:
        return True
    return not reply.progress and reply.turn < state.utterance_turn


def has_open_messages(state: State, number: int) -> bool:
    """Return whether a turn has a message that may still be playing; it becomes a passage once it is over."""
    turn = state.turns.get(number) if state.closed_ts is None else None  # after the close all is final
    return turn is not None and any(not is_final(state, entry) for entry in turn_entries(state, turn))


def text_before(state: State, number: int) -> str:
    place = bisect_left(state.turn_numbers, number)
    for earlier in reversed(state.turn_numbers[max(0, place - LOOK_BACK) : place]):
        for last in deque(heard_entries(state, state.turns[earlier]), maxlen=1):
            return last.message.content
    return ""


def turns_after(state: State, number: int) -> Iterable[int]:
    """The turns just after this one; its last message may be the `before` of one's first passage."""
    place = bisect_left(state.turn_numbers, number)
    return state.turn_numbers[place + 1 : place + 1 + LOOK_BACK]


def day_words(started_ms: int) -> str:
    """Return the day of a call (UTC) in words that people search for: `3 May 2026`."""
    day = date_of(started_ms // DAY_MS)
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def indexed_words(passage: Passage, day: str) -> tuple[list[str], list[str], list[str]]:
    """Return the indexed words of a message: its own, the previous message's, and those of the day and the speaker."""
    about = [*words_of(day), *words_of(passage.speaker)]
    before = words_of(passage.before[-MAX_WORDS_BEFORE * MAX_WORD :])[-MAX_WORDS_BEFORE:]
    return first_words(passage.text), before, about


def first_words(text: str) -> list[str]:
    return words_of(text[: MAX_WORDS * MAX_WORD])[:MAX_WORDS]


# The indexed words of memories


class MemoryWords(NamedTuple):
    """The words of a memory as two texts: of its text, and of its topics, entities and day."""

    said: str
    about: str


def memory_words(text: str, tags: Sequence[str], day_ms: int | None) -> MemoryWords:
    """Return the words of a memory with these topics and entities, about a day (Unix ms; None if about none)."""
    about = [word for tag in tags for word in words_of(tag)]
    if day_ms is not None and FIRST_DAY_MS <= day_ms <= LAST_DAY_MS:
        about += words_of(day_words(day_ms))
    return MemoryWords(" ".join(first_words(text)), " ".join(about[:MAX_WORDS]))
