"""Which of Retell's frames are kept, and which of their fields.

A frame is a message of a custom LLM's websocket, of either side, or the body of a webhook. Each transcript repeats
those before it: of one in a message the newest elements are kept. Times of words become those of elements. Prompts,
variables, numbers, recordings, costs and analyses are not kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import field

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side, Speaker, Text, Texts
from voicemem.dialects.reading import (
    Kind,
    Record,
    digest,
    is_signed,
    kind_of,
    require_object,
    silent,
    values,
    whole,
)
from voicemem.protocol.types import JsonObject

SPOKEN = ("agent", "user", "transfer_target")
KEPT = (*SPOKEN, "tool_call_invocation", "tool_call_result", "dtmf")
"""Roles of elements that say something; text messages, injected context and nodes of a flow do not."""
TRANSCRIPTS = "transcript_with_tool_calls", "transcript_object", "transcript"
ELEMENT = "transcript.element"
"""One element of a webhook's transcript, as `split` makes it."""
OVER = "call_ended", "call_analyzed"
"""Webhooks after the call."""
UPDATED = "transcript_updated"
CALL_FIELDS = "call_id", "end_timestamp", "disconnection_reason", "spoken"
MAX_ELEMENTS = 12
"""Of a transcript that is not the last."""
ENDED = "ended"
"""The reason of an end that gives none."""
SIGNATURE = "x-retell-signature"
FORM = re.compile(r"v=([0-9]{1,15}),d=([0-9a-f]{64})")
TOLERANCE_MS = 5 * 60 * 1000
"""How old or new a signature may be, as in Retell's own SDK."""


class Call(Record):
    call_id: str
    end_timestamp: int | None = None
    disconnection_reason: str | None = None
    spoken: int | None = None
    """How many utterances its transcript has."""


class Element(Record):
    """One element of a transcript. `index` counts utterances of people, else what is of its own role."""

    role: str
    index: int
    content: str | None = None
    ts: int | None = None
    """When it began, Unix ms; `until` is when the caller spoke after it."""
    until: int | None = None
    followed: bool = False
    """Whether the caller has spoken after it."""
    response: str | None = None
    """Which of the app's responses it is."""
    tool_call_id: str | None = None
    name: str | None = None
    arguments: Any = None


class TranscriptFrame(Record):
    """The transcript so far, or the newest part of it."""

    interaction_type: str
    elements: list[Element] = field(default_factory=list)
    timestamp: int | None = None


class DetailsFrame(Record):
    interaction_type: str
    call: Call


class ElementFrame(Record):
    """One element of a webhook's transcript; `reported`: the call is over."""

    event: str
    call: Call
    element: Element
    reported: bool = False


class CallFrame(Record):
    """A webhook; the transcript stands in it unless it was taken apart."""

    event: str
    call: Call
    elements: list[Element] = field(default_factory=list)


class ResponseFrame(Record):
    """What the app has the agent say: a piece of it."""

    response_type: str
    response: str
    content: str = ""
    content_complete: bool = False


class InvocationFrame(Record):
    response_type: str
    tool_call_id: str
    name: str
    arguments: Any = None


class ResultFrame(Record):
    response_type: str
    tool_call_id: str
    content: Any = None


# Elements of transcripts in one form: numbered, with Unix times, and whether the caller spoke after them.


def elements_of(frame: JsonObject, started: int | None = None) -> list[JsonObject]:
    """The elements of a transcript; `started` is when the call began. Raises `MalformedFrame`."""
    if isinstance(frame.get("elements"), list):
        return list(frame["elements"])
    lists = (frame[name] for name in TRANSCRIPTS if isinstance(frame.get(name), list))
    counts: Counter[str] = Counter()
    found: list[JsonObject] = []
    for one in next((one for one in lists if one), []):
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise MalformedFrame("A transcript is a list of objects, each with a role.")
        if one["role"] in KEPT:
            kind = "spoken" if one["role"] in SPOKEN else one["role"]
            element = in_one_form(one, counts[kind], started)
            if one["role"] not in SPOKEN and found:  # they have no time of their own
                element["ts"] = found[-1]["ts"]
            found.append(element)
            counts[kind] += 1
    note_callers(found)
    return [one for one in found if one["role"] in SPOKEN or one.get("content") or one.get("tool_call_id")]


def in_one_form(raw: JsonObject, index: int, started: int | None) -> JsonObject:
    element = {"role": raw["role"], "index": index, "ts": time_of(raw, started)}
    content = raw.get("digit") if raw["role"] == "dtmf" else raw.get("content")
    if content is not None:
        element["content"] = content if isinstance(content, str) else str(content)
    for name in ("tool_call_id", "name", "arguments"):
        if raw.get(name) is not None:
            element[name] = raw[name]
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        element["response"] = response_of(metadata)
    return element


def response_of(raw: JsonObject) -> str | None:
    """The name of a response, or of what the agent says to interrupt the caller."""
    for name, letter in (("response_id", "r"), ("interrupt_id", "i")):
        number = whole(raw.get(name))
        if number is not None:
            return f"{letter}{number}"
    return None


def time_of(raw: JsonObject, started: int | None) -> int | None:
    """Return when an element began: by its first word, which counts from the begin of the call."""
    words = raw.get("words")
    first = words[0] if isinstance(words, list) and words else None
    start = first.get("start") if isinstance(first, dict) else None
    if started is None or not isinstance(start, int | float) or isinstance(start, bool):
        return None
    return whole(started + start * 1000)


def note_callers(elements: list[JsonObject]) -> None:
    """Note of the agent's elements that the caller spoke after them, and when."""
    after: JsonObject | None = None
    for element in reversed(elements):
        if element["role"] == "agent":
            if after is not None:
                element |= {"followed": True, "until": after["ts"]}
            after = None
        elif element["role"] in SPOKEN:
            after = element


# What is kept


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


def element_id(content: JsonObject) -> str:
    """Return what a repeat of an element has too. Whole transcripts need no id: each says all again."""
    element = content["element"]
    return f"{element['role']}/{element['index']}/{digest([element, content.get('reported')])}"


def tool_id(content: JsonObject) -> str:
    return f"{content['response_type']}/{content['tool_call_id']}"


VENDOR: dict[str, Kind] = {
    "update_only": Kind("vendor", TranscriptFrame, prepare=transcript),
    "response_required": Kind("vendor", TranscriptFrame, prepare=transcript),
    "reminder_required": Kind("vendor", TranscriptFrame, prepare=transcript),
    "call_details": Kind("vendor", DetailsFrame),
    **silent("vendor", "ping_pong"),
}
APP: dict[str, Kind] = {
    "response": Kind("app", ResponseFrame, prepare=response),
    "agent_interrupt": Kind("app", ResponseFrame, prepare=response),
    "tool_call_invocation": Kind("app", InvocationFrame, tool_id),
    "tool_call_result": Kind("app", ResultFrame, tool_id),
    **silent("app", "config metadata ping_pong update_agent"),
}
WEBHOOKS: dict[str, Kind] = {
    ELEMENT: Kind("vendor", ElementFrame, element_id),
    **dict.fromkeys((UPDATED, *OVER), Kind("vendor", CallFrame, prepare=called)),
    **silent(
        "vendor",
        """
        call_started transfer_started transfer_bridged transfer_cancelled transfer_ended chat_started chat_ended
        chat_analyzed call_inbound chat_inbound alert_triggered alert_resolved
        """,
    ),
}
FIELDS = {"interaction_type": VENDOR, "response_type": APP, "event": WEBHOOKS}
"""Where the frames of each table have their type."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Return what is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = require_object(frame)
    if "response_id" in raw and "content" in raw and not FIELDS.keys() & raw.keys():
        raw = raw | {"response_type": "response"}  # as older apps say it
    field = next((one for one in FIELDS if one in raw), "interaction_type")
    name, kind = kind_of(raw, FIELDS[field], side, field)
    content = kind.keep(raw)
    if content is None:
        return None
    call = content.get("call") or {}
    over = field == "event" and name in OVER
    return Frame(
        content,
        id=kind.id(content),
        ts=content.get("timestamp"),
        side=kind.side,
        session_id=call.get("call_id"),
        end=call.get("disconnection_reason", ENDED) if over else None,
    )


def split(body: JsonObject) -> Iterator[JsonObject]:
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


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    if "response" in frame:
        return (Text(frame, "content", "piece", item=frame["response"]),) if frame.get("content") else ()
    if "response_type" in frame:
        return values(frame, "arguments", "content")
    return element_texts(frame)


def element_texts(frame: JsonObject) -> Iterator[Text]:
    for element in [*frame.get("elements", ()), *([frame["element"]] if "element" in frame else [])]:
        if element["role"] not in SPOKEN:
            yield from values(element, "arguments", "content")
        elif element.get("content"):
            side: Speaker = "agent" if element["role"] == "agent" else "user"  # also whom a call is transferred to
            yield Text(element, "content", "whole", side, f"element {element['index']}")


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a body was signed with this API key within the last five minutes: `v=UNIX_MS,d=HEX`."""
    found = FORM.fullmatch(headers.get(SIGNATURE, ""))
    if found is None or not secret or abs(now - int(found[1])) > TOLERANCE_MS:
        return False
    return is_signed(body + found[1].encode(), secret, [found[2]])
