"""The fold of replies: the reply that each event is about, and its effect (docs/memory.md, rules 2, 3).

An `llm.*` event with neither item nor turn is assigned by the flow of the call. An event about playback, interruptions
or false alarms that names its item or turn is only stored, and its reply is found on reading, so that the order of
arrival does not matter; for one that names neither, the reply is found on arrival.
"""

from bisect import bisect_left, bisect_right, insort

from voicemem.protocol import events
from voicemem.transcript.gateway_matching import GATEWAY_PRODUCER, note_request
from voicemem.transcript.replies import playing
from voicemem.transcript.replies.evidence import Evidence, Generation, Playback
from voicemem.transcript.state import BOUND, Failure, Reply, State, Turn, TypedMessage, put
from voicemem.transcript.timeline import AFTER_ALL, common_metadata, merge_metadata

GenerationEvent = events.LlmDelta | events.LlmDone | events.LlmError


def fold_delta(state: State, event: events.LlmDelta, ts: int) -> Turn | None:
    """Add text to a reply. Most events of a call are plain deltas of a reply in progress, so these come first."""
    reply = find_reply(state, event) or begin_reply(state, event)
    if reply is None:
        return None
    generation = reply.generation
    is_plain = not (event.whole or event.metadata or event.agent)
    if is_plain and reply.shown and ts >= reply.begin and generation.ended_ts is None:
        generation.add(ts, event.text)
        if event.ts is not None and not reply.states_time:
            reply.states_time = True
        if ts < reply.text_ts and event.text:
            reply.text_ts = ts
        return state.turns[reply.turn]
    if event.whole:
        generation.add_whole(ts, event.text)
    else:
        generation.add(ts, event.text)
    return grow(state, reply, event, ts, event.text)


def fold_done(state: State, event: events.LlmDone, ts: int) -> Turn | None:
    reply = find_reply(state, event) or begin_reply(state, event)
    if reply is None:
        return None
    finish(state, reply, ts, event.text)
    return grow(state, reply, event, ts, event.text or "")


def fold_error(state: State, event: events.LlmError, ts: int) -> Turn | None:
    """Close the reply whose generation failed; the error's text, if any, is a message of its own (rule 9)."""
    reply = find_failed(state, event) or begin_reply(state, event)
    if reply is None:
        return None
    finish(state, reply, ts, None)
    turn = state.turns[reply.turn]
    turn.failure = Failure(ts, event.code)
    if not event.text:
        return grow(state, reply, event, ts, "")
    grow(state, reply, event, ts, "", with_metadata=False)
    if 2 * state.position + 1 in state.replies:
        return turn
    failure = Reply(2 * state.position + 1, turn.number, event.item, state.producer, "llm_failure")
    add_reply(state, turn, failure)
    if event.item is not None:
        note_failure(state, event.item, failure.id, ts)
    finish(state, failure, ts, event.text)
    return grow(state, failure, event, ts, event.text)


def finish(state: State, reply: Reply, ts: int, text: str | None) -> None:
    put(state.unfinished, reply.key, False)
    reply.generation.finish(ts, state.position, text)
    if reply.shown:
        state.touch(reply)


def grow(
    state: State,
    reply: Reply,
    event: GenerationEvent | events.MessageEvent,
    ts: int,
    text: str,
    with_metadata: bool = True,
) -> Turn:
    """Note what every event of a reply may add: an earlier beginning, text, and metadata."""
    if event.ts is not None:
        reply.states_time = True
    if ts < reply.begin:
        playing.begin_at(state, reply, ts)
    if text or reply.restored:
        reply.text_ts = min(reply.text_ts, ts)
        if not reply.shown:
            drop_heard_only(state, reply)
            playing.show(state, reply)
        elif reply.generation.complete:
            state.touch(reply)
    metadata = event.metadata if event.agent is None else {**(event.metadata or {}), "agent": event.agent}
    if metadata and with_metadata:
        reply.metadata = merge_metadata(reply.metadata, state.position, metadata)
    return state.turns[reply.turn]


def find_reply(state: State, event: GenerationEvent) -> Reply | None:
    """Return the reply that an `llm.*` event continues: by item, else by turn, else by the flow."""
    if event.item is not None:
        id = state.item_replies.get(event.item)
    elif event.turn_id is not None:
        turn = state.turns.get(event.turn_id)
        id = None if turn is None else turn.unnamed_item_reply
    else:
        return flowing_reply(state)
    return None if id is None else state.replies[id]


def flowing_reply(state: State) -> Reply | None:
    """Return the newest reply of events with neither item nor turn, until its done or an interruption (rule 2)."""
    reply = None if state.flowing_reply is None else state.replies[state.flowing_reply]
    if reply is None or reply.generation.complete or reply.cancelled:
        return None
    playing.settle(state)
    return None if reply.cut_ts is not None else reply


def find_failed(state: State, event: events.LlmError) -> Reply | None:
    """Return the reply that an error closes: without an item, the open one without one, else the newest open one."""
    reply = find_reply(state, event)
    if event.item is not None or (reply is not None and not reply.generation.complete):
        return reply
    number = state.utterance_turn if event.turn_id is None else event.turn_id
    flowing = flowing_reply(state)
    if flowing is not None and flowing.turn == number:
        return flowing
    place = bisect_left(state.unfinished, (number + 1,)) - 1
    if place >= 0 and state.unfinished[place][0] == number:
        return state.replies[state.unfinished[place][2]]
    return state.replies[state.unfinished[-1][2]] if event.turn_id is None and state.unfinished else reply


def begin_reply(state: State, event: GenerationEvent) -> Reply | None:
    """Begin a reply in the turn that the event names, else in that of the last utterance; None beyond the bound."""
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    turn = state.turn(state.utterance_turn if number is None else number)
    reply = make_reply(state, turn, event.item)
    if reply is None:
        return None
    if event.item is None and event.turn_id is not None:
        turn.unnamed_item_reply = reply.id
    elif event.item is None:
        state.flowing_reply = reply.id
    insort(state.unfinished, reply.key)
    return reply


def make_reply(state: State, turn: Turn, item: str | None) -> Reply | None:
    """Add a reply to a turn, known by its item if it has one; None beyond the bound."""
    if len(turn.replies or ()) >= BOUND or 2 * state.position in state.replies:  # a frame begins one at most
        state.ignore("replies")
        return None
    reply = Reply(2 * state.position, turn.number, item, state.producer)
    if item is not None:
        state.items[item] = turn.number
        state.item_replies[item] = reply.id
    add_reply(state, turn, reply)
    return reply


def add_reply(state: State, turn: Turn, reply: Reply) -> None:
    state.replies[reply.id] = reply
    turn.replies = state.append(turn.replies, reply.id)
    if reply.producer == GATEWAY_PRODUCER:
        state.answers[reply.id] = None
    turn.standing += 1
    state.newest_turn = max(state.newest_turn, turn.number)


def note_failure(state: State, item: str, id: int, ts: int) -> None:
    """Note a failure message, which its item means from its time on."""
    failures = state.item_failures.setdefault(item, [])
    place = bisect_left(failures, (ts, id))
    failures.insert(place, (ts, id))
    before = failures[place - 1][1] if place else state.item_replies.get(item)
    if before is not None:
        state.touch(state.replies[before])


def fold_message(state: State, event: events.MessageEvent, ts: int) -> Turn | None:
    """Add a whole message: a reply that comes at once, or a typed message of the user."""
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    metadata = dict(event.metadata or {})
    if event.user is not None:
        metadata["user"] = event.user
    if event.role == "assistant":
        return fold_whole_reply(state, event, ts, state.turn(state.utterance_turn if number is None else number))
    turn = state.turn(state.newest_turn + 1 if number is None else number)
    if len(turn.typed or ()) >= BOUND:
        state.ignore("segments")
        return None
    if event.item is not None:
        state.items[event.item] = turn.number
    state.newest_turn = max(state.newest_turn, turn.number)
    state.utterance_turn = turn.number
    metadata = metadata | {"source": event.source}
    typed = TypedMessage(state.position, ts, event.text, common_metadata(metadata) or metadata)
    turn.typed = state.append(turn.typed, typed)
    if state.producer == GATEWAY_PRODUCER:
        note_request(state, turn)
    return turn


def fold_whole_reply(state: State, event: events.MessageEvent, ts: int, turn: Turn) -> Turn | None:
    known = None if event.item is None else state.item_replies.get(event.item)
    reply = None if known is None else state.replies[known]
    if reply is None:
        reply = make_reply(state, turn, event.item)
    if reply is None:
        return None
    reply.source = event.source
    reply.restored = bool((event.metadata or {}).get("interrupted"))
    finish(state, reply, ts, event.text)
    return grow(state, reply, event, ts, event.text)


def drop_heard_only(state: State, reply: Reply) -> None:
    """Remove replies that only an interruption named, now that the reply itself has come."""
    turn = state.turns[reply.turn]
    by_item = None if reply.item is None else state.heard_only_items.pop(reply.item, None)
    for id in (by_item, turn.heard_only_reply):
        if id is not None:
            known = state.replies[id]
            playing.leave(state, known)
            known.shown = False
            state.turns[known.turn].standing -= 1
            state.remake(known)
    turn.heard_only_reply = None


# Playback, interruptions and false alarms


def named_evidence(
    state: State, event: events.Tts | events.Interrupt | events.Resume | events.LlmCancel
) -> Evidence | None:
    """Return the evidence of the item or turn that an event names; None if it names neither."""
    if event.item is not None:
        evidence = state.item_evidence.get(event.item)
        if evidence is None:
            id = state.item_replies.get(event.item)
            item = event.item if id is None else state.replies[id].item or event.item  # the same object for equal names
            evidence = state.item_evidence[item] = Evidence()
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


def touch_named(
    state: State, event: events.Tts | events.Interrupt | events.Resume | events.LlmCancel, ts: int
) -> Turn | None:
    """Note new evidence for the reply that an event names. Return the turn that may have changed."""
    if event.item is not None:
        reply = playing.reply_of_item(state, event.item, ts)
        if reply is None:
            return None
        number = reply.turn
        if not state.has_cancels:  # almost every event; the caller marks the turn as changed
            state.stale.add(reply.id)
            reply.changes += 1
            return state.turns[number]
    else:
        assert event.turn_id is not None
        number = event.turn_id
        key = playing.key_at(playing.standing_keys(state), number, ts)
        reply = None if key is None else state.replies[key[2]]
    if reply is not None:
        state.touch(reply)
    if state.has_cancels:
        # Decide again whether the reply that the event would mean if none were cancelled is cancelled.
        if event.item is None:
            key = playing.key_at(state.begun, number, ts)
            reply = None if key is None else state.replies[key[2]]
        if reply is not None:
            playing.update_cancelled(state, reply)
    return state.turns[number]


def fold_tts(state: State, event: events.Tts, ts: int) -> Turn | None:
    item, reply = event.item, None
    evidence = None if item is None else state.item_evidence.get(item)
    evidence = evidence or named_evidence(state, event)
    if evidence is None:
        playing.settle(state)
        if not state.unheard:
            return None
        reply = state.replies[state.unheard[0][2]]
        evidence = own_evidence(reply)
    if event.words:
        if len(event.words) + evidence.word_count > BOUND:
            state.ignore("words")
            return None
        evidence.word_count += len(event.words)
    if evidence.playback is None:
        evidence.playback = Playback()
    evidence.playback.add(event, ts, state.position)
    return touch_named(state, event, ts) if reply is None else touch_own(state, reply)


def touch_own(state: State, reply: Reply) -> Turn:
    state.touch(reply)
    if state.has_cancels:
        playing.update_cancelled(state, reply)
    return state.turns[reply.turn]


def oldest_playing(state: State) -> Reply | None:
    """Return the reply that an unnamed interrupt cuts: the user hears the oldest one, since playback is in order.

    Playback of a later reply, or a final of a later turn, ends the playback of those before.
    """
    playing.settle(state)
    place = bisect_left(state.playable, playing.playing_since(state))
    return state.replies[state.playable[place][2]] if place < len(state.playable) else None


def fold_interrupt(state: State, event: events.Interrupt, ts: int) -> Turn | None:
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
    return touch_own(state, reply)


def begin_heard_only(state: State, event: events.Interrupt, ts: int) -> Reply | None:
    """Make a reply from an interruption with heard text, if nothing else is known about the reply that it cuts."""
    if not (event.more and event.heard_text):
        return None
    number = event.turn_id if event.item is None else state.items.get(event.item, event.turn_id)
    turn = state.turn(state.utterance_turn if number is None else number)
    id = None if event.turn_id is None else turn.heard_only_reply
    if event.item is not None:
        id = state.heard_only_items.get(event.item)
    reply = None if id is None else state.replies[id]
    if reply is None:
        if is_known(state, event, turn, ts) or len(turn.replies or ()) >= BOUND or 2 * state.position in state.replies:
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
        playing.begin_at(state, reply, ts)
    if not reply.shown:
        playing.show(state, reply)
    return reply


def is_known(state: State, event: events.Interrupt, turn: Turn, ts: int) -> bool:
    """Return whether the named reply has begun."""
    if event.item is not None:
        return playing.reply_of_item(state, event.item, ts) is not None
    return event.turn_id is not None and playing.key_at(state.begun, turn.number, ts) is not None


def fold_resume(state: State, event: events.Resume, ts: int) -> Turn | None:
    evidence = named_evidence(state, event)
    if evidence is None:
        playing.settle(state)
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
        reply = playing.reply_of_item(state, event.item, ts)
    elif event.turn_id is not None:
        reply = playing.interrupted_by(state, state.turns[event.turn_id], ts)
    if reply is None:
        return None
    state.touch(reply)
    return state.turns[reply.turn]


def fold_cancel(state: State, event: events.LlmCancel, ts: int) -> Turn | None:
    """Cancel a reply that was discarded before any of it was played."""
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
    playing.update_cancelled(state, state.replies[id])
    return state.turns[state.replies[id].turn]
