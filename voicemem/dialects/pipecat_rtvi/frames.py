"""Which RTVI messages are kept, and which of their fields."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import Record, kept, kind_of, require_object
from voicemem.protocol.types import JsonObject

LABEL = "rtvi-ai"
PHONE_NUMBER = re.compile(r"(?:sip|tel)?[:_]?\+?[\d\s().-]{7,}(?:@.*)?")
"""A user's id that telephony made of the caller's number."""

ISO_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII
)
"""Pure packages have no calendar: the days are counted by hand."""


class Nothing(Record):
    """A message that only has its type."""


class UserInput(Record):
    text: str
    final: bool = True
    input_type: str | None = None
    user_id: str | None = None
    msg_id: str | None = None
    timestamp: str | None = None


class SentText(Record):
    content: str


class Progress(Record):
    accumulated_text: str = ""


class BotOutput(Record):
    text: str
    output_type: str | None = None
    aggregated_by: str | None = None
    segment_id: int | None = None
    spoken: bool | None = None
    will_be_spoken: bool | None = None
    spoken_status: str | None = None
    spoken_progress: Progress | None = None


class FunctionCall(Record):
    """`args` is 1.x's name."""

    tool_call_id: str
    function_name: str | None = None
    arguments: Any = None
    args: Any = None


class FunctionResult(Record):
    tool_call_id: str
    function_name: str | None = None
    result: Any = None
    cancelled: bool = False


class Kind(NamedTuple):
    """Who sends the messages of a type, and what is kept of their data; None for those that say nothing."""

    side: Side
    record: type[Record] | None


SILENT_VENDOR = """
    bot-transcription bot-llm-text bot-llm-marker bot-tts-text bot-tts-audio bot-tts-started bot-tts-stopped
    user-llm-text stt-raw-text llm-raw-text tts-raw-text user-stopped-speaking
    vad-user-started-speaking vad-user-stopped-speaking user-mute-started user-mute-stopped metrics server-message
    server-response error-response error system-log user-audio-level bot-audio-level ui-command ui-job-group
    llm-function-call-started llm-search-response bot-llm-search-response config config-available
    config-error action-response actions-available storage-item-stored bot-output-progress
""".split()  # noqa: SIM905 (a list would be a page long)
SILENT_APP = """
    client-ready client-message disconnect-bot send-file dtmf-input append-to-context update-config get-config
    describe-config action describe-actions raw-audio raw-audio-batch ui-event ui-snapshot ui-cancel-job-group
    dtmf
""".split()  # noqa: SIM905 (a list would be a page long)
KINDS: dict[str, Kind] = {
    "user-input": Kind("vendor", UserInput),
    "user-transcription": Kind("vendor", UserInput),
    "bot-ready": Kind("vendor", Nothing),
    "user-started-speaking": Kind("vendor", Nothing),
    "bot-llm-started": Kind("vendor", Nothing),
    "bot-llm-stopped": Kind("vendor", Nothing),
    "bot-output": Kind("vendor", BotOutput),
    "bot-interrupted": Kind("vendor", Nothing),
    "bot-started-speaking": Kind("vendor", Nothing),
    "bot-stopped-speaking": Kind("vendor", Nothing),
    "llm-function-call": Kind("vendor", FunctionCall),
    "llm-function-call-in-progress": Kind("vendor", FunctionCall),
    "llm-function-call-stopped": Kind("vendor", FunctionResult),
    "llm-function-call-result": Kind("app", FunctionResult),
    "send-text": Kind("app", SentText),
    **{name: Kind("vendor", None) for name in SILENT_VENDOR},
    **{name: Kind("app", None) for name in SILENT_APP},
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    given = require_object(frame)
    if given.get("label") != LABEL:
        raise MalformedFrame(f"A frame of this dialect has the label {LABEL}.")
    name, kind = kind_of(given, KINDS)
    if side not in (None, kind.side):
        raise MalformedFrame("The other side sends messages of this type.")
    if kind.record is None:
        return None
    content: JsonObject = {"label": LABEL, "type": name}
    if kind.record is not Nothing:
        content["data"] = kept(kind.record, require_object(given.get("data", {})))
    data = content.get("data", {})
    if name == "send-text" and isinstance(given.get("id"), str):
        content["id"] = given["id"]
    if "user_id" in data and (not data["user_id"] or PHONE_NUMBER.fullmatch(data["user_id"])):
        del data["user_id"]
    chat = content.get("id", data.get("msg_id"))
    typed = name == "send-text" or data.get("input_type") == "chat"
    return Frame(
        content,
        id=id_of(name, data, chat, typed),
        ts=ms(data.get("timestamp")),
        side=kind.side,
        typed=typed,
    )


def id_of(name: str, data: JsonObject, chat: str | None, typed: bool) -> str | None:
    """The id of a text that was typed, which both sides say, and of a call of a function."""
    if typed:
        return None if chat is None else f"chat/{chat}"
    return f"{name}/{data['tool_call_id']}" if "tool_call_id" in data else None


def ms(timestamp: str | None) -> int | None:
    """An ISO time as Unix ms; None for what is not one. Without a zone it is UTC."""
    found = ISO_TIME.fullmatch(timestamp or "")
    if found is None:
        return None
    year, month, day, hours, minutes, seconds = (int(part) for part in found.groups()[:6])
    years = year - (month < 3)
    days = years * 365 + years // 4 - years // 100 + years // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719_469
    fraction, sign, zone_hours, zone_minutes = found.groups()[6:]
    offset = (int(zone_hours or 0) * 60 + int(zone_minutes or 0)) * (-1 if sign == "-" else 1)
    whole = ((days * 24 + hours) * 60 + minutes - offset) * 60 + seconds
    return max(0, whole * 1000 + int((fraction or "").ljust(3, "0")[:3]))
