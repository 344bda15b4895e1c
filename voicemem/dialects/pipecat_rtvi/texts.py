"""Where texts stand in the kept RTVI messages."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from voicemem.dialects.dialect import Text
from voicemem.dialects.pipecat_rtvi.translation import PIECES
from voicemem.protocol.types import JsonObject

SAID = "said"
"""The words of the reply under way, which have no names."""
BEGINS_REPLY = ("bot-ready", "bot-llm-started", "bot-interrupted")


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of a message."""
    name, data = frame["type"], frame.get("data", {})
    match name:
        case "user-input" | "user-transcription":
            channel = "" if name == "user-input" else name
            yield Text(data, "text", "whole", "user", final=data.get("final", True), channel=channel)
        case "send-text":
            yield Text(data, "content", "whole", "user")
        case "bot-output":
            yield from output_texts(data)
        case _ if name in BEGINS_REPLY:
            yield Text(None, "", "end", item=SAID)
    for key in ("arguments", "args", "result"):
        if data.get(key) is not None:
            yield Text(data, key, "value")


def output_texts(data: JsonObject) -> Iterator[Text]:
    """A segment, which comes again while it is spoken; older servers say a sentence twice, or its words."""
    if (data.get("output_type") or data.get("aggregated_by")) in PIECES:
        yield Text(data, "text", "word", item=SAID)
        return
    segment = data.get("segment_id")
    item = blake2b(data["text"].encode(), digest_size=8).hexdigest() if segment is None else str(segment)
    if data.get("spoken_progress", {}).get("accumulated_text"):
        yield Text(data["spoken_progress"], "accumulated_text", "sentence", item=item, final=False)
    yield Text(data, "text", "sentence", item=item)
