"""Which frames of ElevenLabs Agents are kept, and which of their fields.

Events have numbers, which begin again in each conversation: an app that connects again has several in one session. So
they are not the ids of frames; `translation` leaves out what comes twice. Audio is counted, and the times of its
characters become those of its words. Frames of the webhook's transcript, which `webhook` makes, are kept too. What
configures the agent, who calls, and what the app tells the LLM is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.elevenlabs_agents.records import (
    Alignment,
    Audio,
    CallFrame,
    ClientResult,
    CorrectionFrame,
    Ended,
    InterruptionFrame,
    Item,
    MetadataFrame,
    Multimodal,
    PartFrame,
    RequestFrame,
    ResponseFrame,
    ResultFrame,
    TentativeFrame,
    TypedText,
    UserFrame,
)
from voicemem.dialects.reading import audio_bytes, kept, kind_of, read, require_object
from voicemem.protocol.scripts import SPACELESS
from voicemem.protocol.types import MAX_INTEGER, JsonObject

ITEM = "post_call_transcription.item"
"""One item of a webhook's transcript."""
ENDED = "post_call_transcription.ended"
"""The end of the call, as the webhook says it."""


class Kind(NamedTuple):
    """Who sends the frames of a type, what is kept of them (None: nothing), and which id of its own a frame has."""

    side: Side
    record: type[msgspec.Struct] | None
    id: Callable[[JsonObject], Any] | None = None


def call_id(field: str) -> Callable[[JsonObject], Any]:
    """The id of a tool's call, under the field that holds it."""
    return lambda frame: frame[field]["tool_call_id"]


SILENT_VENDOR = """
    agent_reasoning_response_part agent_tool_response agent_typing asr_initiation_metadata context_usage error
    external_agent_connected external_agent_disconnected guardrail_triggered internal_tentative_agent_response
    internal_turn_probability mcp_connection_status mcp_tool_call ping rich_content vad_score
""".split()  # noqa: SIM905 (a list would be a page long)
"""What the vendor sends that says nothing about the transcript."""
SILENT_APP = """
    contextual_update conversation_initiation_client_data feedback mcp_tool_approval_result pong user_activity
""".split()  # noqa: SIM905 (a list would be a page long)
"""What the app sends that nobody says."""
KINDS: dict[str, Kind] = {
    "conversation_initiation_metadata": Kind("vendor", MetadataFrame),
    "tentative_user_transcript": Kind("vendor", TentativeFrame),
    "user_transcript": Kind("vendor", UserFrame),
    "agent_response": Kind("vendor", ResponseFrame),
    "agent_chat_response_part": Kind("vendor", PartFrame),
    "audio": Kind("vendor", Audio),
    "interruption": Kind("vendor", InterruptionFrame),
    "agent_response_correction": Kind("vendor", CorrectionFrame),
    "client_tool_call": Kind("vendor", CallFrame, call_id("client_tool_call")),
    "agent_tool_request": Kind("vendor", RequestFrame, call_id("agent_tool_request")),
    "agent_tool_response_full_payload": Kind("vendor", ResultFrame, call_id("agent_tool_response_full_payload")),
    ITEM: Kind("vendor", Item, lambda frame: f"{frame['conversation_id']}/{frame['index']}"),
    ENDED: Kind("vendor", Ended, lambda frame: frame["conversation_id"]),
    "client_tool_result": Kind("app", ClientResult, lambda frame: frame["tool_call_id"]),
    "user_message": Kind("app", TypedText),
    "multimodal_message": Kind("app", Multimodal),
    **{name: Kind("vendor", None) for name in SILENT_VENDOR},
    **{name: Kind("app", None) for name in SILENT_APP},
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    given = require_object(frame)
    if "user_audio_chunk" in given and "type" not in given:
        kind = Kind("app", None)
        name = ""
    else:
        name, kind = kind_of(given, KINDS)
    if side not in (None, kind.side):
        raise MalformedFrame("The other side sends frames of this type.")
    if kind.record is None:
        return None
    content = kept(kind.record, counted(given) if kind.record is Audio else given)
    return Frame(
        content,
        id=None if kind.id is None else f"{name}/{kind.id(content)}",
        ts=content.get("ts"),
        side=kind.side,
        session_id=session_id(content),
        end="ended" if name == ENDED else None,
        typed=kind.record in (TypedText, Multimodal),
        counts_audio=name == "audio" and "words" not in content,
    )


def session_id(content: JsonObject) -> str | None:
    """The id of the conversation, in frames that say it."""
    place = content.get("conversation_initiation_metadata_event", content)
    id: str | None = place.get("conversation_id")
    return id


def counted(frame: JsonObject) -> JsonObject:
    """A frame of audio as a count, with the times of its words. Raises `MalformedFrame`."""
    if AUDIO_BYTES in frame:
        return frame
    event = require_object(frame.get("audio_event"))  # type: ignore[arg-type]
    content = {
        "type": frame["type"],
        AUDIO_BYTES: audio_bytes(event, "audio_base_64"),
        "event_id": event.get("event_id"),
    }
    if event.get("alignment") is not None:
        content["words"] = words_of(read(Alignment, event["alignment"])) or None
    return content


def words_of(alignment: Alignment) -> list[tuple[str, int, int]]:
    """The words of a piece of audio, each with the white space after it."""
    words: list[tuple[str, int, int]] = []
    times = zip(alignment.chars, alignment.char_start_times_ms, alignment.char_durations_ms, strict=False)
    for char, start, duration in times:
        begin_ms, end_ms = whole_ms(start), whole_ms(start + duration)
        if words and not begins_word(words[-1][0], char):
            text, first_ms, last_ms = words[-1]
            # White space after a word is not part of the time that it takes to say it.
            words[-1] = (text + char, first_ms, max(last_ms, end_ms) if char.strip() else last_ms)
        elif char:
            words.append((char, begin_ms, end_ms))
    return words


def begins_word(before: str, text: str) -> bool:
    """Whether a text begins a word of its own, after this one."""
    if not text or text[0].isspace():
        return False
    return before[-1].isspace() or SPACELESS.match(before[-1]) is not None or SPACELESS.match(text) is not None


def whole_ms(time: float) -> int:
    return int(max(0.0, min(time, float(MAX_INTEGER // 2))))
