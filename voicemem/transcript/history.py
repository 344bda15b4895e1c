"""From the state of a call to its chat messages (design, sections 2 and 4)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from voicemem.transcript.heard import Cut, Heard, Spoken, Track, heard, heard_to_end
from voicemem.transcript.messages import Forgotten, Message, ToolUse, ordered_metadata
from voicemem.transcript.speech import spoken_text
from voicemem.transcript.state import Reply, State, Turn, Typed, Utterance
from voicemem.transcript.timeline import ALWAYS, NEVER


def messages(state: State, unfinished: bool = False) -> list[Message]:
    """The memory in its order; with `unfinished`, replies and partials in progress as well."""
    return [message for number in state.numbers for message in turn_messages(state, state.turns[number], unfinished)]


def turn_messages(state: State, turn: Turn, unfinished: bool = False) -> list[Message]:
    """The messages of one turn: the user first, then by begin time, then by arrival (rule 7)."""
    return [entry.message for entry in turn_entries(state, turn, unfinished)]


def turn_entries(state: State, turn: Turn, unfinished: bool = False) -> list[Entry]:
    """The same, with what each message was made of."""
    closed = state.closed_ts is not None
    users = [
        *(entry for u in turn.utterances if (entry := utterance_entry(turn, u, unfinished, closed))),
        *(typed_entry(turn, typed) for typed in turn.typed or ()),
    ]
    replies = [entry for told in told_replies(turn) if (entry := reply_entry(turn, told, unfinished or closed))]
    return [*sorted(users, key=by_begin), *sorted(replies, key=by_begin)]


class Entry(NamedTuple):
    """A message, the position at which it first arrived, and what was spoken (None for what was typed)."""

    message: Message
    order: int
    about: Utterance | Told | None = None


def by_begin(entry: Entry) -> tuple[int, int]:
    return entry.message.timestamp, entry.order


def utterance_entry(turn: Turn, utterance: Utterance, unfinished: bool, closed: bool) -> Entry | None:
    text, begin = spoken_text(utterance, with_partials=unfinished or closed)
    if not text:
        return None
    metadata = {"source": "asr"} | utterance.metadata
    if utterance.user is not None:
        metadata["user"] = utterance.user
    if closed and any(not segment.final and segment.text.strip() for segment in utterance.segments):
        metadata["partial"] = True
    return Entry(Message("user", text, turn.number, begin, ordered_metadata(metadata)), utterance.order, utterance)


def typed_entry(turn: Turn, typed: Typed) -> Entry:
    return Entry(Message("user", typed.text, turn.number, typed.begin, ordered_metadata(typed.metadata)), typed.order)


class Told(NamedTuple):
    """A reply that has text, with all the evidence about it and the interruptions that count."""

    reply: Reply
    spoken: Spoken
    cuts: list[Cut]


def told_replies(turn: Turn) -> list[Told]:
    """The replies of a turn that ever had text, by begin time.

    What names the turn alone is about its newest reply begun by then, else its first to come (rule 5): each reply
    takes what happened from its begin until the next one's.
    """
    replies = sorted((r for r in turn.replies if r.restored or r.generation.text()), key=lambda r: (r.begin, r.order))
    told = []
    for index, reply in enumerate(replies):
        since = reply.begin if index else ALWAYS
        until = replies[index + 1].begin - 1 if index + 1 < len(replies) else NEVER
        spoken = account(turn, reply, since, until)
        resumes = [*(reply.resumes or ()), *turn_resumes(turn, replies, index)]
        cuts = [
            cut
            for cut in spoken.cuts
            if (cut.closing or not any(resume >= cut.ts for resume in resumes)) and not heard_to_end(spoken, cut.until)
        ]
        told.append(Told(reply, spoken, [] if reply.restored else cuts))
    return told


def account(turn: Turn, reply: Reply, since: int, until: int) -> Spoken:
    return Spoken(
        original=reply.generation.text(),
        generated=reply.generation.text,
        complete=reply.generation.complete,
        tracks=[
            *([Track(reply.playback, ALWAYS, NEVER)] if reply.playback is not None else []),
            *([Track(turn.playback, since, until)] if turn.playback is not None else []),
        ],
        cuts=[*(reply.cuts or ()), *(cut for cut in turn.cuts or () if since <= cut.ts <= until)],
    )


def turn_resumes(turn: Turn, replies: list[Reply], index: int) -> Iterator[int]:
    """The false alarms that name the turn alone, and mean this reply: the newest one interrupted by then."""
    for resume in turn.resumes or ():
        interrupted = [
            i
            for i, reply in enumerate(replies)
            if any(cut.ts <= resume for cut in reply.cuts or ())
            or any(reply.begin <= cut.ts <= resume for cut in turn.cuts or ())
        ]
        if index == (interrupted[-1] if interrupted else 0):
            yield resume


def reply_entry(turn: Turn, told: Told, unfinished: bool) -> Entry | None:
    reply, spoken, cuts = told
    if not (cuts or spoken.complete or unfinished):
        return None
    content, metadata = spoken.original, {"source": reply.source} | reply.metadata
    for track in spoken.tracks:
        for ts, values in track.playback.metadata:
            if track.since <= ts <= track.until:
                metadata |= values
    if cuts:
        found = heard(spoken, cuts)
        content = found.text
        metadata |= interruption(spoken.original, found, cuts)
    return Entry(Message("assistant", content, turn.number, reply.begin, ordered_metadata(metadata)), reply.order, told)


def interruption(original: str, found: Heard, cuts: list[Cut]) -> dict[str, Any]:
    """What an interruption puts into the metadata (rule 3)."""
    metadata: dict[str, Any] = {}
    for cut in cuts:
        metadata |= cut.metadata or {}
    metadata |= {"interrupted": True, "interrupt_timestamp": min(cut.ts for cut in cuts), "original": original}
    if found.how is not None:
        metadata["heard"] = found.how
    return metadata


def tool_uses(state: State) -> list[ToolUse]:
    """The tool calls of the memory that are not forgotten, in the order of turns and then of arrival."""
    if not state.calls:
        return []
    forgotten = state.forgotten or Forgotten()
    return [
        ToolUse(number, t.ts, t.call_id, t.name, t.arguments, t.result, t.answered)
        for number in state.numbers
        for t in state.turns[number].traces or ()
        if t.name is not None and not forgotten.covers(number, t.order)
    ]


def remembered(state: State, messages: Sequence[Message]) -> Sequence[int]:
    """The indexes of those messages, of all in their order, that are not forgotten."""
    forgotten, end = state.forgotten, len(messages)
    if forgotten is None:
        return range(end)
    begin = bisect_right(messages, forgotten.through_turn, key=attrgetter("turn_id"))
    turn = None if forgotten.turn is None else state.turns.get(forgotten.turn)
    if turn is None or turn.number <= forgotten.through_turn:
        return range(begin, end)
    first = bisect_left(messages, turn.number, key=attrgetter("turn_id"))
    entries = list(enumerate(turn_entries(state, turn), first))
    kept = [index for index, entry in entries if not forgotten.covers(turn.number, entry.order)]
    return [*range(begin, first), *kept, *range(first + len(entries), end)]


NAMES = ("speech_start_ms", "speech_end_ms", "speech_algorithmic_delay")
Times = dict[str, Any]
"""By name, in ms; only what was given."""


def turn_times(state: State, turn: Turn) -> list[Times]:
    """The times of a turn's messages, in their order."""
    return [times_of(entry.message, entry.about) for entry in turn_entries(state, turn)]


def times_of(message: Message, about: Utterance | Told | None) -> Times:
    match about:
        case Utterance():
            found = utterance_times(about)
        case Told():
            found = reply_times(about)
        case _:
            found = {}
    said = {name: message.metadata[name] for name in NAMES if is_number(message.metadata.get(name))}
    known = {name: value for name, value in found.items() if value is not None} | said
    return {name: known[name] for name in NAMES if name in known}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def utterance_times(utterance: Utterance) -> Times:
    segments = [segment for segment in utterance.segments if segment.text.strip()]
    starts = [segment.start_ms for segment in segments if segment.start_ms is not None]
    ends = [segment.end_ms for segment in segments if segment.end_ms is not None]
    return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}


def reply_times(told: Told) -> Times:
    starts: list[int] = []
    ends: list[int] = []
    for track in told.spoken.tracks:
        positions = track.playback.audio.marks(track.until, track.since)
        starts += [mark.ts - mark.value for mark in positions]
        ends += [mark.ts for mark in (*positions, *track.playback.ends.marks(track.until, track.since))]
    return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}
