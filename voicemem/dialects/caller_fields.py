"""The callers that frames of other stacks name, and the numbers of a call's parties; none of these is kept.

The fields that `reduce` keeps name no one; `CallerFields` reads the caller from the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from voicemem.protocol.telephone import MIN_DIGITS, digits_in, digits_of, is_number
from voicemem.protocol.types import JsonObject

CALLER = "~caller"
"""The field in which a frame carries its message's caller fields until it is reduced."""
PARTY = re.compile(
    r"phone|caller|callee|mobile|msisdn|whatsapp|(?:customer|external|agent|called|from|to).?number"
    r"|(?:^|[._-])(?:ani|dnis|tel|from|to|sip)(?:[._-]|$)",
    re.IGNORECASE,
)
"""Names of fields and variables with a party's number."""
MAX_DEPTH, MAX_TEXT, MAX_NUMBERS, MAX_VALUES = 8, 64 * 1024, 64, 2_000


class Caller(NamedTuple):
    """A caller: the vendor's id of the user, the number, and the digits of all numbers of the call's parties."""

    user: str | None = None
    number: str | None = None
    numbers: tuple[str, ...] = ()


class CallerFields:
    """The fields in which a dialect's frames name the caller: paths, with slashes between names.

    `called` has the number in outbound calls (`direction` begins with "out"); `parties` are values that may contain
    numbers anywhere. `within` is a field that may hold the whole frame. `names_user` returns whether the `user` of a
    frame is a person rather than the agent.
    """

    def __init__(
        self,
        user: str = "",
        number: str = "",
        called: str = "",
        direction: str = "",
        parties: str = "",
        within: str = "",
        names_user: Callable[[JsonObject], bool] = lambda frame: True,
    ) -> None:
        self.user, self.number, self.called = user.split(), number.split(), called.split()
        self.direction, self.parties = direction.split(), parties.split()
        self.within, self.names_user = within, names_user
        paths = (*self.user, *self.number, *self.called, *self.direction, *self.parties)
        self.paths = {path: path.split("/") for path in paths}
        self.first_names = {names[0] for names in self.paths.values()}

    def read(self, frame: Any) -> Caller | None:
        """Return the caller that a frame or a whole message names; None if it names none."""
        return self.caller_of(self.pick(frame))

    def pick(self, frame: Any) -> JsonObject:
        """Return a frame's caller fields by their paths; those that it carries, if any."""
        if not isinstance(frame, dict):
            return {}
        carried = frame.get(CALLER)
        if isinstance(carried, dict):
            return carried
        inside = frame.get(self.within)
        frame = inside if isinstance(inside, dict) else frame
        if self.first_names.isdisjoint(frame) or not self.names_user(frame):
            return {}
        values = ((path, value_at(frame, names)) for path, names in self.paths.items())
        return {path: value for path, value in values if value is not None}

    def caller_of(self, picked: JsonObject) -> Caller | None:
        user = next(texts_of(picked, self.user), None)
        is_outbound = any(one.casefold().startswith("out") for one in texts_of(picked, self.direction))
        number = next(texts_of(picked, self.called if is_outbound else self.number), None)
        named = texts_of(picked, (*self.number, *self.called))
        parties = (one for path in self.parties for one in numbers_in(picked.get(path), path.rpartition("/")[2]))
        candidates = [*named, *parties]
        if user is not None and is_number(user):
            number = number or user
            candidates.insert(0, user)
        numbers = digits_of_all(candidates)
        if user is not None and any(one in digits_in(user) for one in numbers):
            user = None
        return Caller(user, number, numbers) if user or number or numbers else None


def value_at(holder: Any, names: Iterable[str]) -> Any:
    """Return the value at a path of objects; None if there is none."""
    for name in names:
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder


def texts_of(picked: JsonObject, paths: Iterable[str]) -> Iterator[str]:
    """Yield the ids and numbers among picked fields."""
    return filter(None, (text_of(picked.get(path)) for path in paths))


def text_of(value: Any) -> str | None:
    """Return an id or a number as a text; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip() or None if isinstance(value, str) and len(value) <= MAX_TEXT else None


def numbers_in(value: Any, name: str = "") -> Iterator[str]:
    """Yield the texts among a value's first values that are telephone numbers, or whose names mean a party's number."""
    for key, item in islice(values_in(value, name), MAX_VALUES):
        text = text_of(item)
        if text is not None and (is_number(text) or PARTY.search(key)):
            yield text


def values_in(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield a value and the values in it, each with its name."""
    yield name, value
    if isinstance(value, dict | list) and depth < MAX_DEPTH:
        for key, item in value.items() if isinstance(value, dict) else ((name, one) for one in value):
            yield from values_in(item, key, depth + 1)


def digits_of_all(numbers: Iterable[str]) -> tuple[str, ...]:
    """Return the digits of the numbers among texts, without duplicates."""
    digits = map(digits_of, islice(numbers, MAX_NUMBERS))
    return tuple(dict.fromkeys(one for one in digits if len(one) >= MIN_DIGITS))


def carry(picked: JsonObject, frames: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield the frames of a message; the first one carries the message's caller fields."""
    for frame in frames:
        yield frame | {CALLER: picked} if picked else frame
        picked = {}
