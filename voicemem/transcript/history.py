"""The history: chat messages from the state of a call (docs/memory.md), on request with messages in progress.

A message in progress has `open` in its metadata. Only readers who request them get these; contexts, exports and webhook
events do not.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from voicemem.transcript.messages import Forgotten, Message, ToolUse
from voicemem.transcript.packing import HEAVY, Items
from voicemem.transcript.replies.evidence import Interruption, Source, last_entries, timelines
from voicemem.transcript.replies.heard import Cut, cut_of, heard_so_far
from voicemem.transcript.replies.playing import each_standing_reply, is_cut, plays_at_close, settle, sources_of
from voicemem.transcript.speech import ORDER, FalseAlarms, Speech, false_alarms, speech_by_user
from voicemem.transcript.state import Reply, Segment, State, ToolCallRecord, Turn, TypedMessage
from voicemem.transcript.timeline import (
    MergedMetadata,
    latest_metadata,
    layered_metadata,
    merge_metadata,
    order_metadata,
)


def messages(state: State, unfinished: bool = False) -> list[Message]:
    """Return all messages in order; with `unfinished`, also replies and partials in progress."""
    return [message for turn in state.each_turn() for message in turn_messages(state, turn, unfinished)]


def turn_messages(state: State, turn: Turn, unfinished: bool = False) -> Iterator[Message]:
    """Return the messages of one turn: the user's first, then by start time, then by arrival (rule 7)."""
    return (entry.message for entry in turn_entries(state, turn, unfinished))


class MessageEntry(NamedTuple):
    """A message, the journal position of its first event, and its source."""

    message: Message
    position: int
    made_of: Speech | Reply | TypedMessage
    interruption: Interruption | None = None
    """The first interruption that marks the reply."""


def turn_entries(state: State, turn: Turn, unfinished: bool = False) -> Iterator[MessageEntry]:
    """Yield the messages of a turn, each with its source. Unchanged ones are not made again."""
    settle(state)
    if state.memo.small_turn != turn.number:
        state.memo.leave_small_turn(turn.number)
    speech = speech_by_user(state, turn)
    said = user_entries(state, turn, unfinished, speech)
    said += [(typed.begin, typed.order, typed) for typed in turn.typed or ()]
    said.sort(key=itemgetter(0, 1))
    for _, _, one in said:
        if isinstance(one, MessageEntry):
            yield one
        elif isinstance(one, TypedMessage):
            yield typed_entry(turn, one)
        elif (made := utterance_entry(state, turn, one, speech[one], unfinished)) is not None:
            yield made
    for reply in each_standing_reply(state, turn):
        entry = known_reply_entry(state, reply, unfinished)
        if entry is not None:
            yield entry


def typed_entry(turn: Turn, typed: TypedMessage) -> MessageEntry:
    message = Message("user", typed.text, turn.number, typed.begin, order_metadata(typed.metadata))
    return MessageEntry(message, typed.order, typed)


def user_entries(
    state: State, turn: Turn, unfinished: bool, speech: Mapping[str | None, Collection[Segment]]
) -> list[tuple[int, int, Any]]:
    """Return what each user said, with time and position: a message, or, of very many users, the user to make it of."""
    said = list[tuple[int, int, Any]]()
    for user, segments in speech.items():
        made, entry = (None, None) if unfinished else state.memo.entries.get((turn.number, user), NOT_MADE)
        if made is None:
            entry = utterance_entry(state, turn, user, segments, unfinished)
            if not unfinished:
                keep_entry(state, turn, (turn.number, user), (), entry)
        if entry is not None:
            said.append((entry.message.timestamp, entry.position, entry if len(speech) <= HEAVY else user))
    return said


NOT_MADE = (None, None)
LARGE_TURN = 8


def keep_entry(state: State, turn: Turn, key: object, version: Any, entry: MessageEntry | None) -> None:
    """Keep a message of a turn: for good if the turn is large, since others are quickly made again."""
    is_large = len(turn.replies or ()) + len(turn.segments or ()) > LARGE_TURN
    if not (is_large and state.is_very_large):  # they would take as much memory as their sources
        state.memo.keep(key, version, entry, is_large)


def utterance_entry(
    state: State, turn: Turn, user: str | None, segments: Iterable[Segment], unfinished: bool
) -> MessageEntry | None:
    speech = Speech.of(segments, state.closed_ts is not None, unfinished, state)
    if not speech.text:
        return None
    metadata: dict[str, Any] = {"source": "asr"} | speech.metadata()
    if user is not None:
        metadata["user"] = user
    if speech.partial:
        metadata["partial"] = True
    message = Message("user", speech.text, turn.number, speech.begin, order_metadata(metadata))
    return MessageEntry(message, speech.order, speech)


def known_reply_entry(state: State, reply: Reply, unfinished: bool) -> MessageEntry | None:
    """Return the message of a reply; one in progress only if `unfinished`."""
    version = reply.generation.events, reply.changes
    made, known = state.memo.entries.get(reply.id, NOT_MADE)
    if made != version:
        known = reply_entry(state, reply)
        keep_entry(state, state.turns[reply.turn], reply.id, version, known)
    is_over = reply.generation.complete or reply.restored or state.closed_ts is not None
    return known if known is None or known.interruption or is_over or unfinished else None


def reply_entry(state: State, reply: Reply) -> MessageEntry | None:
    """Return the message of a reply: the whole text, or the heard part of it."""
    cut = cut_of(state, reply) if is_cut(state, reply) else None
    if cut is None and reply.heard_only:
        return None
    content = reply.generation.text()
    metadata = {"source": reply.source} | reply_metadata(state, reply, cut)
    if cut is not None:
        shown = cut.heard_text()
        metadata |= {"interrupted": True, "interrupt_timestamp": cut.ts, "original": content}
        if shown.method is not None:
            metadata["heard"] = shown.method
        content = shown.text
    message = Message("assistant", content, reply.turn, reply.begin, order_metadata(metadata))
    return MessageEntry(message, reply.order, reply, None if cut is None else cut.first)


def reply_metadata(state: State, reply: Reply, cut: Cut | None) -> dict[str, Any]:
    """Return the metadata of the LLM, then of playback, then of the marking interruptions; the last of a key counts."""
    interrupting: MergedMetadata = {}
    for one in sorted(cut.metadata(), key=attrgetter("order")) if cut is not None else ():
        interrupting = merge_metadata(interrupting, one.order, one.metadata or {})
    sources = sources_of(state, reply) if cut is None else cut.sources
    played = [metadata for source in sources if (metadata := played_metadata(source))]
    return layered_metadata(reply.metadata or {}, latest_metadata(played), interrupting)


def played_metadata(source: Source) -> MergedMetadata:
    playback = source.evidence.playback
    if playback is None or not playback.metadata:
        return {}
    if source.is_whole:
        return playback.merged_metadata or {}
    merged: MergedMetadata = {}
    for one in playback.metadata:
        if source.since <= one.ts < source.until:
            merged = merge_metadata(merged, one.order, one.metadata)
    return merged


def begun_positions(state: State, turn: Turn) -> set[int]:
    """Return the journal positions at which the parts of a turn began, even those without a message yet."""
    spoken = {min(map(ORDER, segments)) for segments in speech_by_user(state, turn).values()}
    return spoken | {typed.order for typed in turn.typed or ()} | {id >> 1 for id in turn.replies or ()}


def tool_uses(state: State, with_forgotten: bool = False) -> Sequence[ToolUse]:
    """Return the tool calls in the order of turns and then of arrival, on request with the forgotten ones."""
    if not state.tool_calls:
        return []
    forgotten = (None if with_forgotten else state.forgotten) or Forgotten()
    uses = (use for turn in state.each_turn() for use in uses_in(turn, turn.tool_calls or (), forgotten))
    return Items[ToolUse](ToolUse, uses).as_list()


def newest_tool_uses(state: State, most: int) -> list[ToolUse]:
    """Return the newest answered tool calls in that order, without the forgotten ones."""
    newest: list[ToolUse] = []
    for number in reversed(state.turn_numbers) if state.tool_calls else ():
        turn = state.turns[number]
        answered = (use for use in uses_in(turn, reversed(turn.tool_calls or ()), state.forgotten) if use.answered)
        newest += islice(answered, most - len(newest))
        state.release()
        if len(newest) == most:
            break
    return newest[::-1]


def uses_in(turn: Turn, calls: Iterable[ToolCallRecord], forgotten: Forgotten | None) -> Iterator[ToolUse]:
    for t in calls:
        if t.name is not None and not (forgotten is not None and forgotten.covers(turn.number, t.order)):
            times = t.answered, t.answered_ts or 0
            yield ToolUse(turn.number, t.ts, t.call_id, t.name, t.arguments, t.result, *times, t.wanted_back)


def remembered(state: State, messages: Sequence[Message]) -> Sequence[int]:
    """Return the indexes of the messages that are not forgotten; `messages` are all, in order.

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
    kept = [index for index, entry in entries if not forgotten.covers(turn.number, entry.position)]
    return [*range(begin, first), *kept, *range(first + len(entries), end)]


def begun_items(state: State, turn: Turn) -> Iterator[tuple[int, list[str]]]:
    """Yield the items in a turn, with the journal position at which their message began."""
    for segments in speech_by_user(state, turn).values():
        yield min(map(ORDER, segments)), list({one.item: None for one in segments if one.item is not None})
    for id in turn.replies or ():
        item = state.replies[id].item
        if item is not None:
            yield id >> 1, [item]


def restored_interruptions(state: State, entry: MessageEntry) -> list[Interruption]:
    """Return the interruptions reported for a restored reply; its metadata have the time."""
    if not isinstance(entry.made_of, Reply) or not entry.made_of.restored:
        return []
    return [cut for source in sources_of(state, entry.made_of) for cut in source.interruptions()]


SPEECH_TIMES = ("speech_start_ms", "speech_end_ms", "speech_algorithmic_delay")
SpeechTimes = dict[str, Any]
"""The known times by name, in ms."""


def turn_times(state: State, turn: Turn) -> list[SpeechTimes]:
    return [message_times(state, entry) for entry in turn_entries(state, turn)]


def message_times(state: State, entry: MessageEntry) -> SpeechTimes:
    match entry.made_of:
        case Speech():
            times = entry.made_of.times()
        case Reply():
            times = reply_times(state, entry.made_of)
        case _:
            times = {}
    metadata = entry.message.metadata
    stated = {name: metadata[name] for name in SPEECH_TIMES if type(metadata.get(name)) in (int, float)}
    known = {name: value for name, value in times.items() if value is not None} | stated
    return {name: known[name] for name in SPEECH_TIMES if name in known}


def reply_times(state: State, reply: Reply) -> SpeechTimes:
    sources = sources_of(state, reply)
    series = ((one, s) for s in sources for one in timelines(s, "starts", "audio", "estimated_audio"))
    starts = (mark.ts - mark.value for one, s in series for mark in one.entries(s.until, s.since))
    ends = (last.ts for last in last_entries(sources, "starts", "audio", "estimated_audio", "dones"))
    return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}


# Messages in progress


def open_messages(state: State) -> Sequence[Message]:
    """Return all messages in order, with replies and partials in progress."""
    entries = (entry for turn in state.each_turn() for entry in shown_entries(state, turn, unfinished=True))
    return Items[Message](Message, (entry.message for entry in entries)).as_list()


def shown_entries(state: State, turn: Turn, unfinished: bool) -> Iterator[MessageEntry]:
    """Return the messages of a turn for a reader; with `unfinished`, also those in progress."""
    entries = turn_entries(state, turn, unfinished)
    return (marked(state, entry) for entry in entries) if unfinished and state.closed_ts is None else entries


def marked(state: State, entry: MessageEntry) -> MessageEntry:
    """Return a message, with metadata that say so if it may still change."""
    match entry.made_of:
        case Speech(shown=shown):
            marks: dict[str, Any] = {} if all(one.final for one in shown) else {"partial": True, "open": True}
        case Reply() as reply if is_open(state, reply) and entry.interruption is None:
            heard = heard_so_far(state, reply)
            marks = {"open": True} if heard is None else {"open": True, "heard_so_far": heard}
        case _:
            return entry
    metadata = order_metadata(entry.message.metadata | marks)
    return entry._replace(message=msgspec.structs.replace(entry.message, metadata=metadata))


def is_open(state: State, reply: Reply) -> bool:
    """Return whether a reply is being generated or known to be playing. The state must be settled."""
    return not reply.restored and (not reply.generation.complete or plays_at_close(state, reply))


def playing_turn(state: State) -> int | None:
    """Return the turn of the reply that is known to be playing, which events of other turns may end."""
    settle(state)
    if state.closed_ts is not None or not state.played:
        return None
    newest = state.replies[state.played[-1][2]]
    return newest.turn if plays_at_close(state, newest) else None


class InProgress(NamedTuple):
    """The part of a call in progress. Events of other turns may end it, so its turns are compared again."""

    playing: int | None = None
    """The turn of the reply that was playing."""
    partials: frozenset[int] = frozenset()
    """The turns with partials: a `resume` may show that one was the noise that caused a false alarm."""
    alarms: tuple[FalseAlarms, int] | None = None
    """The false alarms, and how often they had changed; None while there are no partials."""


def turns_to_look_at(state: State, before: InProgress) -> set[int]:
    """Return the turns whose messages may have changed without an event of their own."""
    playing = {number for number in (before.playing, playing_turn(state)) if number is not None}
    return playing | before.partials if before.partials and counted_alarms(state) != before.alarms else playing


def counted_alarms(state: State) -> tuple[FalseAlarms, int]:
    alarms = false_alarms(state)
    return alarms, alarms.changes


def in_progress(state: State, before: InProgress, looked_at: Collection[int]) -> InProgress:
    """Return the part in progress now, if only these turns may have changed."""
    turns = [turn for number in looked_at if (turn := state.turns.get(number)) is not None]
    known = frozenset(turn.number for turn in turns if any(one.text and not one.final for one in turn.segments or ()))
    gone = before.partials.intersection(looked_at)
    partials = before.partials if gone == known else (before.partials - gone) | known
    return InProgress(playing_turn(state), partials, counted_alarms(state) if partials else None)
