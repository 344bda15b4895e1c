"""Which frames of Deepgram's Voice Agent are kept, and which of their fields.

Binary frames are the agent's audio, of which the bytes are counted. Of the settings only the format of that audio is
kept: neither prompts, nor keys of other services, nor definitions of functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import Record, bytes_of, kept, kind_of, require_object
from voicemem.protocol.types import JsonObject


class Typed(Record, kw_only=True):
    type: str


class Welcome(Typed):
    request_id: str | None = None


class Output(Record):
    encoding: str | None = None
    sample_rate: int | None = None
    bitrate: int | None = None


class Audio(Record):
    output: Output | None = None


class Settings(Typed):
    audio: Audio | None = None


class ConversationText(Typed):
    role: str
    content: str
    conversational_behavior: str | None = None


class FunctionCall(Record):
    id: str
    name: str
    arguments: Any = ""


class FunctionCallRequest(Typed):
    functions: list[FunctionCall]


class FunctionCallResponse(Typed):
    name: str
    content: Any = None
    id: str | None = None


class InjectUserMessage(Typed):
    content: str


class InjectAgentMessage(Typed):
    behavior: str | None = None


class SpeechInterrupted(Typed):
    text_spoken: str | None = None
    """Of the turn that was cut; its position in the frame counts from the session's start, and is not kept."""


class Kind(NamedTuple):
    """Who sends the frames of a type (None: either side), what is kept of them (None: nothing), and their own id."""

    side: Side | None
    record: type[Typed] | None
    id: Callable[[JsonObject], str | None] = lambda frame: None


def request_id(frame: JsonObject) -> str | None:
    return ",".join(call["id"] for call in frame["functions"]) or None


SILENT_VENDOR = """
    Error FrustrationDetected FunctionCallCancelled InjectionRefused LatencyReport ListenUpdated PromptUpdated
    SettingsApplied SpeakUpdated ThinkLiveUpdated ThinkUpdated Warning __customFromThinkProvider
""".split()  # noqa: SIM905 (a list would be a page long)
"""What Deepgram sends that says nothing about the transcript."""
SILENT_APP = """
    ForceEndTurn KeepAlive UpdateListen UpdatePrompt UpdateSpeak UpdateThink UpdateThink_Live __customToThinkProvider
""".split()  # noqa: SIM905 (a list would be a page long)
"""What the app sends that nobody says."""
KINDS: dict[str, Kind] = {
    "Welcome": Kind("vendor", Welcome, lambda frame: frame.get("request_id")),
    "ConversationText": Kind("vendor", ConversationText),
    "UserStartedSpeaking": Kind("vendor", Typed),
    "AgentThinking": Kind("vendor", Typed),
    "AgentStartedSpeaking": Kind("vendor", Typed),
    "AgentAudioDone": Kind("vendor", Typed),
    "SpeechInterrupted": Kind("vendor", SpeechInterrupted),
    "FunctionCallRequest": Kind("vendor", FunctionCallRequest, request_id),
    "FunctionCallResponse": Kind(None, FunctionCallResponse, lambda frame: frame.get("id")),
    "Settings": Kind("app", Settings),
    "InjectUserMessage": Kind("app", InjectUserMessage),
    "InjectAgentMessage": Kind("app", InjectAgentMessage),
    "History": Kind(None, None),
    **{name: Kind("vendor", None) for name in SILENT_VENDOR},
    **{name: Kind("app", None) for name in SILENT_APP},
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    count = bytes_of(frame)
    if count is not None:
        # What the user says goes to Deepgram in binary frames too.
        is_agents = side != "app" and count
        return Frame({AUDIO_BYTES: count}, side="vendor", counts_audio=True) if is_agents else None
    given = require_object(frame)
    name, kind = kind_of(given, KINDS)
    if None not in (side, kind.side) and side != kind.side:
        raise MalformedFrame("The other side sends frames of this type.")
    if kind.record is None:
        return None
    content = kept(kind.record, given)
    if not says_something(content):
        return None
    id = kind.id(content)
    return Frame(
        content,
        id=None if id is None else f"{name}/{id}",
        side=kind.side,
        session_id=content.get("request_id"),
        typed=name == "InjectUserMessage",
    )


def says_something(content: JsonObject) -> bool:
    """Whether there is anything in a frame that is worth a row. Raises `MalformedFrame`."""
    match content["type"]:
        case "ConversationText":
            if content["role"] not in ("user", "assistant"):
                raise MalformedFrame("A text of a conversation is the user's or the assistant's.")
            is_backchannel = content["role"] == "user" and content.get("conversational_behavior") == "backchannel"
            return bool(content["content"].strip()) and not is_backchannel
        case "InjectUserMessage":
            return bool(content["content"].strip())
        case "FunctionCallRequest":
            return bool(content["functions"])
    return True
