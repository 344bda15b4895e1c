"""Which of Retell's frames are kept, and which of their fields.

A frame is a message of a custom LLM's websocket, of either side, or the body of a webhook. Each transcript repeats
those before it: of one in a message the newest elements are kept. Times of words become those of elements. Prompts,
variables, numbers, recordings, costs and analyses are not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import kept, kind_of, require_object
from voicemem.dialects.retell.elements import SPOKEN, elements_of, response_of, whole
from voicemem.dialects.retell.records import (
    CallFrame,
    DetailsFrame,
    ElementFrame,
    InvocationFrame,
    ResponseFrame,
    ResultFrame,
    TranscriptFrame,
)
from voicemem.protocol.types import JsonObject

ELEMENT = "transcript.element"
"""One element of a webhook's transcript, as `taken_apart` makes it."""
OVER = "call_ended", "call_analyzed"
"""Webhooks after the call."""
UPDATED = "transcript_updated"
CALL_FIELDS = "call_id", "end_timestamp", "disconnection_reason", "spoken"
MAX_ELEMENTS = 12
"""Of a transcript that is not the last."""
ENDED = "ended"
"""The reason of an end that gives none."""


class Kind(NamedTuple):
    """What is kept of a type of frame (None: nothing), and how it is put into one form before."""

    record: type[msgspec.Struct] | None
    prepare: Callable[[JsonObject], JsonObject]


def same(frame: JsonObject) -> JsonObject:
    return frame


def transcript(frame: JsonObject) -> JsonObject:
    return frame | {"elements": elements_of(frame)[-MAX_ELEMENTS:], "timestamp": whole(frame.get("timestamp"))}


def response(frame: JsonObject) -> JsonObject:
    return frame | {"response": frame.get("response") or response_of(frame), "content": frame.get("content") or ""}


def call_of(frame: JsonObject) -> JsonObject:
    """The call of a webhook. Raises `MalformedFrame`."""
    call = frame.get("call") if isinstance(frame.get("call"), dict) else frame.get("data")
    if not isinstance(call, dict):
        raise MalformedFrame("A webhook of Retell has a call.")
    return call


def called(frame: JsonObject) -> JsonObject:
    """A webhook with its transcript, and of the call what is kept. Raises `MalformedFrame`."""
    call = call_of(frame)
    holder = frame if "elements" in frame else call | frame_transcript(frame)
    elements = elements_of(holder, whole(call.get("start_timestamp")))
    spoken = [one["index"] for one in elements if one["role"] in SPOKEN]
    times = {"end_timestamp": whole(call.get("end_timestamp")), "spoken": call.get("spoken")}
    if spoken:
        times["spoken"] = spoken[-1] + 1
    return frame | {"elements": elements, "call": call | times}


def frame_transcript(frame: JsonObject) -> JsonObject:
    """A transcript that stands beside the call."""
    beside = frame.get("transcript_with_tool_calls")
    return {"transcript_with_tool_calls": beside} if isinstance(beside, list) and beside else {}


VENDOR: dict[str, Kind] = {
    "update_only": Kind(TranscriptFrame, transcript),
    "response_required": Kind(TranscriptFrame, transcript),
    "reminder_required": Kind(TranscriptFrame, transcript),
    "call_details": Kind(DetailsFrame, same),
    "ping_pong": Kind(None, same),
}
APP: dict[str, Kind] = {
    "response": Kind(ResponseFrame, response),
    "agent_interrupt": Kind(ResponseFrame, response),
    "tool_call_invocation": Kind(InvocationFrame, same),
    "tool_call_result": Kind(ResultFrame, same),
    **{name: Kind(None, same) for name in ("config", "metadata", "ping_pong", "update_agent")},
}
WEBHOOKS: dict[str, Kind] = {
    ELEMENT: Kind(ElementFrame, same),
    **{name: Kind(CallFrame, called) for name in (UPDATED, *OVER)},
    **{
        name: Kind(None, same)
        for name in """
            call_started transfer_started transfer_bridged transfer_cancelled transfer_ended chat_started chat_ended
            chat_analyzed call_inbound chat_inbound alert_triggered alert_resolved
        """.split()  # noqa: SIM905 (a list would be a page long)
    },
}
FIELDS: tuple[tuple[str, dict[str, Kind], Side], ...] = (
    ("interaction_type", VENDOR, "vendor"),
    ("response_type", APP, "app"),
    ("event", WEBHOOKS, "vendor"),
)


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    given = require_object(frame)
    if "response_id" in given and "content" in given and not any(field in given for field, _, _ in FIELDS):
        given = given | {"response_type": "response"}  # as older apps say it
    field, kinds, sender = next((one for one in FIELDS if one[0] in given), FIELDS[0])
    name, kind = kind_of(given, kinds, field)
    if side not in (None, sender):
        raise MalformedFrame("The other side sends frames of this type.")
    if kind.record is None:
        return None
    content = kept(kind.record, kind.prepare(given))
    call = content.get("call") or {}
    over = field == "event" and name in OVER
    return Frame(
        content,
        id=id_of(content),
        ts=content.get("timestamp"),
        side=sender,
        session_id=call.get("call_id"),
        end=call.get("disconnection_reason", ENDED) if over else None,
    )


def id_of(content: JsonObject) -> str | None:
    """What a repeat of the frame has too. Transcripts need none: each says all again."""
    if content.get("event") == ELEMENT:
        element = content["element"]
        return f"{element['role']}/{element['index']}/{digest([element, content.get('reported')])}"
    if "tool_call_id" in content:
        return f"{content['response_type']}/{content['tool_call_id']}"
    return None


def digest(value: Any) -> str:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def taken_apart(body: JsonObject) -> Iterator[JsonObject]:
    """The frames of a webhook: one for each element of its transcript, then it. Raises `MalformedFrame`."""
    name, kind = body.get("event"), None
    if isinstance(name, str):
        kind = WEBHOOKS.get(name)
    if kind is None or kind.record is not CallFrame:
        yield body
        return
    prepared = called(body)
    over = name in OVER
    call = {field: prepared["call"].get(field) for field in CALL_FIELDS}
    for element in prepared["elements"]:
        yield {"event": ELEMENT, "call": {"call_id": call["call_id"]}, "element": element, "reported": over}
    if over:
        yield {"event": name, "call": call}
