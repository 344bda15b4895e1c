"""The fold of playback, interruptions and false alarms (docs/memory.md, rule 3).

An event that names its item or turn is only stored; its reply is found on reading, so that the order of arrival does
not matter. For one that names neither, the reply is found now, from what is known at its arrival.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from voicemem.protocol.events import Interrupt, LlmCancel, Resume, SessionClosed, SessionEnd, SessionReopened, Tts
from voicemem.transcript.replies.evidence import Evidence, Playback
from voicemem.transcript.replies.generation import Generation
from voicemem.transcript.replies.llm_events import add_reply
from voicemem.transcript.replies.playing import begin_at, interrupted_by, judge, playing_since, settle, show
from voicemem.transcript.replies.sources import key_at, reply_of_item, standing_keys
from voicemem.transcript.state import BOUND, Reply, ReplyKey, State, Turn
from voicemem.transcript.timeline import AFTER_ALL


def named_evidence(state: State, event: Tts | Interrupt | Resume | LlmCancel) -> Evidence | None:
    """Where the evidence of an event's item or turn is kept; None if it names neither."""
    if event.item is not None:
        evidence = state.item_evidence.get(event.item)
        if evidence is None:
            evidence = state.item_evidence[event.item] = Evidence()
        return evidence
    if event.turn_id is None:
        return None
    turn = state.turn(event.turn_id)
    if turn.evidence is None:
        turn.evidence = Evidence()
    return turn.evidence


def own_evidence(reply: Reply) -> Evidence:
    reply.own = reply.own or Evidence()
    return reply.own


def touch_named(state: State, event: Tts | Interrupt | Resume | LlmCancel, ts: int) -> Turn | None:
    """Note that something arrived about the reply that an event names; the turn that may have changed."""
    if event.item is not None:
        reply = reply_of_item(state, event.item, ts)
        if reply is None:
            return None
        number = reply.turn
        if not state.has_cancels:  # nearly every event; the caller notes that the turn has changed
            state.stale.add(reply.id)
            reply.changes += 1
            return state.turns[number]
    else:
        assert event.turn_id is not None
        number = event.turn_id
        key = key_at(standing_keys(state), number, ts)
        reply = None if key is None else state.replies[key[2]]
    if reply is not None:
        state.touch(reply)
    if state.has_cancels:
        judge_named(state, event, reply, ts)
    return state.turns[number]


def judge_named(state: State, event: Tts | Interrupt | Resume | LlmCancel, reply: Reply | None, ts: int) -> None:
    """Decide again whether the reply is cancelled that an event means, judged as if no reply were."""
    if event.item is None:
        assert event.turn_id is not None
        key = key_at(state.begun, event.turn_id, ts)
        reply = None if key is None else state.replies[key[2]]
    if reply is not None:
        judge(state, reply)


def fold_tts(state: State, event: Tts, ts: int) -> Turn | None:
    item, reply = event.item, None
    evidence = None if item is None else state.item_evidence.get(item)
    evidence = evidence or named_evidence(state, event)
    if evidence is None:
        reply = first_of(state, state.unheard)
        if reply is None:
            return None
        evidence = own_evidence(reply)
    if event.words:
        if len(event.words) + evidence.word_count > BOUND:
            state.ignore("words")
            return None
        evidence.word_count += len(event.words)
    if evidence.playback is None:
        evidence.playback = Playback()
    evidence.playback.add(event, ts, state.position)
    if reply is None:
        return touch_named(state, event, ts)
    touch_own(state, reply)
    return state.turns[reply.turn]


def touch_own(state: State, reply: Reply) -> None:
    state.touch(reply)
    if state.has_cancels:
        judge(state, reply)


def first_of(state: State, keys: list[ReplyKey]) -> Reply | None:
    settle(state)
    return state.replies[keys[0][2]] if keys else None


def oldest_playing(state: State) -> Reply | None:
    """The reply that an unnamed interrupt cuts: playback is in order, so the oldest is what the user hears.

    Playback of a later reply, or a final of a later turn, ends the playing of those before.
    """
    settle(state)
    place = bisect_left(state.playable, playing_since(state))
    return state.replies[state.playable[place][2]] if place < len(state.playable) else None


def fold_interrupt(state: State, event: Interrupt, ts: int) -> Turn | None:
    if event.ts is None:
        ts = state.clock_of(state.producer, ts)
    evidence, reply = named_evidence(state, event), None
    if evidence is None:
        reply = oldest_playing(state) or begin_heard_only(state, event, ts)
        if reply is None:
            return None
        evidence = own_evidence(reply)
    if len(evidence.interruptions or ()) >= BOUND:
        state.ignore("interruptions")
        return None
    evidence.interrupt(event, ts, state.position)
    if reply is None:
        begin_heard_only(state, event, ts)
        return touch_named(state, event, ts)
    touch_own(state, reply)
    return state.turns[reply.turn]


def begin_heard_only(state: State, event: Interrupt, ts: int) -> Reply | None:
    """The reply that an interruption makes which says what was heard of one that nothing else is known about."""
    if not (event.more and event.heard_text):
        return None
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    turn = state.turn(state.utterance_turn if number is None else number)
    reply = known_heard_only(state, event, turn)
    if reply is None:
        if is_known(state, event, turn, ts) or len(turn.replies) >= BOUND or 2 * state.position in state.replies:
            return None
        reply = Reply(2 * state.position, turn.number, event.item, state.producer, heard_only=True)
        if event.item is not None:
            state.heard_only_items[event.item] = reply.id
        elif event.turn_id is not None:
            turn.heard_only_reply = reply.id
        add_reply(state, turn, reply)
    rank = not event.estimated, ts
    if reply.heard_rank is None or rank >= reply.heard_rank:
        reply.heard_rank, reply.generation = rank, Generation()
        reply.generation.finish(ts, state.position, event.heard_text)
    reply.text_ts = min(reply.text_ts, ts)
    if ts < reply.begin:
        begin_at(state, reply, ts)
    if not reply.shown:
        show(state, reply)
    return reply


def known_heard_only(state: State, event: Interrupt, turn: Turn) -> Reply | None:
    if event.item is not None:
        id = state.heard_only_items.get(event.item)
    else:
        id = None if event.turn_id is None else turn.heard_only_reply
    return None if id is None else state.replies[id]


def is_known(state: State, event: Interrupt, turn: Turn, ts: int) -> bool:
    """Whether the named reply has begun."""
    if event.item is not None:
        return reply_of_item(state, event.item, ts) is not None
    return event.turn_id is not None and key_at(state.begun, turn.number, ts) is not None


def fold_resume(state: State, event: Resume, ts: int) -> Turn | None:
    evidence = named_evidence(state, event)
    if evidence is None:
        settle(state)
        if not state.interrupted:
            return None
        reply: Reply | None = state.replies[state.interrupted[-1][2]]
        assert reply is not None
        evidence = own_evidence(reply)
    if len(evidence.resumes or ()) >= BOUND:
        state.ignore("resumes")
        return None
    evidence.resume(ts)
    if event.item is not None:
        reply = reply_of_item(state, event.item, ts)
    elif event.turn_id is not None:
        reply = interrupted_by(state, state.turns[event.turn_id], ts)
    if reply is None:
        return None
    state.touch(reply)
    return state.turns[reply.turn]


def fold_cancel(state: State, event: LlmCancel, ts: int) -> Turn | None:
    """Call off a reply that was thrown away before any of it was played."""
    evidence = named_evidence(state, event)
    assert evidence is not None
    evidence.cancel(ts)
    state.has_cancels = True
    if event.item is not None:
        id = state.item_replies.get(event.item)
    else:
        place = bisect_right(state.generated, (event.turn_id, ts, AFTER_ALL)) - 1
        id = state.generated[place][2] if place >= 0 and state.generated[place][0] == event.turn_id else None
    if id is None:
        return None
    judge(state, state.replies[id])
    return state.turns[state.replies[id].turn]


def fold_end(state: State, event: SessionEnd, ts: int) -> None:
    if state.ended_ts is None:
        state.ended_ts = ts


def fold_close(state: State, event: SessionClosed, ts: int) -> None:
    """Note the close; reading cuts the replies that are still being generated or are known to play (rule 8)."""
    if state.closed_ts is None:
        state.closed_ts, state.close_reason = ts, event.reason
        remake_all(state)


def fold_reopen(state: State, event: SessionReopened, ts: int) -> None:
    """Undo the close."""
    state.closed_ts = state.close_reason = None
    remake_all(state)


def remake_all(state: State) -> None:
    state.memo.entries.clear()
    state.dirty_turns.update(state.turns)
