"""Where texts stand in the kept frames of ElevenLabs Agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from voicemem.dialects.dialect import Text, Texts
from voicemem.dialects.elevenlabs_agents.frames import ITEM
from voicemem.protocol.types import JsonObject


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    match frame["type"]:
        case "tentative_user_transcript":
            event = frame["tentative_user_transcription_event"]
            return (Text(event, "user_transcript", "whole", "user", final=False),)
        case "user_transcript":
            return (Text(frame["user_transcription_event"], "user_transcript", "whole", "user"),)
        case "agent_response":
            return (Text(frame["agent_response_event"], "agent_response", "whole"),)
        case "agent_chat_response_part":
            part = frame["text_response_part"]
            return (Text(part, "text", "piece", item=str(part["event_id"])),)
        case "agent_response_correction":
            event = frame["agent_response_correction_event"]
            original = Text(event, "original_agent_response", "whole")
            return (original, Text(event, "corrected_agent_response", "whole", final=False))
        case "audio":
            return timed_words(frame)
        case "user_message":
            return (Text(frame, "text", "whole", "user"),) if frame.get("text") else ()
        case "multimodal_message":
            return (Text(frame["text"], "text", "whole", "user"),) if (frame.get("text") or {}).get("text") else ()
        case name if name == ITEM:
            return item_texts(frame)
    return tool_texts(frame)


def timed_words(frame: JsonObject) -> Iterator[Text]:
    words = frame["words"] = [[*word] for word in frame["words"]] if frame.get("words") else None
    if words is None:
        del frame["words"]
    for word in words or ():
        yield Text(word, 0, "piece", item=f"audio/{frame.get('event_id')}")


def item_texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of an item of the transcript after the call."""
    side: Literal["user", "agent"] = "user" if frame["role"] == "user" else "agent"
    for key, final in (("original_message", True), ("message", side == "user")):
        if frame.get(key):
            item = f"{frame['conversation_id']}/{frame['index']}" if side == "user" else None
            yield Text(frame, key, "whole", side, item, final)
    for call in frame.get("tool_calls") or ():
        yield Text(call, "params_as_json", "value")
    for result in frame.get("tool_results") or ():
        yield Text(result, "result_value", "value")


def tool_texts(frame: JsonObject) -> Iterator[Text]:
    """What a tool is called with, and what it answers."""
    for holder, key in (
        (frame.get("client_tool_call"), "parameters"),
        (frame.get("agent_tool_response_full_payload"), "full_tool_result"),
        (frame, "result"),
    ):
        if holder is not None and holder.get(key) is not None:
            yield Text(holder, key, "value")
