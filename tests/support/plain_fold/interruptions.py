"""Which interrupts stand and mark, what plays, and what the close cuts (rules 5 and 8)."""

from __future__ import annotations

from collections.abc import Sequence

from .call import Call, meant
from .playback import ended_by_others, heard_to_end, playback_of
from .replies import ONLY_HEARD, Reply
from .rows import Event
from .speech import ABANDONED_MS, Segment, segment_for, segments_of


def resumed_reply(call: Call, resume: Event) -> Reply | None:
    """Rule 5: the reply of a resume: its item's, that turn's newest interrupted by then, or the one known before."""
    if resume.unnamed or resume.item is not None:
        return meant(resume, call.replies)
    in_turn = [one for one in call.replies if one.turn == resume.turn]
    return next((one for one in reversed(in_turn) if was_interrupted(call, one, resume.ts)), None)


def was_interrupted(call: Call, reply: Reply, ts: int) -> bool:
    """Rule 5: whether an interrupt up to a `ts` marked the reply, were there no resumes."""
    every = call.about(reply, "interrupt")
    return not reply.restored_cut and any(one.ts <= ts and marks(call, reply, one, every) for one in every)


def resumes_of(call: Call, reply: Reply) -> list[Event]:
    """Rule 5: the resumes of a reply."""
    resumes = [one for one in call.events if one.type == "resume"]
    return [one for one in resumes if (target := resumed_reply(call, one)) and target.key == reply.key]


def is_noise(call: Call, segment: Segment) -> bool:
    """Rule 5: whether a partial caused a false alarm: it began in the last reply that had one, and ended by its end."""
    if segment.final is not None or not segment.events:
        return False
    times = [one.ts for one in segment.events]
    alarms = [
        ((reply.begin, reply.events[0].position), resume.ts)
        for reply in call.replies
        for resume in resumes_of(call, reply)
        if was_interrupted(call, reply, resume.ts)
    ]
    before = [alarm for alarm in alarms if alarm[0] < (min(times), segment.place)]
    return bool(before) and max(times) <= max(before)[1]


def begins_again(events: Sequence[Event], event: Event) -> bool:
    """Rule 1: whether a text is quite another than the partial before it, which was noise or was abandoned."""
    segment = segment_for(segments_of(events, event.turn or 0), event)
    if segment.final or not segment.events:
        return False
    partial = segment.partial.text if segment.partial else ""
    if event.text.casefold().startswith(partial.casefold()) if partial else event.item is not None:
        return False
    newest = max(one.ts for one in segment.events)
    return bool(partial and event.ts > newest + ABANDONED_MS) or is_noise(Call(events), segment)


def standing_interrupts(call: Call, reply: Reply) -> list[Event]:
    """Rule 5: a resume withdraws its reply's interrupts of `ts` at or before its own."""
    resumes = resumes_of(call, reply)
    return [one for one in call.about(reply, "interrupt") if not any(one.ts <= resume.ts for resume in resumes)]


def marks(call: Call, reply: Reply, interrupt: Event, standing: Sequence[Event]) -> bool:
    """Rule 5: an interrupt marks nothing when playback up to its `ts` shows that the reply was heard to its end."""
    return bool(interrupt.fields.get("more")) or not heard_to_end(call, reply, standing, interrupt.ts)


def marking_interrupts(call: Call, reply: Reply) -> list[Event]:
    """Rule 5: the interrupts that cut a reply, as they arrived; a restored one carries its own."""
    if reply.restored_cut:
        return []
    standing = standing_interrupts(call, reply)
    return [one for one in standing if marks(call, reply, one, standing)]


def is_interrupted(call: Call, reply: Reply) -> bool:
    """Rule 5: whether an interrupt cut the reply; a restored message says so itself."""
    return reply.restored_cut or bool(marking_interrupts(call, reply))


def is_heard_to_end(call: Call, reply: Reply) -> bool:
    """Rule 5: whether playback shows that the reply was heard to its end."""
    return heard_to_end(call, reply, standing_interrupts(call, reply))


def is_cut(call: Call, reply: Reply) -> bool:
    """Whether an interrupt or the close cut the reply."""
    return is_interrupted(call, reply) or is_cut_by_close(call, reply)


def is_playing(call: Call, reply: Reply) -> bool:
    """Rule 5: a reply plays until it was heard to its end or interrupted; without playback, until `llm.done`."""
    if is_interrupted(call, reply) or is_heard_to_end(call, reply) or ended_by_others(call, reply):
        return False
    return bool(playback_of(call, reply)) or not reply.finished


def is_cut_by_close(call: Call, reply: Reply) -> bool:
    """Rule 8: the close cuts what is still generating or known to be still playing."""
    if call.close is None or reply.kind == ONLY_HEARD or is_interrupted(call, reply):
        return False
    if not reply.finished:
        return not is_heard_to_end(call, reply)
    return is_playing(call, reply)


def oldest_playing(call: Call) -> Reply | None:
    """Rule 5: the reply of an interrupt that names neither turn nor item."""
    return next((one for one in call.replies if is_playing(call, one) and not is_cut(call, one)), None)


def oldest_unheard(call: Call) -> Reply | None:
    """Rule 5: the reply of a `tts` that names neither: the oldest neither heard to its end nor interrupted."""
    return next((one for one in call.replies if not is_heard_to_end(call, one) and not is_cut(call, one)), None)


def newest_interrupted(call: Call) -> Reply | None:
    """Rule 5: the reply of a resume that names neither; a close's cut is no interrupt for it."""
    return next((one for one in reversed(call.replies) if marking_interrupts(call, one)), None)
