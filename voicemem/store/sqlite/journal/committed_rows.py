"""The committed rows of sessions that the writer keeps at hand, as many as their share of the memory budget holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from voicemem.protocol.types import JsonObject
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.streams import SESSION_KIND, USER_KIND, ProducerState, Stream

NAMED_KINDS = (SESSION_KIND, USER_KIND)
ROW_BYTES, PRODUCER_BYTES = 1_500, 600
"""About what a stream and a producer take without the configuration, with their places in dicts."""
COMMA_BYTES, COLON_BYTES, LIST_BYTES, OBJECT_BYTES = 56, 60, 72, 200
"""About what the values take of which these characters tell, beyond their text."""


class CommittedRow:
    """A stream's row with its producers'. The rows themselves are never changed, so other threads may read them."""

    __slots__ = ("config_weight", "producers", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.config_weight = weigh_config(stream.config)
        self.producers: dict[str, ProducerState] = {}

    @property
    def weight(self) -> int:
        """About how many bytes it takes in memory."""
        return ROW_BYTES + self.config_weight + PRODUCER_BYTES * len(self.producers)

    def replace(self, stream: Stream) -> int:
        """The stream has changed: by how many bytes it has grown. Its configuration is weighed only if it changed."""
        before = self.config_weight
        if stream.config is not self.stream.config:
            self.config_weight = weigh_config(stream.config)
        self.stream = stream
        return self.config_weight - before


class CommittedRows:
    """Rows by key and by name, the least recently committed first. Ended sessions give way before running ones.

    Only the writer's thread changes it; other threads may call `find_by_name`.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.running: OrderedDict[int, CommittedRow] = OrderedDict()
        self.ended: OrderedDict[int, CommittedRow] = OrderedDict()
        self.by_name: dict[tuple[str, str, str], CommittedRow] = {}
        """By project, kind and id."""

    def find(self, key: int) -> Stream | None:
        row = self.row(key)
        return None if row is None else row.stream

    def find_producer(self, key: int, name: str) -> ProducerState | None:
        row = self.row(key)
        return None if row is None else row.producers.get(name)

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        row = self.by_name.get((project, kind, name))
        return None if row is None else row.stream

    def row(self, key: int) -> CommittedRow | None:
        return self.running.get(key) or self.ended.get(key)

    def update(self, streams: Mapping[int, Stream], producers: Mapping[tuple[int, str], ProducerState]) -> None:
        """Take over what a transaction has changed."""
        for key, stream in streams.items():
            self.put(key, stream)
        for (key, name), producer in producers.items():
            row = self.row(key)
            if row is not None:
                if name not in row.producers:
                    self.budget.rows += PRODUCER_BYTES
                row.producers[name] = producer

    def put(self, key: int, stream: Stream) -> None:
        row = self.running.pop(key, None) or self.ended.pop(key, None)
        if row is None:
            row = CommittedRow(stream)
            self.budget.rows += row.weight
            if stream.kind in NAMED_KINDS:
                self.by_name[stream.project, stream.kind, stream.id] = row
        else:
            self.budget.rows += row.replace(stream)
        (self.running if stream.state == "running" else self.ended)[key] = row

    def evict(self) -> list[tuple[int, str]]:
        """Drop what is too much; the streams and names of the producers that went."""
        gone: list[tuple[int, str]] = []
        while self.budget.rows > self.budget.room_for_rows and (rows := self.ended or self.running):
            key, row = rows.popitem(last=False)
            self.forget_name(row.stream)
            self.budget.rows -= row.weight
            self.budget.evicted_rows += 1
            gone += [(key, name) for name in row.producers]
        return gone

    def forget_name(self, stream: Stream) -> None:
        self.by_name.pop((stream.project, stream.kind, stream.id), None)

    def clear(self) -> None:
        self.running, self.ended, self.by_name = OrderedDict(), OrderedDict(), {}
        self.budget.rows = 0


def weigh_config(config: JsonObject) -> int:
    """About how many bytes a configuration takes in memory, by its JSON, since counting characters is fast.

    Commas and the like inside texts are counted too, so that it is rather too much than too little.
    """
    text = msgspec.json.encode(config)
    return (
        len(text)
        + COMMA_BYTES * text.count(b",")
        + COLON_BYTES * text.count(b":")
        + LIST_BYTES * text.count(b"[")
        + OBJECT_BYTES * text.count(b"{")
    )
