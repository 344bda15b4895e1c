"""The metadata of several events that go into one message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MergedMetadata = dict[str, tuple[int, int, Any]]
"""By key: its place among all keys, the position of the last event that brought it, and the value in that.

The place is where the key first arrived: the position of the event, times `PLACES`, plus its place there.
"""
PLACES = 2**20


def merge(known: MergedMetadata | None, order: int, metadata: dict[str, Any]) -> MergedMetadata:
    """What is known, which is changed, with the metadata of one more event."""
    merged = known if known is not None else {}
    for place, (name, value) in enumerate(metadata.items(), order * PLACES):
        merged[name] = (merged[name][0] if name in merged else place), order, value
    return merged


def latest(several: Iterable[MergedMetadata]) -> MergedMetadata:
    """All of these by arrival: of each key the value that came last."""
    given = [one for one in several if one]
    if len(given) <= 1:
        return given[0] if given else {}
    found: MergedMetadata = {}
    for one in given:
        for name, (first, last, value) in one.items():
            known = found.get(name)
            if known is None or last > known[1]:
                found[name] = first if known is None else min(first, known[0]), last, value
            elif first < known[0]:
                found[name] = first, *known[1:]
    return found


def layered(*layers: MergedMetadata) -> dict[str, Any]:
    """The values of the last layer that has each key; the keys stand in the order of their arrival."""
    given = [one for one in layers if one]
    if len(given) <= 1:
        return {name: value for one in given for name, (_, _, value) in in_order(one)}
    values: dict[str, Any] = {}
    first: dict[str, int] = {}
    for one in given:
        for name, (place, _, value) in one.items():
            values[name] = value
            first[name] = min(place, first.get(name, place))
    return {name: values[name] for name in sorted(values, key=first.__getitem__)}


def in_order(metadata: MergedMetadata) -> list[tuple[str, tuple[int, int, Any]]]:
    """The keys by their places."""
    return sorted(metadata.items(), key=lambda item: item[1][0])
