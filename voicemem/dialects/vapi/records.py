"""The fields of Vapi's messages that are kept: all others are left out."""

from __future__ import annotations

from typing import Any

from msgspec import field

from voicemem.dialects.reading import Record


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
