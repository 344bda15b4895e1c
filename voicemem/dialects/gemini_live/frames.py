"""Which messages of Gemini's Live API are kept, and which of their fields.

Audio of a message is counted next to its `serverContent`, in bytes and with its sample rate. Thoughts, images, prompts,
definitions of tools, and the handle of a resumption are not kept.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side, UnknownFrame
from voicemem.dialects.reading import Record, audio_bytes, read
from voicemem.errors import InvalidFrame
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED, check_frame
from voicemem.protocol.types import MAX_INTEGER, JsonObject

MAX_BYTES = 16 * 1024 * 1024
"""Of a message that comes as bytes or text: Gemini sends its JSON in binary messages."""
USUAL_RATE = 24_000
"""Samples a second of Gemini's audio, of 16 bits each."""
RATE = "rate"
VENDOR = {
    "serverContent",
    "toolCall",
    "toolCallCancellation",
    "setupComplete",
    "goAway",
    "sessionResumptionUpdate",
    "usageMetadata",
    "voiceActivity",
    "voiceActivityDetectionSignal",
}
APP = {"setup", "clientContent", "realtimeInput", "toolResponse", "contextUpdate"}


class Text(Record):
    text: str | None = None


class Blob(Record, rename="camel"):
    mime_type: str | None = None
    data: str | None = None


class Part(Record, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    inline_data: Blob | None = None


class Content(Record):
    role: str | None = None
    parts: list[Part] | None = None


class ServerContent(Record, rename="camel"):
    input_transcription: Text | None = None
    interim_input_transcription: Text | None = None
    output_transcription: Text | None = None
    model_turn: Content | None = None
    generation_complete: bool | None = None
    interrupted: bool | None = None
    turn_complete: bool | None = None


class FunctionCall(Record):
    name: str
    id: str | None = None
    args: Any = None


class FunctionResponse(Record):
    name: str | None = None
    id: str | None = None
    response: Any = None


class ToolCalls(Record, rename="camel"):
    function_calls: list[FunctionCall] | None = None


class ToolResponse(Record, rename="camel"):
    function_responses: list[FunctionResponse] | None = None


class ClientContent(Record):
    turns: list[Content] | None = None


class SetupComplete(Record, rename="camel"):
    session_id: str | None = None


class Message(Record, rename="camel"):
    """One message; of audio that was counted, `audio_bytes` and `rate` stand next to it."""

    server_content: ServerContent | None = None
    tool_call: ToolCalls | None = None
    setup_complete: SetupComplete | None = None
    client_content: ClientContent | None = None
    realtime_input: Text | None = None
    tool_response: ToolResponse | None = None


RECORDS = (Blob, Part, ServerContent, ToolCalls, ToolResponse, SetupComplete, Message)
NAMES = {name for kind in RECORDS for name in kind.__struct_encode_fields__} | VENDOR | APP
CAMEL = {re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name): name for name in NAMES}
"""The names of the Python SDK, and those of the wire."""
DEPTH = 8
"""How deep a message has names of its own."""
FREE = ("args", "response")
"""What a tool is called with and answers, whose names are the app's."""


def in_camel_case(value: Any, depth: int = DEPTH) -> Any:
    """A message with the names of the wire, without what is null."""
    if not depth:
        return value
    if isinstance(value, dict):
        return {
            CAMEL.get(key, key): one if key in FREE else in_camel_case(one, depth - 1)
            for key, one in value.items()
            if one is not None
        }
    return [in_camel_case(one, depth - 1) for one in value] if isinstance(value, list) else value


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a message. Raises `MalformedFrame`, `UnknownFrame`."""
    given = in_camel_case(decoded(frame))
    sender = sender_of(given)
    if side not in (None, sender):
        raise MalformedFrame("The other side sends messages of this kind.")
    message = read(Message, given)
    content: JsonObject = counted_audio(message, given) if sender == "vendor" else {}
    if message.server_content is not None:
        content |= server_content(message.server_content)
    if message.tool_call is not None and message.tool_call.function_calls:
        content["toolCall"] = msgspec.to_builtins(message.tool_call)
    if message.tool_response is not None and message.tool_response.function_responses:
        content["toolResponse"] = msgspec.to_builtins(message.tool_response)
    typed = typed_text(message)
    if typed:
        content["realtimeInput"] = {"text": typed}
    session_id = None if message.setup_complete is None else message.setup_complete.session_id
    if message.setup_complete is not None:
        content["setupComplete"] = {"sessionId": session_id} if session_id else {}
    if not content:
        return None
    only_audio = content.keys() == {AUDIO_BYTES, RATE}
    return Frame(content, side=sender, session_id=session_id or None, typed=bool(typed), counts_audio=only_audio)


def decoded(frame: RawFrame) -> JsonObject:
    """The message as a JSON object. Raises `MalformedFrame`."""
    if isinstance(frame, str | bytes):
        try:
            text = frame.encode() if isinstance(frame, str) else frame
            check_frame(text, MAX_BYTES)
            frame = JSON_DECODER.decode(text)
        except (InvalidFrame, UnicodeEncodeError, *MALFORMED):
            raise MalformedFrame("A message of this dialect is JSON.") from None
    if not isinstance(frame, dict):
        raise MalformedFrame("A message of this dialect is a JSON object.")
    return frame


def sender_of(given: JsonObject) -> Side:
    """Who sends a message. Raises `MalformedFrame`, `UnknownFrame`."""
    vendor, app = given.keys() & VENDOR or AUDIO_BYTES in given, given.keys() & APP
    if vendor and app:
        raise MalformedFrame("A message is either Gemini's or the app's.")
    if not vendor and not app:
        if given:
            raise UnknownFrame(str(next(iter(given))))
        raise MalformedFrame("A message of this dialect says something.")
    return "vendor" if vendor else "app"


def server_content(given: ServerContent) -> JsonObject:
    """What the model and the recogniser say, without what is empty."""
    content: JsonObject = {}
    for name in ("input_transcription", "interim_input_transcription", "output_transcription"):
        said: Text | None = getattr(given, name)
        if said is not None and said.text:
            content[CAMEL[name]] = {"text": said.text}
    parts = [] if given.model_turn is None else given.model_turn.parts or []
    texts: list[JsonObject] = [{"text": part.text} for part in parts if part.text and not part.thought]
    if texts:
        content["modelTurn"] = {"parts": texts}
    for name in ("generation_complete", "interrupted", "turn_complete"):
        if getattr(given, name):
            content[CAMEL[name]] = True
    return {"serverContent": content} if content else {}


def counted_audio(message: Message, given: JsonObject) -> JsonObject:
    """How much audio there is in a message, if any. Raises `MalformedFrame`."""
    count, rate = 0, USUAL_RATE
    if AUDIO_BYTES in given:
        count = audio_bytes(given, AUDIO_BYTES)
        rate = read(int, given.get(RATE, USUAL_RATE))
    turn = None if message.server_content is None else message.server_content.model_turn
    for part in () if turn is None else turn.parts or ():
        blob = part.inline_data
        if blob is not None and blob.data and (blob.mime_type or "audio/").startswith("audio/"):
            count += audio_bytes({"data": blob.data}, "data")
            rate = rate_of(blob.mime_type or "", rate)
    if not 1 <= rate <= MAX_INTEGER or count > MAX_INTEGER:
        raise MalformedFrame("There is no such audio.")
    return {AUDIO_BYTES: count, RATE: rate} if count else {}


def rate_of(mime_type: str, otherwise: int) -> int:
    """The sample rate of `audio/pcm;rate=24000`."""
    found = re.search(r"rate=(\d{1,9})(?!\d)", mime_type)
    return int(found[1]) if found else otherwise


def typed_text(message: Message) -> str:
    """What the app sends as the user's words. Of several turns all but the last are the history of another session."""
    if message.realtime_input is not None and message.realtime_input.text:
        return message.realtime_input.text
    turns = [] if message.client_content is None else message.client_content.turns or []
    if not turns or turns[-1].role not in (None, "user"):
        return ""
    return "\n".join(part.text for part in turns[-1].parts or () if part.text)
