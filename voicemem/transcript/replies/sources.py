"""Which reported evidence is about which reply (docs/memory.md, rule 5).

What names only a turn is about its newest reply begun by then, else its first to come. So each reply has a window of
time, from its begin to that of the next one in its turn; the first has no beginning, as playback or an interrupt may
carry an earlier `ts` than the first text. What names an item is about its reply, and from an error with text on about
the failure message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from voicemem.transcript.replies.evidence import Source
from voicemem.transcript.state import Reply, ReplyKey, State, Turn
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL

LAST_ID = AFTER_ALL


def standing_keys(state: State) -> list[ReplyKey]:
    """The replies that ever had text and are not cancelled, in their order."""
    return state.begun if state.standing is None else state.standing


def standing_replies(state: State, turn: Turn) -> list[Reply]:
    """The replies of a turn, in their order."""
    keys = standing_keys(state)
    first, stop = bisect_left(keys, (turn.number,)), bisect_left(keys, (turn.number + 1,))
    return [state.replies[key[2]] for key in keys[first:stop]]


def neighbours(keys: list[ReplyKey], key: ReplyKey) -> tuple[ReplyKey | None, ReplyKey | None]:
    """The replies of the same turn directly before and after one, which need not be in the list itself."""
    place = bisect_left(keys, key)
    before = keys[place - 1] if place and keys[place - 1][0] == key[0] else None
    place += place < len(keys) and keys[place] == key
    after = keys[place] if place < len(keys) and keys[place][0] == key[0] else None
    return before, after


def key_at(keys: list[ReplyKey], turn: int, ts: int) -> ReplyKey | None:
    """The reply that an event of this time means which names only the turn."""
    place = bisect_right(keys, (turn, ts, LAST_ID)) - 1
    if place >= 0 and keys[place][0] == turn:
        return keys[place]
    return keys[place + 1] if place + 1 < len(keys) and keys[place + 1][0] == turn else None


def sources_of(state: State, reply: Reply, keys: list[ReplyKey] | None = None) -> list[Source]:
    """All evidence about a reply, judged by the standing replies unless others are given."""
    found = [] if reply.own is None else [Source(reply.own)]
    if reply.item is not None and (evidence := state.item_evidence.get(reply.item)) is not None:
        found.append(Source(evidence, *item_window(state, reply)))
    evidence = state.turns[reply.turn].evidence
    if evidence is not None:
        before, after = neighbours(standing_keys(state) if keys is None else keys, reply.key)
        since, until = BEFORE_ALL if before is None else reply.begin, AFTER_ALL if after is None else after[1]
        found.append(Source(evidence, since, until))
    return found


def item_window(state: State, reply: Reply) -> tuple[int, int]:
    """The time in which a reply is meant by its item."""
    assert reply.item is not None
    failures = state.item_failures.get(reply.item)
    if not failures:
        return BEFORE_ALL, AFTER_ALL
    if not reply.is_failure:
        return BEFORE_ALL, failures[0][0]
    place = bisect_left(failures, (reply.begin, reply.id))
    return reply.begin, failures[place + 1][0] if place + 1 < len(failures) else AFTER_ALL


def reply_of_item(state: State, item: str, ts: int) -> Reply | None:
    """The reply that an event of this time means which names the item; None while it has not begun."""
    failures = state.item_failures.get(item) if state.item_failures else None
    place = bisect_right(failures, (ts, LAST_ID)) - 1 if failures else -1
    if failures and place >= 0:
        return state.replies[failures[place][1]]
    id = state.item_replies.get(item)
    reply = None if id is None else state.replies[id]
    if reply is not None and reply.shown:
        return reply
    id = state.heard_only_items.get(item)
    return reply if id is None else state.replies[id]
