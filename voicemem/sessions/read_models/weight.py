"""What a read model takes in memory: its objects are added up, and of large containers only a sample.

Entities differ too much for anything simpler: a fold takes from a third to thirty times the bytes of its events, and
from one to sixty times those of its snapshot.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Collection, Iterable
from itertools import islice
from sys import getsizeof
from typing import Any

import msgspec

SAMPLE, SMALL_SAMPLE = 12, 4
"""Members of a container that are looked at, of large read models and of small ones; one level deeper half of that."""
MIN_SAMPLE = 3
MAX_OBJECTS = 20_000
"""Objects that are looked at in all, so that weighing takes a few milliseconds at most."""
LEAVES = frozenset((int, float, str, bytes, bool, array))
SEQUENCES = frozenset((list, tuple, set, frozenset))
POOL_BYTES = 16
"""Python hands out memory in multiples of this."""


class Weighing:
    """One weighing. An object that is met twice counts once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.phase = random.random()  # noqa: S311 (hides what is looked at, and is no secret)
        """Which members are looked at: the same ones in containers of one length, which often share their objects."""

    def weigh(self, value: Any, sample: int) -> float:
        """About how many bytes an object and all that it refers to take."""
        if value is None or id(value) in self.seen or len(self.seen) > MAX_OBJECTS:
            return 0
        self.seen.add(id(value))
        kind = type(value)
        size = getsizeof(value) + POOL_BYTES // 2
        if kind in LEAVES:
            return 0 if kind is int and -6 < value < 257 else size
        if kind is dict or isinstance(value, dict):
            return size + self.weigh_some(value.items(), sample, is_pairs=True)
        if kind in SEQUENCES or isinstance(value, tuple):
            return size + self.weigh_some(value, sample)
        return size + self.weigh_all(fields_of(value), sample)

    def weigh_all(self, values: Iterable[Any], sample: int) -> float:
        return sum([self.weigh(value, sample) for value in values])

    def weigh_some(self, values: Collection[Any], sample: int, is_pairs: bool = False) -> float:
        """Weigh the members of a container: all, or some at equal distances, which stand for the others."""
        stride = -(-len(values) // sample) or 1
        some = islice(values, int(self.phase * stride), None, stride)
        further = max(MIN_SAMPLE, sample // 2)
        if is_pairs:
            return stride * sum([self.weigh(key, further) + self.weigh(value, further) for key, value in some])
        return stride * self.weigh_all(some, further)


def fields_of(value: Any) -> Iterable[Any]:
    """What a record refers to."""
    if isinstance(value, msgspec.Struct):
        fields: tuple[Any, ...] = msgspec.structs.astuple(value)
    else:
        fields = tuple(getattr(value, name, None) for name in getattr(value, "__slots__", ()))
    more = getattr(value, "__dict__", None)
    return (*fields, more) if more else fields


def weigh(sample: int, *values: Any) -> int:
    """About how many bytes these objects and all that they refer to take together."""
    return int(Weighing().weigh_all(values, sample))
