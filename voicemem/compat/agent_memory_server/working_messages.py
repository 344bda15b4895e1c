"""Conversion of a client's messages to session events and back, and the change that a PUT makes to a message list.

A PUT replaces a list of messages, and does not say which list it was made from. But clients send back `last_accessed`
exactly as they read it, even in `append`. So a read encodes a marker in that time: the ms are the time of the read, and
the microseconds are the last three digits of its journal position. A client's own time hardly ever matches.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, convert, to_builtins

from voicemem.compat.agent_memory_server import records as forms
from voicemem.errors import Refused
from voicemem.memory.add_and_forget import begins_of, forget_all_but_newest
from voicemem.memory.working_memory import check_data_size
from voicemem.protocol.comparison import HIDDEN, is_same_value
from voicemem.protocol.events import MemoryData, MemorySummary, MessageEvent, ServerEvent
from voicemem.protocol.types import JsonObject
from voicemem.redaction.texts import Rules, redact_value
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.history import turn_entries
from voicemem.transcript.messages import OF_CLIENT, Message
from voicemem.transcript.state import State

DIGITS = 1000
SLACK_MS = 60_000
"""An entry gets its time before reads can see it, and nodes' clocks differ: a read may have a later time than an entry
that it did not see."""
SOURCES: dict[str, Any] = {"user": "message", "assistant": "llm"}
"""By role; messages of any other role are the application's."""
MAX_ID = 256
KEPT_DATA = "agent_memory"
"""The key in a session's data for fields that voicemem has no place for."""


def encode_read_marker(now_ms: int, last_received_ms: int, position: int) -> datetime:
    """Return the `last_accessed` of a read at a position; not before the entries that it has seen."""
    return forms.from_ms(max(now_ms, last_received_ms)) + timedelta(microseconds=position % DIGITS)


def possible_positions(stamped: datetime, position: int) -> range:
    """Return the positions up to `position` that a marker may mean, the newest first."""
    newest = position - (position - stamped.microsecond % DIGITS) % DIGITS
    return range(newest, -1, -DIGITS)


def may_be_read_at(stamped: datetime, received_ms: int, next_received_ms: int | None) -> bool:
    """Return whether a marker may be from a read that saw an entry, but not the next one."""
    ms = forms.to_ms(stamped)
    return received_ms <= ms and (next_received_ms is None or ms <= next_received_ms + SLACK_MS)


class Kept(Struct, frozen=True, omit_defaults=True):
    """The fields of a message that are kept in its metadata: the client's id, exact times, and any other role."""

    id: str | None = None
    role: str | None = None
    created_at: str | None = None
    persisted_at: str | None = None
    extracted: forms.Flag = "f"


class ListedMessage(NamedTuple):
    """A message of the current list."""

    view: forms.MessageView
    was_put: bool = True


class Change(NamedTuple):
    """The effect of a PUT on the current list: the first `forget` messages go, then these are added."""

    forget: int
    add: Sequence[forms.GivenMessage]


# Reading


def listed_messages(messages: Iterable[Message]) -> list[ListedMessage]:
    """Return the list for a client. A message of a call has the id `TURN.NUMBER`, with its index in the turn."""
    listed = []
    for turn, several in groupby(messages, key=attrgetter("turn_id")):
        for number, message in enumerate(several):
            kept = kept_of(message)
            view = forms.MessageView(
                role=kept.role or message.role,
                content=message.content,
                id=kept.id or f"{turn}.{number}",
                created_at=forms.shown(kept.created_at) or forms.format_ms(message.timestamp),
                persisted_at=forms.shown(kept.persisted_at),
                discrete_memory_extracted=kept.extracted,
            )
            listed.append(ListedMessage(view, OF_CLIENT in message.metadata))
    return listed


def kept_of(message: Message) -> Kept:
    value = message.metadata.get(OF_CLIENT)
    return convert(value, Kept) if isinstance(value, dict) else Kept()


# Comparing


def change_of(
    current: Sequence[ListedMessage], messages: Sequence[forms.GivenMessage], seen: int | None, blurred: bool = False
) -> Change:
    """Return the change that a PUT makes. `seen` is how many current messages its sender has read, if known.

    Messages the sender has not read are kept. `blurred`: the stored messages were redacted, so an equal role and id are
    a match.
    """
    if starts_with(messages, current, blurred):
        return Change(0, messages[len(current) :])
    if seen is not None and seen < len(current):
        known, unread = current[:seen], {one.view.id for one in current[seen:]}
        begins_with_known = starts_with(messages, known, blurred)
        rest = messages[seen:] if begins_with_known else messages
        return Change(0 if begins_with_known else seen, [one for one in rest if one.id not in unread])
    places = (place for place, one in enumerate(current) if messages and is_same(one.view, messages[0], blurred))
    for first in islice(places, 16):  # where in the current list the given list may begin
        if starts_with(messages, current[first:], blurred):
            return Change(first, messages[len(current) - first :])
    return Change(len(current), messages)


def starts_with(messages: Sequence[forms.GivenMessage], known: Sequence[ListedMessage], blurred: bool) -> bool:
    return len(messages) >= len(known) and all(
        is_same(a.view, b, blurred) for a, b in zip(known, messages, strict=False)
    )


def is_same(one: forms.MessageView, other: forms.GivenMessage, blurred: bool) -> bool:
    if one.role != other.role:
        return False
    if other.id not in (None, one.id):  # digits of an id may be hidden too
        hidden = HIDDEN in one.id and is_same_value(one.id, other.id, redacted=True)
        return blurred and hidden and is_same_value(one.content, other.content, redacted=True)
    return one.content == other.content or (blurred and other.id is not None)


# Writing


def check_messages(messages: Iterable[forms.GivenMessage], now_ms: int) -> None:
    """Raise `Refused` (`invalid_field`) for messages without content, or from the future."""
    for message in messages:
        if message.id is not None and not 1 <= len(message.id) <= MAX_ID:
            raise Refused("invalid_field", f"The id of a message is 1 to {MAX_ID} characters.")
        if not message.content.strip():
            raise Refused("invalid_field", f"Message content cannot be empty (message ID: {message.id}).")
        if message.created_at is not None:
            created = forms.parse_time(message.created_at, "created_at")
            if forms.to_ms(created) > now_ms + forms.FUTURE_MS:
                raise Refused("invalid_field", "`created_at` cannot be more than 300 seconds in the future.")
        forms.iso(message.persisted_at, "persisted_at")


def events_of(
    state: State, messages: Sequence[forms.GivenMessage], now_ms: int, new_id: Callable[[], str], fresh: bool
) -> list[MessageEvent]:
    """Return the events that add messages, in the given order, whatever their times; `fresh` puts them in new turns.

    Each message of the user begins a turn, which includes the messages after it. Turn 0 stays free in a session that
    begins with these, for a summary of earlier messages.
    """
    turn = max(state.newest_turn, 0)
    latest = None if turn not in state.turns else max(begins_of(state, state.turns[turn]), default=None)
    events = []
    for message in messages:
        if fresh or message.role == "user" or turn == 0:
            turn, latest, fresh = turn + 1, None, False
        created = None if message.created_at is None else forms.parse_time(message.created_at, "created_at")
        ts = now_ms if created is None else forms.to_ms(created)
        latest = ts if latest is None else max(ts, latest)
        role: Literal["user", "assistant"] = "user" if message.role == "user" else "assistant"
        exact = None if created is None else forms.format_time(created)
        kept = Kept(
            id=message.id or new_id(),
            role=None if message.role in SOURCES else message.role,
            created_at=None if exact == forms.format_ms(latest) else exact,
            persisted_at=forms.iso(message.persisted_at, "persisted_at"),
            extracted=message.discrete_memory_extracted,
        )
        events.append(
            MessageEvent(
                role=role,
                text=message.content,
                source=SOURCES.get(message.role, "command"),
                turn_id=turn,
                ts=latest,
                item=f"{OF_CLIENT}.{new_id()}",
                metadata={OF_CLIENT: to_builtins(kept)},
            )
        )
    return events


class KeptData(Struct, frozen=True, omit_defaults=True):
    """Fields of a working memory that have no place in a session; they are kept in its data, under `KEPT_DATA`."""

    memories: tuple[str, ...] = ()
    tokens: int = 0
    strategy: forms.StrategyConfig = forms.StrategyConfig()
    context: str | None = None
    """The summary, if the session's first turn leaves no room for one before it."""


class SessionView(NamedTuple):
    """A session at a journal position, as clients see it."""

    position: int
    messages: list[ListedMessage]
    hidden: int
    """The number of remembered messages that the summary replaces."""
    through: int
    """The last turn that the summary covers; -1 without one."""
    context: str | None
    data: JsonObject
    kept: KeptData


def session_view_of(read_model: ReadModel) -> SessionView:
    remembered, summary = read_model.remembered_messages(), read_model.state.summary
    through = -1 if summary is None else summary.through_turn
    hidden = bisect_right(remembered, through, key=attrgetter("turn_id"))
    data = dict(read_model.state.data)
    try:
        kept = msgspec.convert(data.pop(KEPT_DATA, None), KeptData)
    except msgspec.ValidationError:  # a client has put something else there
        kept = KeptData()
    context = (None if summary is None else summary.text) or kept.context
    return SessionView(read_model.position, listed_messages(remembered[hidden:]), hidden, through, context, data, kept)


def remembered_positions(read_model: ReadModel) -> list[int]:
    read_model.refresh()
    entries = (
        entry
        for number in read_model.state.turn_numbers
        for entry in turn_entries(read_model.state, read_model.state.turns[number])
    )
    orders = [entry.position for entry in entries]
    return [orders[index] for index in read_model.remembered_indexes()]


def forgotten_event(read_model: ReadModel, view: SessionView, change: Change) -> ServerEvent | None:
    if not change.forget:
        return None
    keep = len(read_model.remembered_indexes()) - view.hidden - change.forget
    return forget_all_but_newest(read_model, keep, everything=False)


def summary_event(read_model: ReadModel, body: forms.GivenWorkingMemory) -> ServerEvent | None:
    """Return the event for the client's `context`: a summary of the conversation before the first message."""
    summary = read_model.state.summary
    if (body.context or "") == ("" if summary is None else summary.text):
        return None
    through = summary_turn(read_model)
    if through is None:
        return None
    covered = bisect_right(read_model.current_messages(), through, key=attrgetter("turn_id"))
    return MemorySummary(through_turn=through, text=body.context or "", messages=covered)


def summary_turn(read_model: ReadModel) -> int | None:
    """Return the last turn that a summary can cover without hiding a message; None if there is none."""
    remembered, summary = read_model.remembered_messages(), read_model.state.summary
    through = -1 if summary is None else summary.through_turn
    first = bisect_right(remembered, through, key=attrgetter("turn_id"))
    if first < len(remembered):
        through = max(through, remembered[first].turn_id - 1)
    else:
        through = max(through, read_model.state.newest_turn, 0)
    return through if through >= 0 else None


def data_event(read_model: ReadModel, body: forms.GivenWorkingMemory, rules: Rules | None) -> ServerEvent | None:
    kept = KeptData(
        memories=tuple(dict.fromkeys(record.id or "" for record in body.memories)),
        tokens=body.tokens,
        strategy=body.long_term_memory_strategy,
        context=body.context if summary_turn(read_model) is None else None,
    )
    data: JsonObject = body.data or {}
    if rules is not None:
        data = redact_value(data, rules)
    if kept != KeptData():
        data = data | {KEPT_DATA: msgspec.json.decode(msgspec.json.encode(kept))}
    if data == read_model.state.data:
        return None
    check_data_size(data)
    return MemoryData(operation="replace", content=data)
