"""For how long a reply had been spoken, judged by the clock (rule 4g)."""

from __future__ import annotations

from .call import Call
from .interruptions import is_playing, marking_interrupts, resumes_of, standing_interrupts
from .playback import ends, playback_of
from .replies import Reply
from .rows import newest_stated


def speaking_ms(call: Call, reply: Reply, time: int | None) -> int:
    """Rule 4g: from its first playback, else its first text, to the time, less what false alarms paused."""
    until = closing_time(call, reply) if time is None else time
    start = start_of_playing(call, reply)
    return max(0, until - start - paused_ms(call, reply, start, until))


def start_of_playing(call: Call, reply: Reply) -> int:
    """Rule 4g: its first playback; else its first text, but not before the reply before it has ended playing."""
    if played := playback_of(call, reply):
        return min(one.ts for one in played)
    first_text = min(one.ts for one in reply.events if one.text or one.fields.get("heard_text"))
    before = [one for one in call.replies if one.order < reply.order]
    ended = ended_playing(call, before[-1]) if before else None
    return first_text if ended is None else max(first_text, ended)


def ended_playing(call: Call, reply: Reply) -> int | None:
    """Rule 4g: when a reply ended playing, where that is known: heard to its end, interrupted, or cut as it played."""
    standing = standing_interrupts(call, reply)
    known = [one.ts for one in (*ends(call, reply, standing), *marking_interrupts(call, reply))]
    if call.close and not known and playback_of(call, reply) and is_playing(call, reply):
        known = [call.close.ts]
    return min(known, default=None)


def paused_ms(call: Call, reply: Reply, start: int, until: int) -> int:
    """Rule 4g: the spans between withdrawn interrupts and their resumes, those that overlap counted once."""
    standing = standing_interrupts(call, reply)
    resumes = resumes_of(call, reply)
    paused = 0
    reached = start
    for one in sorted(call.about(reply, "interrupt"), key=lambda one: one.ts):
        if one not in standing:
            end = min(until, min(resume.ts for resume in resumes if resume.ts >= one.ts))
            begin = max(one.ts, reached)
            paused += max(0, end - begin)
            reached = max(reached, end)
    return paused


def closing_time(call: Call, reply: Reply) -> int:
    """Rule 8: the first `session.end`'s `ts`; without one, the newest `ts` that the reply's producer stated."""
    assert call.close is not None
    ends_of_session = [one.ts for one in call.events if one.type == "session.end"]
    if ends_of_session:
        return ends_of_session[0]
    return newest_stated(call.events, reply.events[0].producer, call.close.ts)
