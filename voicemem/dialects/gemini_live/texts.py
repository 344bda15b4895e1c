"""Where texts stand in the kept messages of Gemini's Live API."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Text
from voicemem.protocol.types import JsonObject

REPLY, SPOKEN = "reply", "spoken"
"""The pieces that come have no names: they are those of the reply and of the utterance under way."""


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of a message."""
    content = frame.get("serverContent", {})
    if "inputTranscription" in content:
        yield Text(content["inputTranscription"], "text", "piece", "user", SPOKEN)
    if "interimInputTranscription" in content:
        yield Text(content["interimInputTranscription"], "text", "next", "user", SPOKEN)
    for part in content.get("modelTurn", {}).get("parts", ()):
        yield Text(part, "text", "piece", item=REPLY)
    if "outputTranscription" in content:
        yield Text(content["outputTranscription"], "text", "piece", item=REPLY)
    if content.get("interrupted") or content.get("turnComplete"):
        yield Text(None, "", "end", item=REPLY)
        yield Text(None, "", "end", "user", SPOKEN)
    for call in frame.get("toolCall", {}).get("functionCalls") or ():
        yield Text(call, "args", "value")
    for result in frame.get("toolResponse", {}).get("functionResponses") or ():
        yield Text(result, "response", "value")
    if "realtimeInput" in frame:
        yield Text(frame["realtimeInput"], "text", "whole", "user")
