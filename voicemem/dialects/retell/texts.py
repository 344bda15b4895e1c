"""Where texts stand in the kept frames of Retell."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Text, Texts
from voicemem.dialects.retell.elements import SPOKEN
from voicemem.protocol.types import JsonObject


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    if "response" in frame:
        return (Text(frame, "content", "piece", item=frame["response"]),) if frame.get("content") else ()
    if "response_type" in frame:
        return tool_texts(frame)
    return element_texts(frame)


def element_texts(frame: JsonObject) -> Iterator[Text]:
    for element in [*frame.get("elements", ()), *([frame["element"]] if "element" in frame else [])]:
        if element["role"] not in SPOKEN:
            yield from tool_texts(element)
        elif element.get("content"):
            side = "agent" if element["role"] == "agent" else "user"
            yield Text(element, "content", "whole", side, f"element {element['index']}")  # type: ignore[arg-type]


def tool_texts(holder: JsonObject) -> Iterator[Text]:
    """What a tool is called with and answers, and keys that were pressed."""
    for key in ("arguments", "content"):
        if holder.get(key) is not None:
            yield Text(holder, key, "value")
