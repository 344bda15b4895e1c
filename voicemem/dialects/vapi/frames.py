"""Which of Vapi's messages are kept, and which of their fields.

A frame is the body of a webhook, `{"message": {…}}`, or the message in it, as Vapi's clients have it. Of a history in
one frame the newest messages are kept, since each history repeats those before it; all of the report after the call.
Prompts, the assistant's configuration, recordings, costs, analyses and everybody's numbers are not kept.

Messages are put into one form first: whatever their age, kind of server and client, a field has one name and one type.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import field

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side, Text, Texts
from voicemem.dialects.reading import (
    Kind,
    Record,
    digest,
    is_signed,
    kind_of,
    require_object,
    silent,
    speaker,
    unix_ms,
    values,
    whole,
)
from voicemem.protocol.types import JsonObject

ROLES = {"assistant": "bot", "ai": "bot", "agent": "bot", "customer": "user", "tool": "tool_call_result"}
"""Names that a role has in some messages, and its own."""
HISTORY_ROLES = ("user", "bot", "tool_calls", "tool_call_result")
SPOKEN_ROLES = ("user", "bot")
CALL_FIELDS = "arguments", "parameters"
RESULT_FIELDS = "result", "message", "content"
HISTORY, MESSAGE, REPORT = "conversation-update", "conversation-update.message", "end-of-call-report"
"""`MESSAGE` is one message of a history, as `split` makes it of a webhook."""
HISTORIES = (HISTORY, "status-update", REPORT)
"""Messages whose history is looked at."""
MAX_MESSAGES = 12
"""Of a history that is not a report."""
ENDED = "ended"
"""The reason of an end that gives none."""
TOKEN_FIELDS = ("content", "text", "token", "delta")
ID_FIELDS = ("timestamp", "role", "transcriptType", "turn", "turnId", "transcript", "output", "words", "characters")
SECRETS = "x-vapi-secret", "authorization"
"""Where Vapi puts the token of a credential, as it is or behind `Bearer`."""
BEARER = re.compile("^Bearer +", re.IGNORECASE)
SIGNATURES = "x-vapi-signature", "x-signature"
TIMESTAMPS = "x-vapi-timestamp", "x-timestamp"
TOLERANCE_MS = 5 * 60 * 1000
"""How old or new a signature with a time may be."""
NEWEST_S = 100_000_000_000
"""Larger times are ms."""
MAX_TIMESTAMP = 40


# What is kept


class Call(Record):
    id: str


class Sent(Record, rename="camel"):
    """What every message says; times are Unix ms."""

    type: str
    call: Call | None = None
    timestamp: int | None = None


class Function(Record):
    name: str
    arguments: Any = None


class ToolCall(Record):
    id: str
    function: Function


class Message(Record, rename="camel"):
    """One message of the history."""

    role: str
    place: int
    """Which one it is; system messages are not counted."""
    message: str | None = None
    time: int | None = None
    end_time: int | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    result: Any = None


class HistoryFrame(Sent):
    """The history so far, or the newest part of it."""

    messages: list[Message] = field(default_factory=list)


class MessageFrame(Sent, kw_only=True):
    """One message of a history that came in a webhook; `reported`: in the report after the call."""

    item: Message
    reported: bool = False


class ReportFrame(HistoryFrame):
    """The end of the call; the history stands in it unless it was taken apart."""

    ended_reason: str | None = None
    ended_at: int | None = None


class TranscriptFrame(Sent, kw_only=True):
    role: str
    transcript: str
    transcript_type: str = "final"


class InterruptedFrame(Sent):
    turn_id: str | None = None


class SpeechFrame(Sent, kw_only=True):
    """All that the agent says in a turn, and how much of it was spoken."""

    text: str
    turn: int | None = None
    words: int | None = None
    """Words of the text that were spoken by now."""
    characters: int | None = None
    """Characters of the text that are spoken next, after those of the frames before."""


class OutputFrame(Sent, kw_only=True):
    output: str
    turn_id: str | None = None


class ToolCallsFrame(Sent, kw_only=True):
    tool_call_list: list[ToolCall]


class ToolResultFrame(Sent, kw_only=True):
    tool_call_id: str
    name: str | None = None
    result: Any = None


# One form


def role_of(value: Any) -> str:
    """A role's own name. Raises `MalformedFrame`."""
    if not isinstance(value, str):
        raise MalformedFrame("A message has a role.")
    return ROLES.get(value, value)


def history_of(frame: JsonObject) -> list[JsonObject] | None:
    """The messages of a history, numbered; None where there is no history. Raises `MalformedFrame`."""
    artifact = frame.get("artifact")
    for holder in (frame, artifact if isinstance(artifact, dict) else {}):
        for name in ("messages", "messagesOpenAIFormatted"):
            raw = holder.get(name)
            if isinstance(raw, list) and raw:
                return numbered(raw)
    return None


def numbered(raw: Iterable[Any]) -> list[JsonObject]:
    found: list[JsonObject] = []
    for one in raw:
        if not isinstance(one, dict):
            raise MalformedFrame("A history is a list of messages.")
        for message in in_one_form(one):
            found.append({"place": len(found)} | message)
    return found


def in_one_form(raw: JsonObject) -> Iterator[JsonObject]:
    """A message of the history; OpenAI's form may say something and call tools in one. Nothing for what no one said."""
    role = role_of(raw.get("role"))
    if role not in HISTORY_ROLES:
        return
    start, end = unix_ms(raw.get("time")), unix_ms(raw.get("endTime"))
    message: JsonObject = {"role": role, "time": start, "endTime": end}
    if "place" in raw:
        message["place"] = raw["place"]
    if role == "tool_call_result":
        id = raw.get("toolCallId", raw.get("tool_call_id"))
        if isinstance(id, str):
            yield message | {"toolCallId": id, "name": raw.get("name"), "result": first_of(raw, RESULT_FIELDS)}
        return
    text = first_of(raw, ("message", "content"))
    if role in SPOKEN_ROLES and isinstance(text, str) and text.strip():
        yield message | {"message": text.strip()}
    calls = raw.get("toolCalls", raw.get("tool_calls"))
    if isinstance(calls, list) and calls:
        yield message | {"role": "tool_calls", "toolCalls": [*tool_calls(calls)]}


def tool_calls(raw: Any) -> Iterator[JsonObject]:
    """Calls of tools that have an id; name and arguments stand in `function` or beside it. Raises `MalformedFrame`."""
    for one in raw if isinstance(raw, list) else ():
        call = one.get("toolCall", one) if isinstance(one, dict) else None
        if not isinstance(call, dict):
            raise MalformedFrame("A call of a tool is an object.")
        function = call.get("function")
        function = function if isinstance(function, dict) else call
        id, name = call.get("id"), function.get("name") or one.get("name")
        if isinstance(id, str) and isinstance(name, str):
            yield {"id": id, "function": {"name": name, "arguments": first_of(function, CALL_FIELDS)}}


def first_of(holder: JsonObject, fields: Iterable[str]) -> Any:
    """The first of these fields that is there."""
    return next((holder[field] for field in fields if holder.get(field) is not None), None)


# Frames


def history(frame: JsonObject) -> JsonObject | None:
    messages = history_of(frame)
    return None if not messages else frame | {"type": HISTORY, "messages": messages[-MAX_MESSAGES:]}


def report(frame: JsonObject) -> JsonObject:
    call = frame.get("call")
    ended = first_of(frame, ("endedAt",)) or (call.get("endedAt") if isinstance(call, dict) else None)
    return frame | {"messages": history_of(frame) or [], "endedAt": unix_ms(ended)}


def transcript(frame: JsonObject) -> JsonObject:
    return frame | {"role": role_of(frame.get("role"))}


def speech(frame: JsonObject) -> JsonObject:
    """Return how much was spoken: `wordsSpoken` of all, or the characters of these `words`, spaces among them."""
    timing = frame.get("timing")
    timing = timing if isinstance(timing, dict) else {}
    words = timing.get("words")
    counted: JsonObject = {"words": whole(first_of(frame, ("words",)))}
    if "wordsSpoken" in timing:
        counted["words"] = whole(timing["wordsSpoken"])
    elif isinstance(words, list):
        counted["characters"] = sum(len(word) for word in words if isinstance(word, str))
    return frame | counted | {"turn": whole(frame.get("turn"))}


def output(frame: JsonObject) -> JsonObject | None:
    """A piece of the LLM's text; None for a call of a tool, which comes in messages of its own."""
    said = frame.get("output")
    for _ in range(2):  # a piece may stand in an object in an object
        said = first_of(said, TOKEN_FIELDS) if isinstance(said, dict) else said
    return frame | {"output": said} if isinstance(said, str) and said else None


def calls(frame: JsonObject) -> JsonObject:
    raw = first_of(frame, ("toolCallList", "toolCalls", "toolWithToolCallList"))
    return frame | {"toolCallList": [*tool_calls(raw)]}


def tool_answer(frame: JsonObject) -> JsonObject:
    answer = frame.get("toolCallResult")
    answer = answer if isinstance(answer, dict) else frame
    return frame | {name: answer.get(name) for name in ("toolCallId", "name", "result")}


KINDS: dict[str, Kind] = {
    HISTORY: Kind("vendor", HistoryFrame, prepare=history),
    "status-update": Kind("vendor", HistoryFrame, prepare=history),
    MESSAGE: Kind("vendor", MessageFrame),
    REPORT: Kind("vendor", ReportFrame, prepare=report),
    "transcript": Kind("vendor", TranscriptFrame, prepare=transcript),
    "user-interrupted": Kind("vendor", InterruptedFrame),
    "assistant.speechStarted": Kind("vendor", SpeechFrame, prepare=speech),
    "model-output": Kind("vendor", OutputFrame, prepare=output),
    "tool-calls": Kind("vendor", ToolCallsFrame, prepare=calls),
    "tool-calls-result": Kind("vendor", ToolResultFrame, prepare=tool_answer),
    # What says nothing about the transcript that other messages do not say.
    **silent(
        "vendor",
        """
        assistant-request assistant.started call.artifact.upload call.delete.failed call.deleted
        call.endpointing.request campaign.predial chat.created chat.deleted function-call function-call-result
        handoff-destination-request hang knowledge-base-request language-change-detected language-changed metadata
        phone-call-control session.created session.deleted session.updated speech-update
        transfer-destination-request transfer-update voice-input voice-request workflow.node.started
        """,
    ),
}


def message_of(frame: JsonObject) -> JsonObject:
    """The message of a webhook's body, or the frame itself; its type without the filter that may stand behind it."""
    inside = frame.get("message")
    message = inside if isinstance(inside, dict) and "type" not in frame else frame
    if not isinstance(message.get("type"), str):
        raise MalformedFrame('A message of Vapi\'s has a type; a webhook is {"message": {"type": …}}.')
    return message | {"type": message["type"].partition("[")[0], "timestamp": unix_ms(message.get("timestamp"))}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Return what is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = message_of(require_object(frame))
    _, kind = kind_of(raw, KINDS, side)
    content = kind.keep(raw)
    if content is None:
        return None
    return Frame(
        content,
        id=id_of(content),
        ts=content.get("timestamp"),
        side="vendor",
        session_id=(content.get("call") or {}).get("id"),
        end=content.get("endedReason", ENDED) if content["type"] == REPORT else None,
    )


def id_of(content: JsonObject) -> str | None:
    """What a repeat of the frame has too: Vapi gives no ids, but times. None where nothing tells frames apart."""
    if content["type"] == MESSAGE:
        item = content["item"]
        place = item["place"] if item.get("time") is None else item["time"]
        return f"{item['role']}/{place}/{digest(item)}"
    if content["type"] in (HISTORY, REPORT) or "timestamp" not in content:
        return None
    return f"{content['type']}/{digest([content.get(field) for field in ID_FIELDS])}"


def split(body: JsonObject) -> Iterator[JsonObject]:
    """The frames of a webhook: one for each message of its history, then it. Raises `MalformedFrame`."""
    message = message_of(body)
    messages = history_of(message) if message["type"] in HISTORIES else None
    if not messages:
        yield message
        return
    reported = message["type"] == REPORT
    for item in messages:
        place = {name: message.get(name) for name in ("call", "timestamp")}
        yield {"type": MESSAGE, "item": item, "reported": reported} | place
    if reported:
        yield {name: value for name, value in message.items() if name not in ("messages", "artifact")}


# Texts


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    match frame["type"]:
        case "transcript":
            final = frame.get("transcriptType", "final") == "final"
            return (Text(frame, "transcript", "whole", speaker(frame["role"]), final=final, channel="live"),)
        case "assistant.speechStarted":
            return (Text(frame, "text", "grown", item=f"speech {frame.get('turn')}"),)
        case "model-output":
            return (Text(frame, "output", "piece", item=f"output {frame.get('turnId')}"),)
    return other_texts(frame)


def other_texts(frame: JsonObject) -> Iterator[Text]:
    """Return what the history has, and what tools are called with and answer."""
    for message in [*frame.get("messages", ()), *([frame["item"]] if "item" in frame else [])]:
        if message.get("message"):
            yield Text(message, "message", "whole", speaker(message["role"]), item_of(message))
        for call in message.get("toolCalls") or ():
            yield Text(call["function"], "arguments", "value")
        yield from values(message, "result")
    for call in frame.get("toolCallList") or ():
        yield Text(call["function"], "arguments", "value")
    yield from values(frame, "result")


def item_of(message: JsonObject) -> str:
    role, time = message["role"], message.get("time")
    return f"{role}#{message['place']}" if time is None else f"{role}:{time}"


# Webhooks


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Whether a webhook carries the secret, or a signature with it: HMAC-SHA256 in hex, of the body or `TIME.BODY`."""
    if not secret:
        return False
    raw = [BEARER.sub("", headers[name]) for name in SECRETS if name in headers]
    if any(hmac.compare_digest(secret.encode(), one.encode(errors="replace")) for one in raw):
        return True
    timestamp = next((headers[name] for name in TIMESTAMPS if name in headers), None)
    if timestamp is not None and not is_now(timestamp, now):
        return False
    # With a time a signature is over both, since the time alone could be changed.
    payload = body if timestamp is None else timestamp.encode() + b"." + body
    return is_signed(payload, secret, (headers[name].removeprefix("sha256=") for name in SIGNATURES if name in headers))


def is_now(timestamp: str, now: int) -> bool:
    """Return whether a time (Unix seconds or ms, or ISO 8601) is about now."""
    if len(timestamp) > MAX_TIMESTAMP:
        return False
    number = int(timestamp) if timestamp.isascii() and timestamp.isdecimal() else None
    at = unix_ms(timestamp) if number is None else number if number >= NEWEST_S else number * 1000
    return at is not None and abs(now - at) <= TOLERANCE_MS
