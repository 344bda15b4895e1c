"""False alarms: which reply a `resume` is about, and which interruptions it withdraws (docs/memory.md, rule 5)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter

from voicemem.transcript.replies.evidence import Source
from voicemem.transcript.replies.sources import sources_of, standing_replies
from voicemem.transcript.state import Reply, ReplyKey, State
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL


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


def count_false_alarms(state: State, reply: Reply) -> int:
    """How often a reply played on: the resumes before which it was interrupted, each once. It must be settled."""
    if reply.resumed_ts is None:
        return 0
    sources = sources_of(state, reply)
    resumes = sorted(ts for known in resumes_of(state, reply, sources) for ts in known)
    cuts = sorted(cut.ts for source in sources for cut in source.interruptions())
    found, after = 0, BEFORE_ALL
    for resume in resumes:
        began = bisect_left(cuts, after)
        found += began < len(cuts) and cuts[began] <= resume
        after = resume + 1
    return found


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
