"""Types of long-term memories: their kinds, their evidence, and the times that they name."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voicemem.protocol.types import Name, Natural, SequenceNumber, SessionId, matching

GivenKind = Literal["fact", "preference", "episode", "summary"]
"""The kinds of memories that were written, unlike heard messages."""
MemorySource = Literal["extracted", "api", "tool"]
RemovalReason = Literal["deleted", "forgotten", "expired", "replaced"]
MAX_MEMORY_BYTES = 1_000
"""The most bytes of a memory's text as UTF-8."""
MAX_TOPICS = 16
MAX_SUPERSEDED = 16
MAX_EVIDENCE = 64
"""The most sources of one memory; of more, the newest are kept."""
TOPIC_PATTERN = r"^[^,\x00-\x1f\x7f-\x9f]{1,64}\Z"
DAY_PATTERN = "([0-9]{4})-([01][0-9])-([0-3][0-9])"
CLOCK_PATTERN = r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?"
OFFSET_PATTERN = "(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))?"
TIME_PATTERN = rf"^{DAY_PATTERN}(?:[T ]{CLOCK_PATTERN}{OFFSET_PATTERN})?\Z"
DIGEST_PATTERN = r"^[0-9a-f]{64}\Z"
Topic = Annotated[
    str, matching(TOPIC_PATTERN, "A topic or an entity is 1 to 64 characters without commas and control characters")
]
Topics = Annotated[tuple[Topic, ...], Meta(max_length=MAX_TOPICS)]
EventTime = Annotated[
    str, matching(TIME_PATTERN, "A time is a day such as 2026-05-03, or an instant such as 2026-05-03T14:30:00Z")
]
"""An ISO 8601 day or instant; without an offset, UTC."""
Digest = Annotated[str, matching(DIGEST_PATTERN, "A digest is 64 hexadecimal digits in lower case")]
Confidence = Annotated[float, Meta(ge=0, le=1)]
MemoryIds = Annotated[tuple[Name, ...], Meta(max_length=MAX_SUPERSEDED)]


class Evidence(Struct, frozen=True, omit_defaults=True):
    """The source of a memory: a session's messages; the first and the last began at these positions."""

    session_id: SessionId
    first: SequenceNumber
    last: SequenceNumber
    turn_ids: tuple[Natural, ...]
    evidence: Literal["expired"] | None = None
    """`expired` if the session was erased and the memory was kept."""


Evidences = Annotated[tuple[Evidence, ...], Meta(max_length=MAX_EVIDENCE)]
OUTCOME, MAX_OUTCOME = "outcome", 160
"""The field of an analysis that call lists filter by, and how many of its characters count."""


class ShownBy(Struct, frozen=True):
    """Words of a message that prove a value; the message began at `position` in the journal."""

    turn_id: Natural
    position: SequenceNumber
    role: Literal["user", "assistant"]
    words: str


class AnalysedValue(Struct, frozen=True):
    """A value that was extracted from a call, and the messages that prove it."""

    value: Any
    shown_by: tuple[ShownBy, ...]


Analysis = dict[str, AnalysedValue]
"""By the field names of the operator's schema."""


def outcome_of(analysis: Mapping[str, AnalysedValue]) -> str | None:
    """Return the outcome as a text for filters; None without one, and for one that is an object or a list."""
    value = analysis[OUTCOME].value if OUTCOME in analysis else None
    if value is None or isinstance(value, dict | list):
        return None
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:MAX_OUTCOME]


def time_ms(text: str) -> int:
    """Return the Unix ms of an ISO 8601 instant, or of the start of a day. Raises `ValueError` if it does not exist."""
    match = re.match(TIME_PATTERN, text)
    if match is None:
        raise ValueError("no time")
    year, month, day, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:6])
    if not (year and 1 <= month <= 12 and 1 <= day <= days_in(month, year)):
        raise ValueError("no such day")
    whole = ((days_before(year, month) + day - 1) * 24 + hours) * 60 + minutes
    sign, offset_hours, offset_minutes = match.groups()[7:]
    offset = int(offset_hours or 0) * 60 + int(offset_minutes or 0)
    whole += offset if sign == "-" else -offset
    return (whole * 60 + seconds) * 1000 + int(((match[7] or "") + "000")[:3])


def days_in(month: int, year: int) -> int:
    return days_before(year + month // 12, month % 12 + 1) - days_before(year, month)


def days_before(year: int, month: int) -> int:
    """Return the days from 1970 to the first of a month, counted in years that begin in March."""
    years = year - (month < 3)
    return years * 365 + years // 4 - years // 100 + years // 400 + (153 * ((month + 9) % 12) + 2) // 5 - 719_468


def civil_date(days: int) -> tuple[int, int, int]:
    """Return the year, month and day of a number of days since 1970-01-01, counted in years that begin in March."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def normalised(text: str) -> str:
    """Return the common form of texts that have the same words."""
    return " ".join(text.casefold().split()).rstrip(" .!。！")
