"""Where texts stand in the kept frames of LiveKit Agents."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Text
from voicemem.protocol.types import JsonObject

ROOM = "room"
"""The channel of what a client of the room is shown."""


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of a frame."""
    if "topic" in frame:
        yield shown_text(frame)
    if frame.get("type") == "user_input_transcribed":
        yield Text(frame, "transcript", "whole", "user", final=frame["is_final"])
    item = frame.get("item", frame)
    content = item.get("content") or []
    if content and item.get("role") != "user":
        yield Text(None, "", "end", item=item["id"])
    for place in range(len(content)):
        if item.get("role") == "user":
            yield Text(content, place, "again", "user", f"{item['id']}/{place}")
        else:
            yield Text(content, place, "piece", item=item["id"])
    update = frame.get("update", {})
    calls = [item, update.get("function_call") or {}, *frame.get("function_calls", ())]
    for call in (*calls, *frame.get("function_call_outputs", ())):
        for key in ("arguments", "output"):
            if call.get(key):
                yield Text(call, key, "value")


def shown_text(frame: JsonObject) -> Text:
    """A text of the room: of the user the whole segment, of the agent what comes next."""
    if frame["role"] == "agent":
        return Text(frame, "text", "piece", item=frame["segment"], channel=ROOM)
    return Text(frame, "text", "whole", "user", frame["segment"], frame.get("final", False), channel=ROOM)
