"""Where texts stand in the kept frames of OpenAI's Realtime API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from voicemem.dialects.dialect import Text, Texts
from voicemem.protocol.types import JsonObject

TRANSCRIBED = "conversation.item.input_audio_transcription."
DELTAS = ("response.output_audio_transcript.delta", "response.output_text.delta")


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    name: str = frame["type"]
    if name in DELTAS:
        return (Text(frame, "delta", "piece", item=frame["item_id"]),)
    if name.startswith(TRANSCRIBED):
        return transcribed(frame)
    if name == "response.audio_timestamp.delta":
        return (Text(frame, "text", "word", item=frame["item_id"], at_ms=frame["audio_offset_ms"]),)
    if "item" in frame:
        return item_texts(frame["item"])
    return [text for item in frame.get("response", {}).get("output") or () for text in item_texts(item)]


def transcribed(frame: JsonObject) -> Iterator[Text]:
    if frame.get("delta"):
        yield Text(frame, "delta", "piece", "user", frame["item_id"])
    if frame.get("transcript"):
        yield Text(frame, "transcript", "whole", "user", frame["item_id"])


def item_texts(item: JsonObject) -> Iterator[Text]:
    side: Literal["user", "agent"] = "user" if item.get("role") == "user" else "agent"
    for part in item.get("content") or ():
        for key in ("text", "transcript"):
            if part.get(key):
                yield Text(part, key, "whole", side, item.get("id"))
    for key in ("arguments", "output"):
        if item.get(key) is not None:
            yield Text(item, key, "value")
