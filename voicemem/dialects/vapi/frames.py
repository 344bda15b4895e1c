"""Which of Vapi's messages are kept, and which of their fields.

A frame is the body of a webhook, `{"message": {…}}`, or the message in it, as Vapi's clients have it. Of a history in
one frame the newest messages are kept, since each history repeats those before it; all of the report after the call.
Prompts, the assistant's configuration, recordings, costs, analyses and everybody's numbers are not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import kept, kind_of, require_object
from voicemem.dialects.vapi.messages import first_of, history_of, ms, number, role_of, tool_calls
from voicemem.dialects.vapi.records import (
    HistoryFrame,
    InterruptedFrame,
    MessageFrame,
    OutputFrame,
    ReportFrame,
    SpeechFrame,
    ToolCallsFrame,
    ToolResultFrame,
    TranscriptFrame,
)
from voicemem.protocol.types import JsonObject

HISTORY, MESSAGE, REPORT = "conversation-update", "conversation-update.message", "end-of-call-report"
"""`MESSAGE` is one message of a history, as `taken_apart` makes it of a webhook."""
HISTORIES = (HISTORY, "status-update", REPORT)
"""Messages whose history is looked at."""
MAX_MESSAGES = 12
"""Of a history that is not a report."""
ENDED = "ended"
"""The reason of an end that gives none."""
TOKEN_FIELDS = ("content", "text", "token", "delta")
ID_FIELDS = ("timestamp", "role", "transcriptType", "turn", "turnId", "transcript", "output", "words", "characters")


class Kind(NamedTuple):
    """What is kept of a type of message (None: nothing), and how it is put into one form before."""

    record: type[msgspec.Struct] | None
    prepare: Callable[[JsonObject], JsonObject | None]


def same(frame: JsonObject) -> JsonObject:
    return frame


def history(frame: JsonObject) -> JsonObject | None:
    messages = history_of(frame)
    return None if not messages else frame | {"type": HISTORY, "messages": messages[-MAX_MESSAGES:]}


def report(frame: JsonObject) -> JsonObject:
    call = frame.get("call")
    ended = first_of(frame, ("endedAt",)) or (call.get("endedAt") if isinstance(call, dict) else None)
    return frame | {"messages": history_of(frame) or [], "endedAt": ms(ended)}


def transcript(frame: JsonObject) -> JsonObject:
    return frame | {"role": role_of(frame.get("role"))}


def speech(frame: JsonObject) -> JsonObject:
    """How much was spoken: `wordsSpoken` of all, or the characters of these `words`, spaces among them."""
    timing = frame.get("timing")
    timing = timing if isinstance(timing, dict) else {}
    words = timing.get("words")
    counted: JsonObject = {"words": number(first_of(frame, ("words",)))}
    if "wordsSpoken" in timing:
        counted["words"] = number(timing["wordsSpoken"])
    elif isinstance(words, list):
        counted["characters"] = sum(len(word) for word in words if isinstance(word, str))
    return frame | counted | {"turn": number(frame.get("turn"))}


def output(frame: JsonObject) -> JsonObject | None:
    """A piece of the LLM's text; None for a call of a tool, which comes in messages of its own."""
    said = frame.get("output")
    for _ in range(2):  # a piece may stand in an object in an object
        said = first_of(said, TOKEN_FIELDS) if isinstance(said, dict) else said
    return frame | {"output": said} if isinstance(said, str) and said else None


def calls(frame: JsonObject) -> JsonObject:
    given = first_of(frame, ("toolCallList", "toolCalls", "toolWithToolCallList"))
    return frame | {"toolCallList": [*tool_calls(given)]}


def tool_result(frame: JsonObject) -> JsonObject:
    answer = frame.get("toolCallResult")
    answer = answer if isinstance(answer, dict) else frame
    return frame | {name: answer.get(name) for name in ("toolCallId", "name", "result")}


SILENT = """
    assistant-request assistant.started call.artifact.upload call.delete.failed call.deleted call.endpointing.request
    campaign.predial chat.created chat.deleted function-call function-call-result handoff-destination-request hang
    knowledge-base-request language-change-detected language-changed metadata phone-call-control session.created
    session.deleted session.updated speech-update transfer-destination-request transfer-update voice-input voice-request
    workflow.node.started
""".split()  # noqa: SIM905 (a list would be a page long)
"""What says nothing about the transcript that other messages do not say."""
KINDS: dict[str, Kind] = {
    HISTORY: Kind(HistoryFrame, history),
    "status-update": Kind(HistoryFrame, history),
    MESSAGE: Kind(MessageFrame, same),
    REPORT: Kind(ReportFrame, report),
    "transcript": Kind(TranscriptFrame, transcript),
    "user-interrupted": Kind(InterruptedFrame, same),
    "assistant.speechStarted": Kind(SpeechFrame, speech),
    "model-output": Kind(OutputFrame, output),
    "tool-calls": Kind(ToolCallsFrame, calls),
    "tool-calls-result": Kind(ToolResultFrame, tool_result),
    **{name: Kind(None, same) for name in SILENT},
}


def message_of(frame: JsonObject) -> JsonObject:
    """The message of a webhook's body, or the frame itself; its type without the filter that may stand behind it."""
    inside = frame.get("message")
    message = inside if isinstance(inside, dict) and "type" not in frame else frame
    if not isinstance(message.get("type"), str):
        raise MalformedFrame('A message of Vapi\'s has a type; a webhook is {"message": {"type": …}}.')
    return message | {"type": message["type"].partition("[")[0], "timestamp": ms(message.get("timestamp"))}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    given = message_of(require_object(frame))
    _, kind = kind_of(given, KINDS)
    if side == "app":
        raise MalformedFrame("All of these frames are Vapi's.")
    prepared = None if kind.record is None else kind.prepare(given)
    if kind.record is None or prepared is None:
        return None
    content = kept(kind.record, prepared)
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


def digest(value: Any) -> str:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def taken_apart(body: JsonObject) -> Iterator[JsonObject]:
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
