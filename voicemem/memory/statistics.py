"""Statistics of a session: messages, turns, interruptions, tokens, latencies, tools."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from msgspec import Struct

from voicemem.context.usage import SummaryState
from voicemem.llm.tokens import TokenCounter
from voicemem.memory.extraction.state import ExtractionState
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Extracted, Message
from voicemem.transcript.state import State
from voicemem.transcript.turns.marks import false_alarms_of


class Roles(Struct, frozen=True):
    """A count for each role."""

    user: int = 0
    assistant: int = 0


class Unheard(Struct, frozen=True):
    """What the LLM generated and the user did not hear; `share` is its part of all that was generated, from 0 to 1."""

    characters: int
    share: float


class Latencies(Struct, frozen=True):
    """In ms; percentiles are measured values (nearest rank)."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


class ToolCounts(Struct, frozen=True):
    """Tool calls, in all and by the name of the tool; `answered` counts those that have a result."""

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
    messages: Roles
    interruptions: int
    false_alarms: int
    """Interruptions after which the reply played on."""
    unheard: Unheard
    tokens: Roles
    counter: str
    latencies: dict[str, Latencies]
    tools: ToolCounts
    summary: SummaryState | None
    extraction: ExtractionState | None
    """None where no memories are made of the session."""
    forgotten: int
    """Messages that contexts no longer show."""
    ignored: dict[str, int]
    """By bound (`segments`, `replies`, `interruptions`, `resumes`, `traces`, `words`): the events beyond it."""
    memory_bytes: int


def statistics_of(
    stream: Stream,
    read_model: ReadModel,
    counter: TokenCounter,
    summary: SummaryState | None,
    now_ms: int,
    extraction_state: Callable[[Stream, Extracted | None], ExtractionState | None] = lambda stream, extracted: None,
) -> Statistics:
    """The statistics of a session, whose tokens `counter` counts."""
    messages, tokens = read_model.current_messages(), read_model.token_counter(counter)
    return Statistics(
        session_id=stream.id,
        state=stream.state,
        position=read_model.position,
        duration_ms=max(0, (now_ms if stream.ended_ms is None else stream.ended_ms) - stream.started_ms),
        turns=len({message.turn_id for message in messages}),
        messages=sum_by_role((message.role, 1) for message in messages),
        interruptions=sum("interrupted" in message.metadata for message in messages),
        false_alarms=sum(false_alarms_of(read_model.state, turn) for turn in read_model.state.turns.values()),
        unheard=unheard(messages),
        tokens=sum_by_role((message.role, tokens(index)) for index, message in enumerate(messages)),
        counter=counter.name,
        latencies=latencies(read_model.state),
        tools=count_tools(read_model.state),
        summary=summary,
        extraction=extraction_state(stream, read_model.state.extracted),
        forgotten=len(messages) - len(read_model.remembered_indexes()),
        ignored=read_model.state.ignored,
        memory_bytes=read_model.weight,
    )


def sum_by_role(counts: Iterable[tuple[str, int]]) -> Roles:
    sums = {"user": 0, "assistant": 0}
    for role, count in counts:
        sums[role] += count
    return Roles(**sums)


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
    for turn in state.turns.values():
        for latency in turn.latencies or ():
            by_name[latency.name].append(latency.latency_ms)
    return {name: percentiles(sorted(values)) for name, values in sorted(by_name.items())}


def percentiles(values: list[float]) -> Latencies:
    p50, p90, p99 = (values[math.ceil(percent * len(values) / 100) - 1] for percent in (50, 90, 99))
    return Latencies(len(values), p50, p90, p99, values[-1])


def count_tools(state: State) -> ToolCounts:
    tool_calls = [
        tool_call for turn in state.turns.values() for tool_call in turn.tool_calls or () if tool_call.name is not None
    ]
    by_name = Counter(tool_call.name or "" for tool_call in tool_calls)
    answered = sum(tool_call.answered for tool_call in tool_calls)
    return ToolCounts(len(tool_calls), answered, dict(sorted(by_name.items())))
