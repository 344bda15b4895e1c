"""The fold of playback: what plays, what was interrupted, and the close (design, section 4, rules 3 to 5 and 8).

What names its item or turn is only kept, for reading to find the reply; what names neither is about the reply that it
is about now.
"""

from __future__ import annotations

from bisect import bisect_left

from voicemem.protocol.events import Interrupt, Resume, SessionClosed, SessionReopened, Tts
from voicemem.transcript.heard import Cut, Playback, TimedWord, has_progress, heard_to_end
from voicemem.transcript.history import Told, told_replies
from voicemem.transcript.state import Reply, State, Turn, added
from voicemem.transcript.timeline import ALWAYS, NEVER


def named(state: State, event: Tts | Interrupt | Resume) -> tuple[Turn | None, Reply | None]:
    """The reply that an event names by its item, or the turn that it names; (None, None) when it names neither."""
    if event.item is not None:
        number = state.items.get(event.item)
        turn = None if number is None else state.turns.get(number)
        reply = None if turn is None else turn.reply(event.item)
        if reply is None:
            return None, state.unplaced.setdefault(event.item, Reply(state.position, event.item))
        return turn, reply
    return (None, None) if event.turn_id is None else (state.turn(event.turn_id), None)


def fold_tts(state: State, event: Tts, ts: int) -> Turn | None:
    turn, reply = named(state, event)
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
    """The oldest reply neither heard to its end nor interrupted; all turns before `unheard_from` have none."""
    for number in state.numbers[bisect_left(state.numbers, state.unheard_from) :]:
        turn = state.turns[number]
        state.unheard_from = number
        for told in told_replies(turn):
            if not told.cuts and not told.reply.restored and not heard_to_end(told.spoken, NEVER):
                return turn, told.reply
    return None, None


Place = tuple[int, int, int]
"""Where a reply stands in the call: turn, begin, order."""


def place(turn: Turn, reply: Reply) -> Place:
    return turn.number, reply.begin, reply.order


def recent_turns(state: State) -> list[Turn]:
    """The turns whose replies may still play: none before the newest turn with a final."""
    return [state.turns[number] for number in state.numbers[bisect_left(state.numbers, state.final_turn) :]]


def latest_played(state: State) -> Place:
    """The latest reply that was played, of those that may still play: earlier ones no longer do."""
    for turn in reversed(recent_turns(state)):
        for told in reversed(told_replies(turn)):
            if has_progress(told.spoken):
                return place(turn, told.reply)
    return ALWAYS, 0, 0


def is_playing(state: State, turn: Turn, told: Told, latest: Place) -> bool:
    """Whether the reply still plays; without any playback event it does until `llm.done`."""
    if told.cuts or told.reply.restored or heard_to_end(told.spoken, NEVER):
        return False
    if turn.number < state.final_turn or place(turn, told.reply) < latest:
        return False
    return has_progress(told.spoken) or not told.spoken.complete


def oldest_playing(state: State) -> tuple[Turn | None, Reply | None]:
    latest = latest_played(state)
    for turn in recent_turns(state):
        for told in told_replies(turn):
            if is_playing(state, turn, told, latest):
                return turn, told.reply
    return None, None


def fold_interrupt(state: State, event: Interrupt, ts: int) -> Turn | None:
    cut = Cut(
        ts,
        state.position,
        event.heard_text,
        event.heard_chars,
        event.audio_end_ms,
        event.estimated,
        metadata=event.metadata,
        cause=event.cause,
    )
    turn, reply = named(state, event)
    if turn is None and reply is None:
        turn, reply = oldest_playing(state)
    if reply is not None:
        reply.cuts = added(reply.cuts, cut)
    elif turn is not None:
        turn.cuts = added(turn.cuts, cut)
    return turn


def fold_resume(state: State, event: Resume, ts: int) -> Turn | None:
    turn, reply = named(state, event)
    if turn is None and reply is None:
        turn, reply = newest_interrupted(state)
    if turn is not None:
        state.unheard_from = min(state.unheard_from, turn.number)
    if reply is not None:
        reply.resumes = added(reply.resumes, ts)
    elif turn is not None:
        turn.resumes = added(turn.resumes, ts)
    return turn


def newest_interrupted(state: State) -> tuple[Turn | None, Reply | None]:
    for number in reversed(state.numbers):
        turn = state.turns[number]
        for told in reversed(told_replies(turn)):
            if told.cuts:
                return turn, told.reply
    return None, None


def fold_close(state: State, event: SessionClosed, ts: int) -> None:
    """Cut what is still being generated or known to be still playing; partials are kept on reading."""
    if state.closed_ts is not None:
        return
    state.closed_ts = ts
    state.dirty.update(state.turns)
    latest = latest_played(state)
    for turn in state.turns.values():
        for told in told_replies(turn):
            spoken = told.spoken
            playing = has_progress(spoken) and is_playing(state, turn, told, latest)
            if not told.cuts and not told.reply.restored and (playing or not spoken.complete):
                told.reply.cuts = added(told.reply.cuts, Cut(ts, state.position, closing=True, cause=event.reason))


def fold_reopen(state: State, event: SessionReopened, ts: int) -> None:
    """Undo the close."""
    state.closed_ts = None
    state.dirty.update(state.turns)
    for turn in state.turns.values():
        for reply in turn.replies:
            reply.cuts = [cut for cut in reply.cuts or () if not cut.closing] or None
