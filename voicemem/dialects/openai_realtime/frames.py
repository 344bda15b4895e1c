"""Which frames of OpenAI's Realtime API are kept, and which of their fields.

Names of the beta are changed to today's. Audio is counted. Of a session only its id and the format of its audio are
kept; of items, whatever a user or the agent said, and calls of functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, UnsetType

from voicemem.dialects.dialect import (
    AUDIO_BYTES,
    Frame,
    RawFrame,
    Side,
    Text,
    Texts,
)
from voicemem.dialects.reading import (
    Kind,
    Record,
    Typed,
    audio_bytes,
    kind_of,
    require_object,
    silent,
    speaker,
    values,
)
from voicemem.protocol.types import JsonObject

RENAMED = {
    "conversation.item.created": "conversation.item.added",
    "response.audio.delta": "response.output_audio.delta",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.text.delta": "response.output_text.delta",
    "response.audio.done": "response.output_audio.done",
    "response.audio_transcript.done": "response.output_audio_transcript.done",
    "response.text.done": "response.output_text.done",
}
"""Names of the beta, which some vendors still use, and those of today."""
SPEAKERS = ("user", "assistant")
"""Roles whose items are said; those of others are instructions."""
TRANSCRIBED = "conversation.item.input_audio_transcription."
DELTAS = ("response.output_audio_transcript.delta", "response.output_text.delta")


class Event(Typed, kw_only=True):
    """A frame with its own id, as all have."""

    event_id: str | None = None


class AudioFormat(Record):
    type: str | None = None
    rate: int | None = None


class AudioOutput(Record):
    format: AudioFormat | None = None


class Audio(Record):
    output: AudioOutput | None = None


class Session(Record):
    """The beta names the format by a text."""

    id: str | None = None
    audio: Audio | None = None
    output_audio_format: str | None = None


class SessionFrame(Event):
    session: Session


class ContentPart(Record):
    type: str | None = None
    text: str | None = None
    transcript: str | None = None


class Item(Record):
    type: str
    id: str | None = None
    role: str | None = None
    status: str | None = None
    content: list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Any = None


class ItemFrame(Event):
    item: Item
    previous_item_id: str | None = None
    response_id: str | None = None


class NamedItem(Event):
    """A frame that says only which item it is about."""

    item_id: str
    previous_item_id: str | None = None


class Transcript(Event):
    """What the recogniser makes of a user's item."""

    item_id: str
    delta: str | None = None
    transcript: str | None = None


class Response(Record):
    id: str | None = None
    conversation_id: str | UnsetType | None = UNSET
    """None where the response belongs to no conversation."""


class Created(Event):
    response: Response


class Error(Record):
    type: str | None = None
    code: str | None = None


class StatusDetails(Record):
    reason: str | None = None
    error: Error | None = None


class DoneResponse(Response):
    status: str | None = None
    status_details: StatusDetails | None = None
    output: list[Item] | None = None


class Done(Event):
    response: DoneResponse


class Delta(Event):
    item_id: str
    delta: str
    response_id: str | None = None


class AudioDelta(Typed):
    """It keeps no id: to count it twice shifts an estimate, to remember it takes memory."""

    item_id: str
    audio_bytes: int
    response_id: str | None = None


class TimedWord(Event):
    """Of Azure Voice Live."""

    item_id: str
    text: str
    audio_offset_ms: int
    audio_duration_ms: int
    response_id: str | None = None


class Truncation(Event):
    item_id: str
    audio_end_ms: int


class NamedResponse(Event):
    response_id: str


def counted(frame: JsonObject) -> JsonObject:
    """A frame of audio with its length. Raises `MalformedFrame`."""
    return frame | {AUDIO_BYTES: audio_bytes(frame, "delta")}


KINDS: dict[str, Kind] = {
    "session.created": Kind("vendor", SessionFrame),
    "session.updated": Kind("vendor", SessionFrame),
    "input_audio_buffer.speech_started": Kind("vendor", NamedItem),
    "input_audio_buffer.committed": Kind("vendor", NamedItem),
    "conversation.item.added": Kind("vendor", ItemFrame),
    "conversation.item.done": Kind("vendor", ItemFrame),
    "conversation.item.retrieved": Kind("vendor", ItemFrame),
    "conversation.item.input_audio_transcription.delta": Kind("vendor", Transcript),
    "conversation.item.input_audio_transcription.completed": Kind("vendor", Transcript),
    "conversation.item.input_audio_transcription.failed": Kind("vendor", Transcript),
    "conversation.item.truncated": Kind("vendor", Truncation),
    "response.created": Kind("vendor", Created),
    "response.done": Kind("vendor", Done),
    "response.output_audio_transcript.delta": Kind("vendor", Delta),
    "response.output_text.delta": Kind("vendor", Delta),
    "response.output_audio.delta": Kind("vendor", AudioDelta, prepare=counted),
    "response.audio_timestamp.delta": Kind("vendor", TimedWord),
    "response.output_item.done": Kind("vendor", ItemFrame),
    "output_audio_buffer.started": Kind("vendor", NamedResponse),
    "output_audio_buffer.stopped": Kind("vendor", NamedResponse),
    "output_audio_buffer.cleared": Kind("vendor", NamedResponse),
    "session.update": Kind("app", SessionFrame),
    "conversation.item.truncate": Kind("app", Truncation),
    # What the vendor sends that says nothing about the transcript, or says it again.
    **silent(
        "vendor",
        """
        conversation.created conversation.item.deleted conversation.item.input_audio_transcription.segment error
        input_audio_buffer.cleared input_audio_buffer.dtmf_event_received input_audio_buffer.speech_stopped
        input_audio_buffer.timeout_triggered mcp_list_tools.completed mcp_list_tools.failed
        mcp_list_tools.in_progress rate_limits.updated response.content_part.added response.content_part.done
        response.function_call_arguments.delta response.function_call_arguments.done response.mcp_call.completed
        response.mcp_call.failed response.mcp_call.in_progress response.mcp_call_arguments.delta
        response.mcp_call_arguments.done response.output_audio.done response.output_audio_transcript.done
        response.output_item.added response.output_text.done response.audio_timestamp.done
        response.animation_blendshapes.delta response.animation_blendshapes.done response.animation_viseme.delta
        response.animation_viseme.done session.avatar.connecting transcription_session.created
        transcription_session.updated
        """,
    ),
    # What the app sends that says nothing, or that the vendor says again once it has taken it.
    **silent(
        "app",
        """
        conversation.item.create conversation.item.delete conversation.item.retrieve input_audio_buffer.append
        input_audio_buffer.clear input_audio_buffer.commit output_audio_buffer.clear response.cancel
        response.create session.avatar.connect transcription_session.update
        """,
    ),
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Return what is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = require_object(frame)
    name = raw.get("type")
    if isinstance(name, str) and name in RENAMED:
        raw = raw | {"type": RENAMED[name]}
    name, kind = kind_of(raw, KINDS, side)
    content = kind.keep(raw)
    if content is None:
        return None
    id = content.get("event_id")
    typed = False
    if kind.record is ItemFrame:
        content["item"] = said_item(content["item"])
        typed = is_typed(content["item"])
    elif kind.record is Done and "output" in content["response"]:
        content["response"]["output"] = [said_item(item) for item in content["response"]["output"]]
    return Frame(
        content,
        id=id if id is None or kind.side == "vendor" else f"app/{id}",
        side=kind.side,
        session_id=content.get("session", {}).get("id") if name == "session.created" else None,
        typed=typed,
        counts_audio=kind.record is AudioDelta,
    )


def said_item(item: JsonObject) -> JsonObject:
    """An item without what no one said and no function of the app was asked: instructions, and tools of servers."""
    if item["type"] in ("function_call", "function_call_output"):
        return {key: value for key, value in item.items() if key != "content"}
    said = {"id", "type", "role", "status"}
    if item["type"] == "message" and item.get("role") in SPEAKERS:
        said.add("content")
    return {key: value for key, value in item.items() if key in said}


def is_typed(item: JsonObject) -> bool:
    """Return whether an item is a text of the user's side that was not spoken."""
    parts = item.get("content") or ()
    return item.get("role") == "user" and any(part.get("type") == "input_text" for part in parts)


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
    for part in item.get("content") or ():
        for key in ("text", "transcript"):
            if part.get(key):
                yield Text(part, key, "whole", speaker(item.get("role")), item.get("id"))
    yield from values(item, "arguments", "output")
