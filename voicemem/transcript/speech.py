"""The fold of user speech: partials and finals of segments, joined to one message (design, section 4, rule 1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from voicemem.protocol.events import Asr
from voicemem.transcript.heard import SPACELESS
from voicemem.transcript.state import Segment, State, Turn, Utterance


def fold_asr(state: State, event: Asr, ts: int) -> Turn | None:
    """Put one text of the recogniser into its turn; None if it brings nothing new."""
    turn = find_turn(state, event)
    if turn is None:
        return None
    ref = find_segment(turn, event)
    if ref is None:
        if is_stale(turn, event):
            return None
        ref = open_segment(turn, event, ts, state.position)
    utterance = assign_user(turn, ref, event.user)
    if event.metadata:
        utterance.metadata |= event.metadata
    segment = ref.segment
    segment.begin = min(segment.begin, ts)
    if event.final or not segment.final:
        segment.text = event.text
        segment.final = event.final
        if event.start_ms is not None:
            segment.start_ms = event.start_ms
        if event.end_ms is not None:
            segment.end_ms = event.end_ms
    if event.final and event.text.strip():
        state.final_turn = max(state.final_turn, turn.number)
    return turn


def newest_finals(state: State, user: str | None) -> list[str]:
    """The finals that a late partial of this user may belong to: the user's newest, or one without a user."""
    if user is None:
        return list(state.finals.values())[-1:]
    return [state.finals[name] for name in (user, "") if name in state.finals]


class SegmentRef(NamedTuple):
    """A segment and the utterance that it is part of."""

    utterance: Utterance
    segment: Segment


def find_turn(state: State, event: Asr) -> Turn | None:
    """The turn of the event: that of its item, its own, or by the flow of speech; None for a late partial."""
    if event.item is not None:
        number = state.items.get(event.item, event.turn_id)
        if number is None:
            number = state.newest_turn + 1
        state.items[event.item] = number
    elif event.turn_id is not None:
        number = event.turn_id
    else:
        flowing = find_flowing_turn(state, event)
        if flowing is None:
            return None
        number = flowing
    state.newest_turn = max(state.newest_turn, number)
    state.utterance_turn = max(state.utterance_turn, number)
    return state.turn(number)


def find_flowing_turn(state: State, event: Asr) -> int | None:
    """Without turn and item: the turn of this user's open utterance, else the next turn.

    None for what must not open a turn (rule 1): a late partial whose text a final already contains, and an empty
    final, which withdraws nothing here. An event without a user continues whichever utterance is open.
    """
    if event.user is None:
        key = next(reversed(state.open_utterances), "")
    else:
        key = event.user if event.user in state.open_utterances else ""
    number = state.open_utterances.pop(key, None)
    if number is None:
        if not event.final and event.text and any(event.text in final for final in newest_finals(state, event.user)):
            return None
        if event.final and not event.text:
            return None
        number = state.newest_turn + 1
    if event.final:
        state.finals.pop(event.user or key, None)
        state.finals[event.user or key] = event.text
    else:
        state.open_utterances[event.user or key] = number
    return number


def candidate_segments(turn: Turn, user: str | None) -> Iterator[SegmentRef]:
    """The segments that an event of this user may be about, the newest first within each utterance.

    Without a user, all segments; with one, that user's, then those without a user yet.
    """
    own = [u for u in turn.utterances if user is None or u.user == user]
    unowned = [u for u in turn.utterances if user is not None and u.user is None]
    for utterance in [*reversed(own), *unowned]:
        for segment in reversed(utterance.segments):
            yield SegmentRef(utterance, segment)


def find_segment(turn: Turn, event: Asr) -> SegmentRef | None:
    """The segment that the event updates, if it exists already."""
    item, number = segment_key(event)
    for ref in candidate_segments(turn, event.user):
        segment = ref.segment
        if item is None and number is None:
            if not segment.has_key and not segment.final:
                return ref
        elif (segment.item, segment.number) == (item, number):
            return ref
    return None


def segment_key(event: Asr) -> tuple[str | None, int | None]:
    number = 0 if event.item is not None and event.segment is None else event.segment
    return event.item, number


def is_stale(turn: Turn, event: Asr) -> bool:
    """Whether this is a late partial: its text is already in the newest final without a key (rule 1)."""
    if event.final or event.item is not None or event.segment is not None:
        return False
    finals = (
        ref.segment for ref in candidate_segments(turn, event.user) if not ref.segment.has_key and ref.segment.text
    )
    newest = max(finals, key=lambda segment: segment.order, default=None)
    return newest is not None and event.text in newest.text


def open_segment(turn: Turn, event: Asr, ts: int, order: int) -> SegmentRef:
    item, number = segment_key(event)
    utterance = next(
        (p.utterance for p in candidate_segments(turn, event.user) if item and p.segment.item == item), None
    )
    if utterance is None:
        utterance = get_or_add_utterance(turn, event.user, order)
    segment = Segment(item, number, ts, order)
    utterance.segments.append(segment)
    return SegmentRef(utterance, segment)


def get_or_add_utterance(turn: Turn, user: str | None, order: int) -> Utterance:
    for utterance in turn.utterances:
        if utterance.user == user:
            return utterance
    utterance = Utterance(user, order)
    turn.utterances.append(utterance)
    return utterance


def assign_user(turn: Turn, ref: SegmentRef, user: str | None) -> Utterance:
    """Give a segment without a user, and the others of its item, to the first user named for it; the owner (rule 1).

    Until then the speaker was not known. An utterance that is left empty goes, and its metadata follow.
    """
    unowned = ref.utterance
    if user is None or unowned.user is not None:
        return unowned
    item = ref.segment.item
    given = [s for s in unowned.segments if s is ref.segment or (item is not None and s.item == item)]
    owner = get_or_add_utterance(turn, user, min(segment.order for segment in given))
    owner.segments = sorted([*owner.segments, *given], key=lambda segment: segment.order)
    unowned.segments = [segment for segment in unowned.segments if segment not in given]
    if not unowned.segments:
        turn.utterances.remove(unowned)
        owner.metadata = unowned.metadata | owner.metadata
    return owner


def utterance_text(utterance: Utterance, with_partials: bool) -> tuple[str, int]:
    """The text of an utterance, its segments in order and joined, and the Unix ms when it began."""
    text, begin = "", None
    for segment in order_segments(utterance.segments):
        if segment.text.strip() and (segment.final or with_partials):
            text = join_texts(text, segment.text)
            begin = segment.begin if begin is None else min(begin, segment.begin)
    return text, begin or 0


def order_segments(segments: list[Segment]) -> list[Segment]:
    """The segments in order: items, and segments without one, by first arrival; within an item by number (rule 1)."""
    first: dict[str | None, int] = {}
    for segment in segments:
        if segment.has_key:
            first[segment.item] = min(segment.order, first.get(segment.item, segment.order))
    return sorted(segments, key=lambda s: (first[s.item], s.number or 0) if s.has_key else (s.order, 0))


def join_texts(left: str, right: str) -> str:
    if not left:
        return right
    left, right = left.rstrip(), right.lstrip()
    spaceless = SPACELESS.match(left[-1]) and SPACELESS.match(right[0])
    return left + right if spaceless else f"{left} {right}"
