"""What was known at the arrival of an event that does not name its turn or its reply (rules 2, 5 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .call import Call, makes_a_message
from .interruptions import begins_again, is_cut, newest_interrupted, oldest_playing, oldest_unheard
from .rows import ABOUT_A_REPLY, GENERATION, REGISTERING, TRACES, Event, Key, PlainRow, read_event, without_repeats
from .speech import continued, has_final, is_late_partial, key_of, segments_of


def events_of(rows: Sequence[PlainRow]) -> list[Event]:
    """The events of a journal, each with what was known when it arrived."""
    events: list[Event] = []
    for row in without_repeats(rows):
        event = read_event(row, events)
        event = replace(event, turn=turn_of(event, events))
        late = event.type == "asr" and is_late_partial(segments_of(events, event.turn or 0), event)
        moved = continued(events, event) if event.type == "asr" and not late else None
        event = replace(event, arrived_turn=event.turn, utterance=utterance_after(event, events))
        if moved is not None:
            places = {one.position for one in moved.taken}
            events = [replace(one, turn=event.turn) if one.position in places else one for one in events]
        if event.type == "asr" and not late:
            event = replace(event, again=begins_again(events, event))
        events.append(replace(event, reply=reply_of(event, events)))
        if event.unnamed and makes_a_message(event) and events[-1].reply is None:
            events[-1] = replace(event, reply=("heard", event.position))
    return events


def turn_of(event: Event, before: Sequence[Event]) -> int | None:
    """Events: an item stays in the turn where it began; else the turn is named, or inferred."""
    known = turn_of_item(event.item, before)
    if known is not None and (event.type in REGISTERING or makes_a_message(event)):
        return known
    if "turn_id" in event.fields:
        return int(event.fields["turn_id"])
    if event.type == "asr":
        return turn_of_speech(event, before)
    if event.type == "message" and event.fields["role"] == "user":
        return next_turn(before)
    if event.type in TRACES:
        return turn_of_trace(event, before)
    if event.type in GENERATION or event.type == "message":
        return turn_of_reply(event, before)
    return newest_utterance(before) or 0 if makes_a_message(event) else None


def turn_of_item(item: str | None, before: Sequence[Event]) -> int | None:
    """Events: the turn where an item began."""
    return next((one.turn for one in before if item is not None and one.item == item and one.type in REGISTERING), None)


def next_turn(before: Sequence[Event]) -> int:
    """Events: a new user utterance takes the next turn; the first is 1."""
    numbering = (*REGISTERING, *TRACES)
    return 1 + max((one.arrived_turn or 0 for one in before if one.type in numbering), default=0)


def newest_utterance(before: Sequence[Event]) -> int | None:
    """Events: the turn of the utterance that began last: the first speech of a turn, or a typed message."""
    return before[-1].utterance if before else None


def utterance_after(event: Event, before: Sequence[Event]) -> int | None:
    """Events: the turn of the utterance that began last, once this event has come."""
    typed = event.type == "message" and event.fields["role"] == "user"
    if typed or (event.type == "asr" and event.turn is not None and not segments_of(before, event.turn)):
        return event.turn
    return newest_utterance(before)


def turn_of_speech(event: Event, before: Sequence[Event]) -> int:
    """Events: an utterance is new once the one before it has a final and its turn a reply or a tool call."""
    turn = newest_utterance(before)
    if turn is None:
        return next_turn(before)
    if key_of(event) is None and is_late_partial(segments_of(before, turn), event):
        return turn
    is_over = has_final(before, turn) and (has_reply(before, turn) or has_tool_call(before, turn))
    return next_turn(before) if is_over else turn


def has_tool_call(before: Sequence[Event], turn: int) -> bool:
    """Events: whether a tool was called in a turn, or answered there before its call came."""
    called: set[object] = set()
    for one in before:
        id = one.fields.get("call_id")
        if one.type == "tool.call":
            called.add(id)
        if one.turn == turn and (one.type == "tool.call" or (one.type == "tool.result" and id not in called)):
            return True
    return False


def has_reply(before: Sequence[Event], turn: int) -> bool:
    """Events: whether a turn has a reply; one that was cancelled ends no utterance."""
    call = Call(before)
    began = any(one.type in GENERATION and one.turn == turn and one.reply not in call.cancelled for one in before)
    return began or any(one.turn == turn for one in call.replies)


def turn_of_trace(event: Event, before: Sequence[Event]) -> int:
    """Events: a trace takes the turn of the newest reply, a tool call that of a later utterance with a final."""
    replies, spoken = Call(before).replies, newest_utterance(before) or 0
    turn = replies[-1].turn if replies else spoken
    return max(turn, spoken) if event.type != "metric" and has_final(before, spoken) else turn


def turn_of_reply(event: Event, before: Sequence[Event]) -> int:
    """Events: a new reply takes the turn of the utterance before it, turn 0 before any utterance."""
    going_on = open_unnamed(before) if event.type in GENERATION and event.item is None else None
    if going_on is not None:
        return next(one.turn for one in before if one.reply == going_on and one.turn is not None)
    return newest_utterance(before) or 0


def reply_of(event: Event, before: Sequence[Event]) -> Key | None:
    """Rules 2 and 5: the reply that an `llm.*` event makes, or that an unnamed event is about."""
    if event.type in GENERATION:
        return key_of_error(event, before) if event.type == "llm.error" else key_of_reply(event, before)
    if event.type not in ABOUT_A_REPLY or not event.unnamed:
        return None
    find = {"interrupt": oldest_playing, "tts": oldest_unheard, "resume": newest_interrupted}[event.type]
    reply = find(Call(before))
    return reply.key if reply else None


def key_of_reply(event: Event, before: Sequence[Event]) -> Key:
    """Rule 2: by item; without one, by turn; with neither, all up to a done or interruption."""
    if event.item is not None:
        return "item", event.item
    if "turn_id" in event.fields:
        return "turn", event.turn
    return open_unnamed(before) or ("unnamed", event.position)


def open_unnamed(before: Sequence[Event]) -> Key | None:
    """Rule 2: the unnamed reply that goes on: the last one, unless a done, an interruption or a cancel ended it."""
    keys = [one.reply for one in before if one.type in GENERATION and one.reply and one.reply[0] == "unnamed"]
    newest = max(keys, key=lambda key: str(key[1]).zfill(12), default=None)
    return newest if newest and is_open(before, newest) else None


def is_open(before: Sequence[Event], key: Key) -> bool:
    """Rule 2: whether an unnamed reply goes on: until its done, its interruption, or its cancel."""
    call = Call(before)
    interrupted = any(one.key == key and is_cut(call, one) for one in call.replies)
    return is_generating(before, key) and not interrupted


def is_generating(before: Sequence[Event], key: Key) -> bool:
    """Rule 9: whether a reply has no end yet; one that was cancelled has."""
    ended = any(one.reply == key and one.type in ("llm.done", "llm.error") for one in before)
    return not ended and key not in Call(before).cancelled


def key_of_error(event: Event, before: Sequence[Event]) -> Key:
    """Rule 9: an error without an item closes its turn's open reply that carries none, else its newest open one."""
    own = key_of_reply(event, before)
    made = dict.fromkeys(one.reply for one in before if one.type in GENERATION and one.reply)
    opened = sorted((key for key in made if is_generating(before, key)), key=lambda key: begin_of(before, key))
    if event.item is not None or own in opened:
        return own
    in_turn = [key for key in opened if turn_of_key(before, key) == event.turn]
    going_on = [key for key in in_turn if key == open_unnamed(before)]
    others = in_turn or ([key for key in opened if event.unnamed])
    return (going_on or others or [own])[-1]


def turn_of_key(before: Sequence[Event], key: Key) -> int | None:
    """Events: the turn where a reply began."""
    return next(one.turn for one in before if one.reply == key and one.type in GENERATION)


def begin_of(before: Sequence[Event], key: Key) -> tuple[int, int, int]:
    """Rule 7: by turn, then by the earliest `ts`; of two that began at once, the first to arrive comes first."""
    mine = [one for one in before if one.reply == key and one.type in GENERATION]
    return mine[0].turn or 0, min(one.ts for one in mine), mine[0].position
