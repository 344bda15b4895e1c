"""Where texts stand in the kept frames of Deepgram's Voice Agent."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Text
from voicemem.protocol.types import JsonObject

REPLY = "reply"
"""Replies have no names: the agent's texts are those of the reply under way, up to the user's next."""


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of a frame."""
    match frame.get("type"):
        case "ConversationText" if frame["role"] == "assistant":
            yield Text(frame, "content", "piece", item=REPLY)
        case "ConversationText" | "InjectUserMessage":
            yield Text(frame, "content", "whole", "user")
            yield Text(None, "", "end", item=REPLY)
        case "SpeechInterrupted" if frame.get("text_spoken"):
            yield Text(frame, "text_spoken", "whole", final=False)
        case "FunctionCallRequest":
            for call in frame["functions"]:
                if call.get("arguments"):
                    yield Text(call, "arguments", "value")
        case "FunctionCallResponse" if frame.get("content") is not None:
            yield Text(frame, "content", "value")
