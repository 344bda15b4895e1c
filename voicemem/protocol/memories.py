"""Types of long-term memories: their kinds, their evidence, and the times that they name."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
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


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(text: str) -> int:
    """Return the Unix ms of an ISO 8601 instant, or of the start of a day. Raises `ValueError` if it does not exist."""
    if re.match(TIME_PATTERN, text) is None:
        raise ValueError("no time")
    time = datetime.fromisoformat(text)
    return (time.replace(tzinfo=time.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)


def date_of(days: int) -> date:
    """The date of a number of days since 1970-01-01; the nearest in the years 1 to 9999."""
    return date.fromordinal(min(max(EPOCH.toordinal() + days, 1), date.max.toordinal()))


def normalised(text: str) -> str:
    """Return the common form of texts that have the same words."""
    return " ".join(text.casefold().split()).rstrip(" .!。！")
