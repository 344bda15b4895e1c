"""Cached versions of streams: what this process last saw of them, by which appends are decided.

A cached version is exact as of one moment. The position moves with every entry of the journal, and `version` with
everything else that decides about an append; so if both still hold at the append, nothing in it has changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.streams import ProducerState, Stream

VERSION_BYTES, PRODUCER_BYTES = 1_500, 700
"""About what a stream and a producer take without the configuration."""
CONFIG_FACTOR = 8
"""How many times the bytes of its JSON a configuration takes as objects, about."""


class CachedVersion(NamedTuple):
    """A stream with those of its producers that are known, as of one moment. None of it is ever changed."""

    stream: Stream
    version: int
    producers: Mapping[str, ProducerState]
    waypoints: Mapping[str, int]
    """The position of each producer's newest waypoint, where that is known."""
    config_bytes: int

    @property
    def weight(self) -> int:
        """About how many bytes it takes in memory."""
        return VERSION_BYTES + CONFIG_FACTOR * self.config_bytes + PRODUCER_BYTES * len(self.producers)


class CachedVersions:
    """Cached versions by key, the least recently used first; safe for threads."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.by_key: OrderedDict[int, CachedVersion] = OrderedDict()
        self.lock = threading.Lock()

    def find(self, key: int) -> CachedVersion | None:
        return self.by_key.get(key)

    def newest_positions(self, at_most: int | None) -> list[tuple[int, int]]:
        """Keys and positions of the streams that were used last, as this process has seen them committed."""
        with self.lock:
            return [(key, self.by_key[key].stream.position) for key in islice(reversed(self.by_key), at_most)]

    def put(self, stream: Stream, version: int, producers: Mapping[str, ProducerState]) -> None:
        """Replace what is known of a stream by what a transaction has just committed. Only running ones are kept."""
        if stream.state != "running":
            self.forget(stream.key)
            return
        kept = msgspec.structs.replace(stream)
        known = {name: msgspec.structs.replace(producer) for name, producer in producers.items()}
        self.replace(CachedVersion(kept, version, known, {}, len(msgspec.json.encode(stream.config))))

    def replace(self, cached: CachedVersion) -> None:
        with self.lock:
            before = self.by_key.pop(cached.stream.key, None)
            self.by_key[cached.stream.key] = cached
            self.budget.rows += cached.weight - (before.weight if before is not None else 0)
            while self.budget.rows > self.budget.room_for_rows and len(self.by_key) > 1:
                _, gone = self.by_key.popitem(last=False)
                self.budget.rows -= gone.weight
                self.budget.evicted_rows += 1

    def forget(self, key: int) -> None:
        with self.lock:
            gone = self.by_key.pop(key, None)
            if gone is not None:
                self.budget.rows -= gone.weight

    def clear(self) -> None:
        with self.lock:
            for cached in self.by_key.values():
                self.budget.rows -= cached.weight
            self.by_key.clear()
