"""Passages: the messages of a call as they are indexed, each with the words before it.

Only what was heard is one. A reply that may still be playing is none yet: an interruption could still cut it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from msgspec import Struct

from voicemem.search.words import words_of
from voicemem.transcript.history import MessageEntry, turn_entries
from voicemem.transcript.messages import OF_CLIENT, Role
from voicemem.transcript.state import Reply, State, Turn

MAX_WORDS, MAX_WORDS_BEFORE = 4_000, 200
"""Words of a message that it is found by, the first ones; and of the message before it, the last ones."""
BEFORE_WEIGHT = 0.9
"""What a word of the message before counts, beside one of the message itself: that one is shown first."""
LOOK_BACK = 8
"""Turns in which the message before a turn's first one is looked for; some turns have none."""
DAY_MS = 86_400_000
MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905


class Passage(Struct, frozen=True, gc=False):
    """One message that was heard. `before` is the message before it, which tells what "yes" was said to."""

    turn_id: int
    number: int
    """Its place among the passages of its turn, from 0."""
    position: int
    """The journal position of its first event."""
    role: Role
    said_ms: int
    text: str
    before: str


def passages_in(state: State, number: int) -> list[Passage]:
    """The passages of a turn."""
    turn = state.turns.get(number)
    if turn is None:
        return []
    entries, passages = heard_entries(state, turn), list[Passage]()
    before = text_before(state, number) if entries else ""
    for place, entry in enumerate(entries):
        message = entry.message
        passages.append(Passage(number, place, entry.order, message.role, message.timestamp, message.content, before))
        before = message.content
    return passages


def heard_entries(state: State, turn: Turn) -> list[MessageEntry]:
    """The messages of a turn that were heard, and that nobody asked to forget."""
    return [entry for entry in turn_entries(state, turn) if is_passage(state, entry)]


def is_passage(state: State, entry: MessageEntry) -> bool:
    """Whether a message says something, was heard, and nobody asked to forget it."""
    if not entry.message.content.strip() or not is_heard(state, entry):
        return False
    return state.forgotten is None or not state.forgotten.covers(entry.message.turn_id, entry.order)


def is_heard(state: State, entry: MessageEntry) -> bool:
    """Whether nothing of a message may still turn out to be unheard: a reply has to be over."""
    reply = entry.made_of
    if not isinstance(reply, Reply) or entry.interruption is not None or state.closed_ts is not None:
        return True
    if OF_CLIENT in entry.message.metadata:
        return True
    if reply.heard_ts is not None or reply.restored or reply.over or reply.turn < state.final_turn:
        return True
    return not reply.progress and reply.turn < state.utterance_turn


def has_unheard(state: State, number: int) -> bool:
    """Whether a turn has a message that becomes a passage once it is over."""
    turn = state.turns.get(number)
    return turn is not None and any(not is_heard(state, entry) for entry in turn_entries(state, turn))


def text_before(state: State, number: int) -> str:
    """The last message before a turn."""
    for earlier in turns_before(state, number):
        entries = heard_entries(state, state.turns[earlier])
        if entries:
            return entries[-1].message.content
    return ""


def turns_before(state: State, number: int) -> Iterable[int]:
    """The turns just before one, the nearest first."""
    place = bisect_left(state.turn_numbers, number)
    return reversed(state.turn_numbers[max(0, place - LOOK_BACK) : place])


def turns_after(state: State, number: int) -> Iterable[int]:
    """The turns just after one, of which one may have its last message before its first."""
    place = bisect_left(state.turn_numbers, number)
    return state.turn_numbers[place + 1 : place + 1 + LOOK_BACK]


def day_words(started_ms: int) -> str:
    """The day of a call (UTC) in words that people ask with: `3 May 2026`."""
    day, month, year = calendar_day(started_ms // DAY_MS)
    return f"{day} {MONTHS[month - 1]} {year}"


def calendar_day(days: int) -> tuple[int, int, int]:
    """Day, month and year of a number of days since 1970, counted in years that begin in March."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    return day, month + 3 if month < 10 else month - 9, era * 400 + year + (month >= 10)


def indexed_words(passage: Passage, day: str) -> tuple[list[str], list[str], list[str]]:
    """What a message is found by: its words, those of the message before it, and those of the day."""
    return words_of(passage.text)[:MAX_WORDS], words_of(passage.before)[-MAX_WORDS_BEFORE:], words_of(day)
