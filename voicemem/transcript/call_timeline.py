"""The timeline of a call for one small picture: who was heard when, unheard text, cuts, tools.

All times are the events' `ts`, by whatever clock; only their order and distances matter.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

from msgspec import Struct

from voicemem.transcript.messages import Message
from voicemem.transcript.replies.evidence import POSITIONS, TEXTS, first_entries, last_entries
from voicemem.transcript.replies.playing import each_standing_reply, sources_of
from voicemem.transcript.speech import spoken_segments
from voicemem.transcript.state import Reply, State, Turn
from voicemem.transcript.timeline import AFTER_ALL
from voicemem.transcript.turns import FIRST_AUDIO, VOICE_MS, cut_ts, ended_ts, spoken_ms

Lane = Literal["user", "agent", "unheard", "cut", "tool"]
MAX_ENTRIES = 64
UNHEARD_MS = 55
"""The assumed duration of an unheard character, in ms."""
PARTS = 1000
"""The length of a call, in the unit of entries."""


class CallTimeline(Struct, frozen=True):
    """At most 64 entries, each a lane with its start and end, in thousandths of `length_ms`.

    `unheard` is the unheard rest of a reply that was cut. `cut` is a moment.
    """

    length_ms: int
    lanes: list[tuple[Lane, int, int]]


class Span(NamedTuple):
    """A part of the call, between two times."""

    lane: Lane
    begin: int
    end: int


def call_timeline(state: State, messages: Iterable[Message]) -> CallTimeline:
    """Return the timeline of a call with these messages."""
    unheard = unheard_characters(messages)
    spans = [span for turn in state.each_turn() for span in turn_spans(state, turn, unheard)]
    spans = end_before_next(sorted(spans, key=attrgetter("begin")))
    if not spans:
        return CallTimeline(0, [])
    begin, end = spans[0].begin, max(span.end for span in spans)
    length = end - begin
    scale = max(length, 1)
    entries = [Span(lane, (f - begin) * PARTS // scale, (t - begin) * PARTS // scale) for lane, f, t in spans]
    while len(entries) > MAX_ENTRIES:
        entries = join_close(entries, sorted(gaps_of(entries))[len(entries) - MAX_ENTRIES - 1])
    return CallTimeline(length, [(lane, f, t) for lane, f, t in entries])


def unheard_characters(messages: Iterable[Message]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the cuts of replies, by turn and start: the time of each, and the number of unheard characters."""
    return {
        (message.turn_id, message.timestamp): (
            message.metadata["interrupt_timestamp"],
            max(0, len(message.metadata.get("original", "")) - len(message.content)),
        )
        for message in messages
        if message.role == "assistant" and isinstance(message.metadata.get("interrupt_timestamp"), int)
    }


def turn_spans(state: State, turn: Turn, unheard: dict[tuple[int, int], tuple[int, int]]) -> Iterator[Span]:
    yield from user_spans(state, turn)
    audio = sorted(one.ts for one in turn.latencies or () if one.name == FIRST_AUDIO)
    answers = list[int]()
    for reply in each_standing_reply(state, turn):
        yield from reply_spans(state, audio, reply, unheard.get((turn.number, reply.begin)))
        answers += [reply.text_ts] if reply.text_ts < AFTER_ALL else []
    answers.sort()
    for call in turn.tool_calls or ():
        if call.name is not None:
            yield Span("tool", call.ts, first_from(answers, call.ts, call.ts))


def user_spans(state: State, turn: Turn) -> Iterator[Span]:
    if spoken := spoken_segments(state, turn):
        begin, end = min(one.begin for one in spoken), max(max(one.newest_ts, one.begin) for one in spoken)
        if begin == end:
            begin -= spoken_ms("".join(one.text for one in spoken))
        yield Span("user", begin, end)
    for typed in turn.typed or ():
        yield Span("user", typed.begin, typed.begin)


def reply_spans(state: State, audio: Sequence[int], reply: Reply, cut: tuple[int, int] | None) -> Iterator[Span]:
    begin = heard_from(state, audio, reply)
    if begin is None:
        return
    if cut is None:
        yield Span("agent", begin, max(begin, heard_until(state, reply, begin)))
        return
    ts, characters = cut
    known = cut_ts(state, reply, sources_of(state, reply))
    ts = ts if known is None else known
    yield Span("agent", min(begin, ts), ts)
    yield Span("cut", ts, ts)
    if characters:
        yield Span("unheard", ts, ts + UNHEARD_MS * characters)


def first_from(times: Sequence[int], ts: int, otherwise: int) -> int:
    """Return the first of sorted times that is not before a time."""
    place = bisect_left(times, ts)
    return times[place] if place < len(times) else otherwise


def heard_from(state: State, audio: Sequence[int], reply: Reply) -> int | None:
    """Return when a reply began to play, as reported, else by its first text; None if it has none.

    `audio` has the times at which the first audio of replies was reported, sorted.
    """
    starts = [first.ts for first in first_entries(sources_of(state, reply), "starts")]
    if starts:
        return min(starts)
    text_ts = reply.text_ts if reply.text_ts < AFTER_ALL else reply.begin
    return None if text_ts == AFTER_ALL else first_from(audio, text_ts, text_ts + VOICE_MS)


def heard_until(state: State, reply: Reply, otherwise: int) -> int:
    """Return when an uncut reply stopped playing, as reported, else when the LLM had finished."""
    ends = [last.ts for last in last_entries(sources_of(state, reply), "dones", *POSITIONS, *TEXTS)]
    if ends:
        return max(ends)
    ended, deltas = ended_ts(state, reply), reply.generation.deltas
    return ended if ended is not None else deltas.ts(-1) if deltas.marks else otherwise


def end_before_next(spans: Sequence[Span]) -> list[Span]:
    """Return the spans, with the unheard part of each reply ending where the next reply begins."""
    made, next_begin = [], AFTER_ALL
    for span in reversed(spans):
        if span.lane == "unheard":
            span = span._replace(end=max(span.begin, min(span.end, next_begin)))
        elif span.lane == "agent":
            next_begin = span.begin
        made.append(span)
    return made[::-1]


def gaps_of(entries: Sequence[Span]) -> Iterator[int]:
    """Yield the gaps between neighbouring entries of each lane."""
    ends: dict[str, int] = {}
    for entry in entries:
        if (end := ends.get(entry.lane)) is not None:
            yield entry.begin - end
        ends[entry.lane] = max(entry.end, ends.get(entry.lane, 0))


def join_close(entries: list[Span], gap: int) -> list[Span]:
    """Join entries of a lane whose gap is at most `gap`; of joined cuts the first stays."""
    made: list[Span] = []
    newest: dict[str, int] = {}
    for entry in entries:
        place = newest.get(entry.lane)
        if place is not None and entry.begin - made[place].end <= gap:
            end = made[place].end if entry.lane == "cut" else max(made[place].end, entry.end)
            made[place] = made[place]._replace(end=end)
        else:
            newest[entry.lane] = len(made)
            made.append(entry)
    return made
