"""From the state of a call to its chat messages (design, sections 2 and 4)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from voicemem.transcript.heard import (
    HeardText,
    Interruption,
    PlaybackWindow,
    ReplyEvidence,
    find_heard_text,
    was_heard_to_end,
)
from voicemem.transcript.messages import Forgotten, Message, ToolUse, order_metadata
from voicemem.transcript.speech import utterance_text
from voicemem.transcript.state import Reply, State, Turn, TypedMessage, Utterance
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL


def messages(state: State, unfinished: bool = False) -> list[Message]:
    """All messages in their order; with `unfinished`, also replies and partials in progress."""
    return [
        message for number in state.turn_numbers for message in turn_messages(state, state.turns[number], unfinished)
    ]


def turn_messages(state: State, turn: Turn, unfinished: bool = False) -> list[Message]:
    """The messages of one turn: the user first, then by begin time, then by arrival (rule 7)."""
    return [entry.message for entry in turn_entries(state, turn, unfinished)]


def turn_entries(state: State, turn: Turn, unfinished: bool = False) -> list[MessageEntry]:
    """The same, each with what it was made of."""
    closed = state.closed_ts is not None
    users = [
        *(entry for u in turn.utterances if (entry := utterance_entry(turn, u, unfinished, closed))),
        *(typed_entry(turn, typed) for typed in turn.typed or ()),
    ]
    replies = [entry for heard in heard_replies(turn) if (entry := reply_entry(turn, heard, unfinished or closed))]
    return [*sorted(users, key=by_begin), *sorted(replies, key=by_begin)]


class MessageEntry(NamedTuple):
    """A message, the journal position of its first event, and the speech it was made of (None for typed text)."""

    message: Message
    order: int
    made_of: Utterance | HeardReply | None = None


def by_begin(entry: MessageEntry) -> tuple[int, int]:
    return entry.message.timestamp, entry.order


def utterance_entry(turn: Turn, utterance: Utterance, unfinished: bool, closed: bool) -> MessageEntry | None:
    text, begin = utterance_text(utterance, with_partials=unfinished or closed)
    if not text:
        return None
    metadata = {"source": "asr"} | utterance.metadata
    if utterance.user is not None:
        metadata["user"] = utterance.user
    if closed and any(not segment.final and segment.text.strip() for segment in utterance.segments):
        metadata["partial"] = True
    return MessageEntry(Message("user", text, turn.number, begin, order_metadata(metadata)), utterance.order, utterance)


def typed_entry(turn: Turn, typed: TypedMessage) -> MessageEntry:
    return MessageEntry(
        Message("user", typed.text, turn.number, typed.begin, order_metadata(typed.metadata)), typed.order
    )


class HeardReply(NamedTuple):
    """A reply that has text, with all the evidence about it and the interruptions that count."""

    reply: Reply
    evidence: ReplyEvidence
    interruptions: list[Interruption]


def heard_replies(turn: Turn) -> list[HeardReply]:
    """The replies of a turn that ever had text, by begin time, with their evidence.

    An event that names only the turn is about its newest reply begun by then, else the first to come (rule 5). So each
    reply gets a window of time, from its begin to the next reply's; that of the first has no beginning, because
    playback or an interrupt may carry an earlier `ts` than the first text.
    """
    replies = sorted((r for r in turn.replies if r.restored or r.generation.text()), key=lambda r: (r.begin, r.order))
    heard = []
    for index, reply in enumerate(replies):
        since = reply.begin if index else BEFORE_ALL
        until = replies[index + 1].begin - 1 if index + 1 < len(replies) else AFTER_ALL
        evidence = reply_evidence(turn, reply, since, until)
        resumes = [*(reply.resumes or ()), *resumes_of(turn, replies, index)]
        interruptions = [
            interruption
            for interruption in evidence.interruptions
            if (interruption.closing or not any(resume >= interruption.ts for resume in resumes))
            and not was_heard_to_end(evidence, interruption.until)
        ]
        heard.append(HeardReply(reply, evidence, [] if reply.restored else interruptions))
    return heard


def reply_evidence(turn: Turn, reply: Reply, since: int, until: int) -> ReplyEvidence:
    return ReplyEvidence(
        original=reply.generation.text(),
        generated=reply.generation.text,
        complete=reply.generation.complete,
        windows=[
            *([PlaybackWindow(reply.playback, BEFORE_ALL, AFTER_ALL)] if reply.playback is not None else []),
            *([PlaybackWindow(turn.playback, since, until)] if turn.playback is not None else []),
        ],
        interruptions=[
            *(reply.interruptions or ()),
            *(interruption for interruption in turn.interruptions or () if since <= interruption.ts <= until),
        ],
    )


def resumes_of(turn: Turn, replies: list[Reply], index: int) -> Iterator[int]:
    """The times of `resume` events that name only the turn and are about this reply (rule 5, false alarms).

    Each is about the newest reply that had been interrupted by then. If there is none, it is about the first reply,
    which is also the one that interruptions before its begin are about.
    """
    for resume in turn.resumes or ():
        interrupted = [
            i
            for i, reply in enumerate(replies)
            if any(interruption.ts <= resume for interruption in reply.interruptions or ())
            or any(reply.begin <= interruption.ts <= resume for interruption in turn.interruptions or ())
        ]
        if index == (interrupted[-1] if interrupted else 0):
            yield resume


def reply_entry(turn: Turn, heard: HeardReply, unfinished: bool) -> MessageEntry | None:
    reply, evidence, interruptions = heard
    if not (interruptions or evidence.complete or unfinished):
        return None
    content, metadata = evidence.original, {"source": reply.source} | reply.metadata
    for window in evidence.windows:
        for ts, values in window.playback.metadata:
            if window.since <= ts <= window.until:
                metadata |= values
    if interruptions:
        found = find_heard_text(evidence, interruptions)
        content = found.text
        metadata |= interruption_metadata(evidence.original, found, interruptions)
    return MessageEntry(
        Message("assistant", content, turn.number, reply.begin, order_metadata(metadata)), reply.order, heard
    )


def interruption_metadata(original: str, found: HeardText, interruptions: list[Interruption]) -> dict[str, Any]:
    """The metadata of an interrupted reply (rule 3)."""
    metadata: dict[str, Any] = {}
    for interruption in interruptions:
        metadata |= interruption.metadata or {}
    metadata |= {
        "interrupted": True,
        "interrupt_timestamp": min(interruption.ts for interruption in interruptions),
        "original": original,
    }
    if found.method is not None:
        metadata["heard"] = found.method
    return metadata


def tool_uses(state: State) -> list[ToolUse]:
    """The tool calls that are not forgotten, in the order of turns and then of arrival."""
    if not state.tool_call_turns:
        return []
    forgotten = state.forgotten or Forgotten()
    return [
        ToolUse(number, t.ts, t.call_id, t.name, t.arguments, t.result, t.answered)
        for number in state.turn_numbers
        for t in state.turns[number].tool_calls or ()
        if t.name is not None and not forgotten.covers(number, t.order)
    ]


def remembered(state: State, messages: Sequence[Message]) -> Sequence[int]:
    """The indexes of the messages that are not forgotten; `messages` are all, in their order.

    They are sorted by turn (rule 7), so two bisections find the turns that are forgotten or kept as a whole. Only the
    last forgotten turn can be forgotten in part, by journal positions, so only its entries are made.
    """
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


SPEECH_TIMES = ("speech_start_ms", "speech_end_ms", "speech_algorithmic_delay")
SpeechTimes = dict[str, Any]
"""By name, in ms; only those that are known."""


def turn_times(state: State, turn: Turn) -> list[SpeechTimes]:
    """The speech times of a turn's messages, in the same order."""
    return [message_times(entry.message, entry.made_of) for entry in turn_entries(state, turn)]


def message_times(message: Message, made_of: Utterance | HeardReply | None) -> SpeechTimes:
    match made_of:
        case Utterance():
            found = utterance_times(made_of)
        case HeardReply():
            found = reply_times(made_of)
        case _:
            found = {}
    stated = {name: message.metadata[name] for name in SPEECH_TIMES if is_number(message.metadata.get(name))}
    known = {name: value for name, value in found.items() if value is not None} | stated
    return {name: known[name] for name in SPEECH_TIMES if name in known}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def utterance_times(utterance: Utterance) -> SpeechTimes:
    segments = [segment for segment in utterance.segments if segment.text.strip()]
    starts = [segment.start_ms for segment in segments if segment.start_ms is not None]
    ends = [segment.end_ms for segment in segments if segment.end_ms is not None]
    return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}


def reply_times(heard: HeardReply) -> SpeechTimes:
    starts: list[int] = []
    ends: list[int] = []
    for window in heard.evidence.windows:
        positions = window.playback.audio.entries(window.until, window.since)
        starts += [mark.ts - mark.value for mark in positions]
        ends += [mark.ts for mark in (*positions, *window.playback.ends.entries(window.until, window.since))]
    return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}
