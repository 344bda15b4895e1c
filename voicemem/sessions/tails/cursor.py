"""Where a live tail stands, as a text that its reader gives back to go on there.

A place names the store's incarnation, since positions of another one mean nothing here. Of one session it goes on with
its key and a position, `INCARNATION.KEY-POSITION`. Of several, with the key up to which sessions were looked at and a
pair for each that is being followed: `INCARNATION.KEY_KEY-POSITION_KEY-POSITION`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from voicemem.errors import Refused

PAIR = r"\d{1,16}-\d{1,16}"
ONE = re.compile(rf"([0-9a-f]{{1,64}})\.({PAIR})\Z", re.ASCII)
SEVERAL = re.compile(rf"([0-9a-f]{{1,64}})\.(\d{{1,16}})((?:_{PAIR})*)\Z", re.ASCII)


class Several(NamedTuple):
    """A place among several sessions: positions by key."""

    frontier: int
    positions: dict[int, int]


def write_one(incarnation: str, key: int, position: int) -> str:
    return f"{incarnation}.{key}-{position}"


def read_one(incarnation: str, key: int, place: str) -> int:
    """The position in a place of this session. Raises `Refused`."""
    found, position = pair_of(checked(ONE, incarnation, place)[2])
    if found != key:
        raise Refused("invalid_position", "The position is of another session.")
    return position


def write_several(incarnation: str, place: Several) -> str:
    pairs = "".join(f"_{key}-{position}" for key, position in place.positions.items())
    return f"{incarnation}.{place.frontier}{pairs}"


def read_several(incarnation: str, place: str) -> Several:
    """The place that was written. Raises `Refused`."""
    match = checked(SEVERAL, incarnation, place)
    return Several(int(match[2]), dict(map(pair_of, match[3].split("_")[1:])))


def checked(form: re.Pattern[str], incarnation: str, place: str) -> re.Match[str]:
    match = form.match(place)
    if match is None:
        raise Refused("invalid_position")
    if match[1] != incarnation:
        raise Refused("other_incarnation")
    return match


def pair_of(text: str) -> tuple[int, int]:
    key, _, position = text.partition("-")
    return int(key), int(position)
