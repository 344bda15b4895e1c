"""The fold: a journal, event by event, becomes the state of a call (design, section 4).

`fold(state, entry)` takes the state over and returns it: a caller that needs the old one keeps a snapshot. Nothing
that a producer can send makes it raise, and no event costs more the longer the call has become.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple, assert_never

from voicemem.events import (
    Asr,
    Interrupt,
    Journaled,
    LlmDelta,
    LlmDone,
    LlmError,
    Metric,
    RefusedEvent,
    Resume,
    SessionClosed,
    SessionEnd,
    SessionGap,
    SessionReopened,
    SessionUpdate,
    ToolCall,
    ToolResult,
    Tts,
    Whole,
)
from voicemem.heard import Cut, TimedWord, has_progress, heard_to_end
from voicemem.history import Told, told_replies
from voicemem.series import NEVER
from voicemem.speech import fold_asr
from voicemem.state import Failure, Latency, Reply, State, Trace, Turn, Typed


class Entry(NamedTuple):
    """One row of a journal, decoded. `received_ms` (Unix ms) stands in where the event has no `ts`."""

    position: int
    received_ms: int
    event: Journaled


def fold(state: State, entry: Entry) -> State:
    """The state after one more entry of its journal."""
    state.position = entry.position
    event = entry.event
    if event.id is not None:
        if event.id in state.ids:
            return state
        state.ids.add(event.id)
    ts = entry.received_ms if event.ts is None else event.ts
    changed = change(state, event, ts)
    state.dirty.update(turn.number for turn in changed if turn is not None)
    return state


def fold_all(state: State, entries: Iterable[Entry]) -> State:
    """The state after all of these entries."""
    for entry in entries:
        fold(state, entry)
    return state


def change(state: State, event: Journaled, ts: int) -> Iterable[Turn | None]:
    """Let one event change the state; the turns that it changed."""
    match event:
        case Asr():
            return [fold_asr(state, event, ts)]
        case LlmDelta() | LlmDone() | LlmError():
            return [fold_llm(state, event, ts)]
        case Tts():
            return [fold_tts(state, event, ts)]
        case Interrupt():
            return [fold_interrupt(state, event, ts)]
        case Resume():
            return [fold_resume(state, event, ts)]
        case Whole():
            return [fold_message(state, event, ts)]
        case ToolCall() | ToolResult() | Metric():
            return [fold_trace(state, event, ts)]
        case SessionClosed():
            return close(state, ts, event.reason)
        case SessionReopened():
            return reopen(state)
        case SessionUpdate() | SessionEnd() | SessionGap() | RefusedEvent():
            return []
        case _:
            assert_never(event)


# Replies: finding the one that an event is about (rule 2 and the end of section 3)


def fold_llm(state: State, event: LlmDelta | LlmDone | LlmError, ts: int) -> Turn:
    turn, reply = find_reply(state, event, ts)
    if event.metadata:
        reply.metadata |= event.metadata
    match event:
        case LlmDelta():
            reply.generation.add(ts, event.text, event.whole)
        case LlmDone():
            reply.generation.finish(ts, event.text)
        case LlmError():
            reply.generation.finish(ts, None)
            turn.failures.append(Failure(ts, event.code))
            if event.text:
                begin_whole(state, turn, None, ts, event.text, "llm_failure")
    return turn


def find_reply(state: State, event: LlmDelta | LlmDone | LlmError, ts: int) -> tuple[Turn, Reply]:
    """The reply that an `llm.*` event is about, begun by it when it is the first."""
    if event.item is not None:
        number = state.items.get(event.item, event.turn_id)
        turn = state.turn(state.utterance_turn if number is None else number)
        reply = next((r for r in turn.replies if r.item == event.item), None)
    elif event.turn_id is not None:
        turn = state.turn(event.turn_id)
        reply = next((r for r in reversed(turn.replies) if r.item is None and not r.whole), None)
        if reply is None and isinstance(event, LlmError):
            reply = next((r for r in reversed(turn.replies) if not r.generation.complete), None)
    else:
        turn, reply = find_flowing_reply(state)
    return turn, begin_reply(state, turn, reply, event.item, ts)


def find_flowing_reply(state: State) -> tuple[Turn, Reply | None]:
    """Without item and turn: the reply that began last, until its done or interruption."""
    if state.newest_reply is not None:
        number, order = state.newest_reply
        turn = state.turns[number]
        reply = next((reply for reply in turn.replies if reply.order == order), None)
        interrupted = any(told.reply is reply and told.cuts for told in told_replies(turn))
        if reply is not None and not reply.generation.complete and not interrupted:
            return turn, reply
    return state.turn(state.utterance_turn), None


def begin_reply(state: State, turn: Turn, reply: Reply | None, item: str | None, ts: int) -> Reply:
    """The reply, made and put into its turn when it is new."""
    if reply is None:
        reply = (state.unplaced.pop(item, None) if item is not None else None) or Reply(state.position, item)
        reply.order = state.position
        turn.replies.append(reply)
        if item is not None:
            state.items[item] = turn.number
        state.newest_turn = max(state.newest_turn, turn.number)
        state.unheard_from = min(state.unheard_from, turn.number)
        state.newest_reply = (turn.number, reply.order)
    reply.begin = min(reply.begin, ts)
    return reply


def begin_whole(state: State, turn: Turn, item: str | None, ts: int, text: str, source: str) -> Reply:
    """A reply that was generated whole (an assistant message, a failure message)."""
    known = next((r for r in turn.replies if item is not None and r.item == item), None)
    reply = begin_reply(state, turn, known, item, ts)
    reply.generation.finish(ts, text)
    reply.source = source
    reply.whole = True
    return reply


def fold_message(state: State, event: Whole, ts: int) -> Turn:
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    metadata = dict(event.metadata or {})
    if event.user is not None:
        metadata["user"] = event.user
    if event.role == "assistant":
        turn = state.turn(state.utterance_turn if number is None else number)
        reply = begin_whole(state, turn, event.item, ts, event.text, event.source)
        reply.metadata |= metadata
        reply.restored = bool(metadata.get("interrupted"))
        return turn
    turn = state.turn(state.newest_turn + 1 if number is None else number)
    if event.item is not None:
        state.items[event.item] = turn.number
    state.newest_turn = max(state.newest_turn, turn.number)
    state.utterance_turn = max(state.utterance_turn, turn.number)
    turn.typed.append(Typed(state.position, ts, event.text, metadata | {"source": event.source}))
    return turn


# Playback and interruptions (rules 3 to 5)


def named(state: State, event: Tts | Interrupt | Resume) -> tuple[Turn | None, Reply | None]:
    """The reply that an event names by its item, or the turn that it names; (None, None) when it names neither."""
    if event.item is not None:
        number = state.items.get(event.item)
        turn = None if number is None else state.turns.get(number)
        reply = next((r for r in turn.replies if r.item == event.item), None) if turn else None
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
    playback = reply.playback if reply is not None else turn.playback if turn is not None else None
    assert playback is not None
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
    playback.words.extend(TimedWord(ts, word.start_ms, word.end_ms, word.text) for word in event.words or ())
    if event.heard_text is not None or event.audio_ms is not None or event.done:
        note_played(state, turn, reply, ts)
    return turn


def note_played(state: State, turn: Turn | None, reply: Reply | None, ts: int) -> None:
    """Playback of a later reply ends the playing of the earlier ones."""
    if turn is None:
        return
    if reply is None:
        begun = [r for r in turn.replies if r.begin <= ts] or turn.replies[:1]
        reply = max(begun, key=lambda r: (r.begin, r.order), default=None)
    if reply is not None:
        state.played = max(state.played, (turn.number, reply.begin, reply.order))


def oldest_unheard(state: State) -> tuple[Turn | None, Reply | None]:
    """The oldest reply neither heard to its end nor interrupted; all turns before `unheard_from` have none."""
    for number in state.numbers[bisect_left(state.numbers, state.unheard_from) :]:
        turn = state.turns[number]
        state.unheard_from = number
        for told in told_replies(turn):
            if not told.cuts and not told.reply.restored and not heard_to_end(told.spoken, NEVER):
                return turn, told.reply
    return None, None


def is_playing(state: State, turn: Turn, told: Told) -> bool:
    """Whether the reply still plays; without any playback event it does until `llm.done`."""
    if told.cuts or told.reply.restored or heard_to_end(told.spoken, NEVER):
        return False
    if turn.number < state.final_turn or (turn.number, told.reply.begin, told.reply.order) < state.played:
        return False
    return has_progress(told.spoken) or not told.spoken.complete


def oldest_playing(state: State) -> tuple[Turn | None, Reply | None]:
    """The oldest reply still playing; none is in a turn before the newest final's or the latest played reply's."""
    since = max(state.final_turn, state.played[0])
    for number in state.numbers[bisect_left(state.numbers, since) :]:
        turn = state.turns[number]
        for told in told_replies(turn):
            if is_playing(state, turn, told):
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
        reply.cuts.append(cut)
    elif turn is not None:
        turn.cuts.append(cut)
    return turn


def fold_resume(state: State, event: Resume, ts: int) -> Turn | None:
    turn, reply = named(state, event)
    if turn is None and reply is None:
        turn, reply = newest_interrupted(state)
    if turn is not None:
        state.unheard_from = min(state.unheard_from, turn.number)
    if reply is not None:
        reply.resumes.append(ts)
    elif turn is not None:
        turn.resumes.append(ts)
    return turn


def newest_interrupted(state: State) -> tuple[Turn | None, Reply | None]:
    for number in reversed(state.numbers):
        turn = state.turns[number]
        for told in reversed(told_replies(turn)):
            if told.cuts:
                return turn, told.reply
    return None, None


# The close (rule 8), and what is no chat message (rule 10)


def close(state: State, ts: int, reason: str) -> Iterable[Turn]:
    """Cut what is still being generated or known to be still playing; partials are kept on reading."""
    if state.closed_ts is not None:
        return []
    state.closed_ts = ts
    for turn in state.turns.values():
        for told in told_replies(turn):
            spoken = told.spoken
            playing = has_progress(spoken) and is_playing(state, turn, told)
            if not told.cuts and not told.reply.restored and (playing or not spoken.complete):
                told.reply.cuts.append(Cut(ts, state.position, closing=True, cause=reason))
    return state.turns.values()


def reopen(state: State) -> Iterable[Turn]:
    """Undo the close."""
    state.closed_ts = None
    for turn in state.turns.values():
        for reply in turn.replies:
            reply.cuts = [cut for cut in reply.cuts if not cut.closing]
    return state.turns.values()


def fold_trace(state: State, event: ToolCall | ToolResult | Metric, ts: int) -> Turn:
    match event:
        case ToolCall():
            turn = state.turn(event.turn_id)
            call(state, turn, event, ts)
        case ToolResult():
            turn = state.turn(state.calls.get(event.call_id, event.turn_id))
            answer(state, turn, event, ts)
        case Metric():
            turn = state.turn(event.turn_id)
            turn.latencies.append(Latency(event.name, event.latency_ms, ts))
    return turn


def answer(state: State, turn: Turn, event: ToolResult, ts: int) -> None:
    """Put a result to its call; one that comes before its call waits for it."""
    trace = next((t for t in turn.traces if t.call_id == event.call_id), None)
    if trace is None:
        trace = Trace(state.position, ts, event.call_id)
        turn.traces.append(trace)
    trace.result = event.result
    trace.answered = True


def call(state: State, turn: Turn, event: ToolCall, ts: int) -> None:
    waiting = next((t for t in turn.traces if t.call_id == event.call_id and t.name is None), None)
    if waiting is None:
        waiting = Trace(state.position, ts, event.call_id)
        turn.traces.append(waiting)
    waiting.order, waiting.ts = state.position, ts
    waiting.name, waiting.arguments = event.name, event.arguments
    state.calls[event.call_id] = turn.number
