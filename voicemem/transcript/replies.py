"""The fold of replies: which one an event is about, and what it adds to it (design, section 4, rules 2 and 9).

An event with neither item nor turn is assigned by the flow of the call (end of section 3).
"""

from __future__ import annotations

from voicemem.protocol.events import LlmDelta, LlmDone, LlmError, MessageEvent
from voicemem.transcript.history import heard_replies
from voicemem.transcript.state import Failure, Reply, State, Turn, TypedMessage, append_item


def fold_delta(state: State, event: LlmDelta, ts: int) -> Turn:
    turn, reply = find_reply(state, event, ts)
    if event.whole:
        reply.generation.add_whole(ts, event.text)
    else:
        reply.generation.deltas.extend(ts, event.text)
    if event.metadata:
        reply.metadata |= event.metadata
    return turn


def fold_llm_end(state: State, event: LlmDone | LlmError, ts: int) -> Turn:
    turn, reply = find_reply(state, event, ts)
    about = reply
    if isinstance(event, LlmDone):
        reply.generation.finish(ts, event.text)
    else:
        reply.generation.finish(ts, None)
        turn.failures = append_item(turn.failures, Failure(ts, event.code))
        if event.text:
            about = begin_whole(state, turn, None, ts, event.text, "llm_failure")
    if event.metadata:
        about.metadata |= event.metadata
    return turn


def find_reply(state: State, event: LlmDelta | LlmDone | LlmError, ts: int) -> tuple[Turn, Reply]:
    """The reply that an `llm.*` event is about, which its first event begins.

    By item, else by turn, else by the flow (section 3; rule 2). A reply that came whole is never grown by later
    events. An error without item may be about a reply with one: it closes the newest that is open (rule 9).
    """
    if event.item is not None:
        number = state.items.get(event.item, event.turn_id)
        turn = state.turn(state.utterance_turn if number is None else number)
        reply = turn.reply(event.item)
    elif event.turn_id is not None:
        turn = state.turn(event.turn_id)
        reply = next((r for r in reversed(turn.replies) if r.item is None and not r.whole), None)
        if reply is None and isinstance(event, LlmError):
            reply = next((r for r in reversed(turn.replies) if not r.generation.complete), None)
    else:
        turn, reply = find_flowing_reply(state)
    if turn.number < state.first_unheard_turn:
        state.first_unheard_turn = turn.number
    if reply is None:
        state.newest_reply = (turn.number, state.position)
        return turn, begin_reply(state, turn, None, event.item, ts)
    if ts < reply.begin:
        reply.begin = ts
    return turn, reply


def find_flowing_reply(state: State) -> tuple[Turn, Reply | None]:
    """Without item and turn: the reply that began last, until its `llm.done` or an interruption (rule 2)."""
    if state.newest_reply is not None:
        number, order = state.newest_reply
        turn = state.turns[number]
        reply = next((reply for reply in turn.replies if reply.order == order), None)
        if reply is not None and not reply.generation.complete and not is_interrupted(turn, reply):
            return turn, reply
    return state.turn(state.utterance_turn), None


def is_interrupted(turn: Turn, reply: Reply) -> bool:
    """Whether an interruption of the reply counts; most replies have none, which the first lines see cheaply."""
    if not reply.interruptions and not turn.interruptions:
        return False
    return any(heard.reply is reply and heard.interruptions for heard in heard_replies(turn))


def begin_reply(state: State, turn: Turn, reply: Reply | None, item: str | None, ts: int) -> Reply:
    """The reply; a new one, or one that waited for its beginning, is put into its turn."""
    if reply is None:
        reply = (state.unplaced.pop(item, None) if item is not None else None) or Reply(state.position, item)
        reply.order = state.position
        turn.replies.append(reply)
        if item is not None:
            state.items[item] = turn.number
        state.newest_turn = max(state.newest_turn, turn.number)
        state.first_unheard_turn = min(state.first_unheard_turn, turn.number)
    reply.begin = min(reply.begin, ts)
    return reply


def begin_whole(state: State, turn: Turn, item: str | None, ts: int, text: str, source: str) -> Reply:
    """A reply that arrived as a whole: an assistant message or a failure message."""
    known = None if item is None else turn.reply(item)
    reply = begin_reply(state, turn, known, item, ts)
    reply.generation.finish(ts, text)
    reply.source = source
    reply.whole = True
    return reply


def fold_message(state: State, event: MessageEvent, ts: int) -> Turn:
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
    typed = TypedMessage(state.position, ts, event.text, metadata | {"source": event.source})
    turn.typed = append_item(turn.typed, typed)
    return turn
