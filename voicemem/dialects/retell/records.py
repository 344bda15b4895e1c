"""The fields of Retell's frames that are kept: all others are left out."""

from __future__ import annotations

from typing import Any

from msgspec import field

from voicemem.dialects.reading import Record


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
