"""The user's messages in what a model gets: in the turn under way they are as the program passed them on.

Frameworks join transcripts in their own way, and programs mask or edit them, so texts do not show which message of the
memory holds what a message of the framework's does. Times do: it holds what was reported since the one before it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from voicemem.protocol.types import JsonObject

MOST = 64
"""How many of the framework's newest messages are looked at."""


class UserMessage(NamedTuple):
    """A message of the framework's in the role of the user, whose words were reported after `since`, and by `until`."""

    message: Any
    since: float
    until: float


def typed(message: Any, at: float) -> UserMessage:
    """A message that came whole, at one time."""
    return UserMessage(message, round(at) - 1, round(at))


def as_passed_on(
    known: Sequence[JsonObject], user_messages: Sequence[UserMessage], first: int
) -> tuple[list[JsonObject | Any], list[Any]]:
    """Return the memory with the framework's messages from `first` on in their places, and those without a place.

    `known` are messages with their fields, in OpenAI's form; `user_messages` are in the framework's order.
    """
    first, user_messages = max(0, first - max(0, len(user_messages) - MOST)), user_messages[-MOST:]
    places: dict[int, list[int]] = {}
    heard = -1
    for at, message in enumerate(known):
        if message["role"] == "assistant" and message.get("content"):
            heard = at
        elif (owner := owner_of(message, user_messages)) is not None:
            places.setdefault(owner, []).append(at)
    before = next((owner for owner in range(first - 1, -1, -1) if owner in places), None)
    if first < len(user_messages) and first not in places and before is not None and places[before][-1] > heard:
        if places[before][0] > heard:  # one message of the memory has the words of both
            first = before
        else:  # it began before the one before it was complete
            places[first] = [places[before].pop()]
    put: dict[int, list[Any]] = {}
    place = len(known)
    for owner in range(first, len(user_messages)):
        if owner in places:
            place = places[owner][-1]
        elif place < heard:
            place = len(known)
        put.setdefault(place, []).append(user_messages[owner].message)
    replaced = {at for owner in places if owner >= first for at in places[owner]}
    made: list[Any] = []
    for at, message in enumerate(known):
        if at not in replaced:
            made.append(message)
        made += put.get(at, ())
    return made, put.get(len(known), [])


def owner_of(message: JsonObject, user_messages: Sequence[UserMessage]) -> int | None:
    """Return which of the framework's messages one of the memory belongs to: the one of the shortest time that fits."""
    at = message.get("timestamp")
    if message["role"] != "user" or at is None:
        return None
    fitting = [number for number, one in enumerate(user_messages) if one.since < at <= one.until]
    return max(fitting, key=lambda number: user_messages[number].since, default=None)
