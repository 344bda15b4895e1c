"""The state of the fold: turns, and in them the users' speech and the agent's replies and tool calls.

These records are encoded as snapshots, so any change here needs a new `SNAPSHOT_VERSION`. Lists that are mostly empty
are None instead, because many calls are in memory at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeVar

from msgspec import Struct, field

from voicemem.dialects.registry import DIALECTS_VERSION
from voicemem.documents.document import Document
from voicemem.protocol.events import CarriedSession, Event, FrameEvent
from voicemem.protocol.memories import Analysis
from voicemem.protocol.types import JsonObject
from voicemem.transcript.messages import Extracted, Forgotten, Summary
from voicemem.transcript.packing import ENCODER, FEW, HEAVY, MANY, Records, decoder_of
from voicemem.transcript.replies.evidence import Evidence, Generation
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL, Column, MergedMetadata

T = TypeVar("T")
Key = TypeVar("Key", "ReplyKey", int)
SNAPSHOT_VERSION = 29_000 + DIALECTS_VERSION
"""The version of these records, of the fold's rules, and of the dialects; snapshots of other versions are ignored."""
BOUND = 100_000
"""The most segments, messages, replies, interruptions, resumes and traces of a turn, and words of a reply (rule 11)."""
TURNS_SPAN, REPLIES_SPAN = 128, 1_024
"""Numbers of turns, and ids of replies, that are packed together."""
MAX_EVENT_IDS = 100_000
"""The number of newest event ids that are kept, as hashes."""


class Memo(Struct, eq=False):
    """Memoised results of one state, by turn and reply. Losing any of them only costs time.

    Its values are made, and typed, by the modules named below.
    """

    speech: dict[int, Any] = {}
    """By turn: a `speech.SpeechIndex`, which has its segments by key and by user."""
    entries: dict[object, tuple[Any, Any]] = {}
    """The `history.MessageEntry` of replies, by id, and of users, by turn and name: of large turns, and of the
    small turn that was read last.

    Each has the version of the reply that it was made from.
    """
    open_speech: Any = None
    """A `speech.SpeechIndex` of the segments, in any turn, without an item and without a final."""
    small_turn: int | None = None
    small_keys: list[object] = []
    """The keys kept in `entries` of that turn."""
    made: list[Any] | None = None
    """The events that dialects make, if a reader wants them."""
    translates: bool = False
    """True while events from a dialect are applied."""
    false_alarms: Any = None
    """A `speech.FalseAlarms`."""
    whole_texts: dict[int, Any] = {}
    """By reply, if it is long or was reported often: a `timeline.WholeText`."""
    word_matches: dict[int, tuple[Any, Any]] = {}
    """By reply: a `matching.WordMatch` of its timed words, and the windows that they are from."""
    interruption_stack: dict[int, Any] = {}
    """By turn: see `playing.interruption_stack`."""
    packed_at: int = -1
    """The position at which the state was packed last: until the next event it does not change."""

    def forget_speech(self, numbers: Iterable[int]) -> None:
        """Forget the speech of turns that equal objects have replaced."""
        for number in numbers:
            self.speech.pop(number, None)

    def forget_turn(self, turn: Turn) -> None:
        self.speech.pop(turn.number, None)
        for segment in turn.segments or ():
            self.entries.pop((turn.number, segment.user), None)

    def forget_reply(self, id: int) -> None:
        for known in self.entries, self.whole_texts, self.word_matches:
            known.pop(id, None)

    def keep(self, key: object, version: Any, entry: Any, for_good: bool) -> None:
        """Keep a message, for good or until another turn is read."""
        self.entries[key] = version, entry
        if not for_good:
            self.small_keys.append(key)

    def leave_small_turn(self, number: int) -> None:
        """Forget the messages of the small turn that was read last: another one is read now."""
        for key in self.small_keys:
            self.entries.pop(key, None)
        self.small_turn, self.small_keys = number, []


class Segment(Struct, array_like=True, gc=False):
    """One piece of an utterance, keyed by (item, number); with neither, a final closes it."""

    item: str | None
    number: int | None
    order: int
    """The journal position of its first event, which orders segments. Likewise in the records below."""
    user: str | None = None
    begin: int = AFTER_ALL
    """Its earliest `ts`."""
    newest_ts: int = BEFORE_ALL
    text: str = ""
    final: bool = False
    final_ts: int = BEFORE_ALL
    later_partial: str | None = None
    """A partial that came after the final; the close may use it."""
    start_ms: int | None = None
    """When its audio began by the recogniser's report; `end_ms` is when it ended."""
    end_ms: int | None = None
    metadata: MergedMetadata | None = None
    turn: int = 0

    @property
    def has_key(self) -> bool:
        return self.item is not None or self.number is not None

    def begin_again(self) -> None:
        """Reset all but the user, so that it begins with the next text."""
        self.text, self.metadata, self.begin, self.newest_ts = "", None, AFTER_ALL, BEFORE_ALL
        self.start_ms = self.end_ms = None

    def withdraw(self) -> None:
        """Make the segment a new one that keeps its place."""
        self.begin_again()
        self.user, self.final, self.later_partial = None, False, None


class TypedMessage(Struct, array_like=True, gc=False):
    """A whole user message: typed text, a command, or a restored one."""

    order: int
    begin: int
    text: str
    metadata: dict[str, Any]
    reported: int = 0
    """The position of the segment shown in its place, if a recogniser has reported the same words."""


class Reply(Struct, array_like=True, gc=False):
    """A reply of the agent: one answer of the LLM, one whole message, or a failure message."""

    id: int
    """Twice the journal position of its first event, plus one for a failure message."""
    turn: int
    item: str | None
    producer: str | None = None
    """The producer of its first event."""
    source: str = "llm"
    begin: int = AFTER_ALL
    text_ts: int = AFTER_ALL
    """The earliest `ts` of its events with text."""
    generation: Generation = field(default_factory=Generation)
    metadata: MergedMetadata | None = None
    restored: bool = False
    """True if it arrived with its interruption in its metadata; no other interruption is looked for."""
    heard_only: bool = False
    """True if no text of the LLM's arrived, only an interruption with what was heard."""
    heard_rank: tuple[bool, int] | None = None
    """The rank of that text (stated rather than estimated, then its time); a lower one does not replace it."""
    states_time: bool = False
    """True if an event that generated it stated its `ts`."""
    own: Evidence | None = None
    """Evidence that named neither item nor turn, and was found to be about this reply."""
    changes: int = 0
    """How often its message may have changed, other than by generated text."""
    over: bool = False
    """True in a fork: the reply was copied, and no longer plays."""
    shown: bool = False
    """True if it ever had text; only then it is a reply to others (rules 2 and 5)."""
    cancelled: bool = False
    progress: bool = False
    """True if any playback was reported. This field and the next two are out of date while it is in `state.stale`."""
    heard_ts: int | None = None
    """When playback showed that it was heard to the end."""
    cut_ts: int | None = None
    """When it was interrupted."""
    first_cut_ts: int | None = None
    """When it was first interrupted, false alarms included."""
    resumed_ts: int | None = None
    """When it resumed after the last false alarm."""

    @property
    def order(self) -> int:
        return self.id >> 1

    @property
    def is_failure(self) -> bool:
        return bool(self.id & 1)

    @property
    def key(self) -> ReplyKey:
        return self.turn, self.begin, self.id


ReplyKey = tuple[int, int, int]
"""The place of a reply in the call, comparable: turn, begin, id."""


class ToolCallRecord(Struct, array_like=True, gc=False):
    """A tool call, with its result once that has arrived; without a name, a result that waits for its call."""

    order: int
    ts: int
    call_id: str
    name: str | None = None
    arguments: bytes = b"null"
    """As JSON, which takes less memory, like the result."""
    result: bytes = b"null"
    answered: bool = False
    answered_ts: int | None = None
    wanted_back: JsonObject | None = None


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
    """One exchange."""

    number: int
    segments: list[Segment] | None = None
    finals: int = 0
    """The number of final segments with text."""
    typed: list[TypedMessage] | None = None
    replies: list[int] | None = None
    """The ids of its replies, in the order of their arrival."""
    standing: int = 0
    """The number of them that are not cancelled."""
    unnamed_item_reply: int | None = None
    """The reply made by events that name this turn and no item."""
    heard_only_reply: int | None = None
    """The reply made by an interruption that named this turn, while the turn has no other."""
    evidence: Evidence | None = None
    """Evidence that named only the turn; reading finds the reply."""
    tool_calls: list[ToolCallRecord] | None = None
    latencies: list[Latency] | None = None
    failure: Failure | None = None
    """The newest failure."""
    reported: list[TypedMessage] | None = None
    """Messages of requests that are replaced by speech."""


class Notes(Struct, array_like=True):
    """Notes of a dialect in the state, besides the transcript."""

    values: JsonObject = {}
    """The oldest first."""
    sizes: dict[str, int] = {}
    """The size of each as JSON, in bytes."""
    size: int = 0
    """The sum of these."""


class State(Struct, array_like=True, dict=True):
    """The fold of a journal up to `position`."""

    position: int = 0
    producer: str | None = None
    """The producer of the event at this position."""
    turns: dict[int, Turn] = {}
    turn_numbers: list[int] = []
    """The turns' numbers, sorted."""
    items: dict[str, int] = {}
    """The turn in which each item began."""
    replies: dict[int, Reply] = {}
    """All replies, by id."""
    item_replies: dict[str, int] = {}
    """The reply of each of the LLM's items."""
    heard_only_items: dict[str, int] = {}
    """The reply of each item that only an interruption named."""
    item_failures: dict[str, list[tuple[int, int]]] = {}
    """The failure messages of an item, each as (ts, id), sorted."""
    item_evidence: dict[str, Evidence] = {}
    """Evidence that named an item, even if no reply has begun with it."""
    begun: list[ReplyKey] = []
    """The replies that ever had text, sorted."""
    generated: list[ReplyKey] = []
    """Those of them that an `llm.cancel` can mean: no failure messages, and none that only an interruption named."""
    standing: list[ReplyKey] | None = None
    """Those that are not cancelled; None while none is."""
    unheard: list[ReplyKey] = []
    """The keys of replies that were neither heard to their end nor interrupted, sorted; likewise below."""
    playable: list[ReplyKey] = []
    """The unheard ones that were played in part, or are still being generated."""
    played: list[ReplyKey] = []
    """The replies with reported playback."""
    interrupted: list[ReplyKey] = []
    has_cancels: bool = False
    """True if any `llm.cancel` has arrived."""
    stale: set[int] = set()
    """Replies with new evidence since these lists were made."""
    clock: int = BEFORE_ALL
    """The newest `ts` that this producer stated."""
    clocks: dict[str | None, int] = {}
    """The same for the other producers."""
    event_ids: dict[int, None] = {}
    """Hashes of the ids of events, the newest last."""
    tool_calls: dict[str, tuple[int, int]] = {}
    """By call id: the turn of a tool call, or of a result that waits for one, and the index there."""
    newest_turn: int = 0
    utterance_turn: int = 0
    """The turn of the newest utterance; 0 before any."""
    final_turn: int = BEFORE_ALL
    """The newest turn with a final: replies of earlier turns no longer play."""
    unfinished: list[ReplyKey] = []
    """The replies that the LLM has not finished and that are not cancelled, sorted."""
    flowing_reply: int | None = None
    """The newest reply of events that name neither item nor turn."""
    closed_ts: int | None = None
    close_reason: str | None = None
    ended_ts: int | None = None
    """The `ts` of the first `session.end`."""
    notes: dict[str, Notes] = {}
    """By dialect, for each of which a frame has arrived."""
    ignored: dict[str, int] = {}
    """By bound: how many events exceeded it, and were ignored."""
    summary: Summary | None = None
    """The newest summary; the history keeps the messages that it covers."""
    document: Document | None = None
    """The working memory of the session, or of the user whose stream this is."""
    data: JsonObject = {}
    """The session's data, shown to an LLM only on request."""
    forgotten: Forgotten | None = None
    forgotten_items: frozenset[str] = frozenset()
    """The items that were forgotten in the original of a fork, and were not copied."""
    carried: tuple[CarriedSession, ...] | None = None
    """Knowledge from earlier sessions; None until it was looked up, () when there is nothing."""
    extracted: Extracted | None = None
    analysis: Analysis = {}
    """The values of the analysis of the call."""
    requested: dict[int, list[int]] = {}
    """By the hash of a request's words: their turns, until speech is shown in their place."""
    answers: dict[int, None] = {}
    """The gateway's replies that no other stack has reported."""
    counterparts: dict[str, int] = {}
    """By another stack's item: the gateway's reply with the same text."""
    other_items: dict[int, str] = {}
    """The same, by reply."""
    memory_positions: Column = field(default_factory=lambda: array("q"))
    """The positions of summaries, forgotten ranges and carried sessions."""
    dirty_turns: set[int] = set()
    """Turns that have changed since their messages were last made."""
    held: int = 0
    """The number of turns, segments, messages, replies and traces."""
    has_heavy: bool = False
    """True if a turn has so many of them that packing it takes long."""
    packed_turns: dict[int, bytes] = {}
    """The packed blocks of `turns`, which are `Records` if there are very many; likewise for the replies."""
    packed_replies: dict[int, bytes] = {}

    def turn(self, number: int) -> Turn:
        turn = self.turns.get(number)
        if turn is None:
            turn = self.turns[number] = Turn(number)
            self.held += 1
            insort(self.turn_numbers, number)
            self.dirty_turns.add(number)
        return turn

    def append(self, items: list[T] | None, item: T) -> list[T]:
        """Return a list of a turn with one more item. Empty lists are None, since most are empty."""
        self.held += 1
        if items is None:
            return [item]
        items.append(item)
        self.has_heavy |= len(items) > HEAVY
        return items

    def each_turn(self, numbers: Iterable[int] | None = None) -> Iterator[Turn]:
        """Yield the turns with these numbers, or all in order, releasing those that this unpacks."""
        for number in self.turn_numbers if numbers is None else numbers:
            yield self.turns[number]
            self.release()

    def each_reply(self, ids: Iterable[int]) -> Iterator[Reply]:
        """Yield the replies with these ids, releasing those that this unpacks."""
        for count, id in enumerate(ids, 1):
            yield self.replies[id]
            if count % TURNS_SPAN == 0:
                self.release()

    @property
    def is_very_large(self) -> bool:
        """True if turns and replies are packed, or should be."""
        return self.held > MANY or isinstance(self.turns, Records)

    @property
    def is_heavy(self) -> bool:
        """True if packing takes too long for the event loop."""
        return self.has_heavy and self.is_very_large

    def pack(self, few: int = FEW) -> None:
        """Pack the least recently used records of a very large call; of one that is over, no heavy turn waits.

        The state must be settled.
        """
        is_over = self.is_heavy and self.closed_ts is not None
        if is_over:
            self.memo.speech.clear()
        if self.is_very_large and not isinstance(self.turns, Records):
            self.find_packed()
        if isinstance(self.turns, Records) and isinstance(self.replies, Records):
            for turn in self.turns.pack(has_open_speech, few, waits=not is_over):
                self.memo.forget_turn(turn)
            for reply in self.replies.pack(lambda reply: False, few):
                self.memo.forget_reply(reply.id)
            self.memo.packed_at = self.position

    def release(self, is_over: bool = False) -> None:
        """Release records that readers have unpacked, unless events have come since the state was packed.

        With `is_over`, the records that were unpacked last are released too.
        """
        if self.memo.packed_at == self.position:
            for records in self.turns, self.replies:
                if isinstance(records, Records):
                    records.release(is_over)

    def find_packed(self, heavy: int = HEAVY) -> None:
        """Make `turns` and `replies` find packed ones too."""
        memo = self.memo
        self.turns = Records(Turn, TURNS_SPAN, self.turns, self.packed_turns, memo.forget_speech, held_by, heavy)
        self.replies = Records(Reply, REPLIES_SPAN, self.replies, self.packed_replies, lambda ids: None)

    def change_producer(self, producer: str | None) -> None:
        if producer != self.producer:  # an equal name stays the same object, for all replies
            self.clocks[self.producer] = self.clock
            self.clock = self.clocks.get(producer, BEFORE_ALL)
            self.producer = producer

    def clock_of(self, producer: str | None, otherwise: int) -> int:
        """Return the newest `ts` that a producer stated, else the given one."""
        clock = self.clock if producer == self.producer else self.clocks.get(producer, BEFORE_ALL)
        return otherwise if clock == BEFORE_ALL else clock

    def tool_record(self, place: tuple[int, int]) -> ToolCallRecord:
        """Return the record at a turn and an index there."""
        records = self.turns[place[0]].tool_calls
        assert records is not None
        return records[place[1]]

    def has_event(self, id: str) -> bool:
        """Return whether an event with this id has come."""
        return id_digest(id) in self.event_ids

    @cached_property
    def memo(self) -> Memo:
        """The memoised results, which are never part of a snapshot."""
        return Memo()

    def touch(self, reply: Reply) -> None:
        """Note that new evidence about a reply has arrived."""
        self.stale.add(reply.id)
        reply.changes += 1
        self.dirty_turns.add(reply.turn)

    def remake(self, reply: Reply) -> None:
        """Note that the message of a reply may have changed."""
        reply.changes += 1
        self.dirty_turns.add(reply.turn)

    def ignore(self, bound: str) -> None:
        self.ignored[bound] = self.ignored.get(bound, 0) + 1


def held_by(turn: Turn) -> int:
    """Return the number of a turn's parts, besides its replies."""
    evidence = turn.evidence
    cuts = None if evidence is None else evidence.interruptions
    lists = turn.segments, turn.typed, turn.reported, turn.tool_calls, turn.latencies, cuts
    return 1 + sum([len(items) for items in lists if items])


def is_open(segment: Segment) -> bool:
    return segment.item is None and not segment.final and segment.begin < AFTER_ALL


def has_open_speech(turn: Turn) -> bool:
    """Return whether an event that names no turn may continue a text of this turn."""
    return any(map(is_open, turn.segments or ()))


def id_digest(id: str) -> int:
    """Return the hash of an event's id, which takes a third of its memory."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "big", signed=True)


def digest_of(event: Event) -> int:
    """Return the hash of an event's id; ids of frames are separate for each dialect."""
    return id_digest(f"{event.dialect}/{event.id}" if type(event) is FrameEvent else str(event.id))


def put(keys: list[Key], key: Key, belongs: bool) -> None:
    """Insert a key into a sorted list, or remove it."""
    place = bisect_left(keys, key)
    is_in = place < len(keys) and keys[place] == key
    if belongs and not is_in:
        keys.insert(place, key)
    elif is_in and not belongs:
        del keys[place]


DECODER = decoder_of(State)


def encode_state(state: State) -> bytes:
    """Return the state as bytes, for `decode_state`."""
    return ENCODER.encode(state)


def decode_state(blob: bytes) -> State:
    """Return the state that `encode_state` encoded, with every turn marked as changed."""
    state: State = DECODER.decode(blob)
    state.dirty_turns = set(state.turn_numbers)
    if state.packed_turns or state.packed_replies:
        state.find_packed()
    return state
