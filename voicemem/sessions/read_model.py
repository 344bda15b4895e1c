"""One session's memory: the fold of its journal up to a position, and its messages as they were last made."""

from __future__ import annotations

import asyncio
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import msgspec

from voicemem.llm.tokens import TokenCounter
from voicemem.transcript import history
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import SpeechTimes, turn_times
from voicemem.transcript.messages import Message, ToolUse
from voicemem.transcript.state import State, decode_state, encode_state


class Memory:
    """One session's fold state, and its messages as they were last made.

    A memory that nobody used for a while is packed: a few KiB of compressed snapshot, unpacked by the next use.
    """

    __slots__ = (
        "begins", "counts", "ends", "folded_bytes", "joined", "lock", "made", "noted", "packed", "position", "saved",
        "text", "times", "unpacked", "used",
    )  # fmt: skip

    def __init__(self, state: State, saved: int = 0) -> None:
        self.unpacked: State | None = state
        self.packed = b""
        self.position = state.position
        """Where a packed memory stands; see `stands_at`."""
        self.saved = saved
        """Position of the snapshot that was last saved."""
        self.made: dict[int, list[Message]] = {}
        """By turn."""
        self.times: dict[int, list[SpeechTimes]] = {}
        """Of these messages, where somebody asked for them."""
        self.joined: list[Message] = []
        self.counts: dict[str, list[int]] = {}
        """How many tokens the joined ones have, by the name of the counter; -1 where nobody has asked."""
        self.begins: dict[int, int] = {}
        """Where each turn's messages begin among the joined ones."""
        self.text = b"[]"
        """The messages of the first turns as JSON; those of a turn that is over are encoded once."""
        self.ends: list[int] = []
        """Where each of these turns ends in it."""
        self.folded_bytes = 0
        """Of the journal, about: what it takes while it is in use."""
        self.lock = asyncio.Lock()
        self.used = 0
        """The round of packing before which it was used last."""
        self.noted = 0
        """The last position that is known to be in the journal, where it was not folded at once."""

    @property
    def state(self) -> State:
        if self.unpacked is None:
            self.unpacked, self.packed = decode_state(zlib.decompress(self.packed)), b""
        return self.unpacked

    @property
    def stands_at(self) -> int:
        """The position up to which it is folded."""
        return self.position if self.unpacked is None else self.unpacked.position

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return self.folded_bytes if self.unpacked is not None else len(self.packed)

    def pack(self) -> None:
        if self.unpacked is not None:
            self.position = self.unpacked.position
            self.packed = zlib.compress(encode_state(self.unpacked), 1)
            self.unpacked = None
            self.made, self.times, self.joined, self.begins = {}, {}, [], {}
            self.counts = {}
            self.text, self.ends = b"[]", []

    def fold(self, entries: Iterable[DecodedRow]) -> None:
        fold_all(self.state, entries)

    def messages(self, unfinished: bool = False) -> list[Message]:
        """The memory in its order; with `unfinished`, what is in progress as well."""
        if unfinished:
            return history.messages(self.state, unfinished=True)
        return self.made_messages().copy()

    def made_messages(self) -> list[Message]:
        """The memory in its order, not to be changed, and only to be read until somebody else has their turn."""
        self.make()
        return self.joined

    def remembered(self) -> Sequence[int]:
        """Which of `made_messages` are not forgotten, by their indexes."""
        self.make()
        return history.remembered(self.state, self.joined)

    def remembered_messages(self) -> list[Message]:
        """What contexts and summaries are made of; not to be changed either."""
        messages = self.made_messages()
        return messages if self.state.forgotten is None else [messages[index] for index in self.remembered()]

    def timed_messages(self) -> list[tuple[Message, SpeechTimes]]:
        """The memory in its order, each message with when it could be heard."""
        self.make()
        for number in self.state.turn_numbers:
            if number not in self.times:
                self.times[number] = turn_times(self.state, self.state.turns[number])
        return [pair for n in self.state.turn_numbers for pair in zip(self.made[n], self.times[n], strict=True)]

    def contents(self) -> bytes:
        """The memory as a JSON array of messages."""
        self.make()
        missing = self.state.turn_numbers[len(self.ends) :]
        if missing:
            pieces = [self.text[: self.ends[-1] if self.ends else 1]]
            end = len(pieces[0])
            for number in missing:
                piece = msgspec.json.encode(self.made[number])[1:-1]
                pieces.append(b"," + piece if piece and end > 1 else piece)
                end += len(pieces[-1])
                self.ends.append(end)
            self.text = b"".join((*pieces, b"]"))
        return self.text

    def make(self) -> None:
        """Make the messages of the turns that have changed, and join all from the first of these on."""
        state = self.state
        if not state.dirty_turns:
            return
        for number in state.dirty_turns:
            self.made[number] = history.turn_messages(state, state.turns[number])
            self.times.pop(number, None)
        place = bisect_left(state.turn_numbers, min(state.dirty_turns))
        state.dirty_turns.clear()
        before = state.turn_numbers[place - 1] if place else None
        del self.ends[place:]
        kept = 0 if before is None else self.begins[before] + len(self.made[before])
        del self.joined[kept:]
        for known in self.counts.values():
            del known[kept:]
        for number in state.turn_numbers[place:]:
            self.begins[number] = len(self.joined)
            self.joined += self.made[number]

    def tokens(self, counter: TokenCounter) -> Callable[[int], int]:
        """How many tokens the content of the message at an index has, as long as the memory does not change."""
        self.make()
        joined = self.joined
        known = self.counts.setdefault(counter.name, [])
        known.extend([-1] * (len(joined) - len(known)))

        def tokens(index: int) -> int:
            if known[index] < 0:
                known[index] = counter.count(joined[index].content)
            return known[index]

        return tokens

    def tool_uses(self) -> list[ToolUse]:
        return history.tool_uses(self.state)
