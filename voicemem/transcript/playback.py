"""The fold of playback: what plays, what was interrupted, and the close (design, section 4, rules 3 to 5 and 8).

An event that names its item or turn is only stored; its reply is found on reading, so that the order of arrival does
not matter. For one that names neither, the reply is found now, from what is known at its arrival.
"""

from __future__ import annotations

from bisect import bisect_left

from voicemem.protocol.events import Interrupt, Resume, SessionClosed, SessionReopened, Tts
from voicemem.transcript.heard import Interruption, Playback, TimedWord, has_progress, was_heard_to_end
from voicemem.transcript.history import HeardReply, heard_replies
from voicemem.transcript.state import Reply, State, Turn, append_item
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL


def find_named(state: State, event: Tts | Interrupt | Resume) -> tuple[Turn | None, Reply | None]:
    """The reply that an event names by its item, or the turn that it names; (None, None) if it names neither.

    An item that has not begun yet gets a reply without a turn, which waits in `state.unplaced`.
    """
    if event.item is not None:
        number = state.items.get(event.item)
        turn = None if number is None else state.turns.get(number)
        reply = None if turn is None else turn.reply(event.item)
        if reply is None:
            return None, state.unplaced.setdefault(event.item, Reply(state.position, event.item))
        return turn, reply
    return (None, None) if event.turn_id is None else (state.turn(event.turn_id), None)


def fold_tts(state: State, event: Tts, ts: int) -> Turn | None:
    turn, reply = find_named(state, event)
    if turn is None and reply is None:
        turn, reply = oldest_unheard(state)
        if turn is None:
            return None
    played = turn if reply is None else reply
    assert played is not None
    playback = played.playback
    if playback is None:
        playback = played.playback = Playback()
    if event.metadata:
        playback.metadata.append((ts, event.metadata))
    if event.heard_text is not None:
        playback.texts.add(ts, event.heard_text, event.estimated)
    if event.audio_ms is not None:
        playback.audio.add(ts, event.audio_ms, event.estimated)
    if event.total_audio_ms is not None:
        playback.totals.add(ts, event.total_audio_ms)
    if event.done:
        playback.ends.add(ts, 0)
    if event.words:
        playback.words.extend(TimedWord(ts, word.start_ms, word.end_ms, word.text) for word in event.words)
    return turn


def oldest_unheard(state: State) -> tuple[Turn | None, Reply | None]:
    """The oldest reply neither heard to its end nor interrupted, if any.

    All turns before `state.first_unheard_turn` have none. This function moves that mark on, so that a long call is not
    searched from its start by every event (rule 11).
    """
    for number in state.turn_numbers[bisect_left(state.turn_numbers, state.first_unheard_turn) :]:
        turn = state.turns[number]
        state.first_unheard_turn = number
        for heard in heard_replies(turn):
            if not heard.interruptions and not heard.reply.restored and not was_heard_to_end(heard.evidence, AFTER_ALL):
                return turn, heard.reply
    return None, None


ReplyPosition = tuple[int, int, int]
"""The position of a reply in the call, comparable: turn, begin, order."""


def reply_position(turn: Turn, reply: Reply) -> ReplyPosition:
    return turn.number, reply.begin, reply.order


def recent_turns(state: State) -> list[Turn]:
    """The turns whose replies may still play: the newest turn with a final, and those after it (rule 5)."""
    return [state.turns[number] for number in state.turn_numbers[bisect_left(state.turn_numbers, state.final_turn) :]]


def latest_played(state: State) -> ReplyPosition:
    """The latest reply with playback among those that may still play; earlier replies then no longer play (rule 5)."""
    for turn in reversed(recent_turns(state)):
        for heard in reversed(heard_replies(turn)):
            if has_progress(heard.evidence):
                return reply_position(turn, heard.reply)
    return BEFORE_ALL, 0, 0


def is_playing(state: State, turn: Turn, heard: HeardReply, latest: ReplyPosition) -> bool:
    """Whether the reply still plays, for unnamed interrupts and the close (rule 5).

    Without any playback event it plays until `llm.done`, for producers that report none.
    """
    if heard.interruptions or heard.reply.restored or was_heard_to_end(heard.evidence, AFTER_ALL):
        return False
    if turn.number < state.final_turn or reply_position(turn, heard.reply) < latest:
        return False
    return has_progress(heard.evidence) or not heard.evidence.complete


def oldest_playing(state: State) -> tuple[Turn | None, Reply | None]:
    """The reply that an unnamed interrupt cuts: playback is in order, so the oldest is what the user hears."""
    latest = latest_played(state)
    for turn in recent_turns(state):
        for heard in heard_replies(turn):
            if is_playing(state, turn, heard, latest):
                return turn, heard.reply
    return None, None


def fold_interrupt(state: State, event: Interrupt, ts: int) -> Turn | None:
    interruption = Interruption(
        ts,
        state.position,
        event.heard_text,
        event.heard_chars,
        event.audio_end_ms,
        event.estimated,
        metadata=event.metadata,
        cause=event.cause,
    )
    turn, reply = find_named(state, event)
    if turn is None and reply is None:
        turn, reply = oldest_playing(state)
    if reply is not None:
        reply.interruptions = append_item(reply.interruptions, interruption)
    elif turn is not None:
        turn.interruptions = append_item(turn.interruptions, interruption)
    return turn


def fold_resume(state: State, event: Resume, ts: int) -> Turn | None:
    turn, reply = find_named(state, event)
    if turn is None and reply is None:
        turn, reply = newest_interrupted(state)
    if turn is not None:
        state.first_unheard_turn = min(state.first_unheard_turn, turn.number)
    if reply is not None:
        reply.resumes = append_item(reply.resumes, ts)
    elif turn is not None:
        turn.resumes = append_item(turn.resumes, ts)
    return turn


def newest_interrupted(state: State) -> tuple[Turn | None, Reply | None]:
    for number in reversed(state.turn_numbers):
        turn = state.turns[number]
        for heard in reversed(heard_replies(turn)):
            if heard.interruptions:
                return turn, heard.reply
    return None, None


def fold_close(state: State, event: SessionClosed, ts: int) -> None:
    """Cut the replies that are still being generated or are known to play (rule 8).

    A finished reply without playback is not cut: it may have been heard. Partials are kept on reading.
    """
    if state.closed_ts is not None:
        return
    state.closed_ts = ts
    state.dirty_turns.update(state.turns)
    latest = latest_played(state)
    for turn in state.turns.values():
        for heard in heard_replies(turn):
            evidence = heard.evidence
            playing = has_progress(evidence) and is_playing(state, turn, heard, latest)
            if not heard.interruptions and not heard.reply.restored and (playing or not evidence.complete):
                heard.reply.interruptions = append_item(
                    heard.reply.interruptions, Interruption(ts, state.position, closing=True, cause=event.reason)
                )


def fold_reopen(state: State, event: SessionReopened, ts: int) -> None:
    """Undo the close: remove the interruptions that it made."""
    state.closed_ts = None
    state.dirty_turns.update(state.turns)
    for turn in state.turns.values():
        for reply in turn.replies:
            reply.interruptions = [
                interruption for interruption in reply.interruptions or () if not interruption.closing
            ] or None
