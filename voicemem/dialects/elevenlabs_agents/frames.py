"""Which frames of ElevenLabs Agents are kept, and which of their fields.

Events have numbers, which begin again in each conversation: an app that connects again has several in one session. So
they are not the ids of frames; `translation` leaves out what comes twice. Audio is counted, and the times of its
characters become those of its words. Frames of the webhook's transcript, which `frames` makes, are kept too. What
configures the agent, who calls, and what the app tells the LLM is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side, Text, Texts
from voicemem.dialects.reading import (
    Kind,
    Record,
    Typed,
    audio_bytes,
    is_signed,
    kind_of,
    read,
    require_object,
    silent,
    speaker,
)
from voicemem.protocol.types import MAX_INTEGER, SPACELESS, JsonObject

ITEM = "post_call_transcription.item"
"""One item of a webhook's transcript."""
ENDED = "post_call_transcription.ended"
"""The end of the call, as the webhook says it."""
SIGNATURE = "elevenlabs-signature"
TOLERANCE_MS = 30 * 60 * 1000
"""How old or new a signature may be, as in ElevenLabs' own SDK."""
MAX_DIGITS = 15
TRANSCRIPT = "post_call_transcription"


class Metadata(Record):
    conversation_id: str
    agent_output_audio_format: str | None = None


class MetadataFrame(Typed):
    conversation_initiation_metadata_event: Metadata


class UserText(Record):
    user_transcript: str
    event_id: int


class TentativeFrame(Typed):
    tentative_user_transcription_event: UserText


class UserFrame(Typed):
    user_transcription_event: UserText


class Response(Record):
    agent_response: str
    event_id: int


class ResponseFrame(Typed):
    agent_response_event: Response


class Part(Record):
    text: str
    event_id: int
    type: str | None = None


class PartFrame(Typed):
    text_response_part: Part


class Numbered(Record):
    event_id: int


class InterruptionFrame(Typed):
    interruption_event: Numbered


class Correction(Record):
    original_agent_response: str
    corrected_agent_response: str
    event_id: int


class CorrectionFrame(Typed):
    agent_response_correction_event: Correction


class Call(Record):
    tool_name: str
    tool_call_id: str
    parameters: Any = None


class CallFrame(Typed):
    client_tool_call: Call


class Request(Record):
    tool_name: str
    tool_call_id: str
    tool_type: str | None = None


class RequestFrame(Typed):
    agent_tool_request: Request


class Result(Record):
    tool_call_id: str
    tool_name: str | None = None
    full_tool_result: Any = None


class ResultFrame(Typed):
    agent_tool_response_full_payload: Result


class ClientResult(Typed):
    tool_call_id: str
    result: Any = None


class TypedText(Typed):
    text: str | None = None


class Multimodal(Typed):
    text: TypedText | None = None


class Alignment(Record):
    chars: list[str]
    char_start_times_ms: list[float]
    char_durations_ms: list[float]


class Audio(Typed):
    """It keeps no id: to count it twice shifts an estimate, to remember it takes memory."""

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


class Item(Typed):
    """An item of the transcript after the call; `ts` and `until` are when it and the next began, Unix ms."""

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


class Ended(Typed):
    conversation_id: str
    ts: int | None = None


# What is kept


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
    """Return whether a text begins a word of its own, after this one."""
    if not text or text[0].isspace():
        return False
    return before[-1].isspace() or SPACELESS.match(before[-1]) is not None or SPACELESS.match(text) is not None


def whole_ms(time: float) -> int:
    return int(max(0.0, min(time, float(MAX_INTEGER // 2))))


def call_id(field: str) -> Callable[[JsonObject], str]:
    """The id of a tool's call, under the field that holds it."""
    return lambda frame: str(frame[field]["tool_call_id"])


KINDS: dict[str, Kind] = {
    "conversation_initiation_metadata": Kind("vendor", MetadataFrame),
    "tentative_user_transcript": Kind("vendor", TentativeFrame),
    "user_transcript": Kind("vendor", UserFrame),
    "agent_response": Kind("vendor", ResponseFrame),
    "agent_chat_response_part": Kind("vendor", PartFrame),
    "audio": Kind("vendor", Audio, prepare=counted),
    "interruption": Kind("vendor", InterruptionFrame),
    "agent_response_correction": Kind("vendor", CorrectionFrame),
    "client_tool_call": Kind("vendor", CallFrame, call_id("client_tool_call")),
    "agent_tool_request": Kind("vendor", RequestFrame, call_id("agent_tool_request")),
    "agent_tool_response_full_payload": Kind("vendor", ResultFrame, call_id("agent_tool_response_full_payload")),
    ITEM: Kind("vendor", Item, lambda frame: f"{frame['conversation_id']}/{frame['index']}"),
    ENDED: Kind("vendor", Ended, lambda frame: str(frame["conversation_id"])),
    "client_tool_result": Kind("app", ClientResult, lambda frame: str(frame["tool_call_id"])),
    "user_message": Kind("app", TypedText),
    "multimodal_message": Kind("app", Multimodal),
    **silent(
        "vendor",
        """
        agent_reasoning_response_part agent_tool_response agent_typing asr_initiation_metadata context_usage error
        external_agent_connected external_agent_disconnected guardrail_triggered internal_tentative_agent_response
        internal_turn_probability mcp_connection_status mcp_tool_call ping rich_content vad_score
        """,
    ),
    **silent(
        "app",
        """
        contextual_update conversation_initiation_client_data feedback mcp_tool_approval_result pong user_activity
        """,
    ),
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Return what is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = require_object(frame)
    if "user_audio_chunk" in raw and "type" not in raw:
        if side == "vendor":
            raise MalformedFrame("The other side sends frames of this type.")
        return None
    name, kind = kind_of(raw, KINDS, side)
    content = kind.keep(raw)
    if content is None:
        return None
    id = kind.id(content)
    return Frame(
        content,
        id=None if id is None else f"{name}/{id}",
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
    side = speaker(frame["role"])
    for key, final in (("original_message", True), ("message", side == "user")):
        if frame.get(key):
            item = f"{frame['conversation_id']}/{frame['index']}" if side == "user" else None
            yield Text(frame, key, "whole", side, item, final)
    for call in frame.get("tool_calls") or ():
        yield Text(call, "params_as_json", "value")
    for result in frame.get("tool_results") or ():
        yield Text(result, "result_value", "value")


def tool_texts(frame: JsonObject) -> Iterator[Text]:
    """Return what a tool is called with, and what it answers."""
    for holder, key in (
        (frame.get("client_tool_call"), "parameters"),
        (frame.get("agent_tool_response_full_payload"), "full_tool_result"),
        (frame, "result"),
    ):
        if holder is not None and holder.get(key) is not None:
            yield Text(holder, key, "value")


# Webhooks


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a body was signed with this secret within the last half hour: `t=UNIX_SECONDS,v0=HEX`."""
    parts = [part.strip().partition("=") for part in headers.get(SIGNATURE, "").split(",")]
    stated = [value for name, _, value in parts if name == "t"]
    signed = [value for name, _, value in parts if name == "v0"]
    if len(stated) != 1 or not stated[0].isascii() or not stated[0].isdecimal() or len(stated[0]) > MAX_DIGITS:
        return False
    if not secret or abs(now - int(stated[0]) * 1000) > TOLERANCE_MS:
        return False
    return is_signed(stated[0].encode() + b"." + body, secret, signed)


class CallTimes(Record):
    """Unix seconds, and seconds."""

    start_time_unix_secs: int | None = None
    call_duration_secs: int | None = None


class Data(Record):
    conversation_id: str
    transcript: list[JsonObject]
    metadata: CallTimes | None = None


def frames(body: JsonObject) -> Iterator[JsonObject]:
    """One frame for each item of the transcript, and one for the end; nothing for other webhooks.

    Raises `MalformedFrame`.
    """
    if not isinstance(body.get("type"), str):
        raise MalformedFrame("A webhook has a type.")
    if body["type"] != TRANSCRIPT:
        return
    data = read(Data, body.get("data"))
    call = data.metadata or CallTimes()
    times = [time_of(item, call) for item in data.transcript]
    for index, item in enumerate(data.transcript):
        until = times[index + 1] if index + 1 < len(times) else None
        place = {"type": ITEM, "conversation_id": data.conversation_id, "index": index}
        yield {**item, **place, "ts": times[index], "until": until}
    yield {"type": ENDED, "conversation_id": data.conversation_id, "ts": end_of(call)}


def time_of(item: JsonObject, call: CallTimes) -> int | None:
    """Return when an item began, Unix ms."""
    created, seconds = item.get("created_at_unix_ms"), item.get("time_in_call_secs")
    if type(created) is int:
        return created
    if call.start_time_unix_secs is None or type(seconds) is not int:
        return None
    return (call.start_time_unix_secs + seconds) * 1000


def end_of(call: CallTimes) -> int | None:
    """Return when the call ended, Unix ms."""
    if call.start_time_unix_secs is None or call.call_duration_secs is None:
        return None
    return (call.start_time_unix_secs + call.call_duration_secs) * 1000
