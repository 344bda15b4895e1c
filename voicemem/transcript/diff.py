"""What has changed in the messages of a call since a reader last asked."""

from __future__ import annotations

from bisect import bisect_left

import msgspec
from msgspec import Raw, Struct

from voicemem.transcript.history import turn_entries
from voicemem.transcript.replies.playing import settle
from voicemem.transcript.state import State, put


class Upsert(Struct, frozen=True):
    """A message that is new, has changed, or has moved.

    A reader removes what it has under `key`, and puts this message after the one of the key `after`, or first if that
    is null.
    """

    key: str
    after: str | None
    message: Raw
    """The JSON of the message, byte for byte as in the history."""


class Changes(Struct, frozen=True):
    """The changes from one version of the messages to a later one: apply `removed`, then the upserts in order."""

    removed: list[str]
    upserts: list[Upsert]

    def __bool__(self) -> bool:
        return bool(self.removed or self.upserts)


class MessageDiff:
    """A fold state, and its messages as a reader last saw them.

    The key of a message is the journal position of its first event, which no later event changes. The state belongs to
    this reader alone, because `changes` clears its `dirty_turns`.
    """

    def __init__(self, state: State, unfinished: bool) -> None:
        self.state = state
        self.unfinished = unfinished
        self.turns: dict[int, dict[str, bytes]] = {}
        """By turn: its messages, by key and in order."""
        self.shown: list[int] = []
        """The turns that have messages, sorted."""

    def changes(self) -> Changes:
        """What has changed since the last time; the first time, everything."""
        state = self.state
        changes = Changes([], [])
        settle(state)
        for number in sorted(state.dirty_turns):
            before, now = self.turns.get(number, {}), self.encode_turn(number)
            self.turns[number] = now
            put(self.shown, number, bool(now))
            changes.removed.extend(key for key in before if key not in now)
            changes.upserts.extend(upserts(before, now, self.last_key_before(number)))
        state.dirty_turns.clear()
        return changes

    def encode_turn(self, number: int) -> dict[str, bytes]:
        """The messages of a turn as they are now, as JSON by key."""
        encoded: dict[str, bytes] = {}
        for entry in turn_entries(self.state, self.state.turns[number], self.unfinished):
            key, count = str(entry.order), 1
            while key in encoded:  # two messages begin there when a user who is named late owns only part of one
                count += 1
                key = f"{entry.order}.{count}"
            encoded[key] = msgspec.json.encode(entry.message)
        return encoded

    def last_key_before(self, number: int) -> str | None:
        """The key of the last message before this turn."""
        place = bisect_left(self.shown, number)
        return next(reversed(self.turns[self.shown[place - 1]])) if place else None


def upserts(before: dict[str, bytes], now: dict[str, bytes], after: str | None) -> list[Upsert]:
    """The upserts that turn the messages `before` of a turn into those of `now`.

    It plays the reader's part: `keys` is the order that the reader has after each step. So a message that only moved
    back, because another was put before it, needs no upsert.
    """
    found = []
    keys = [key for key in before if key in now]
    for index, (key, message) in enumerate(now.items()):
        if keys[index : index + 1] != [key] or before[key] != message:
            found.append(Upsert(key, after, Raw(message)))
            if key in keys:
                keys.remove(key)
            keys.insert(index, key)
        after = key
    return found
