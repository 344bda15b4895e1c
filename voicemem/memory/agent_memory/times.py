"""Times as agent-memory-server has them: ISO 8601 in and out, UTC where no zone is given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from voicemem.errors import Refused
from voicemem.protocol.redacted import HIDDEN

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
FUTURE_MS = 300_000
"""How far the time of a message may lie ahead: clocks differ."""


def parse_time(value: str | float, field: str) -> datetime:
    """The moment that a text or a number of seconds means. Raises `Refused` (`invalid_field`) naming the field."""
    try:
        if not isinstance(value, str):
            return EPOCH + timedelta(seconds=value)
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(
            "invalid_field", f"`{field}` must be a date that exists, in ISO 8601, such as 2026-05-03T14:30:00Z."
        ) from None


def to_ms(moment: datetime) -> int:
    """Unix ms, rounded down."""
    return (moment - EPOCH) // MILLISECOND


def from_ms(ms: int) -> datetime:
    """The moment of Unix ms; the nearest one that a date can tell."""
    try:
        return EPOCH + ms * MILLISECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if ms > 0 else datetime.min.replace(tzinfo=UTC)


def format_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def format_ms(ms: int) -> str:
    return format_time(from_ms(ms))


def shown(time: str | None) -> str | None:
    """A time that was kept, unless digits of it are hidden (docs/redaction.md)."""
    return None if time is None or HIDDEN in time else time
