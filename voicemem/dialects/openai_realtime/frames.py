"""Which frames of OpenAI's Realtime API are kept, and which of their fields.

Names of the beta are changed to today's. Audio is counted. Of a session only its id and the format of its audio are
kept; of items, whatever a user or the agent said, and calls of functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import Record, audio_bytes, kept, kind_of, require_object
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


class Typed(Record, kw_only=True):
    """A frame with its own id, as all have."""

    type: str
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


class SessionFrame(Typed):
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


class ItemFrame(Typed):
    item: Item
    previous_item_id: str | None = None
    response_id: str | None = None


class NamedItem(Typed):
    """A frame that says only which item it is about."""

    item_id: str
    previous_item_id: str | None = None


class Transcript(Typed):
    """What the recogniser makes of a user's item."""

    item_id: str
    delta: str | None = None
    transcript: str | None = None


class Response(Record):
    id: str | None = None
    conversation_id: str | UnsetType | None = UNSET
    """None where the response belongs to no conversation."""


class Created(Typed):
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


class Done(Typed):
    response: DoneResponse


class Delta(Typed):
    item_id: str
    delta: str
    response_id: str | None = None


class AudioDelta(Record):
    """It keeps no id: to count it twice shifts an estimate, to remember it takes memory."""

    type: str
    item_id: str
    audio_bytes: int
    response_id: str | None = None


class TimedWord(Typed):
    """Of Azure Voice Live."""

    item_id: str
    text: str
    audio_offset_ms: int
    audio_duration_ms: int
    response_id: str | None = None


class Truncation(Typed):
    item_id: str
    audio_end_ms: int


class NamedResponse(Typed):
    response_id: str


class Kind(NamedTuple):
    """Who sends the frames of a type, and what is kept of them; None for what says nothing."""

    side: Side
    record: type[msgspec.Struct] | None


VENDOR_KINDS: dict[str, type[msgspec.Struct] | None] = {
    "session.created": SessionFrame,
    "session.updated": SessionFrame,
    "input_audio_buffer.speech_started": NamedItem,
    "input_audio_buffer.committed": NamedItem,
    "conversation.item.added": ItemFrame,
    "conversation.item.done": ItemFrame,
    "conversation.item.retrieved": ItemFrame,
    "conversation.item.input_audio_transcription.delta": Transcript,
    "conversation.item.input_audio_transcription.completed": Transcript,
    "conversation.item.input_audio_transcription.failed": Transcript,
    "conversation.item.truncated": Truncation,
    "response.created": Created,
    "response.done": Done,
    "response.output_audio_transcript.delta": Delta,
    "response.output_text.delta": Delta,
    "response.output_audio.delta": AudioDelta,
    "response.audio_timestamp.delta": TimedWord,
    "response.output_item.done": ItemFrame,
    "output_audio_buffer.started": NamedResponse,
    "output_audio_buffer.stopped": NamedResponse,
    "output_audio_buffer.cleared": NamedResponse,
}
APP_KINDS: dict[str, type[msgspec.Struct] | None] = {
    "session.update": SessionFrame,
    "conversation.item.truncate": Truncation,
}
SILENT_VENDOR = """
    conversation.created conversation.item.deleted conversation.item.input_audio_transcription.segment error
    input_audio_buffer.cleared input_audio_buffer.dtmf_event_received input_audio_buffer.speech_stopped
    input_audio_buffer.timeout_triggered mcp_list_tools.completed mcp_list_tools.failed mcp_list_tools.in_progress
    rate_limits.updated response.content_part.added response.content_part.done response.function_call_arguments.delta
    response.function_call_arguments.done response.mcp_call.completed response.mcp_call.failed
    response.mcp_call.in_progress response.mcp_call_arguments.delta response.mcp_call_arguments.done
    response.output_audio.done response.output_audio_transcript.done response.output_item.added
    response.output_text.done response.audio_timestamp.done
    response.animation_blendshapes.delta response.animation_blendshapes.done
    response.animation_viseme.delta response.animation_viseme.done session.avatar.connecting
    transcription_session.created transcription_session.updated
""".split()  # noqa: SIM905 (a list would be a page long)
"""What the vendor sends that says nothing about the transcript, or says it again."""
SILENT_APP = """
    conversation.item.create conversation.item.delete conversation.item.retrieve input_audio_buffer.append
    input_audio_buffer.clear input_audio_buffer.commit output_audio_buffer.clear response.cancel response.create
    session.avatar.connect transcription_session.update
""".split()  # noqa: SIM905 (a list would be a page long)
"""What the app sends that says nothing, or that the vendor says again once it has taken it."""
KINDS: dict[str, Kind] = {
    **{name: Kind("vendor", record) for name, record in VENDOR_KINDS.items()},
    **{name: Kind("app", record) for name, record in APP_KINDS.items()},
    **{name: Kind("vendor", None) for name in SILENT_VENDOR},
    **{name: Kind("app", None) for name in SILENT_APP},
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    given = require_object(frame)
    name = given.get("type")
    if isinstance(name, str) and name in RENAMED:
        given = given | {"type": RENAMED[name]}
    name, kind = kind_of(given, KINDS)
    if side not in (None, kind.side):
        raise MalformedFrame("The other side sends frames of this type.")
    if kind.record is None:
        return None
    if kind.record is AudioDelta:
        given = {key: given.get(key) for key in ("type", "item_id", "response_id")} | {
            AUDIO_BYTES: audio_bytes(given, "delta")
        }
        return Frame(kept(AudioDelta, given), side=kind.side, counts_audio=True)
    content = kept(kind.record, given)
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
    )


def said_item(item: JsonObject) -> JsonObject:
    """An item without what nobody said and no function of the app was asked: instructions, and tools of servers."""
    if item["type"] in ("function_call", "function_call_output"):
        return {key: value for key, value in item.items() if key != "content"}
    said = {"id", "type", "role", "status"}
    if item["type"] == "message" and item.get("role") in SPEAKERS:
        said.add("content")
    return {key: value for key, value in item.items() if key in said}


def is_typed(item: JsonObject) -> bool:
    """Whether an item is a text of the user's side that was not spoken."""
    parts = item.get("content") or ()
    return item.get("role") == "user" and any(part.get("type") == "input_text" for part in parts)
