"""Where texts stand in the kept messages of Agora's engine, and which messages come in parts."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.agora_ten.collector import is_collected
from voicemem.dialects.agora_ten.frames import PART, decoded, reduced
from voicemem.dialects.dialect import MalformedFrame, Text, UnknownFrame
from voicemem.protocol.types import JsonObject


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of a message; a part of one has none that could be read."""
    if is_collected(frame):
        final = frame.get("is_final", False)
        if frame["role"] == "user":
            yield Text(frame, "text", "whole", "user", final=final)
        else:
            yield Text(frame, "text", "whole", final=final)
    elif frame.get("object") == "user.transcription":
        yield Text(frame, "text", "whole", "user", str(frame["turn_id"]), frame.get("final", False))
    elif frame.get("object") == "assistant.transcription":
        item, words = str(frame["turn_id"]), frame.get("words") or ()
        yield Text(frame, "text", "grown" if words else "whole", item=item, final=False)
        for word in words:
            yield Text(word, "word", "word", item=item, at_ms=word["start_ms"])


def part_of(frame: JsonObject) -> tuple[str, int, int | None, str] | None:
    """The part of a message that a frame is: the message's id, its number, how many there are, and what it holds."""
    part = frame.get(PART)
    return None if part is None else (part["id"], part["index"], part.get("parts"), part["data"])


def joined(data: str) -> JsonObject | None:
    """What is kept of the message that all parts hold."""
    try:
        frame = reduced(decoded(data))
    except (MalformedFrame, UnknownFrame):
        return None
    return None if frame is None else frame.content
