"""Which events of Nova Sonic's stream are kept, and which of their fields.

Audio is counted. Prompts and history are not kept: a text of the app's is only kept as one that may have been typed.
Definitions of tools are not kept either. Source: "Handling input events" and "Handling output events with the
bidirectional API" of the Amazon Nova user guides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side, Text, UnknownFrame
from voicemem.dialects.reading import Kind, Record, audio_bytes, json_object, read, silent, values
from voicemem.protocol.types import MAX_INTEGER, JsonObject

EVENT = "event"
REPLY, SPOKEN = "reply", "spoken"
"""The blocks that come are those of the utterance under way, or sentences of the reply."""
MAX_FIELDS = 4_096
"""Bytes of `additionalModelFields`, or of a text that may be the mark of an interruption."""


class Rate(Record, rename="camel"):
    sample_rate_hertz: int | None = None


class ToolUseId(Record, rename="camel"):
    tool_use_id: str | None = None


class ContentStart(Record, rename="camel"):
    """The vendor's contents have an id, the app's a name."""

    type: str
    role: str | None = None
    content_id: str | None = None
    content_name: str | None = None
    prompt_name: str | None = None
    interactive: bool | None = None
    generation_stage: str | None = None
    """SPECULATIVE or FINAL; it comes in `additionalModelFields`."""
    audio_output_configuration: Rate | None = None
    tool_result_input_configuration: ToolUseId | None = None


class ContentEnd(Record, rename="camel"):
    content_id: str
    type: str | None = None
    stop_reason: str | None = None


class TextOutput(Record, rename="camel"):
    content_id: str
    role: str | None = None
    content: str | None = None
    interrupted: bool | None = None
    """Whether it is the mark of an interruption, which comes as a text."""


class AudioOutput(Record, rename="camel"):
    content_id: str


class ToolUse(Record, rename="camel"):
    tool_use_id: str
    tool_name: str
    content_id: str | None = None
    content: Any = None


class CompletionStart(Record, rename="camel"):
    session_id: str | None = None
    completion_id: str | None = None


class CompletionEnd(Record, rename="camel"):
    completion_id: str | None = None
    stop_reason: str | None = None


class PromptStart(Record, rename="camel"):
    prompt_name: str | None = None
    audio_output_configuration: Rate | None = None


class AppText(Record, rename="camel"):
    content_name: str
    content: str


class ToolResult(Record, rename="camel"):
    content_name: str
    content: Any = None


class Nothing(Record):
    """Of an event only its time says something."""


KINDS: dict[str, Kind] = {
    "contentStart": Kind(None, ContentStart),
    "contentEnd": Kind(None, ContentEnd),
    "completionStart": Kind("vendor", CompletionStart),
    "textOutput": Kind("vendor", TextOutput),
    "audioOutput": Kind("vendor", AudioOutput),
    "toolUse": Kind("vendor", ToolUse),
    "completionEnd": Kind("vendor", CompletionEnd),
    "promptStart": Kind("app", PromptStart),
    "textInput": Kind("app", AppText),
    "toolResult": Kind("app", ToolResult),
    "sessionEnd": Kind("app", Nothing),
    **silent("vendor", "usageEvent"),
    **silent("app", "sessionStart audioInput promptEnd"),
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Return what is kept of an event. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = json_object(frame, MAX_INTEGER)
    name, body = kind_and_body(raw)
    sender = sender_of(name, body, side)
    record = KINDS[name].record
    if record is None or (name == "contentEnd" and sender == "app"):
        return None
    if record is ContentStart:
        body = body | {"generationStage": stage_of(body)}
    elif record is TextOutput:
        body = marked(body)
    kept = read(record, body)
    content: JsonObject = msgspec.to_builtins(kept)
    if isinstance(kept, TextOutput) and not (kept.content or kept.interrupted):
        return None
    if isinstance(kept, AudioOutput):
        count = body if AUDIO_BYTES not in raw else raw
        counted: JsonObject = {AUDIO_BYTES: audio_bytes(count, "content"), EVENT: {name: content}}
        return Frame(counted, side="vendor", counts_audio=True)
    check_rate(content)
    whole: JsonObject = {EVENT: {name: content}}
    if isinstance(kept, AppText):
        return Frame(whole, side="app", typed=True, within=f"{kept.content_name}/contentStart")
    if isinstance(kept, ContentStart) and sender == "app":
        return app_content(whole, kept)
    session_id = kept.session_id if isinstance(kept, CompletionStart) else None
    return Frame(whole, id=id_of(name, kept), side=sender, session_id=session_id)


def app_content(whole: JsonObject, start: ContentStart) -> Frame | None:
    """What is kept of a content that the app begins: the first audio, results of tools, and typed texts after audio.

    What stands before the audio are prompts and the history of other connections.
    """
    audio, id = f"{start.prompt_name}/audio", f"{start.content_name}/contentStart"
    if start.type == "AUDIO":
        return Frame(whole, id=audio, side="app", opens=True)
    if start.type == "TOOL":
        return Frame(whole, id=id, side="app")
    is_typed = start.role == "USER" and start.interactive is not False
    return Frame(whole, id=id, side="app", opens=True, within=audio) if is_typed else None


def kind_and_body(raw: JsonObject) -> tuple[str, JsonObject]:
    """The kind of an event, and what is in it. Raises `MalformedFrame`, `UnknownFrame`."""
    event = raw.get(EVENT)
    if not isinstance(event, dict):
        if EVENT in raw or not raw:
            raise MalformedFrame("A frame of this dialect has an event.")
        raise UnknownFrame(str(next(iter(raw))))
    name = next((key for key in event if key in KINDS), None)
    if name is None:
        if event:
            raise UnknownFrame(str(next(iter(event))))
        raise MalformedFrame("An event of this dialect names its kind.")
    if not isinstance(event[name], dict):
        raise MalformedFrame("What an event of this dialect says is an object.")
    return name, event[name]


def sender_of(name: str, body: JsonObject, side: Side | None) -> Side:
    """Who sends an event. Raises `MalformedFrame` where that is not who says so, or no one can tell."""
    sender = KINDS[name].side
    if sender is None:
        by_vendor = body.get("contentId") is not None or body.get("completionId") is not None
        if not by_vendor and body.get("contentName") is None:
            raise MalformedFrame("A content has a contentId or a contentName.")
        sender = "vendor" if by_vendor else "app"
    if side not in (None, sender):
        raise MalformedFrame("The other side sends events of this kind.")
    return sender


def stage_of(body: JsonObject) -> Any:
    """Return whether a text is SPECULATIVE or FINAL, from JSON in a text."""
    if "generationStage" in body:
        return body["generationStage"]
    fields = body.get("additionalModelFields")
    if isinstance(fields, str):
        fields = small_object(fields)
    stage = fields.get("generationStage") if isinstance(fields, dict) else None
    return stage if isinstance(stage, str) else None


def marked(body: JsonObject) -> JsonObject:
    """A text, or the mark of an interruption: a JSON object in its place, which is never a text."""
    content = body.get("content")
    mark = small_object(content) if isinstance(content, str) and content.lstrip().startswith("{") else None
    if mark is None or "interrupted" not in mark:
        return body
    return {key: one for key, one in body.items() if key != "content"} | {"interrupted": mark["interrupted"] is True}


def small_object(text: str) -> JsonObject | None:
    """The JSON object that a short text is, if it is one."""
    try:
        return json_object(text, MAX_FIELDS)
    except MalformedFrame:
        return None


def check_rate(content: JsonObject) -> None:
    """Raises `MalformedFrame` for audio that cannot be."""
    for body in content.values():
        rate = body.get("sampleRateHertz", 1) if isinstance(body, dict) else 1
        if not 1 <= rate <= MAX_INTEGER:
            raise MalformedFrame("There is no such audio.")


def id_of(name: str, kept: Any) -> str | None:
    """An event's own id. A typed text has none: a long one comes in pieces, and some may be alike."""
    if isinstance(kept, TextOutput):
        return f"{kept.content_id}/{name}/{len(kept.content or '')}"
    for field in ("content_id", "content_name", "completion_id", "prompt_name"):
        id = getattr(kept, field, None)
        if id is not None:
            return f"{id}/{name}"
    return None


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of an event."""
    ((name, body),) = frame[EVENT].items()
    if name == "textOutput" and "content" in body:
        if body.get("role") == "USER":
            yield Text(body, "content", "piece", "user", SPOKEN)
        else:
            yield Text(body, "content", "sentence", item=body["contentId"])
    elif name == "textInput":
        yield Text(body, "content", "piece", "user", body["contentName"])
    elif name in ("toolUse", "toolResult"):
        yield from values(body, "content")
    elif name == "contentStart" and body.get("generationStage") == "SPECULATIVE":
        yield Text(None, "", "end", "user", SPOKEN)
    elif name == "contentStart" and body.get("role") == "USER":
        yield Text(None, "", "end", item=REPLY)
