"""The messages of a call with keys, and what has changed in them since they were last looked at."""

from __future__ import annotations

from bisect import bisect_left

import msgspec
from msgspec import Raw, Struct

from voicemem.transcript.history import turn_entries
from voicemem.transcript.state import State


class Upsert(Struct, frozen=True):
    """A message that is new, different, or elsewhere.

    A reader takes away what it has under `key`, and puts this after the message `after` (first, where that is null).
    """

    key: str
    after: str | None
    message: Raw
    """JSON, so that what is told is what the history shows, byte for byte."""


class Changes(Struct, frozen=True):
    """From one memory to a later one: first `removed`, then the upserts in their order."""

    removed: list[str]
    upserts: list[Upsert]

    def __bool__(self) -> bool:
        return bool(self.removed or self.upserts)


class MessageDiff:
    """A fold state, and its messages as they were last looked at.

    A key is the position of the event that a message began with, which no later event changes. The state is the
    reader's own: nobody else takes away the marks of its turns that have changed.
    """

    def __init__(self, state: State, unfinished: bool) -> None:
        self.state = state
        self.unfinished = unfinished
        self.turns: dict[int, dict[str, bytes]] = {}
        """Each turn's messages, by key and in order."""

    def changes(self) -> Changes:
        """What has changed since the last time; at first that is everything."""
        state = self.state
        changes = Changes([], [])
        for number in sorted(state.dirty_turns):
            before, now = self.turns.get(number, {}), self.encode_turn(number)
            self.turns[number] = now
            changes.removed.extend(key for key in before if key not in now)
            changes.upserts.extend(upserts(before, now, self.last_key_before(number)))
        state.dirty_turns.clear()
        return changes

    def encode_turn(self, number: int) -> dict[str, bytes]:
        """The messages of a turn, as they are now."""
        found: dict[str, bytes] = {}
        for entry in turn_entries(self.state, self.state.turns[number], self.unfinished):
            key, again = str(entry.order), 1
            while key in found:  # a speaker who is named late takes over only a part of what began there
                again += 1
                key = f"{entry.order}.{again}"
            found[key] = msgspec.json.encode(entry.message)
        return found

    def last_key_before(self, number: int) -> str | None:
        """The key of the last message of the turns before."""
        turn_numbers = self.state.turn_numbers
        for place in range(bisect_left(turn_numbers, number) - 1, -1, -1):
            if messages := self.turns.get(turn_numbers[place]):
                return next(reversed(messages))
        return None


def upserts(before: dict[str, bytes], now: dict[str, bytes], after: str | None) -> list[Upsert]:
    """What makes the messages of a turn out of those before, one by one from the first."""
    found = []
    have = [key for key in before if key in now]
    for place, (key, message) in enumerate(now.items()):
        if have[place : place + 1] != [key] or before[key] != message:
            found.append(Upsert(key, after, Raw(message)))
            if key in have:
                have.remove(key)
            have.insert(place, key)
        after = key
    return found
