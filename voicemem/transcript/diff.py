"""Changes in the messages of a call since a reader last asked.

The key of a message is the journal position of its first event, which no later event changes. If another stack's frame
begins both a reply and an utterance, the reply has the plain key. The messages that readers were sent are kept as keys
and digests, so many readers of a long call cost little more than its one fold.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from voicemem.transcript.history import InProgress, in_progress, shown_entries, turns_to_look_at
from voicemem.transcript.replies.playing import settle
from voicemem.transcript.state import State, put

POSITION_BYTES, DIGEST_BYTES = 8, 16
MARK_BYTES = POSITION_BYTES + DIGEST_BYTES
BESIDE_REPLY = "u"
"""The end of the key of a user message, if a reply began at the same position."""


class Upsert(Struct, frozen=True):
    """A message that is new, has changed, or has moved.

    A reader removes its message with this `key`, and puts this one after the message with the key `after`, or first if
    that is null.
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


class TurnMarks(NamedTuple):
    """The messages of a turn at some position: the key and a digest of each, packed, in order."""

    packed: bytes = b""
    last_key: str | None = None


NO_MESSAGES = TurnMarks()
NOTHING = InProgress()


class MessageMarks:
    """The messages of a call at a position."""

    def __init__(
        self, position: int = 0, turns: dict[int, TurnMarks] | None = None, progress: InProgress = NOTHING
    ) -> None:
        self.position = position
        self.progress = progress
        """The part in progress, if that is shown."""
        self.turns = turns or {}
        """By number: the turns that ever had messages."""
        self.shown = sorted(number for number, marks in self.turns.items() if marks.packed)
        """The turns that have messages, sorted."""


class Comparison(NamedTuple):
    """The difference of messages at two positions: the turns with new marks, and the changes to send to a reader."""

    position: int
    turns: dict[int, TurnMarks]
    shown: list[int]
    changes: Changes
    progress: InProgress


def compare(
    state: State, unfinished: bool, marks: MessageMarks, changed: Collection[int], behind: Mapping[int, TurnMarks]
) -> Comparison:
    """Compare the messages of a state with earlier marks, and with the messages that one reader was sent.

    `changed` are the turns that may have changed since `marks`. `behind` has the marks of those turns in which the
    reader was sent other messages. Neither is modified, so the comparison may be abandoned.
    """
    settle(state)
    turns: dict[int, TurnMarks] = {}
    shown, changes = marks.shown.copy(), Changes([], [])
    if unfinished:
        changed = {*changed, *turns_to_look_at(state, marks.progress)}
    for number in sorted({*changed, *behind}):
        before = marks.turns.get(number, NO_MESSAGES)
        sent = behind.get(number, before)
        encoded = encode_turn(state, number, unfinished)
        now = mark_turn(encoded) if number in changed else before
        if now != before:
            turns[number] = now
            put(shown, number, bool(encoded))
        if now.packed != sent.packed:
            known, place = dict(unpack(sent)), bisect_left(shown, number)
            previous = shown[place - 1] if place else None
            after = None if previous is None else (turns.get(previous) or marks.turns[previous]).last_key
            changes.removed.extend(key for key in known if key not in encoded)
            changes.upserts.extend(upserts(known, dict(unpack(now)), encoded, after))
    progress = in_progress(state, marks.progress, changed) if unfinished else NOTHING
    return Comparison(state.position, turns, shown, changes, progress)


def mark_messages(state: State, unfinished: bool) -> MessageMarks:
    settle(state)
    turns = {turn.number: mark_turn(encode_turn(state, turn.number, unfinished)) for turn in state.each_turn()}
    progress = in_progress(state, NOTHING, turns) if unfinished else NOTHING
    return MessageMarks(state.position, turns, progress)


def encode_turn(state: State, number: int, unfinished: bool) -> dict[str, bytes]:
    """Return the current messages of a turn, as JSON by key."""
    encoded: dict[str, bytes] = {}
    turn = state.turns.get(number)
    for entry in shown_entries(state, turn, unfinished) if turn is not None else ():
        beside_reply = entry.message.role == "user" and 2 * entry.position in state.replies
        encoded[unused_key(entry.position, beside_reply, encoded)] = msgspec.json.encode(entry.message)
    return encoded


def unused_key(position: int, beside_reply: bool, used: Collection[str]) -> str:
    """Return a key for a message that begins at a position.

    Two messages of a turn begin there if a user who is named late owns only a part of one.
    """
    first = f"{position}{BESIDE_REPLY}" if beside_reply else str(position)
    key, count = first, 1
    while key in used:
        count += 1
        key = f"{first}.{count}"
    return key


def mark_turn(encoded: dict[str, bytes]) -> TurnMarks:
    packed = bytearray()
    for key, message in encoded.items():
        # A key without the count, as a number: twice the position, and one more beside a reply.
        position = key.partition(".")[0]
        number = 2 * int(position.removesuffix(BESIDE_REPLY)) + position.endswith(BESIDE_REPLY)
        packed += number.to_bytes(POSITION_BYTES) + blake2b(message, digest_size=DIGEST_BYTES).digest()
    return TurnMarks(bytes(packed), next(reversed(encoded), None)) if encoded else NO_MESSAGES


def unpack(marks: TurnMarks) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and digests of marks, in order."""
    used: set[str] = set()
    for place in range(0, len(marks.packed), MARK_BYTES):
        digest = place + POSITION_BYTES
        number = int.from_bytes(marks.packed[place:digest])
        key = unused_key(number >> 1, bool(number & 1), used)
        used.add(key)
        yield key, marks.packed[digest : place + MARK_BYTES]


def upserts(
    before: Mapping[str, bytes], now: Mapping[str, bytes], encoded: Mapping[str, bytes], after: str | None
) -> list[Upsert]:
    """Return the upserts that turn the messages `before` of a turn into those of `now`, both by their digests.

    `keys` simulates the reader's order after each step. So a message that only moved back, because another was put
    before it, needs no upsert.
    """
    upserts = []
    keys = [key for key in before if key in now]
    for index, (key, digest) in enumerate(now.items()):
        if keys[index : index + 1] != [key] or before[key] != digest:
            upserts.append(Upsert(key, after, Raw(encoded[key])))
            if key in keys:
                keys.remove(key)
            keys.insert(index, key)
        after = key
    return upserts
