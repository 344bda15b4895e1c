"""How a page of slim rows is found on any engine: by one condition that has an index, in the order of the list.

The other conditions are checked for each session that it finds. That ends after so many sessions, whether the page is
full or not, so that no page costs more in a larger store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from voicemem.store.records import SLOW_MS, SessionFilter, SessionOverview

MAX_LOOKS = 5_000
"""Sessions that are looked at for a page."""
MAX_COUNT_LOOKS = 20_000
"""The same for a count."""
MAX_CANDIDATES = 10_000
"""Sessions with deliveries in a state that are looked at all together; where more have some, they are soon met."""
FIRST_LOOKS = 4
"""How many sessions are looked at first, for each one that is wanted."""
PLACE_FIELDS = ("started_after", "started_before", "after")
"""The conditions that only say where in the order the page is."""
Place = tuple[int, int]
"""Start and key of a session: where a page ends."""


class OverviewPage(NamedTuple):
    """Slim rows in the order of the list, and the place behind which there may be more; None at the end."""

    rows: list[SessionOverview]
    after: Place | None


class Plan(NamedTuple):
    """The fields of a filter by which an index finds sessions, and those that are checked for each of these."""

    by: str | None
    found: tuple[str, ...]
    checked: tuple[str, ...]


Look = Callable[[Place | None, int], Iterable[tuple[int, int, bool]]]
"""Yields at most so many sessions behind a place: key, start, and whether the conditions that are checked hold."""


def plan_of(wanted: SessionFilter, indexed: Sequence[str], conditions: Iterable[str]) -> Plan:
    """How to find sessions, where an index leads to each of the `indexed`, the one that finds the fewest first."""
    given = [field for field in conditions if getattr(wanted, field) is not None]
    by = next((field for field in indexed if field in given and has_index(wanted, field)), None)
    found = tuple(field for field in given if field == by or field in PLACE_FIELDS)
    return Plan(by, found, tuple(field for field in given if field not in found))


def has_index(wanted: SessionFilter, field: str) -> bool:
    """Whether an index leads to the sessions of a condition for the value that it has."""
    if field == "interrupted":
        return bool(wanted.interrupted)
    return field != "slow_ms" or (wanted.slow_ms or 0) >= SLOW_MS


def find_keys(wanted: SessionFilter, most: int, look: Look) -> tuple[list[int], Place | None]:
    """The keys of a page, and where the next page begins; None at the end. At most so many sessions are looked at."""
    keys: list[int] = []
    place, looked, size = wanted.after, 0, min(most, FIRST_LOOKS * (wanted.limit + 1))
    while size > 0:
        count = 0
        for key, started_ms, matches in look(place, size):
            if matches and len(keys) == wanted.limit:
                return keys, place
            place, count = (started_ms, key), count + 1
            if matches:
                keys.append(key)
        if count < size:
            return keys, None
        looked += count
        size = most - looked
    return keys, place


def among(wanted: SessionFilter, candidates: Sequence[int]) -> SessionFilter:
    """The filter for sessions with deliveries in its state, of which these are all, or too many to be all."""
    if len(candidates) > MAX_CANDIDATES:
        return wanted
    return replace(wanted, keys=tuple(candidates), webhook=None)
