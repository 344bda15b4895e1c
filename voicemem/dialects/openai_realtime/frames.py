"""The kept frames of OpenAI's Realtime API, and their fields."""

from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET, UnsetType

from voicemem.dialects.dialect import Speaker, Text, Texts
from voicemem.dialects.kinds import ANYTHING, event, many, optional, record, typed
from voicemem.dialects.reading import speaker, values
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
"""The beta's names, which some vendors still use, and today's."""
SPEAKERS = ("user", "assistant")
"""Roles with spoken items; items of other roles are instructions."""
TRANSCRIBED = "conversation.item.input_audio_transcription."
WRITTEN = "response.output_text.delta"
CALLED = ("mcp_call", "web_search_call", "file_search_call")
"""Item types of tools that the vendor calls itself."""
DELTAS = ("response.output_audio_transcript.delta", WRITTEN)
SessionFrame = event(
    session=record(
        "id? output_audio_format?",
        audio=optional(record(output=optional(record(format=optional(record("type?", rate=optional(int))))))),
    )
)
Item = record(
    "type id? role? status? call_id? name? arguments?",
    content=optional(many(record("type? text? transcript?"))),
    output=ANYTHING,
    error=optional(str | record("type? message?", code=optional(int | str))),
    queries=optional(many(str)),
    results=ANYTHING,
)
ItemFrame = event("previous_item_id? response_id?", item=Item)
NamedItem = event("item_id previous_item_id?")
"""A frame that only names an item."""
Timed = record(offset_milliseconds=int, duration_milliseconds=int)
Phrase = record("locale?", words=optional(many(Timed)))
Transcript = event("item_id delta? transcript?", phrases=optional(many(Phrase)))
"""A transcript of a user's item. The times in phrases apply to the transcript's words, if it has as many."""
Response = record("id?", conversation_id=(str | UnsetType | None, UNSET))
"""`conversation_id` is None if the response belongs to no conversation."""
Done = event(
    response=record(
        "status?",
        Response,
        status_details=optional(record("reason?", error=optional(record("type? code?")))),
        output=optional(many(Item)),
    )
)
Delta = event("item_id delta response_id?")
AudioDelta = typed("item_id response_id?", audio_bytes=int)
"""It has no id: counting a repeat only shifts an estimate, but ids would take memory."""
Truncation = event("item_id", audio_end_ms=optional(int))
NamedResponse = event("response_id")
Translated = event("delta", elapsed_ms=optional(int))
"""Speech in a translation session, or its translation."""


def said_item(item: JsonObject) -> JsonObject:
    """Return an item without instructions and lists of tools, which no one said."""
    if item["type"] in ("function_call", "function_call_output", *CALLED):
        return {key: value for key, value in item.items() if key != "content"}
    said = {"id", "type", "role", "status"}
    if item["type"] == "message" and item.get("role") in SPEAKERS:
        said.add("content")
    return {key: value for key, value in item.items() if key in said}


def texts(frame: JsonObject) -> Texts:
    name: str = frame["type"]
    if name in DELTAS:
        return (Text(frame, "delta", "piece", item=frame["item_id"]),)
    if name.startswith(TRANSCRIBED):
        forms: tuple[tuple[str, Literal["piece", "whole"]], ...] = (("delta", "piece"), ("transcript", "whole"))
        return [Text(frame, key, form, "user", frame["item_id"]) for key, form in forms if frame.get(key)]
    if name == "response.audio_timestamp.delta":
        return (Text(frame, "text", "word", item=frame["item_id"], at_ms=frame["audio_offset_ms"]),)
    if name in TRANSLATED:
        side: Speaker = "user" if name == INPUT else "agent"
        return (Text(frame, "delta", "piece", side, name),)
    if name == "input_text.delta":
        return (Text(frame, "delta", "piece", "user", f"text {frame['id']}"),)
    if name == KEY:
        return (Text(frame, "event", "piece", "user", KEY),)
    if "item" in frame:
        return item_texts(frame["item"])
    return [text for item in frame.get("response", {}).get("output") or () for text in item_texts(item)]


def item_texts(item: JsonObject) -> Iterator[Text]:
    for part in item.get("content") or ():
        for key in ("text", "transcript"):
            if part.get(key):
                yield Text(part, key, "whole", speaker(item.get("role")), item.get("id"))
    yield from values(item, "arguments", "output", "queries", "results")
    error = item.get("error")
    yield from values(error, "message") if isinstance(error, dict) else values(item, "error")


KEY, INPUT = "input_audio_buffer.dtmf_event_received", "session.input_transcript.delta"
TRANSLATED = (INPUT, "session.output_transcript.delta")
