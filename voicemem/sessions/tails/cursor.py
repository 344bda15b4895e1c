"""Cursors of live tails: the place that a reader has reached, as a text with which it resumes there.

A place begins with the store's incarnation, since positions in another one mean nothing. In one session the key and the
position follow: `INCARNATION.KEY-POSITION`. In several it is the key up to which all sessions are known, then a pair
for each session that is being followed, and the keys of others above that are known:
`INCARNATION.KEY_KEY-POSITION_KEY`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import NamedTuple

from voicemem.errors import Refused

KEY_POSITION = r"\d{1,16}-\d{1,16}"
SESSION_CURSOR = re.compile(rf"([0-9a-f]{{1,64}})\.({KEY_POSITION})\Z", re.ASCII)
SEVERAL_CURSOR = re.compile(rf"([0-9a-f]{{1,64}})\.(\d{{1,16}})((?:_{KEY_POSITION}|_\d{{1,16}})*)\Z", re.ASCII)


class SeveralCursor(NamedTuple):
    """A place in several sessions.

    `floor` is the key up to which all of them are known, `positions` has those followed, `seen` other known ones above.
    """

    floor: int
    positions: dict[int, int]
    seen: Sequence[int] = ()


def format_session_cursor(incarnation: str, key: int, position: int) -> str:
    return f"{incarnation}.{key}-{position}"


def parse_session_cursor(incarnation: str, key: int, cursor: str) -> int:
    """The position in a place of this session. Raises `Refused` (`invalid_position`, `other_incarnation`)."""
    place_key, position = parse_pair(match_cursor(SESSION_CURSOR, incarnation, cursor)[2])
    if place_key != key:
        raise Refused("invalid_position", "The position belongs to another session.")
    return position


def format_several_cursor(incarnation: str, cursor: SeveralCursor) -> str:
    return join_pairs(incarnation, cursor.floor, starmap(format_pair, cursor.positions.items()), cursor.seen)


def format_pair(key: int, position: int) -> str:
    """A followed session in a place of several."""
    return f"_{key}-{position}"


def join_pairs(incarnation: str, floor: int, pairs: Iterable[str], seen: Sequence[int]) -> str:
    """A place in several sessions, with their pairs as `format_pair` makes them."""
    return f"{incarnation}.{floor}{''.join(pairs)}{''.join(f'_{key}' for key in seen)}"


def parse_several_cursor(incarnation: str, cursor: str) -> SeveralCursor:
    """The place in a text of `format_several_cursor`. Raises `Refused` (`invalid_position`, `other_incarnation`)."""
    match = match_cursor(SEVERAL_CURSOR, incarnation, cursor)
    parts = match[3].split("_")[1:]
    positions = dict(parse_pair(part) for part in parts if "-" in part)
    return SeveralCursor(int(match[2]), positions, tuple(int(part) for part in parts if "-" not in part))


def match_cursor(form: re.Pattern[str], incarnation: str, cursor: str) -> re.Match[str]:
    match = form.match(cursor)
    if match is None:
        raise Refused("invalid_position")
    if match[1] != incarnation:
        raise Refused("other_incarnation")
    return match


def parse_pair(text: str) -> tuple[int, int]:
    key, _, position = text.partition("-")
    return int(key), int(position)
