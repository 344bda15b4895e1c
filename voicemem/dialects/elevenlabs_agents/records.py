"""The fields of ElevenLabs' frames that are kept: all others are left out."""

from __future__ import annotations

from typing import Any

from voicemem.dialects.reading import Record


class Metadata(Record):
    conversation_id: str
    agent_output_audio_format: str | None = None


class MetadataFrame(Record):
    type: str
    conversation_initiation_metadata_event: Metadata


class UserText(Record):
    user_transcript: str
    event_id: int


class TentativeFrame(Record):
    type: str
    tentative_user_transcription_event: UserText


class UserFrame(Record):
    type: str
    user_transcription_event: UserText


class Response(Record):
    agent_response: str
    event_id: int


class ResponseFrame(Record):
    type: str
    agent_response_event: Response


class Part(Record):
    text: str
    event_id: int
    type: str | None = None


class PartFrame(Record):
    type: str
    text_response_part: Part


class Numbered(Record):
    event_id: int


class InterruptionFrame(Record):
    type: str
    interruption_event: Numbered


class Correction(Record):
    original_agent_response: str
    corrected_agent_response: str
    event_id: int


class CorrectionFrame(Record):
    type: str
    agent_response_correction_event: Correction


class Call(Record):
    tool_name: str
    tool_call_id: str
    parameters: Any = None


class CallFrame(Record):
    type: str
    client_tool_call: Call


class Request(Record):
    tool_name: str
    tool_call_id: str
    tool_type: str | None = None


class RequestFrame(Record):
    type: str
    agent_tool_request: Request


class Result(Record):
    tool_call_id: str
    tool_name: str | None = None
    full_tool_result: Any = None


class ResultFrame(Record):
    type: str
    agent_tool_response_full_payload: Result


class ClientResult(Record):
    type: str
    tool_call_id: str
    result: Any = None


class TypedText(Record):
    type: str
    text: str | None = None


class Multimodal(Record):
    type: str
    text: TypedText | None = None


class Alignment(Record):
    chars: list[str]
    char_start_times_ms: list[float]
    char_durations_ms: list[float]


class Audio(Record):
    """It keeps no id: to count it twice shifts an estimate, to remember it takes memory."""

    type: str
    audio_bytes: int
    event_id: int | None = None
    words: list[tuple[str, int, int]] | None = None
    """Pieces of the text, each a word with the white space after it, and its times from the start of this audio."""


class ToolCall(Record):
    request_id: str
    tool_name: str
    params_as_json: str | None = None


class ToolResult(Record):
    request_id: str
    tool_name: str | None = None
    result_value: Any = None


class Item(Record):
    """An item of the transcript after the call; `ts` and `until` are when it and the next began, Unix ms."""

    type: str
    conversation_id: str
    index: int
    role: str
    ts: int | None = None
    until: int | None = None
    message: str | None = None
    original_message: str | None = None
    interrupted: bool | None = None
    ignored_as_backchannel: bool | None = None
    source_medium: str | None = None
    source_event_id: int | None = None
    tool_calls: list[ToolCall] | None = None
    tool_results: list[ToolResult] | None = None


class Ended(Record):
    type: str
    conversation_id: str
    ts: int | None = None
