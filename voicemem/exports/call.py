"""An export's view of a call: its facts, and its utterances with the times at which they could be heard."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, overload

from msgspec import Struct

from voicemem.protocol.memories import Analysis
from voicemem.transcript.history import SpeechTimes, tool_uses
from voicemem.transcript.messages import Message, Summary, ToolUse
from voicemem.transcript.packing import Items
from voicemem.transcript.state import State
from voicemem.transcript.turns import ReplyAfter, reply_after, turn_latencies

CALLER, AGENT = "Caller", "Agent"
NO_WAIT = ReplyAfter()
NEAR_MS = 24 * 3600 * 1000
"""A speech time that is further from its message than this has another unit or another zero, and is ignored."""


class CallFacts(Struct, frozen=True, kw_only=True, rename={"started_ms": "started_at", "ended_ms": "ended_at"}):
    """The session of a call, by the names of its fields in exports; times are Unix ms by the server's clock."""

    session_id: str
    state: str
    reason: str | None = None
    started_ms: int
    ended_ms: int | None = None
    name: str | None = None
    channel: str | None = None
    user_id: str | None = None
    labels: dict[str, str] = {}
    recording: str | None = None


class Utterance(Struct, frozen=True, gc=False):
    """A message, its speaker, and when it could be heard; times are Unix ms by the producer's clock."""

    message: Message
    speaker: str
    start_ms: int
    end_ms: int | None
    """None if unknown."""
    reply_after: ReplyAfter = NO_WAIT
    """How long the caller waited for it, if it is the first reply of a turn."""

    @property
    def agent(self) -> str | None:
        """The agent that spoke, if there are several."""
        agent = self.message.metadata.get("agent") if self.message.role == "assistant" else None
        return agent if isinstance(agent, str) and agent.strip() else None

    @property
    def unheard(self) -> str:
        """The generated text that was not heard: all of it if it does not begin with the heard text."""
        original = self.message.metadata.get("original") if self.is_cut else None
        return original.removeprefix(self.message.content) if isinstance(original, str) else ""

    @property
    def heard(self) -> str:
        return self.message.content

    @property
    def is_cut(self) -> bool:
        return self.message.metadata.get("interrupted") is True

    @property
    def cut_at_ms(self) -> int | None:
        """The reported time of the cut."""
        return near(self.message.metadata.get("interrupt_timestamp"), self.start_ms) if self.is_cut else None

    @property
    def is_estimated(self) -> bool:
        return self.is_cut and self.message.metadata.get("heard") == "estimated"


class TurnLatencies(Struct, frozen=True):
    """The latencies of a turn, in ms: until its first reply, and those that the stack reported of its stages."""

    turn_id: int
    reply_after_ms: int | float | None
    reply_after_by: str | None
    e2e_latency_ms: int | float | None
    segmented_latency_ms: dict[str, int | float]


class Call(Struct, frozen=True):
    facts: CallFacts
    utterances: Sequence[Utterance]
    tools: Sequence[ToolUse]
    summary: Summary | None = None
    latencies: Sequence[TurnLatencies] = ()
    analysis: Analysis = {}

    @property
    def start_ms(self) -> int:
        """When its first utterance began to be heard; the start of the session if there is none."""
        return min((one.start_ms for one in self.utterances), default=self.facts.started_ms)

    @property
    def end_ms(self) -> int:
        """The latest known end of an utterance."""
        known = (max(one.start_ms, one.end_ms or one.start_ms) for one in self.utterances)
        return max(known, default=self.facts.ended_ms or self.facts.started_ms)

    def in_order(self) -> Iterator[Utterance | ToolUse]:
        """Yield utterances and tool calls, each call before the utterances of its turn that began later."""
        orders = [*map(tool_order, self.tools)]
        waiting = deque(sorted(range(len(orders)), key=orders.__getitem__))  # the tool calls may be packed
        for one in self.utterances:
            place = one.message.turn_id, one.message.timestamp
            while waiting and orders[waiting[0]] < place:
                yield self.tools[waiting.popleft()]
            yield one
        yield from map(self.tools.__getitem__, waiting)


class PackedUtterances(Sequence[Utterance]):
    """The utterances of a very large call, whose texts are only in the messages that its readers share."""

    def __init__(self, messages: Items[Message]) -> None:
        self.messages = messages
        self.others = Items[tuple[Any, ...]](tuple[str, int, int | None, ReplyAfter])
        """The other fields of each utterance."""

    def append(self, one: Utterance) -> None:
        self.others.append((one.speaker, one.start_ms, one.end_ms, one.reply_after))

    def __len__(self) -> int:
        return len(self.others)

    @overload
    def __getitem__(self, index: int) -> Utterance: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Utterance]: ...
    def __getitem__(self, index: int | slice) -> Utterance | Sequence[Utterance]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        return Utterance(self.messages[index], *self.others[index])

    def __iter__(self) -> Iterator[Utterance]:
        return (Utterance(message, *others) for message, others in zip(self.messages, self.others, strict=True))


def call_of(
    facts: CallFacts,
    timed: Iterable[tuple[Message, SpeechTimes]],
    state: State,
    messages: Sequence[Message] = (),
) -> Call:
    """Make a call from its messages with their speech times, and the state that they were made from.

    `messages` are the same messages; a very large call holds these.
    """
    latencies = Items[TurnLatencies](TurnLatencies)
    utterances: PackedUtterances | list[Utterance]
    utterances = PackedUtterances(messages) if isinstance(messages, Items) else []
    in_order = iter(timed)
    following = next(in_order, None)
    for turn in state.each_turn():
        after = reply_after(state, turn)
        stages, whole = turn_latencies(turn)
        if after.ms is not None or stages:
            latencies.append(TurnLatencies(turn.number, after.ms, after.by, whole, stages))
        wait = NO_WAIT if after.ms is None else after
        while following is not None and following[0].turn_id == turn.number:
            is_reply = following[0].role == "assistant"
            utterances.append(utterance_of(*following, wait if is_reply else NO_WAIT))
            wait, following = NO_WAIT if is_reply else wait, next(in_order, None)
    tools = tool_uses(state, with_forgotten=True)
    return Call(facts, utterances, tools, state.summary, latencies.as_list(), state.analysis)


def utterance_of(message: Message, times: SpeechTimes, after: ReplyAfter) -> Utterance:
    start = near(times.get("speech_start_ms"), message.timestamp)
    start_ms = message.timestamp if start is None else start
    end_ms = near(times.get("speech_end_ms"), start_ms)
    if message.metadata.get("interrupted") is True:
        cut_ms = near(message.metadata.get("interrupt_timestamp"), start_ms)
        end_ms = end_ms if cut_ms is None else cut_ms
    if end_ms is not None and end_ms <= start_ms:
        end_ms = None
    is_agent = message.role == "assistant"
    named = message.metadata.get("agent" if is_agent else "user")
    speaker = named if isinstance(named, str) and named.strip() else AGENT if is_agent else CALLER
    return Utterance(message, speaker, start_ms, end_ms, after)


def near(value: Any, ms: int) -> int | None:
    """Return a value as a whole number of ms, if it is a number near `ms`."""
    return int(value) if type(value) in (int, float) and abs(value - ms) <= NEAR_MS else None


def tool_order(tool: ToolUse) -> tuple[int, int]:
    return tool.turn_id, tool.timestamp


# Texts and times: a spoken text must not break, hide or reorder the text around it

REORDERING = "\u202a-\u202e\u2066-\u2069"
"""Embeddings, overrides and isolates of bidirectional text: an open one reorders what follows. Marks are kept."""
SPACES, PART = re.compile(r"\s+"), 64 * 1024
"""White space, and the characters in which it is looked for at a time: all words of a text take ten times as much."""
HIDDEN = re.compile(f"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f{REORDERING}\ufeff]")
"""Reordering characters, and control characters that are not white space."""
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which dates can name; a time beyond is shown as the nearest of them."""


def one_line(text: str) -> str:
    """Return the text on one line, without control and reordering characters."""
    if text.isprintable() and "  " not in text:  # it has none of these, and no white space except spaces
        return text.strip()
    parts = (SPACES.sub(" ", strip_invisible(text[at : at + PART])) for at in range(0, len(text), PART))
    return re.sub("  +", " ", "".join(parts)).strip()


def strip_invisible(text: str) -> str:
    """Return the text without control and reordering characters; its lines stay."""
    return HIDDEN.sub("", text)


def date_time(ms: int) -> str:
    """Return a time such as `2026-11-23T12:00:00.000Z` (RFC 3339)."""
    return f"{moment_of(ms).isoformat(timespec='milliseconds')}Z"


def date_and_clock(ms: int) -> tuple[str, str]:
    """Return the date and the time of day, in UTC."""
    day, _, clock = moment_of(ms).isoformat(timespec="seconds").partition("T")
    return day, clock


def moment_of(ms: int) -> datetime:
    return datetime.min + timedelta(milliseconds=min(max(ms, FIRST_MS), LAST_MS) - FIRST_MS)


def cue_time(ms: int, point: str) -> str:
    """Return a time since the beginning of the call, such as `00:00:04.100`; `point` precedes the milliseconds."""
    second, rest = divmod(ms, 1000)
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{point}{rest:03}"


def length(ms: int) -> str:
    """Return a length such as `0:48` or `1:02:03`."""
    second = ms // 1000
    hours = f"{second // 3600}:{second // 60 % 60:02}" if second >= 3600 else f"{second // 60}"
    return f"{hours}:{second % 60:02}"
