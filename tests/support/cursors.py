"""Places of tails of several sessions, as texts."""

from __future__ import annotations

from itertools import starmap

from voicemem.sessions.tails.tail import SeveralCursor, format_pair, join_pairs


def format_several_cursor(incarnation: str, cursor: SeveralCursor) -> str:
    return join_pairs(incarnation, cursor.floor, starmap(format_pair, cursor.positions.items()), cursor.seen)
