"""From events to what a reader sees."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tests.support.events import EventLike
from voicemem.protocol.codec import DecodedEvent, decode_event, decode_journaled
from voicemem.protocol.events import JournaledEvent, SessionClosed, SessionReopened
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.state import State


def closed(ts: int) -> SessionClosed:
    """The server's close."""
    return SessionClosed(ts=ts, reason="test")


def reopened() -> SessionReopened:
    """The server's reopening."""
    return SessionReopened()


def journaled(given: EventLike) -> JournaledEvent:
    """An event as the journal has it: checked on the way in, and decoded from what was stored."""
    if not isinstance(given, dict):
        return given
    arrived = decode_event(msgspec.json.encode(given))
    assert isinstance(arrived, DecodedEvent), arrived
    return decode_journaled(arrived.payload)


def entries(given: Iterable[EventLike]) -> list[DecodedRow]:
    """A journal of these events."""
    return [DecodedRow(position, position * 1000, journaled(one)) for position, one in enumerate(given, 1)]


def folded(*given: EventLike) -> State:
    """The state after these events."""
    return fold_all(State(), entries(given))


def message_dicts(state: State, unfinished: bool = False) -> list[JsonObject]:
    """The memory of a state as it is written to JSON."""
    return [msgspec.to_builtins(one) for one in messages(state, unfinished)]


def messages_after(*given: EventLike, unfinished: bool = False) -> list[JsonObject]:
    """The memory after these events."""
    return message_dicts(folded(*given), unfinished)


def texts(*given: EventLike, unfinished: bool = False) -> list[str]:
    """What the messages after these events say."""
    return [one["content"] for one in messages_after(*given, unfinished=unfinished)]


def only_message(*given: EventLike, unfinished: bool = False) -> JsonObject:
    """The one message after these events."""
    (single,) = messages_after(*given, unfinished=unfinished)
    return single


def heard_text_of(*given: EventLike) -> tuple[str, str | None]:
    """What was heard of the one message, an interrupted reply, and how that was found."""
    single = only_message(*given)
    assert single["metadata"]["interrupted"] is True
    return single["content"], single["metadata"].get("heard")
