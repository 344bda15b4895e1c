"""How exports write texts and times: what people say must not break, hide or reorder what stands around it."""

import re

from voicemem.protocol.memories import civil_date

REORDERING = "\u202a-\u202e\u2066-\u2069"
"""Embeddings, overrides and isolates of bidirectional text: an open one reorders what follows. Marks are kept."""
HIDDEN = re.compile(f"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f{REORDERING}\ufeff]")
"""These, and control characters that are no white space."""


FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which dates in text can name; what lies beyond is shown as the nearest of them."""
DAY_S = 86_400


def one_line(text: str) -> str:
    """The text on one line, without control characters, and without those that reorder text."""
    return " ".join(without_hidden(text).split())


def without_hidden(text: str) -> str:
    """The text without these characters; its lines stay."""
    return HIDDEN.sub("", text)


def date_time(ms: int) -> str:
    """`2026-11-23T12:00:00.000Z` (RFC 3339)."""
    day, clock = date_and_clock(ms)
    return f"{day}T{clock}.{min(max(ms, FIRST_MS), LAST_MS) % 1000:03}Z"


def date_and_clock(ms: int) -> tuple[str, str]:
    """The date and the time of day, in UTC."""
    days, second = divmod(min(max(ms, FIRST_MS), LAST_MS) // 1000, DAY_S)
    year, month, day = civil_date(days)
    return f"{year:04}-{month:02}-{day:02}", f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def cue_time(ms: int, point: str) -> str:
    """`00:00:04.100`, since the beginning of the call; `point` stands before the milliseconds."""
    second, rest = divmod(ms, 1000)
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{point}{rest:03}"


def length(ms: int) -> str:
    """`0:48`, or `1:02:03`."""
    second = ms // 1000
    hours = f"{second // 3600}:{second // 60 % 60:02}" if second >= 3600 else f"{second // 60}"
    return f"{hours}:{second % 60:02}"
