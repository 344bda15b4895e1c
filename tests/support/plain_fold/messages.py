"""The messages of a call (rules 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .arrival import events_of
from .call import Call
from .heard import heard_of
from .interruptions import is_cut_by_close, is_noise, marking_interrupts
from .replies import FAILURE, ONLY_HEARD, Reply
from .rows import Event, Json, PlainRow
from .speech import Segment, in_order, joined, segments_of

OWN_KEYS = ("interrupted", "interrupt_timestamp", "original", "source", "user", "heard", "partial")
Placed = tuple[tuple[int, bool, int, int], Json]
"""A message behind its place: turn, whether it is the agent's, begin, arrival."""


def plain_messages(rows: Sequence[PlainRow], unfinished: bool = False) -> list[Json]:
    """Rule 7: all messages by turn, in a turn the user first, then by begin, then by arrival."""
    call = Call(events_of(rows))
    placed = [*spoken(call, unfinished), *typed(call), *replied(call, unfinished)]
    return [message for _, message in sorted(placed, key=lambda one: one[0])]


def message_of(role: str, content: str, turn: int, ts: int, own: Json, rest: Json) -> Json:
    """Messages: the order of keys in a message and its metadata."""
    known = {name: own[name] for name in OWN_KEYS if own.get(name) is not None}
    other = {name: value for name, value in rest.items() if name not in OWN_KEYS}
    return {"role": role, "content": content, "turn_id": turn, "timestamp": ts, "metadata": known | other}


def merged(events: Iterable[Event]) -> Json:
    """Rule 3: of one key the last value; keys stand in the order of their arrival."""
    given = list(events)
    values: dict[str, Any] = {}
    for one in given:
        values |= one.metadata
    names = dict.fromkeys(name for one in sorted(given, key=lambda one: one.position) for name in one.metadata)
    return {name: values[name] for name in names}


def spoken(call: Call, unfinished: bool) -> list[Placed]:
    """Rule 1: one `asr` message per turn and user."""
    turns = dict.fromkeys(one.turn for one in call.events if one.type == "asr")
    messages = []
    for turn in turns:
        assert turn is not None
        segments = segments_of(call.events, turn)
        for user in dict.fromkeys(one.user for one in segments):
            mine = [one for one in segments if one.user == user]
            messages += spoken_by(call, mine, turn, unfinished)
    return messages


def spoken_by(call: Call, segments: list[Segment], turn: int, unfinished: bool) -> list[Placed]:
    """Rule 1: what a user said in a turn, from the first final segment on."""
    closed = call.close is not None
    shown = [one for one in segments if one.shown(closed, unfinished) and not is_noise(call, one)]
    if not shown:
        return []
    events = sorted((event for one in shown for event in one.events), key=lambda event: event.position)
    own = {"source": "asr", "user": shown[0].user, "partial": any(one.is_partial(closed) for one in shown) or None}
    content = joined([one.shown(closed, unfinished) for one in in_order(shown)])
    begin = min(one.ts for one in events)
    place = (turn, False, begin, min(one.place for one in shown))
    return [(place, message_of("user", content, turn, begin, own, merged(events)))]


def typed(call: Call) -> list[Placed]:
    """Events: the user's whole messages."""
    messages = []
    for one in call.events:
        if one.type == "message" and one.fields["role"] == "user" and one.turn is not None and one.text:
            own = one.metadata | {"source": one.fields["source"]}
            own |= {"user": one.fields["user"]} if "user" in one.fields else {}
            place = (one.turn, False, one.ts, one.position)
            messages.append((place, message_of("user", one.text, one.turn, one.ts, own, one.metadata)))
    return messages


def replied(call: Call, unfinished: bool) -> list[Placed]:
    """Rule 2: replies enter the history with `llm.done`, an interruption, or the end of the session."""
    messages = []
    for reply in call.replies:
        marking = marking_interrupts(call, reply)
        entered = bool(marking) or (reply.kind != ONLY_HEARD and (reply.finished or unfinished or bool(call.close)))
        if entered:
            place = (reply.turn, True, reply.begin, reply.events[0].position)
            messages.append((place, message_of_reply(call, reply, marking)))
    return messages


def message_of_reply(call: Call, reply: Reply, marking: list[Event]) -> Json:
    """Rules 3 and 8: the message of a reply, cut where an interrupt or the close cut it."""
    carried = reply.events[0].metadata if reply.events[0].type == "message" else {}
    own: Json = {**carried, "source": reply.source}
    content = reply.text
    if marking or is_cut_by_close(call, reply):
        assert marking or call.close
        content, heard = heard_of(call, reply)
        ts = min(one.ts for one in marking) if marking else call.close.ts if call.close else None
        own |= {"interrupted": True, "interrupt_timestamp": ts, "original": reply.text, "heard": heard}
    rest = merged([*own_events(reply), *call.about(reply, "tts"), *marking])
    return message_of("assistant", content, reply.turn, reply.begin, own, rest)


def own_events(reply: Reply) -> list[Event]:
    """Rule 9: the metadata of an error with text goes to the failure message, not to the reply that it closes."""
    if reply.kind == ONLY_HEARD:
        return []
    return [one for one in reply.events if reply.kind == FAILURE or not (one.type == "llm.error" and one.text)]
