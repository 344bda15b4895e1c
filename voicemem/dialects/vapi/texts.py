"""Where texts stand in the kept messages of Vapi."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from voicemem.dialects.dialect import Text, Texts
from voicemem.dialects.vapi.history import item_of
from voicemem.protocol.types import JsonObject


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    match frame["type"]:
        case "transcript":
            final = frame.get("transcriptType", "final") == "final"
            side: Literal["user", "agent"] = "user" if frame["role"] == "user" else "agent"
            return (Text(frame, "transcript", "whole", side, final=final, channel="live"),)
        case "assistant.speechStarted":
            return (Text(frame, "text", "grown", item=f"speech {frame.get('turn')}"),)
        case "model-output":
            return (Text(frame, "output", "piece", item=f"output {frame.get('turnId')}"),)
    return other_texts(frame)


def other_texts(frame: JsonObject) -> Iterator[Text]:
    """What the history has, and what tools are called with and answer."""
    for message in [*frame.get("messages", ()), *([frame["item"]] if "item" in frame else [])]:
        if message.get("message"):
            yield Text(message, "message", "whole", "user" if message["role"] == "user" else "agent", item_of(message))
        for call in message.get("toolCalls") or ():
            yield Text(call["function"], "arguments", "value")
        if message.get("result") is not None:
            yield Text(message, "result", "value")
    for call in frame.get("toolCallList") or ():
        yield Text(call["function"], "arguments", "value")
    if frame.get("result") is not None:
        yield Text(frame, "result", "value")
