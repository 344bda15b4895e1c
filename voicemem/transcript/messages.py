"""The records of a memory: chat messages, tool calls, and summaries (docs/memory.md).

The fold derives them from the journal; nothing edits them afterwards.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from voicemem.protocol.types import JsonObject

WANTED_BACK = "llm"
"""The key in a tool call's metadata of the fields that its LLM wants back: of the `message`, of the `call`, and a
`group` that calls made at once share."""
Role = Literal["user", "assistant"]
OF_CLIENT = "agent_memory"
"""The key in the metadata of a message that a client wrote to a working memory: it counts as said in full."""


class Message(Struct, frozen=True, gc=False):
    """One message of the history, with its fields in the order of the JSON output."""

    role: Role
    content: str
    """The spoken text; for an interrupted reply exactly the heard text."""
    turn_id: int
    timestamp: int
    """Unix ms when the message began; a producer's number is passed on unscaled."""
    metadata: dict[str, Any]


class ToolUse(Struct, frozen=True, gc=False):
    """One tool call, with its result once that has arrived; both as the producer gave them."""

    turn_id: int
    timestamp: int
    """Unix ms of the tool call, which comes before the messages of its turn that began later."""
    call_id: str
    name: str
    arguments_json: bytes
    """As JSON, which takes less memory; likewise the result."""
    result_json: bytes = b"null"
    answered: bool = False
    """True if the result has arrived; an unanswered tool call is not shown to an LLM."""
    answered_ms: int = 0
    """Unix ms of the result."""
    wanted_back: JsonObject | None = None
    """The fields that the LLM wants back with it (`WANTED_BACK`)."""

    @property
    def arguments(self) -> Any:
        return msgspec.json.decode(self.arguments_json)

    @property
    def result(self) -> Any:
        return msgspec.json.decode(self.result_json)


class Summary(Struct, frozen=True, gc=False):
    """A summary by an LLM, which replaces the first turns of a call."""

    through_turn: int
    """It covers all messages up to and including this turn."""
    text: str
    messages: int
    """The number of these messages."""
    model: str | None = None


class Extracted(Struct, frozen=True, gc=False):
    """The part of a call that was read for extraction."""

    through: int = 0
    """The journal position up to which the messages that began were read."""
    calls: int = 0
    """The number of LLM requests for that."""


class Forgotten(Struct, frozen=True, gc=False):
    """The forgotten range, which contexts leave out; the history still has it."""

    through_turn: int = -1
    """All messages up to and including this turn are forgotten."""
    turn: int | None = None
    """In this later turn, messages that began up to `position` are forgotten, except those at the positions `kept`."""
    position: int = 0
    kept: tuple[int, ...] = ()

    def covers(self, turn_id: int, position: int) -> bool:
        """Return whether a message that began at a journal position is forgotten."""
        if turn_id <= self.through_turn:
            return True
        return turn_id == self.turn and position <= self.position and position not in self.kept
