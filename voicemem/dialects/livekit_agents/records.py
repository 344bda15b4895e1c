"""The fields that are kept of LiveKit's frames."""

from __future__ import annotations

from voicemem.dialects.reading import Record


class Transcribed(Record):
    type: str
    transcript: str
    is_final: bool
    created_at: float | None = None


class UserState(Record):
    type: str
    new_state: str
    created_at: float | None = None


class Spoken(Record):
    """When an item was spoken, in Unix seconds."""

    started_speaking_at: float | None = None
    stopped_speaking_at: float | None = None


class Item(Record):
    """An item of the chat history; a history may have been written without times."""

    type: str
    id: str
    role: str | None = None
    content: list[str] | None = None
    interrupted: bool = False
    metrics: Spoken | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None
    created_at: float | None = None


class Added(Record):
    type: str
    item: Item
    created_at: float | None = None


class Call(Record):
    call_id: str
    name: str = ""
    arguments: str = ""


class Output(Record):
    call_id: str
    output: str = ""


class Executed(Record):
    type: str
    function_calls: list[Call]
    function_call_outputs: list[Output]
    created_at: float | None = None


class Update(Record):
    type: str
    function_call: Call | None = None


class Updated(Record):
    type: str
    update: Update
    created_at: float | None = None


class FalseInterruption(Record):
    type: str
    resumed: bool
    created_at: float | None = None


class Close(Record):
    type: str
    reason: str
    created_at: float | None = None


class Text(Record):
    """One text of a stream. `role` is ours: identities may be phone numbers."""

    topic: str
    role: str
    segment: str
    text: str
    final: bool = False
