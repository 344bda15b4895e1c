"""The state of the fold: turns, and in them utterances, typed messages, replies and tool calls.

These records are encoded as snapshots, so any change here needs a new `SNAPSHOT_VERSION`. Lists that most records do
not have are None, and empty columns are shared: many calls are in memory at once.
"""

from __future__ import annotations

from array import array
from bisect import insort
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from voicemem.documents.document import Document
from voicemem.protocol.events import CarriedSession
from voicemem.protocol.types import JsonObject
from voicemem.transcript.heard import Interruption, Playback
from voicemem.transcript.messages import Forgotten, Summary
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL, EMPTY_COLUMN, TextTimeline, Timeline

T = TypeVar("T")
SNAPSHOT_VERSION = 9
"""The version of these records and of the fold's rules; snapshots of other versions are ignored."""


class Segment(Struct, array_like=True, gc=False):
    """One piece of an utterance, keyed by (item, number); with neither, a final closes it."""

    item: str | None
    number: int | None
    begin: int
    """Its earliest `ts`."""
    order: int
    """The journal position of its first event; likewise in the records below."""
    text: str = ""
    final: bool = False
    start_ms: int | None = None
    """When its audio began, as the recogniser reported; `end_ms` is when it ended."""
    end_ms: int | None = None

    @property
    def has_key(self) -> bool:
        return self.item is not None or self.number is not None


class Utterance(Struct, array_like=True, gc=False):
    """What one user said in one turn."""

    user: str | None
    order: int
    segments: list[Segment] = []
    metadata: dict[str, Any] = {}


class TypedMessage(Struct, array_like=True, gc=False):
    """A whole user message: typed text, a command, or a restored one."""

    order: int
    begin: int
    text: str
    metadata: dict[str, Any]


class Generation(Struct, array_like=True, gc=False):
    """What the LLM generated of one reply: plain deltas, whole texts, and ends."""

    deltas: TextTimeline = field(default_factory=TextTimeline)
    """The deltas, joined in the order of arrival."""
    whole_texts: TextTimeline | None = None
    ends: Timeline = field(default_factory=Timeline)
    final_texts: TextTimeline | None = None

    def add_whole(self, ts: int, text: str) -> None:
        self.whole_texts = self.whole_texts or TextTimeline()
        self.whole_texts.add(ts, text)

    def finish(self, ts: int, text: str | None) -> None:
        self.ends.add(ts, 0)
        if text is not None:
            self.final_texts = self.final_texts or TextTimeline()
            self.final_texts.add(ts, text)

    @property
    def complete(self) -> bool:
        return bool(self.ends.times)

    def text(self, until: int = AFTER_ALL) -> str:
        """The text generated up to a `ts`: that of the newest end, else the newest whole text and later deltas.

        Rules 2 and 3. Deltas are joined as they come, so those after a whole text are what is longer than at its `ts`.
        """
        final = self.final_texts.last(until) if self.final_texts is not None else None
        if final is not None:
            return final.text
        deltas = self.deltas.last(until)
        whole = self.whole_texts.last(until) if self.whole_texts is not None else None
        if whole is None:
            return deltas.text if deltas else ""
        before = self.deltas.last(whole.ts)
        return whole.text + (deltas.text[len(before.text) if before else 0 :] if deltas else "")


class Reply(Struct, array_like=True, gc=False):
    """What the agent says without a break: one answer of the LLM, or one whole message."""

    order: int
    item: str | None
    generation: Generation = field(default_factory=Generation)
    playback: Playback | None = None
    begin: int = AFTER_ALL
    source: str = "llm"
    whole: bool = False
    """Arrived as one message; later `llm.*` events without its item are not about it."""
    restored: bool = False
    """Arrived with its interruption in its metadata; no other interruption is looked for."""
    metadata: dict[str, Any] = {}
    interruptions: list[Interruption] | None = None
    resumes: list[int] | None = None


class ToolCallRecord(Struct, array_like=True, gc=False):
    """A tool call, and its result once that has arrived; without a name, a result that waits for its tool call."""

    order: int
    ts: int
    call_id: str
    name: str | None = None
    arguments: Any = None
    result: Any = None
    answered: bool = False


class Latency(Struct, array_like=True, gc=False):
    """One reported latency of the pipeline, in ms."""

    name: str
    latency_ms: float
    ts: int


class Failure(Struct, array_like=True, gc=False):
    """A failed LLM request."""

    ts: int
    code: str | int | None


class Turn(Struct, array_like=True, gc=False):
    """One exchange. `playback`, `interruptions` and `resumes` here named only the turn; reading finds the reply."""

    number: int
    utterances: list[Utterance] = []
    typed: list[TypedMessage] | None = None
    replies: list[Reply] = []
    playback: Playback | None = None
    interruptions: list[Interruption] | None = None
    resumes: list[int] | None = None
    tool_calls: list[ToolCallRecord] | None = None
    latencies: list[Latency] | None = None
    failures: list[Failure] | None = None

    def reply(self, item: str) -> Reply | None:
        """The newest reply of that item."""
        for reply in reversed(self.replies):
            if reply.item == item:
                return reply
        return None


class State(Struct, array_like=True, gc=False):
    """The fold of a journal up to `position`."""

    position: int = 0
    turns: dict[int, Turn] = {}
    turn_numbers: list[int] = []
    """The turns' numbers, sorted."""
    items: dict[str, int] = {}
    """The turn in which each item began."""
    unplaced: dict[str, Reply] = {}
    """Replies that were interrupted or played before they began, by item."""
    event_ids: set[str] = set()
    tool_call_turns: dict[str, int] = {}
    """The turn of each tool call."""
    newest_turn: int = 0
    utterance_turn: int = 0
    """The turn of the newest utterance; 0 before any."""
    final_turn: int = BEFORE_ALL
    """The newest turn with a final: replies of earlier turns no longer play."""
    first_unheard_turn: int = 0
    """In turns before this one every reply was heard to its end or interrupted."""
    open_utterances: dict[str, int] = {}
    """The turn of each user's open utterance, for producers without turn numbers; "" is an unnamed user."""
    finals: dict[str, str] = {}
    """Each such user's newest final, the newest last; text that it contains does not begin an utterance."""
    newest_reply: tuple[int, int] | None = None
    """Turn and order of the reply that the LLM began last."""
    closed_ts: int | None = None
    summary: Summary | None = None
    """The newest summary; the history keeps the messages that it stands for."""
    document: Document | None = None
    """The working memory of the session, or of the user whose stream this is."""
    data: JsonObject = {}
    """The session's data, shown to an LLM only on request."""
    forgotten: Forgotten | None = None
    forgotten_items: set[str] = set()
    """In a fork: the items that were forgotten in its original, and were not copied."""
    carried: tuple[CarriedSession, ...] | None = None
    """What is known from earlier sessions; None until it was looked up, () when there is nothing."""
    dirty_turns: set[int] = set()
    """Turns that have changed since their messages were last made."""

    def turn(self, number: int) -> Turn:
        turn = self.turns.get(number)
        if turn is None:
            turn = self.turns[number] = Turn(number)
            insort(self.turn_numbers, number)
        return turn


def append_item(items: list[T] | None, item: T) -> list[T]:
    """The list with one more item; most records have no list, which is None."""
    if items is None:
        return [item]
    items.append(item)
    return items


def column_to_bytes(column: Any) -> bytes:
    if isinstance(column, array):
        return column.tobytes()
    raise NotImplementedError  # so msgspec refuses the value


def column_from_bytes(kind: type, value: Any) -> Any:
    return array("q", value) if value else EMPTY_COLUMN


ENCODER = msgspec.msgpack.Encoder(enc_hook=column_to_bytes)
DECODER = msgspec.msgpack.Decoder(State, dec_hook=column_from_bytes)


def encode_state(state: State) -> bytes:
    """The state as bytes, for `decode_state`."""
    return ENCODER.encode(state)


def decode_state(blob: bytes) -> State:
    """The state that `encode_state` encoded, with every turn marked as changed."""
    state = DECODER.decode(blob)
    state.dirty_turns = set(state.turns)
    return state
