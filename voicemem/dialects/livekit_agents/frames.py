"""Which frames of LiveKit Agents are kept, and which of their fields.

Instructions, images and identities are not; of an item only what was said, when, and which tool was called.
"""

from __future__ import annotations

from typing import Any

import msgspec

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.livekit_agents.records import (
    Added,
    Close,
    Executed,
    FalseInterruption,
    Item,
    Text,
    Transcribed,
    Updated,
    UserState,
)
from voicemem.dialects.livekit_agents.times import ms
from voicemem.dialects.reading import kept, kind_of, require_object
from voicemem.protocol.types import JsonObject

TRANSCRIPTION = "lk.transcription"
"""The topic of LiveKit's text streams."""
SILENT = """
    agent_state_changed user_transcription_timeout overlapping_speech metrics_collected
    session_usage_updated speech_created error debug_message eot_prediction user_turn_exceeded
    agent_backchannel_opportunity agent_handoff agent_config_update
""".split()  # noqa: SIM905 (a list would be a page long)
KINDS: dict[str, type[msgspec.Struct] | None] = {
    "user_state_changed": UserState,
    "user_input_transcribed": Transcribed,
    "conversation_item_added": Added,
    "message": Item,
    "function_call": Item,
    "function_call_output": Item,
    "function_tools_executed": Executed,
    "tool_execution_updated": Updated,
    "agent_false_interruption": FalseInterruption,
    "close": Close,
    **dict.fromkeys(SILENT),
}
SPEAKING = "speaking"
"""The state of a user whose utterance begins."""
JAVASCRIPT = {
    "newState": "new_state",
    "createdAt": "created_at",
    "isFinal": "is_final",
    "callId": "call_id",
    "functionCall": "function_call",
    "functionCalls": "function_calls",
    "functionCallOutputs": "function_call_outputs",
    "startedSpeakingAt": "started_speaking_at",
    "stoppedSpeakingAt": "stopped_speaking_at",
}
"""Names of LiveKit's JavaScript."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    given = require_object(frame)
    if given.get("topic") == TRANSCRIPTION:
        return Frame(reduced_text(given))
    given = renamed(given)
    name, record = kind_of(given, KINDS)
    if record is None:
        return None
    if record is Added:
        item = given.get("item")
        if isinstance(item, dict) and is_silent(item):
            return None
        given = given | {"item": with_texts(item)}
    elif record is Item:
        if is_silent(given):
            return None
        given = with_texts(given)
    content = kept(record, given)
    if record is UserState and content["new_state"] != SPEAKING:
        return None
    return Frame(
        content,
        id=id_of(name, content),
        ts=ms(content.get("created_at")),
        end=content["reason"] if record is Close else None,
    )


def renamed(given: Any) -> Any:
    """A frame of LiveKit's JavaScript in the names of its Python, three levels deep."""
    found = {JAVASCRIPT.get(key, key): value for key, value in given.items()}
    for key in ("item", "metrics", "update", "function_call"):
        if isinstance(found.get(key), dict):
            found[key] = renamed(found[key])
    for key in ("function_calls", "function_call_outputs"):
        if isinstance(found.get(key), list):
            found[key] = [renamed(one) if isinstance(one, dict) else one for one in found[key]]
    return found


def is_silent(item: JsonObject) -> bool:
    """Whether nobody said an item: it is a handover, an instruction, or of a kind that came later."""
    if item.get("type") == "message":
        return item.get("role") not in ("user", "assistant")
    return item.get("type") not in ("function_call", "function_call_output")


def with_texts(item: Any) -> Any:
    """An item with only the texts of its content, and the transcripts of its audio."""
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return item
    texts = [part if isinstance(part, str) else transcript_of(part) for part in item["content"]]
    return item | {"content": [text for text in texts if text]}


def transcript_of(part: Any) -> str | None:
    transcript = part.get("transcript") if isinstance(part, dict) else None
    return transcript if isinstance(transcript, str) else None


def reduced_text(given: JsonObject) -> JsonObject:
    """A text of the stream: as a program gets it from LiveKit, or reduced."""
    if "role" not in given or "segment" not in given:
        attributes = given.get("attributes")
        if not isinstance(attributes, dict) or not isinstance(given.get("identity"), str):
            raise MalformedFrame("A text of lk.transcription has the sender's identity, and the stream's attributes.")
        role = "agent" if given["identity"].startswith("agent") else "user"
        final = attributes.get("lk.transcription_final") in ("true", True)
        given = given | {"role": role, "segment": attributes.get("lk.segment_id"), "final": final}
    return kept(Text, given)


def id_of(name: str, content: JsonObject) -> str | None:
    """What is the same in a repeat: an item comes once, and so does a transcript of one time."""
    item = content.get("item", content if name in ("message", "function_call", "function_call_output") else None)
    if item is not None:
        return f"item/{item['id']}"
    created_at = content.get("created_at")
    if created_at is None:
        return None
    return f"{name}/{created_at}" if name != "user_input_transcribed" else f"{name}/{content['is_final']}/{created_at}"
