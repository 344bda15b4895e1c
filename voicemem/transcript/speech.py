"""The fold of user speech: partials and finals of segments, joined into one message (docs/memory.md, rule 1)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from voicemem.protocol.events import Asr
from voicemem.protocol.types import SPACELESS
from voicemem.transcript.gateway_matching import find_requested, give_back, replace_requested
from voicemem.transcript.packing import HEAVY
from voicemem.transcript.replies.playing import settle
from voicemem.transcript.state import BOUND, Reply, Segment, State, Turn, is_open, put
from voicemem.transcript.timeline import AFTER_ALL, latest_metadata, layered_metadata, merge_metadata, shared_name

LATE_PARTIAL_MS = 500
"""A partial that is the beginning of a final may arrive so much later than the final."""
ABANDONED_MS = 5_000
"""A different text that comes so much later than a partial is not a correction of it."""
FEW_FINALS = 16
"""The most finals whose joined words are matched with a request that came before them."""
SMALL_INDEX = 8
"""The index of so few segments is rebuilt when it is needed."""
ORDER = attrgetter("order")
SegmentKey = tuple[str | None, int | None]
"""An item and a segment number; without both, a final closes the segment."""


class SpeechIndex:
    """The segments of one turn, by key and by user."""

    __slots__ = ("by_key", "by_user", "closed", "open")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.by_key: dict[SegmentKey, dict[str | None, Segment]] = {}
        self.open: dict[str | None, Segment] = {}
        """By user: the segment without a key that no final has closed; the newest last."""
        self.closed: dict[str | None, Segment] = {}
        """By user: the newest segment without a key that a final has closed; the newest last."""
        self.by_user: dict[str | None, dict[int, Segment]] = {}
        """By user and by `order`."""
        for segment in segments:
            self.add(segment)

    def add(self, segment: Segment) -> None:
        """Add a segment under the keys by which events find it."""
        self.by_user.setdefault(segment.user, {})[segment.order] = segment
        if segment.has_key:
            self.by_key.setdefault((segment.item, segment.number), {})[segment.user] = segment
        elif segment.final:
            self.closed.pop(segment.user, None)
            self.closed[segment.user] = segment
        else:
            self.open[segment.user] = segment

    def insert(self, segment: Segment) -> None:
        """Add a segment without a final, which may be older than others here: the newest stay last."""
        self.add(segment)
        known = self.by_key[segment.item, segment.number] if segment.has_key else self.open
        for user in [user for user, one in known.items() if one.order > segment.order]:
            known[user] = known.pop(user)

    def find(self, key: SegmentKey, user: str | None) -> Segment | None:
        """Return the segment that an event with this key and user is about: the user's, or one without a user yet.

        An event without a user continues the newest segment of any speaker.
        """
        known = self.open if key == (None, None) else self.by_key.get(key)
        if not known:
            return None
        if user is None:
            return known[next(reversed(known))]
        return known.get(user) or known.get(None)

    def newest_final(self, user: str | None) -> Segment | None:
        """Return the final that a late partial of this user, without a key, may belong to."""
        if user is None:
            return self.closed[next(reversed(self.closed))] if self.closed else None
        closed = [segment for name in (user, None) if (segment := self.closed.get(name)) is not None]
        return max(closed, key=attrgetter("order"), default=None)

    def has(self, segment: Segment) -> bool:
        return segment.order in self.by_user.get(segment.user, ())

    def give(self, segment: Segment, user: str | None) -> None:
        """Change the user of a segment that is open or has a key."""
        self.remove(segment)
        segment.user = user
        self.add(segment)

    def remove(self, segment: Segment) -> None:
        known = self.by_key[segment.item, segment.number] if segment.has_key else self.open
        if known.get(segment.user) is segment:
            del known[segment.user]
        del self.by_user[segment.user][segment.order]

    def withdraw(self, segment: Segment) -> None:
        self.remove(segment)
        segment.withdraw()
        if None not in (self.by_key[segment.item, segment.number] if segment.has_key else self.open):
            self.add(segment)

    def close(self, segment: Segment) -> None:
        """Note that a final has closed a segment without a key."""
        if self.open.get(segment.user) is segment:
            del self.open[segment.user]
        self.add(segment)


def speech_index(state: State, turn: Turn) -> SpeechIndex:
    """Return the index of a turn's segments. Small ones of other turns are dropped, since they are quickly rebuilt."""
    known = state.memo.speech
    index: SpeechIndex | None = known.get(turn.number)
    if index is None:
        for number in [n for n in known if len(state.turns[n].segments or ()) <= SMALL_INDEX]:
            del known[number]
        index = known[turn.number] = SpeechIndex(turn.segments or ())
    return index


def speech_by_user(state: State, turn: Turn) -> Mapping[str | None, Collection[Segment]]:
    """What each user said in a turn, as its index has it; without one, no index is made of very many to read them."""
    if turn.number in state.memo.speech or len(turn.segments or ()) <= HEAVY:
        by_user = speech_index(state, turn).by_user
        return {user: segments.values() for user, segments in by_user.items() if segments}
    grouped: dict[str | None, list[Segment]] = {}
    for segment in turn.segments or ():
        grouped.setdefault(segment.user, []).append(segment)
    return grouped


def fold_asr(state: State, event: Asr, ts: int) -> Turn | None:
    """Put one text of the recogniser into its turn. Return the turn, or None if the text brings nothing new."""
    key = (event.item, 0 if event.item is not None and event.segment is None else event.segment)
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    if key == (None, None) and is_late_partial(state, event, ts, state.utterance_turn if number is None else number):
        return None
    where = flowing_turn(state) if number is None else number
    requested = move_to_request(state, event, key, where, ts) if event.final and state.requested else None
    turn = state.turn(where) if requested is None else requested[0]
    index = speech_index(state, turn)
    segment = index.find(key, event.user)
    if segment is None and number is None and event.item is None:
        segment = move_open(state, turn, key, event.user)
        index = speech_index(state, turn)
    if segment is None:
        # A frame begins one segment at most.
        if turn.segments and (len(turn.segments) >= BOUND or turn.segments[-1].order == state.position):
            state.ignore("segments")
            return None
        if not turn.segments:
            state.utterance_turn = turn.number
        segment = Segment(*key, state.position, shared_name(event.user), turn=turn.number)
        turn.segments = state.append(turn.segments, segment)
        index.add(segment)
    elif event.user is not None and segment.user is None:
        state.memo.entries.pop((turn.number, None), None)
        leave_open(state, segment)
        index.give(segment, shared_name(event.user))
    if event.item is not None:
        state.items.setdefault(event.item, turn.number)
    if requested is not None:
        replace_requested(state, turn, requested[1], segment.order)
    state.newest_turn = max(state.newest_turn, turn.number)
    state.memo.entries.pop((turn.number, segment.user), None)
    if event.final:
        leave_open(state, segment)
    update_segment(state, turn, index, segment, event, ts)
    if state.memo.open_speech is not None and is_open(segment) and not state.memo.open_speech.has(segment):
        state.memo.open_speech.add(segment)
    return turn


def move_open(state: State, turn: Turn, key: SegmentKey, user: str | None) -> Segment | None:
    """Move to a turn the segment without a final that an event without turn and item continues, if there is one.

    The utterance belongs to the turn of its newest text, whatever was said, typed or answered since it began.
    """
    segment = open_speech(state).find(key, user)
    if segment is None or len(turn.segments or ()) >= BOUND:
        return None
    if not turn.segments:
        state.utterance_turn = turn.number
    move(state, segment, turn)
    return segment


def move(state: State, segment: Segment, turn: Turn) -> None:
    """Move a segment to another turn."""
    before, indexes = state.turns[segment.turn], state.memo.speech
    if segment.final and not segment.has_key:  # few finals move, and their indexes are rebuilt
        indexes.pop(before.number, None)
        indexes.pop(turn.number, None)
    else:
        speech_index(state, before).remove(segment)
        if turn.number in indexes:
            indexes[turn.number].insert(segment)
    left, others = before.segments or [], turn.segments or []
    del left[bisect_left(left, segment.order, key=ORDER)]
    insort(others, segment, key=ORDER)
    turn.segments = others
    said = segment.final and bool(segment.text)
    before.finals, turn.finals = before.finals - said, turn.finals + said
    segment.turn = turn.number
    for number in (before.number, turn.number):
        state.memo.entries.pop((number, segment.user), None)
    state.dirty_turns.add(before.number)


def move_to_request(state: State, event: Asr, key: SegmentKey, where: int, ts: int) -> tuple[Turn, str] | None:
    """Return the turn of the request with the words of a final, alone or after earlier finals, and these words.

    The segments of this speech in the turn `where` move there.
    """
    turn = state.turns.get(where)
    known = None if turn is None else speech_index(state, turn).find(key, event.user)
    if known is None and event.item is None:
        known = open_speech(state).find(key, event.user)
    moving, text = [] if known is None else [known], event.text
    begin = ts if known is None else min(ts, known.begin)
    requested = find_requested(state, text, begin, has_partial=known is not None and event.ts is not None)
    for number in {where, state.utterance_turn} if requested is None else ():
        turn = state.turns.get(number)
        if requested is None and turn is not None and len(turn.segments or ()) <= FEW_FINALS:
            before = [one for one in in_order(turn.segments or ()) if one.final and one.text and one is not known]
            text = join_texts([*(one.text for one in before), event.text])
            requested = find_requested(state, text, before[0].begin) if before else None
            moving += before if requested is not None else ()
    if requested is None:
        return None
    for segment in moving:
        if segment.turn != requested.number:
            move(state, segment, requested)
            if segment.item is not None:
                state.items[segment.item] = requested.number
    if state.memo.translates or state.utterance_turn == where:
        state.utterance_turn = requested.number
    if state.final_turn == where > requested.number:
        state.final_turn = requested.number
    return requested, text


def open_speech(state: State) -> SpeechIndex:
    known: SpeechIndex | None = state.memo.open_speech
    if known is None:
        segments = (one for turn in state.turns.values() for one in turn.segments or () if is_open(one))
        known = state.memo.open_speech = SpeechIndex(sorted(segments, key=ORDER))
    return known


def leave_open(state: State, segment: Segment) -> None:
    known: SpeechIndex | None = state.memo.open_speech
    if known is not None and known.has(segment):
        known.remove(segment)


def flowing_turn(state: State) -> int:
    """Return the turn of an utterance that names none: a new one once the last has a final and a reply or tool call."""
    turn = state.turns.get(state.utterance_turn)
    if turn is None or not (turn.segments or turn.typed):
        return state.newest_turn + 1
    is_over = (turn.finals or turn.typed) and (turn.standing or turn.tool_calls)
    return state.newest_turn + 1 if is_over else turn.number


def is_late_partial(state: State, event: Asr, ts: int, number: int) -> bool:
    """Return whether this is a partial of a segment without a key that a final has already closed."""
    turn = state.turns.get(number)
    if turn is None or event.final:
        return False
    final = speech_index(state, turn).newest_final(event.user)
    return final is not None and final.text.startswith(event.text) and ts < final.final_ts + LATE_PARTIAL_MS


def update_segment(state: State, turn: Turn, index: SpeechIndex, segment: Segment, event: Asr, ts: int) -> None:
    """Put the event's text into its segment; a partial after the final waits for the close."""
    text = event.text if event.text.strip() else ""
    if begins_again(state, segment, text, ts):
        segment.begin_again()
    if segment.final and not event.final:
        segment.later_partial = text
    else:
        turn.finals += bool(event.final and text) - segment.final
        if event.final and not text:
            give_back(state, turn, segment.order)
            index.withdraw(segment)
            return
        segment.text, segment.later_partial = text, None
        if event.final:
            segment.final, segment.final_ts = True, ts
            state.final_turn = max(state.final_turn, turn.number)
            if not segment.has_key:
                index.close(segment)
    segment.begin, segment.newest_ts = min(segment.begin, ts), max(segment.newest_ts, ts)
    if event.start_ms is not None:
        segment.start_ms = event.start_ms
    if event.end_ms is not None:
        segment.end_ms = event.end_ms
    if event.metadata:
        segment.metadata = merge_metadata(segment.metadata, state.position, event.metadata)


def begins_again(state: State, segment: Segment, text: str, ts: int) -> bool:
    """Return whether a text is unrelated to the partial before it, which was noise or was abandoned."""
    if segment.final or segment.begin == AFTER_ALL:
        return False
    if not segment.text:
        if segment.item is not None:
            return False
    elif text.casefold().startswith(segment.text.casefold()):
        return False
    elif ts > segment.newest_ts + ABANDONED_MS:
        return True
    settle(state)
    return false_alarms(state).caused(segment)


class Speech(NamedTuple):
    """The speech of one user in a turn."""

    text: str
    begin: int
    order: int
    """The journal position where it began."""
    partial: bool
    """True if any of it was unfinished at the close."""
    shown: list[Segment]

    @classmethod
    def of(cls, segments: Iterable[Segment], closed: bool, unfinished: bool, state: State) -> Speech:
        """Join the shown segments, in order, by spaces."""
        texts: list[str] = []
        partial, shown, order = False, [], AFTER_ALL
        for segment in in_order(segments):
            order = min(order, segment.order)
            said = segment.text
            if closed and len(segment.later_partial or "") > len(said) and segment.later_partial is not None:
                said, partial = segment.later_partial, True
            elif not segment.final:
                if not (closed or unfinished) or false_alarms(state).caused(segment):
                    continue
                partial |= closed and bool(said)
            if said:
                texts.append(said)
                shown.append(segment)
        return cls(join_texts(texts), min((one.begin for one in shown), default=0), order, partial, shown)

    def metadata(self) -> dict[str, Any]:
        return layered_metadata(latest_metadata(one.metadata or {} for one in self.shown))

    def times(self) -> dict[str, Any]:
        """Return the recogniser's times, in ms."""
        starts = [one.start_ms for one in self.shown if one.start_ms is not None]
        ends = [one.end_ms for one in self.shown if one.end_ms is not None]
        return {"speech_start_ms": min(starts, default=None), "speech_end_ms": max(ends, default=None)}


def in_order(segments: Iterable[Segment]) -> list[Segment]:
    """Return items, and segments without one, by first arrival, and segments of an item by number (rule 1)."""
    listed = sorted(segments, key=attrgetter("order"))
    if len(listed) <= 1:
        return listed
    first: dict[str | None, int] = {}
    for segment in listed:
        if segment.has_key:
            first.setdefault(segment.item, segment.order)
    return sorted(listed, key=lambda s: (first[s.item], s.number or 0) if s.has_key else (s.order, 0))


def join_texts(texts: Iterable[str]) -> str:
    """Join texts, none of them blank, by one space, or directly between characters of spaceless scripts."""
    pieces: list[str] = []
    for text in texts:
        if pieces:
            left, text = pieces[-1].rstrip(), text.lstrip()
            pieces[-1] = left
            if not (SPACELESS.match(left[-1]) and SPACELESS.match(text[0])):
                pieces.append(" ")
        pieces.append(text)
    return "".join(pieces)


class FalseAlarms:
    """The false alarms of a call: each reply that resumed after an interruption, and when."""

    def __init__(self, resumed: Iterable[tuple[int, int, int]]) -> None:
        self.known = sorted(resumed)
        self.changes = 0

    def change(self, reply: Reply, resumed_ts: int | None) -> None:
        """Note that a reply resumed at another time than was known, or never."""
        for ts, belongs in ((reply.resumed_ts, False), (resumed_ts, True)):
            if ts is not None:
                put(self.known, (reply.begin, reply.order, ts), belongs)
        self.changes += 1

    def caused(self, segment: Segment) -> bool:
        """Return whether a segment is noise that caused one: the last such reply began before it and resumed after it.

        A final never is.
        """
        place = bisect_left(self.known, (segment.begin, segment.order))
        return place > 0 and not segment.final and segment.newest_ts <= self.known[place - 1][2]


def false_alarms(state: State) -> FalseAlarms:
    known: FalseAlarms | None = state.memo.false_alarms
    if known is None:
        known = state.memo.false_alarms = FalseAlarms(
            (reply.begin, reply.order, reply.resumed_ts)
            for turn in state.each_turn()
            for reply in state.each_reply(turn.replies or ())
            if reply.resumed_ts is not None
        )
    return known


def spoken_segments(state: State, turn: Turn) -> list[Segment]:
    """Return the segments of a turn that have begun, without the noise of false alarms."""
    settle(state)
    alarms = false_alarms(state)
    return [one for one in turn.segments or () if one.begin < AFTER_ALL and not alarms.caused(one)]
