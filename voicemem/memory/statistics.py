"""Statistics of a session, its memory besides its messages, and the figures of slim rows in lists of sessions.

Figures are made from a read model in memory, else in the background, and kept in the store. A list folds nothing:
missing figures are made within seconds, for the next list. Summaries, forgotten ranges and carried sessions are read
from the journal, at positions that the fold knows.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

import msgspec
from msgspec import Struct, structs

from voicemem.context.builder import SummaryState
from voicemem.errors import Refused, SessionQuarantined
from voicemem.llm.tokens import TokenCounter
from voicemem.memory.extraction.extractor import ExtractionState
from voicemem.memory.working_memory import WorkingMemory, owner_of_session
from voicemem.protocol.events import CarriedSession, MemoryForgotten, MemorySummary
from voicemem.protocol.memories import outcome_of
from voicemem.protocol.types import MAX_INTEGER
from voicemem.runtime import TimeSlicer
from voicemem.sessions.journal_pages import events_at
from voicemem.sessions.read_models.cache import ReadModelCache, is_ready
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.journal import Journal
from voicemem.store.port import Store
from voicemem.store.records import SavedFigures, SessionOverview
from voicemem.store.streams import Stream
from voicemem.transcript.call_timeline import CallTimeline, call_timeline
from voicemem.transcript.history import turn_messages
from voicemem.transcript.messages import Extracted, Message, Role
from voicemem.transcript.state import State
from voicemem.transcript.turns import compact_number, count_false_alarms, reply_afters

MAX_PENDING, SLICE = 10_000, 100
"""The most sessions whose figures wait to be made, and how many are made at a time. A later list adds the rest."""
PAUSE_S = 1.0


class CountsByRole(Struct, frozen=True):
    """A count for each role."""

    user: int = 0
    assistant: int = 0


class Unheard(Struct, frozen=True):
    """Generated text that the user did not hear; `share` is its share of all generated text, from 0 to 1."""

    characters: int
    share: float


class Latencies(Struct, frozen=True):
    """Latencies in ms; percentiles are measured values (nearest rank)."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


class ToolCounts(Struct, frozen=True):
    """Tool calls, in all and by the name of the tool; `answered` counts those with a result."""

    calls: int
    answered: int
    by_name: dict[str, int]


class Statistics(Struct, frozen=True):
    """Counts over the whole history, forgotten messages included. `memory_bytes` is an estimate for this process."""

    session_id: str
    state: str
    position: int
    duration_ms: int
    turns: int
    messages: CountsByRole
    interruptions: int
    false_alarms: int
    """Interruptions after which the reply played on."""
    unheard: Unheard
    tokens: CountsByRole
    counter: str
    latencies: dict[str, Latencies]
    reply_after: Latencies | None
    """How long the caller waited for replies; null if no turn shows it."""
    tools: ToolCounts
    summary: SummaryState | None
    extraction: ExtractionState | None
    """Null if no memories are made of the session."""
    forgotten: int
    """Messages that contexts no longer show."""
    ignored: dict[str, int]
    """By bound (`segments`, `replies`, `interruptions`, `resumes`, `traces`, `words`), how many events exceeded it."""
    memory_bytes: int


def statistics_of(
    stream: Stream,
    read_model: ReadModel,
    counter: TokenCounter,
    summary: SummaryState | None,
    now_ms: int,
    extraction_state: Callable[[Stream, Extracted | None], ExtractionState | None] = lambda stream, extracted: None,
) -> Statistics:
    messages, tokens = read_model.current_messages(), read_model.token_counter(counter)
    calls = [one for turn in read_model.state.each_turn() for one in turn.tool_calls or () if one.name is not None]
    by_name = Counter(call.name or "" for call in calls)
    return Statistics(
        session_id=stream.id,
        state=stream.state,
        position=read_model.position,
        duration_ms=max(0, (now_ms if stream.ended_ms is None else stream.ended_ms) - stream.started_ms),
        turns=len({message.turn_id for message in messages}),
        messages=sum_by_role((message.role, 1) for message in messages),
        interruptions=sum("interrupted" in message.metadata for message in messages),
        false_alarms=sum(count_false_alarms(read_model.state, turn) for turn in read_model.state.each_turn()),
        unheard=unheard(messages),
        tokens=sum_by_role((message.role, tokens(index)) for index, message in enumerate(messages)),
        counter=counter.name,
        latencies=latencies(read_model.state),
        reply_after=percentiles(waits) if (waits := reply_afters(read_model.state)) else None,
        tools=ToolCounts(len(calls), sum(call.answered for call in calls), dict(sorted(by_name.items()))),
        summary=summary,
        extraction=extraction_state(stream, read_model.state.extracted),
        forgotten=len(messages) - len(read_model.remembered_indexes()),
        ignored=read_model.state.ignored,
        memory_bytes=read_model.weight,
    )


def sum_by_role(counts: Iterable[tuple[str, int]]) -> CountsByRole:
    sums = {"user": 0, "assistant": 0}
    for role, count in counts:
        sums[role] += count
    return CountsByRole(**sums)


def unheard(messages: Iterable[Message]) -> Unheard:
    generated = heard = 0
    for message in messages:
        if message.metadata.get("source") == "llm":
            original = message.metadata.get("original", message.content)
            generated += max(len(original), len(message.content))
            heard += len(message.content)
    lost = generated - heard
    return Unheard(lost, round(lost / generated, 4) if generated else 0.0)


def latencies(state: State) -> dict[str, Latencies]:
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for turn in state.each_turn():
        for latency in turn.latencies or ():
            by_name[latency.name].append(latency.latency_ms)
    return {name: percentiles(sorted(values)) for name, values in sorted(by_name.items())}


def percentiles(values: list[float]) -> Latencies:
    """Return the percentiles of sorted values."""
    p50, p90, p99 = (values[math.ceil(percent * len(values) / 100) - 1] for percent in (50, 90, 99))
    return Latencies(len(values), p50, p90, p99, values[-1])


class LastWords(Struct, frozen=True):
    """The beginning of the last message; `open` while it is in progress."""

    role: Role
    text: str
    open: bool


class OverviewFigures(Struct, frozen=True):
    """Figures of a memory in a slim row. `unheard` is in characters.

    `reply_after_ms` is the median over its turns, `slowest_ms` the maximum. Figures made by an older version lack it
    and `strip`. `outcome` is that of the analysis.
    """

    turns: int
    interruptions: int
    unheard: int
    slowest_ms: float | None
    last: LastWords | None
    strip: CallTimeline | None = None
    reply_after_ms: float | None = None
    outcome: str | None = None


class Overviews:
    """Makes and finds the figures of slim rows."""

    def __init__(self, store: Store, read_models: ReadModelCache) -> None:
        self.store = store
        self.read_models = read_models
        self.closed: dict[int, Stream] = {}
        self.pending: dict[int, int] = {}
        """By key, the positions of sessions whose figures wait to be made."""

    def figures(self, row: SessionOverview) -> bytes | None:
        """Return the figures of a row as JSON: current ones if the read model is ready, else the saved ones or None."""
        read_model = self.read_models.find(row.key)
        is_at_hand = read_model is not None and is_ready(read_model, row.position, with_messages=False)
        if read_model is not None and is_at_hand and not (read_model.is_large or read_model.has_large_refresh):
            made = made_figures(row.key, read_model)
            if (made.interruptions, made.slowest_ms, made.outcome) != (
                row.interruptions or 0,
                row.slowest_ms,
                row.outcome,
            ):
                self.enqueue(row.key, row.position)  # filters use what is saved
            return made.figures
        if row.figures_position != row.position:
            self.enqueue(row.key, row.position)
        return row.figures

    async def save(self, stream: Stream) -> None:
        """Save the figures of a session at once. Raises `SessionQuarantined`, `StoreUnavailable`."""
        make = partial(made_figures, stream.key)
        made = await self.read_models.compute_as_of(stream.key, stream.position, make, background=True, or_later=True)
        await self.store.overviews.save_figures([made])

    def enqueue(self, key: int, position: int) -> None:
        if len(self.pending) < MAX_PENDING:
            self.pending[key] = position

    async def make_pending(self) -> None:
        """Make and save some of the pending figures. Raises `StoreUnavailable`."""
        for key, stream in self.closed.items():
            self.enqueue(key, stream.position)
        self.closed.clear()
        made, slicer = [], TimeSlicer()
        for key in list(islice(self.pending, SLICE)):
            position = self.pending.pop(key)
            with suppress(SessionQuarantined):
                make = partial(made_figures, key)
                made.append(await self.read_models.compute_as_of(key, position, make, background=True, or_later=True))
            await slicer.pause()
        if made:
            await self.store.overviews.save_figures(made)


def made_figures(key: int, read_model: ReadModel) -> SavedFigures:
    """Return the figures of a read model; they are made once for each position."""
    if read_model.figures is None or read_model.figures.position != read_model.position:
        messages, state = read_model.current_messages(), read_model.state
        waits = reply_afters(state)
        usual = percentiles(waits) if waits else None
        made = OverviewFigures(
            turns=len({message.turn_id for message in messages}),
            interruptions=sum("interrupted" in message.metadata for message in messages),
            unheard=unheard(messages).characters,
            slowest_ms=None if usual is None else compact_number(usual.max),
            last=last_words(read_model, messages),
            strip=call_timeline(state, messages),
            reply_after_ms=None if usual is None else compact_number(usual.p50),
            outcome=outcome_of(state.analysis),
        )
        slowest = None if made.slowest_ms is None else int(min(max(made.slowest_ms, -MAX_INTEGER), MAX_INTEGER))
        read_model.figures = SavedFigures(
            key, read_model.position, msgspec.json.encode(made), made.interruptions, slowest, made.outcome
        )
    return read_model.figures


def last_words(read_model: ReadModel, messages: Sequence[Message]) -> LastWords | None:
    """Return the last message, which may be in progress if it is of the newest turn."""
    state = read_model.state
    if not state.turn_numbers:
        return None
    if state.closed_ts is not None and messages:  # nothing is in progress
        return LastWords(messages[-1].role, messages[-1].content[:160], False)
    newest = [*turn_messages(state, state.turns[state.turn_numbers[-1]], unfinished=True)]
    if not newest and not messages:
        return None
    last = newest[-1] if newest else messages[-1]
    is_open = bool(newest) and last not in messages[read_model.turn_start(last.turn_id) :]
    return LastWords(last.role, last.content[:160], is_open)


MAX_LISTED = 100
"""The most summaries and forgotten ranges that are listed, the newest."""


class SummaryTokens(Struct, frozen=True):
    """Tokens that an LLM used to write a summary; null if its vendor did not say."""

    input: int | None
    output: int | None


class SummaryRecord(Struct, frozen=True):
    """A summary of the turns from the first of `range` to the last; `current` if contexts show it."""

    range: tuple[int, int]
    messages: int
    text: str
    model: str | None
    tokens: SummaryTokens
    position: int
    ts: int
    current: bool


class ForgottenRecord(Struct, frozen=True):
    """A forgotten range: turns up to `through_turn`; or all before `turn`, and that turn except `kept`."""

    through_turn: int | None
    turn: int | None
    kept: tuple[int, ...]
    """The journal positions of messages of `turn` that are not forgotten."""
    carried: bool
    """True if the carried sessions are forgotten too."""
    position: int
    ts: int


class DocumentState(Struct, frozen=True):
    """The version of the document that the session uses, and its scope."""

    scope: str
    version: int


class MemoryDetails(Struct, frozen=True):
    """A session's memory besides its messages, the oldest first."""

    session_id: str
    position: int
    summaries: list[SummaryRecord]
    forgotten: list[ForgottenRecord]
    carried: tuple[CarriedSession, ...]
    """Earlier sessions as contexts show them; empty also before the first context."""
    working_memory: DocumentState | None
    """Null for a session that should share its user's document but has no user."""


MemoryVersion = tuple[int, int, DocumentState | None]
"""It differs when the details do: the numbers of memory events and of carried sessions, and the document."""


class MemoryDetailsReader:
    """Reads the details of memories. All methods raise `SessionQuarantined` and `StoreUnavailable`."""

    def __init__(self, journal: Journal, read_models: ReadModelCache, working_memory: WorkingMemory) -> None:
        self.journal = journal
        self.read_models = read_models
        self.working_memory = working_memory

    async def version(self, stream: Stream) -> MemoryVersion:
        """Return a value that changes with the details."""
        document = await self.document_state(stream)
        state = await self.read_models.get_state(stream)
        return len(state.memory_positions), len(state.carried or ()), document

    async def read(self, stream: Stream) -> MemoryDetails:
        """Return the details, with the newest `MAX_LISTED` of its summaries and forgotten ranges together."""
        document = await self.document_state(stream)
        state = await self.read_models.get_state(stream)
        position, positions, carried = state.position, state.memory_positions[-MAX_LISTED:], state.carried or ()
        first_turn, has_summary = min(state.turn_numbers, default=0), state.summary is not None
        summaries: list[SummaryRecord] = []
        forgotten: list[ForgottenRecord] = []
        async for row, event in events_at(self.journal, stream.key, positions):
            ts = row.received_ms if event.ts is None else event.ts
            if isinstance(event, MemorySummary):
                turns = (min(first_turn, event.through_turn), event.through_turn)
                tokens = SummaryTokens(event.input_tokens, event.output_tokens)
                said = (event.messages, event.text, event.model)
                summaries.append(SummaryRecord(turns, *said, tokens, row.position, ts, current=False))
            elif isinstance(event, MemoryForgotten):
                left = (event.through_turn, event.turn, event.kept, event.carried)
                forgotten.append(ForgottenRecord(*left, row.position, ts))
        if summaries and has_summary:
            summaries[-1] = structs.replace(summaries[-1], current=True)
        return MemoryDetails(stream.id, position, summaries, forgotten, carried, document)

    async def document_state(self, stream: Stream) -> DocumentState | None:
        try:
            owner = owner_of_session(stream)
        except Refused:  # no user
            return None
        return DocumentState(owner.scope, (await self.working_memory.read_document(owner)).version)
