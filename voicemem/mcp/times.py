"""Times as an LLM writes and reads them, and as the REST API has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any


def shown_time(unix_ms: Any) -> str | None:
    """A moment in UTC, without milliseconds; None for what is no time of a calendar."""
    if not isinstance(unix_ms, int | float):
        return None
    try:
        return datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None


def unix_ms(text: str, *, end: bool = False) -> int:
    """The Unix ms of a day or a moment in ISO 8601, in UTC unless it says otherwise.

    The `end` of a day is the beginning of the next.

    Raises `ValueError` and `OverflowError`.
    """
    text = text.strip()
    moment = datetime.fromisoformat(text)
    if end and len(text) <= len("2026-05-03"):
        moment += timedelta(days=1)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
