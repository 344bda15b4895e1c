"""Unix milliseconds as text, whatever number a producer gave."""

from __future__ import annotations

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which dates in text can name; what lies beyond is shown as the nearest of them."""
DAY_S = 86_400


def date_time(ms: int) -> str:
    """`2026-11-23T12:00:00.000Z` (RFC 3339)."""
    day, clock = date_and_clock(ms)
    return f"{day}T{clock}.{min(max(ms, FIRST_MS), LAST_MS) % 1000:03}Z"


def date_and_clock(ms: int) -> tuple[str, str]:
    """The date and the time of day, in UTC."""
    days, second = divmod(min(max(ms, FIRST_MS), LAST_MS) // 1000, DAY_S)
    year, month, day = civil_date(days)
    return f"{year:04}-{month:02}-{day:02}", f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def civil_date(days: int) -> tuple[int, int, int]:
    """Year, month and day of a number of days since 1970-01-01.

    Years are counted from 1 March 0000, so that the day which not every year has is the last of its year.
    """
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def cue_time(ms: int, point: str) -> str:
    """`00:00:04.100`, since the beginning of the call; `point` stands before the milliseconds."""
    second, rest = divmod(ms, 1000)
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{point}{rest:03}"


def length(ms: int) -> str:
    """`0:48`, or `1:02:03`."""
    second = ms // 1000
    hours = f"{second // 3600}:{second // 60 % 60:02}" if second >= 3600 else f"{second // 60}"
    return f"{hours}:{second % 60:02}"
