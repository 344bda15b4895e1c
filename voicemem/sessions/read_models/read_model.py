"""One session's read model: the fold of its journal up to a position, and the messages made from it."""

import asyncio
import time
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from sys import getsizeof
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from voicemem.errors import DamagedEntry
from voicemem.llm.tokens import TokenCounter
from voicemem.protocol import codec
from voicemem.protocol.codec import MALFORMED
from voicemem.protocol.events import IncomingEvent, JournaledEvent
from voicemem.protocol.types import JsonObject
from voicemem.sessions.off_loop import check_budget
from voicemem.store.records import JournalRow, SavedFigures
from voicemem.store.streams import Stream
from voicemem.transcript import history
from voicemem.transcript.fold import DecodedRow, fold_all, fold_event
from voicemem.transcript.history import SpeechTimes, open_messages, turn_times
from voicemem.transcript.messages import Message, ToolUse
from voicemem.transcript.packing import Items
from voicemem.transcript.replies.playing import settle
from voicemem.transcript.state import State, decode_state, encode_state
from voicemem.transcript.turns import turns

LARGE_ROWS, LARGE_BYTES = 200, 64 * 1024
"""Work on more entries or bytes than these is done off the event loop."""
FEW_ROWS, FEW_BYTES = 20, 8 * 1024
"""Up to this many entries or bytes, messages are made again at once."""
ENCODED_AT_ONCE = 256 * 1024
"""Characters of messages that are made JSON on the event loop."""
ENCODED_BYTES, ANSWER_BYTES = 48, 600
"""Bytes of a message that is kept as JSON, and of a whole answer, beyond their text."""
KEPT_ANSWERS, MAX_ANSWER, MAX_QUESTION = 4, 128 * 1024, 200
"""Cached answers of a call, and the most bytes of each and of its query."""
LARGE_ANSWER_BYTES = 2 * 1024 * 1024
"""Bytes of a journal from which on answers are made and sent in pieces."""
PACKED_BYTES, EMPTY_BYTES, FIGURES_BYTES = 1_400, 3_500, 200
"""Bytes of a read model beyond its packed state, with an empty state, and beyond its figures."""
WEIGHED_FROM = 2_048
"""Bytes of a journal below which its read model is not weighed."""
PIECES_PER_CHECK = 16
"""Entries that are folded, or messages and turns that are made, between two checks of the CPU budget."""
SLOW_S, SLOW_PIECE_S = 0.02, 0.001
"""Work that took longer than this, in all and for each entry or turn, is done off the event loop the next time."""


T = TypeVar("T")
TURN_ID = attrgetter("turn_id")
MessageFields = Literal["full", "standard"]
"""All fields of a message, or its role and content alone."""


class Committed(Struct, gc=False):
    """Events of one batch that were committed, and are to be folded."""

    position: int
    """The position of the first event."""
    last: int
    """The position of the last event."""
    received_ms: int
    events: Sequence[IncomingEvent | JournaledEvent]
    producer: str | None
    size: int
    """Bytes of their payloads."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class ReadModel:
    """One session's fold state, and its messages as they were last made.

    A read model that was not used for a while is packed into a few KiB of compressed snapshot; the next use unpacks it.
    Only the turns that have changed are made again, so the cost of a read depends on them, not on the call's length.
    """

    unpacked: State | None
    loaded: bool = True
    """False until the stored snapshot was looked for."""
    owner: str | None = None
    """The project of the session, by which work off the event loop is queued."""
    packed: bytes = b""
    packed_position: int = field(init=False)
    """The position of a packed read model; see `stands_at`."""
    saved_position: int = 0
    """The position of the snapshot that was saved last."""
    all_messages: list[Message] | Items[Message] = field(default_factory=list)
    """The messages of all turns, in order; packed where they are very many."""
    times: dict[int, list[SpeechTimes]] = field(default_factory=dict)
    """By turn, the speech times of its messages, once requested, unless the journal is large."""
    token_counts: dict[str, list[int]] = field(default_factory=dict)
    """By the name of the counter, the tokens of each joined message; -1 where they were not counted yet."""
    encoded: dict[MessageFields, list[bytes]] = field(default_factory=dict)
    """By their fields, the messages as JSON; empty where one was not encoded yet."""
    blank_messages: list[int] = field(default_factory=list)
    """The indexes of joined messages without a word, which few contexts show."""
    characters: int = 0
    """The length of all joined messages together."""
    encoded_bytes: int = 0
    """About how many bytes the messages as JSON take."""
    answers: dict[str, tuple[Stream, bytes]] = field(default_factory=dict)
    """By query, cached answers at this position, each with the session's row that it was made for."""
    answers_bytes: int = 0
    folded_bytes: int = 0
    """About how many bytes of the journal were folded; what it takes in memory grows in proportion."""
    ratio: float = 1.0
    """How many bytes in memory each of these takes."""
    weighed_bytes: int = 0
    """How many of these there were when the ratio was found; 0 while it is only assumed."""
    charged: int = 0
    """The bytes that the memory budget counts for it, and whether as packed."""
    charged_packed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while missing entries are folded and while a thread works on it: no one else may use it then."""
    made_position: int = 0
    made_bytes: int = 0
    """The position and size when the messages were made last; 0 when all of them must be made."""
    slow_fold: bool = False
    slow_refresh: bool = False
    """True if folding, and making messages, took long the last time."""
    turn_changes: dict[int, int] | None = None
    """By turn: the position at which its messages were made last, the newest last; None until it is asked for."""
    counted: dict[str, int] | None = None
    """By bound: how many ignored events were counted, of those in `state.ignored`."""
    last_round: int = 0
    """The round of maintenance in which it was used last."""
    commit_round: int = 0
    round_position: int = 0
    """The round in which the newest events were committed, and the position of the first in it, or of the last read."""
    figures: SavedFigures | None = None
    """The figures of a slim list, at a position."""
    known_position: int = 0
    """The last position that is known to be in the journal, when it waits there to be folded."""
    waiting: list[Committed] = field(default_factory=list)
    """Consecutive events that were committed since the last fold; any others are in the journal only."""
    waiting_bytes: int = 0

    def __post_init__(self) -> None:
        assert self.unpacked is not None
        self.packed_position = self.unpacked.position

    @property
    def state(self) -> State:
        state = self.unpacked
        if state is None:
            state = decompress_state(self.packed)
            self.restore(state)
        return state

    @property
    def position(self) -> int:
        return self.packed_position if self.unpacked is None else self.unpacked.position

    @property
    def weight(self) -> int:
        """About how many bytes it takes in memory."""
        figures = 0 if self.figures is None else FIGURES_BYTES + len(self.figures.figures)
        if self.unpacked is None:
            return PACKED_BYTES + len(self.packed) + figures
        return EMPTY_BYTES + int(self.ratio * self.folded_bytes) + self.encoded_bytes + self.answers_bytes + figures

    @property
    def has_grown(self) -> bool:
        return self.unpacked is not None and self.folded_bytes > 2 * self.weighed_bytes + WEIGHED_FROM

    def weigh(self) -> None:
        """Measure its bytes in memory, which takes up to a few milliseconds."""
        made = self.all_messages, self.times, self.token_counts, self.turn_changes
        sample = SAMPLE if self.folded_bytes > LARGE_BYTES else SMALL_SAMPLE
        taken = weigh(sample, self.state, *made)
        self.ratio = max(0, taken - EMPTY_BYTES) / max(1, self.folded_bytes)
        self.weighed_bytes = self.folded_bytes

    @property
    def is_large(self) -> bool:
        return self.folded_bytes > LARGE_BYTES or self.slow_fold or self.slow_refresh

    @property
    def has_large_refresh(self) -> bool:
        return (
            self.position - self.made_position > LARGE_ROWS
            or self.folded_bytes - self.made_bytes > LARGE_BYTES
            or self.slow_refresh
        )

    @property
    def has_small_refresh(self) -> bool:
        """True if its messages can be made again at once."""
        grown = self.position - self.made_position, self.folded_bytes - self.made_bytes
        return self.made_position > 0 and grown[0] <= FEW_ROWS and grown[1] <= FEW_BYTES and not self.slow_refresh

    def has_large_encoding(self, fields: MessageFields, first: int = 0) -> bool:
        """True if much has to be encoded before the messages from an index on are available."""
        texts, messages = self.encoded.get(fields, []), self.all_messages
        start = max(first, len(texts)) if all(texts[first:]) else first
        missing = [messages[at] for at in range(start, len(messages)) if at >= len(texts) or not texts[at]]
        return len(missing) > LARGE_ROWS or sum(len(message.content) for message in missing) > ENCODED_AT_ONCE

    @property
    def has_large_answer(self) -> bool:
        """True if its messages as JSON are not to be in memory at once."""
        return self.folded_bytes > LARGE_ANSWER_BYTES

    def pack(self) -> None:
        """Replace the state and everything made from it by a compressed snapshot."""
        if self.unpacked is not None:
            self.replace_state(compress_state(self.unpacked))

    def release(self) -> None:
        """Release what was unpacked of a heavy call: the next work on it may come much later."""
        if self.unpacked is not None and self.unpacked.is_heavy:
            self.unpacked.release(is_over=True)

    def replace_state(self, packed: bytes) -> None:
        self.packed_position, self.packed, self.unpacked = self.position, packed, None
        self.all_messages, self.times, self.token_counts, self.turn_changes = [], {}, {}, None
        self.encoded, self.encoded_bytes, self.blank_messages, self.characters = {}, 0, [], 0
        self.answers, self.answers_bytes = {}, 0
        self.made_position = self.made_bytes = 0

    def restore(self, state: State) -> None:
        self.unpacked, self.packed, self.loaded = state, b"", True

    def encode_state(self) -> bytes:
        return zlib.decompress(self.packed) if self.unpacked is None else encode_state(self.unpacked)

    def fold(self, entries: Iterable[DecodedRow]) -> None:
        fold_all(self.state, entries)

    def fold_rows(self, rows: Sequence[JournalRow]) -> None:
        """Decode the next rows of the journal, and fold them. Raises `DamagedEntry`."""
        began = time.thread_time()
        entries = decode_rows(rows)
        for first in range(0, len(entries), PIECES_PER_CHECK):
            check_budget()
            fold_all(self.state, entries[first : first + PIECES_PER_CHECK])
        settle(self.state)  # what is left for later would take memory until then
        self.state.pack()
        self.folded_bytes += sum(len(row.payload) for row in rows)
        self.slow_fold = self.state.is_heavy or took_long(time.thread_time() - began, len(rows))

    def fold_waiting(self) -> None:
        """Fold the waiting events up to the first gap; the missing ones are in the journal."""
        waiting, self.waiting, self.waiting_bytes = self.waiting, [], 0
        began, state, count = time.monotonic(), self.state, 0  # asking for the CPU time takes as long as an event
        for committed in waiting:
            count += len(committed.events)
            self.folded_bytes += committed.size
            for place, event in enumerate(committed.events, committed.position):
                if place == state.position + 1:
                    fold_event(state, place, committed.received_ms, event, committed.producer)
        if state.is_very_large and not state.is_heavy:
            settle(state)
            state.pack()
        self.slow_fold = state.is_heavy or took_long(time.monotonic() - began, count)

    def messages(self, unfinished: bool = False) -> Sequence[Message]:
        """Return the messages in order; with `unfinished`, those in progress too. The list is the caller's."""
        if unfinished:
            return open_messages(self.state)
        self.refresh()
        return self.all_messages.copy()

    def current_messages(self) -> Sequence[Message]:
        """Return the messages in order, without a copy: not to be changed, and valid only until the caller awaits."""
        self.refresh()
        return self.all_messages

    def remembered_indexes(self) -> Sequence[int]:
        """Return the indexes of those `current_messages` that are not forgotten."""
        self.refresh()
        return history.remembered(self.state, self.all_messages)

    def remembered_messages(self) -> Sequence[Message]:
        """Return the messages that contexts and summaries are made from; valid as `current_messages` are."""
        messages = self.current_messages()
        return messages if self.state.forgotten is None else [messages[index] for index in self.remembered_indexes()]

    def turn_start(self, number: int) -> int:
        """Return the index of the first of `current_messages` that is of this turn or of a later one."""
        return bisect_left(self.all_messages, number, key=TURN_ID)

    def timed_messages(self) -> Iterator[tuple[Message, SpeechTimes]]:
        """Yield the messages with their speech times, found one by one; valid as `current_messages` are."""
        self.refresh()
        messages = iter(self.all_messages)
        for turn in self.state.each_turn():
            times = self.times.get(turn.number)
            if times is None:
                check_budget()
                times = turn_times(self.state, turn)
                if not self.has_large_answer:
                    self.times[turn.number] = times
            yield from zip(islice(messages, len(times)), times, strict=True)

    def encoded_messages(self, fields: MessageFields, indexes: Sequence[int]) -> Sequence[bytes]:
        """Return the messages at these indexes as JSON, each encoded once; valid as `current_messages` are."""
        self.refresh()
        known = self.encoded.setdefault(fields, [])
        known += [b""] * (len(self.all_messages) - len(known))
        texts = choose_from(known, indexes)
        if all(texts):
            return texts
        for index in indexes:
            if not known[index]:
                check_budget()
                message = self.all_messages[index]
                known[index] = msgspec.json.encode(message if fields == "full" else spoken(message))
                self.encoded_bytes += len(known[index]) + ENCODED_BYTES
        return choose_from(known, indexes)

    def kept_answer(self, question: str, stream: Stream) -> bytes | None:
        """Return the cached answer, if the session's row and the memory have not changed since."""
        row, answer = self.answers.get(question, (None, None))
        return answer if self.position == stream.position and (row is stream or row == stream) else None

    def keep_answer(self, question: str, stream: Stream, answer: bytes) -> None:
        """Cache an answer, in place of the oldest of a few: readers of a call repeat their queries."""
        if len(question) > MAX_QUESTION or len(answer) > MAX_ANSWER or self.position != stream.position:
            return
        dropped = [question] if question in self.answers else [*self.answers][: len(self.answers) + 1 - KEPT_ANSWERS]
        for one in dropped:
            self.answers_bytes -= ANSWER_BYTES + len(self.answers.pop(one)[1])
        self.answers[question] = stream, answer
        self.answers_bytes += ANSWER_BYTES + len(answer)

    def encoded_contents(self, indexes: Sequence[int]) -> Sequence[bytes]:
        """Return role and content of the messages at these indexes as JSON, without blank ones."""
        texts = self.encoded_messages("standard", indexes)
        if not self.blank_messages:
            return texts
        blank = set(self.blank_messages)
        return [text for index, text in zip(indexes, texts, strict=True) if index not in blank]

    def encode_messages(self, fields: MessageFields = "full", first: int = 0) -> bytes:
        """Return the messages from an index on as a JSON array."""
        texts = self.encoded_messages(fields, range(first, len(self.current_messages())))
        return b"[%b]" % b",".join(texts)

    def has_encoded(self, fields: MessageFields, first: int, but: int = 0) -> bool:
        """True if all messages from an index on, except at most `but`, are cached as JSON."""
        known = self.encoded.get(fields, [])
        missing = len(self.all_messages) - max(first, len(known))
        return missing <= but and (all(known[first:]) or known[first:].count(b"") + max(0, missing) <= but)

    def refresh(self) -> None:
        """Make the messages of the turns that have changed, and join all messages again from the first of these on.

        Mostly the last turn has changed, so everything before it stays: messages, token counts, and messages as JSON.
        """
        state = self.state
        if not state.dirty_turns:
            return
        began, dirty = time.thread_time(), state.dirty_turns
        settle_whole(state)
        first = min(dirty)
        unchanged = self.turn_start(first)
        numbers = state.turn_numbers[bisect_left(state.turn_numbers, first) :]
        before = self.all_messages[unchanged:]
        self.characters -= sum(len(message.content) for message in before)
        before = [] if dirty.issuperset(numbers) else before  # a message may be as large as all that was said
        self.cut_messages(unchanged)
        joined, unchecked, at, count = self.all_messages, 0, 0, len(before)
        for number in numbers:
            begin = at
            while at < count and before[at].turn_id == number:
                at += 1
            if number not in dirty:
                joined.extend(before[begin:at])
                continue
            if unchecked >= PIECES_PER_CHECK:
                check_budget()
                unchecked = 0
            unchecked += 1 - len(joined)
            joined.extend(history.turn_messages(state, state.turns[number]))
            unchecked += len(joined)
            state.release()
            self.times.pop(number, None)
            if self.turn_changes is not None:
                self.turn_changes.pop(number, None)
                self.turn_changes[number] = state.position
        self.forget_results(unchanged)
        for index in range(unchanged, len(joined)):
            content = joined[index].content
            self.characters += len(content)
            if not content.strip():
                self.blank_messages.append(index)
        self.made_position, self.made_bytes = state.position, self.folded_bytes
        self.slow_refresh = took_long(time.thread_time() - began, len(dirty))
        dirty.clear()

    def forget_results(self, unchanged: int) -> None:
        """Forget what was made of the messages, except of the first ones, which have not changed."""
        for known in self.token_counts.values():
            del known[unchanged:]
        for texts in self.encoded.values():
            self.encoded_bytes -= sum(len(text) + ENCODED_BYTES for text in texts[unchanged:] if text)
            del texts[unchanged:]
        self.answers, self.answers_bytes = {}, 0
        while self.blank_messages and self.blank_messages[-1] >= unchanged:
            self.blank_messages.pop()

    def cut_messages(self, count: int) -> None:
        """Keep the first messages only; where very many follow, or are kept, they are packed from now on."""
        joined = self.all_messages
        if isinstance(joined, Items):
            joined.cut(count)
            return
        del joined[count:]
        if self.state.is_very_large:
            self.all_messages = Items(Message)
            self.all_messages.rest = joined  # packed as more come

    def turns_changed_since(self, position: int) -> Iterator[int]:
        """Yield the turns whose messages may have changed after a position; valid as `current_messages` are."""
        self.refresh()
        if self.turn_changes is None:  # kept from now on, until it is packed
            self.turn_changes = dict.fromkeys(self.state.turn_numbers, self.position)
        for number, changed in reversed(self.turn_changes.items()):
            if changed <= position:
                return
            yield number

    def token_counter(self, counter: TokenCounter) -> Callable[[int], int]:
        """Return a function that counts the tokens of the message at an index, each once; valid until the next fold."""
        self.refresh()
        joined = self.all_messages
        known = self.token_counts.setdefault(counter.name, [])
        known.extend([-1] * (len(joined) - len(known)))
        if len(known) <= LARGE_ROWS and -1 not in known:
            return known.__getitem__

        def count(index: int) -> int:
            if known[index] < 0:
                known[index] = counter.count(joined[index].content)
            return known[index]

        return count

    def turns(self, marks: bool = False) -> Iterator[JsonObject]:
        """Return each turn's start, end, cause, latencies and false alarms; with `marks`, also its parts' times."""
        return turns(self.state, marks)

    def tool_uses(self) -> Sequence[ToolUse]:
        return history.tool_uses(self.state)


def settle_whole(state: State) -> None:
    """Settle a state, and pack it if that was postponed because events were folded on the event loop."""
    settle(state)
    if state.is_heavy:
        state.pack()


def choose_from(items: Sequence[T], indexes: Sequence[int]) -> Sequence[T]:
    """Return the items at these indexes; in one piece where they are a range."""
    return items[indexes.start : indexes.stop] if isinstance(indexes, range) else [items[index] for index in indexes]


def spoken(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def compress_state(state: State) -> bytes:
    return zlib.compress(encode_state(state), 1)


def decompress_state(packed: bytes) -> State:
    return decode_state(zlib.decompress(packed))


def decode_rows(rows: Iterable[JournalRow]) -> list[DecodedRow]:
    """Decode journal rows for the fold. Raises `DamagedEntry`."""
    try:
        return [
            DecodedRow(row.position, row.received_ms, codec.decode_stored(row.payload), row.producer) for row in rows
        ]
    except MALFORMED:
        raise DamagedEntry from None


def took_long(seconds: float, pieces: int) -> bool:
    return seconds > SLOW_S and seconds > pieces * SLOW_PIECE_S


SAMPLE, SMALL_SAMPLE = 12, 4
"""Sampled members of a container, in large read models and in small ones; half of that one level deeper."""
MIN_SAMPLE = 3
MAX_OBJECTS = 20_000
"""Objects that are weighed in all, so that weighing takes a few milliseconds at most."""
LEAVES = frozenset((int, float, str, bytes, bool, array))
SEQUENCES = frozenset((list, tuple, set, frozenset))
POOL_BYTES = 16
"""Python hands out memory in multiples of this."""
PHASES = 97
"""How many places a sample may begin at; a prime, since addresses are multiples of `POOL_BYTES`."""


class Weighing:
    """Estimates the memory that objects take. An object that is met twice counts once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.phase = id(self.seen) % PHASES / PHASES
        """Which members are sampled: the same ones in containers of one length, which often share their objects.

        It depends on the address of an object in memory, so that no client can hide large members.
        """

    def weigh(self, value: Any, sample: int) -> float:
        """Return about how many bytes an object and all that it refers to take."""
        if value is None or id(value) in self.seen or len(self.seen) > MAX_OBJECTS:
            return 0
        self.seen.add(id(value))
        kind = type(value)
        size = getsizeof(value) + POOL_BYTES // 2
        if kind in LEAVES:
            return 0 if kind is int and -6 < value < 257 else size
        if kind is dict or isinstance(value, dict):
            return size + self.weigh_some(value.items(), sample, is_pairs=True)
        if kind in SEQUENCES or isinstance(value, tuple):
            return size + self.weigh_some(value, sample)
        return size + self.weigh_all(fields_of(value), sample)

    def weigh_all(self, values: Iterable[Any], sample: int) -> float:
        return sum([self.weigh(value, sample) for value in values])

    def weigh_some(self, values: Collection[Any], sample: int, is_pairs: bool = False) -> float:
        """Weigh the members of a container: all, or some at equal distances, from which the rest is estimated."""
        stride = -(-len(values) // sample) or 1
        some = islice(values, int(self.phase * stride), None, stride)
        further = max(MIN_SAMPLE, sample // 2)
        if is_pairs:
            return stride * sum([self.weigh(key, further) + self.weigh(value, further) for key, value in some])
        return stride * self.weigh_all(some, further)


def fields_of(value: Any) -> Iterable[Any]:
    if isinstance(value, msgspec.Struct):
        fields: tuple[Any, ...] = msgspec.structs.astuple(value)
    else:
        fields = tuple(getattr(value, name, None) for name in getattr(value, "__slots__", ()))
    more = getattr(value, "__dict__", None)
    return (*fields, more) if more else fields


def weigh(sample: int, *values: Any) -> int:
    """Return about how many bytes these objects and all that they refer to take together."""
    return int(Weighing().weigh_all(values, sample))
