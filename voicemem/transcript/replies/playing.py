"""Which replies play, were heard to their end, or were interrupted, so far (docs/memory.md, rule 5).

The lists in the state answer "the oldest reply that …" by bisection. An event only notes what it touched; `settle` then
brings the lists up to date before they are asked.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter

from voicemem.transcript.replies.evidence import ESTIMATED, Interruption, Source
from voicemem.transcript.replies.interruptions import (
    TEXTS,
    first_mark,
    first_marking_cut,
    has_progress,
    heard_to_end,
    last_entries,
    timelines,
)
from voicemem.transcript.replies.sources import (
    cut_stairs,
    move_cut,
    neighbours,
    note_resume,
    resumed_until,
    sources_of,
    standing_keys,
)
from voicemem.transcript.state import Reply, ReplyKey, State, Turn, put
from voicemem.transcript.timeline import BEFORE_ALL

REACH = 20
"""How many replies before one its rate of speech is taken from, so how many after one an event about it may change."""


def settle(state: State) -> None:
    """Bring the lists of replies up to date with everything that has arrived."""
    while state.stale:
        reply = state.replies[state.stale.pop()]
        if reply.shown and not reply.cancelled:
            settle_reply(state, reply)


def settle_reply(state: State, reply: Reply) -> None:
    """Work out what is known about a reply now, and put it into the lists that this means."""
    sources = sources_of(state, reply)
    reply.progress, heard_ts = has_progress(sources), heard_to_end(state, reply, sources)
    first_ts = first_mark(reply, sources, BEFORE_ALL, heard_ts)
    if first_ts != reply.first_cut_ts:
        move_cut(state, reply, first_ts)
    resumed_ts = resumed_until(state, reply, sources)
    cut_ts = first_ts
    if resumed_ts > BEFORE_ALL:  # these were found as if no interruption were withdrawn
        heard_ts = heard_to_end(state, reply, sources, resumed_ts)
        cut_ts = None if first_ts is None else first_mark(reply, sources, resumed_ts, heard_ts)
    reply.heard_ts, reply.cut_ts = heard_ts, cut_ts
    note_resume(state, reply, resumed_ts if first_ts is not None and resumed_ts >= first_ts else None)
    remake_later(state, reply)
    key = reply.key
    is_unheard = heard_ts is None and cut_ts is None and not reply.restored and not reply.over
    put(state.played, key, reply.progress)
    put(state.interrupted, key, cut_ts is not None)
    put(state.unheard, key, is_unheard)
    put(state.playable, key, is_unheard and (reply.progress or not reply.generation.complete))


def marking_cut(state: State, reply: Reply, sources: list[Source]) -> Interruption | None:
    """The first interruption that marks a reply, which must be settled."""
    return first_marking_cut(sources, resumed_until(state, reply, sources), reply.heard_ts)


def remake_later(state: State, reply: Reply) -> None:
    """Note that the heard text of the next replies may have changed, where it rests on the clock or on a rate."""
    keys = standing_keys(state)
    place = bisect_right(keys, reply.key)
    for key in keys[place : place + REACH]:
        later = state.replies[key[2]]
        if later.cut_ts is not None or state.closed_ts is not None:
            state.remake(later)


def show(state: State, reply: Reply) -> None:
    """Give a reply its place among the others, now that it has text."""
    reply.shown = True
    insort(state.begun, reply.key)
    if can_be_cancelled(reply):
        insort(state.generated, reply.key)
    if state.standing is not None:
        insort(state.standing, reply.key)
    touch_around(state, reply)
    judge_around(state, reply)


def leave(state: State, reply: Reply) -> None:
    """Take a reply from its place."""
    touch_around(state, reply)
    move_cut(state, reply, None)
    note_resume(state, reply, None)
    for keys in (state.begun, state.generated, *lists_of(state)):
        put(keys, reply.key, False)


def lists_of(state: State) -> Iterator[list[ReplyKey]]:
    """The lists that a cancelled reply is not in."""
    if state.standing is not None:
        yield state.standing
    yield from (state.played, state.interrupted, state.unheard, state.playable)


def can_be_cancelled(reply: Reply) -> bool:
    return not (reply.is_failure or reply.heard_only)


def begin_at(state: State, reply: Reply, ts: int) -> None:
    """Note the `ts` of an event of a reply, which begins at the earliest."""
    if ts >= reply.begin:
        return
    is_unfinished = not reply.generation.complete and not reply.cancelled
    put(state.unfinished, reply.key, False)
    if reply.shown:
        before, _ = neighbours(state.begun, reply.key)
        leave(state, reply)
        state.turns[reply.turn].standing += reply.cancelled
        reply.cancelled, reply.begin = False, ts
        if before is not None:
            judge_around(state, state.replies[before[2]])
        show(state, reply)
    reply.begin = ts
    put(state.unfinished, reply.key, is_unfinished and not reply.cancelled)


def touch_around(state: State, reply: Reply) -> None:
    """Note that a reply and its neighbours share the evidence that names only their turn in another way."""
    state.touch(reply)
    remake_later(state, reply)
    turn = state.turns[reply.turn]
    if turn.evidence is None:
        return
    for key in neighbours(standing_keys(state), reply.key):
        if key is not None:
            state.touch(state.replies[key[2]])


def judge_around(state: State, reply: Reply) -> None:
    """Decide again whether a reply and its neighbours are cancelled, where that may have changed."""
    if state.has_cancels:
        around = (*neighbours(state.begun, reply.key), *neighbours(state.generated, reply.key), reply.key)
        for key in around:
            if key is not None:
                judge(state, state.replies[key[2]])


def interrupted_by(state: State, turn: Turn, ts: int) -> Reply | None:
    """The newest reply of a turn that had been interrupted by then."""
    settle(state)
    stairs = cut_stairs(state, turn.number)
    place = bisect_right(stairs, ts, key=itemgetter(1)) - 1
    return None if place < 0 else state.replies[stairs[place][0][2]]


# Replies that never existed


def judge(state: State, reply: Reply) -> None:
    """Decide again whether a reply is cancelled: an `llm.cancel` names it, and nothing shows that it was played."""
    cancelled = reply.shown and is_called_off(state, reply) and not was_played(sources_of(state, reply, state.begun))
    if cancelled == reply.cancelled:
        return
    reply.cancelled = cancelled
    state.turns[reply.turn].standing += -1 if cancelled else 1
    put(state.unfinished, reply.key, not cancelled and not reply.generation.complete)
    if cancelled:
        state.standing = state.begun.copy() if state.standing is None else state.standing
        move_cut(state, reply, None)
        note_resume(state, reply, None)
        for keys in lists_of(state):
            put(keys, reply.key, False)
    else:
        insort(standing_keys(state), reply.key)
    touch_around(state, reply)


def is_called_off(state: State, reply: Reply) -> bool:
    """Return whether an `llm.cancel` names a reply: by its item, or as the newest of its turn begun by then."""
    if not can_be_cancelled(reply):
        return False
    evidence = None if reply.item is None else state.item_evidence.get(reply.item)
    if evidence is not None and evidence.cancels:
        return True
    evidence = state.turns[reply.turn].evidence
    if evidence is None or not evidence.cancels:
        return False
    _, after = neighbours(state.generated, reply.key)
    place = bisect_left(evidence.cancels, reply.begin)
    return place < len(evidence.cancels) and (after is None or evidence.cancels[place] < after[1])


def was_played(sources: list[Source]) -> bool:
    """Return whether playback above 0, a `tts.done`, or an interrupt with heard text is known."""
    for source in sources:
        if any(last_entries([source], "audio", "estimated_audio", "dones")):
            return True
        for series in timelines(source, *TEXTS):
            if any(entry.value for entry in series.entries(source.until, source.since)):
                return True
        for kind in ("heard_text", ESTIMATED + "heard_text"):
            if any(cut.heard_text for cut in source.stating(kind)):
                return True
    return False


def plays_at_close(state: State, reply: Reply) -> bool:
    key = reply.key
    place = bisect_left(state.playable, key)
    is_playable = place < len(state.playable) and state.playable[place] == key
    return reply.progress and is_playable and key >= playing_since(state)


def playing_since(state: State) -> ReplyKey:
    """Replies before this key play no more: a later one was played, or a later turn has a final."""
    begin = (state.final_turn, BEFORE_ALL, 0)
    return max(begin, state.played[-1]) if state.played else begin


def is_cut_by_close(state: State, reply: Reply) -> bool:
    """Return whether the close cuts a reply: it is still being generated, or known to be still playing (rule 8)."""
    if state.closed_ts is None or reply.cut_ts is not None or reply.restored or reply.heard_only:
        return False
    if not reply.generation.complete:
        return reply.heard_ts is None
    return plays_at_close(state, reply)


def forget_playing(state: State) -> None:
    """Nothing of what was copied from another session still plays."""
    settle(state)
    for keys in (state.unheard, state.playable):
        for key in keys:
            state.replies[key[2]].over = True
        keys.clear()
