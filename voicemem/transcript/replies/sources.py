"""Which reported evidence is about which reply (docs/memory.md, rule 5).

What names only a turn is about its newest reply begun by then, else its first to come. So each reply has a window of
time, from its begin to that of the next one in its turn; the first has no beginning, as playback or an interrupt may
carry an earlier `ts` than the first text. What names an item is about its reply, and from an error with text on about
the failure message.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter

from voicemem.transcript.replies.evidence import Source
from voicemem.transcript.state import Reply, ReplyKey, State, Turn
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL

LAST_ID = AFTER_ALL


def standing_keys(state: State) -> list[ReplyKey]:
    """The replies that ever had text and are not cancelled, in their order."""
    return state.begun if state.standing is None else state.standing


def standing_replies(state: State, turn: Turn) -> list[Reply]:
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


# False alarms: which reply a `resume` is about, and which interruptions it withdraws


def cut_stairs(state: State, number: int) -> list[tuple[ReplyKey, int]]:
    """The replies of a turn, each interrupted before all later ones were, with the times of their first interruptions.

    A `resume` that names the turn is about the newest reply interrupted by then, and that is always one of these.
    """
    stairs = state.memo.cut_stairs.get(number)
    if stairs is None:
        stairs = []
        for reply in reversed(standing_replies(state, state.turns[number])):
            cut_ts = reply.first_cut_ts
            if cut_ts is not None and (not stairs or cut_ts < stairs[-1][1]):
                stairs.append((reply.key, cut_ts))
        stairs.reverse()
        state.memo.cut_stairs[number] = stairs
    return stairs


def move_cut(state: State, reply: Reply, ts: int | None) -> None:
    """Note the time of a reply's first interruption, which may change whom a `resume` of its turn is about."""
    before, reply.first_cut_ts = reply.first_cut_ts, ts
    evidence = state.turns[reply.turn].evidence
    if ts == before or evidence is None or not evidence.resumes:
        return
    stairs = state.memo.cut_stairs.get(reply.turn)
    if stairs is None:
        return
    if ts is None or (before is not None and before < ts):
        for key, _ in stairs:
            state.touch(state.replies[key[2]])
        del state.memo.cut_stairs[reply.turn]
        return
    place = bisect_left(stairs, reply.key, key=itemgetter(0))
    stop = place + (place < len(stairs) and stairs[place][0] == reply.key)
    if stop < len(stairs) and stairs[stop][1] <= ts:
        return
    first = bisect_left(stairs, ts, hi=place, key=itemgetter(1))
    for key, _ in stairs[max(0, first - 1) : place]:
        state.touch(state.replies[key[2]])
    stairs[first:stop] = [(reply.key, ts)]


def note_resume(state: State, reply: Reply, ts: int | None) -> None:
    """Note when a reply played on after a false alarm."""
    if ts != reply.resumed_ts:
        reply.resumed_ts, state.memo.false_alarms = ts, None


def resumed_until(state: State, reply: Reply, sources: list[Source]) -> int:
    """The time of the newest `resume` about a reply: interruptions up to then were false alarms."""
    newest = [resumes[-1] for resumes in resumes_of(state, reply, sources) if resumes]
    return max(newest, default=BEFORE_ALL)


def false_alarms_of(state: State, reply: Reply, sources: list[Source]) -> Iterator[tuple[int, int]]:
    """The false alarms of a reply, each with its first interruption and the resume that ended it."""
    resumes = sorted(ts for known in resumes_of(state, reply, sources) for ts in known)
    cuts = sorted(cut.ts for source in sources for cut in source.interruptions())
    after = BEFORE_ALL
    for resume in resumes:
        began = bisect_left(cuts, after)
        if began < len(cuts) and cuts[began] <= resume:
            yield cuts[began], resume
        after = resume + 1


def resumes_of(state: State, reply: Reply, sources: list[Source]) -> Iterator[list[int]]:
    """The times of the resumes about a reply, from each of its sources."""
    turn_evidence = state.turns[reply.turn].evidence
    for source in sources:
        if source.evidence is not turn_evidence:
            yield source.resumes(source.since, source.until)
        elif turn_evidence.resumes:
            stairs = cut_stairs(state, reply.turn)
            place = bisect_left(stairs, reply.key, key=itemgetter(0))
            if place < len(stairs) and stairs[place][0] == reply.key:
                until = stairs[place + 1][1] if place + 1 < len(stairs) else AFTER_ALL
                yield source.resumes(stairs[place][1], until)
