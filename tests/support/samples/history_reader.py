"""A reader that applies the changes of a tail."""

from __future__ import annotations

import json
from typing import Any

from voicemem.protocol.types import JsonObject


class HistoryReader:
    """Keeps memories as a client does: messages in their order, by session."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, JsonObject]] = {}

    def take(self, data: JsonObject) -> None:
        """Apply the data of a `messages` event."""
        mine = self.messages.setdefault(data["session_id"], {})
        for key in data["removed"]:
            del mine[key]
        for upsert in data["upserts"]:
            mine.pop(upsert["key"], None)
            order = list(mine.items())
            place = 0 if upsert["after"] is None else 1 + [key for key, _ in order].index(upsert["after"])
            order.insert(place, (upsert["key"], upsert["message"]))
            mine.clear()
            mine.update(order)

    def shown(self, session_id: str = "s") -> list[JsonObject]:
        return list(self.messages.get(session_id, {}).values())

    def copy(self) -> HistoryReader:
        other = HistoryReader()
        other.messages = {name: dict(mine) for name, mine in self.messages.items()}
        return other


def exact_json(value: Any) -> str:
    """JSON that tells 1 from true."""
    return json.dumps(value)
