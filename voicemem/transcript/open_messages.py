"""The messages of a call with what is in progress, each of which says so (`open` in its metadata).

These marks are only for readers who asked for what is in progress; contexts, exports and webhook events have none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from voicemem.transcript.history import MessageEntry, turn_entries
from voicemem.transcript.messages import Message, order_metadata
from voicemem.transcript.replies.heard import heard_so_far
from voicemem.transcript.replies.playing import plays_at_close, settle
from voicemem.transcript.speech import FalseAlarms, Speech, false_alarms
from voicemem.transcript.state import Reply, State, Turn


def open_messages(state: State) -> list[Message]:
    """All messages in their order, with replies and partials in progress."""
    return [entry.message for number in state.turn_numbers for entry in open_entries(state, state.turns[number])]


def shown_entries(state: State, turn: Turn, unfinished: bool) -> list[MessageEntry]:
    """The messages of a turn for a reader: with `unfinished`, also what is in progress."""
    return open_entries(state, turn) if unfinished else turn_entries(state, turn)


def open_entries(state: State, turn: Turn) -> list[MessageEntry]:
    """The messages of a turn, with what is in progress."""
    entries = turn_entries(state, turn, unfinished=True)
    return entries if state.closed_ts is not None else [marked(state, entry) for entry in entries]


def marked(state: State, entry: MessageEntry) -> MessageEntry:
    """A message that may still change, with the metadata that say so; any other as it is."""
    match entry.made_of:
        case Speech(shown=shown):
            found: dict[str, Any] = {} if all(one.final for one in shown) else {"partial": True, "open": True}
        case Reply() as reply if is_open(state, reply) and entry.interruption is None:
            heard = heard_so_far(state, reply)
            found = {"open": True} if heard is None else {"open": True, "heard_so_far": heard}
        case _:
            found = {}
    if not found:
        return entry
    metadata = order_metadata(entry.message.metadata | found)
    return entry._replace(message=msgspec.structs.replace(entry.message, metadata=metadata))


def is_open(state: State, reply: Reply) -> bool:
    """Whether a reply is being generated, or is known to be playing. The state must be settled."""
    return not reply.restored and (not reply.generation.complete or plays_at_close(state, reply))


def playing_turn(state: State) -> int | None:
    """The turn of the reply that is known to be playing: events of other turns may end that."""
    settle(state)
    if state.closed_ts is not None or not state.played:
        return None
    newest = state.replies[state.played[-1][2]]
    return newest.turn if plays_at_close(state, newest) else None


class InProgress(NamedTuple):
    """What of a call was in progress. Events of other turns may end it, so its turns are looked at again."""

    playing: int | None = None
    """The turn of the reply that was playing."""
    partials: frozenset[int] = frozenset()
    """The turns with partials: a `resume` may show that one was the noise that caused a false alarm."""
    alarms: FalseAlarms | None = None
    """The false alarms by then; None while there are no partials."""


def turns_to_look_at(state: State, before: InProgress) -> set[int]:
    """The turns whose messages may be others than before without having changed themselves."""
    found = {number for number in (before.playing, playing_turn(state)) if number is not None}
    return found | before.partials if before.partials and false_alarms(state) is not before.alarms else found


def in_progress(state: State, before: InProgress, looked_at: Collection[int]) -> InProgress:
    """What is in progress now, when only these turns may have changed."""
    known = frozenset(number for number in looked_at if has_partials(state.turns.get(number)))
    gone = before.partials.intersection(looked_at)
    partials = before.partials if gone == known else (before.partials - gone) | known
    return InProgress(playing_turn(state), partials, false_alarms(state) if partials else None)


def has_partials(turn: Turn | None) -> bool:
    return turn is not None and any(one.text and not one.final for one in turn.segments)
