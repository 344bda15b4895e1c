"""The records of a memory: chat messages, the tool calls between them, summaries (docs/memory.md).

The fold derives them from the journal; nothing edits them afterwards.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from voicemem.protocol.types import JsonObject

WANTED_BACK = "llm"
"""The key in a tool call's metadata: the fields that its LLM wants back, of the `message` and of the `call`; and
the `group`, the same for calls that the LLM made at once."""
Role = Literal["user", "assistant"]
OF_CLIENT = "agent_memory"
"""The key in the metadata of a message of a working memory: a client wrote it down, so it is said as it stands."""


class Message(Struct, frozen=True, gc=False):
    """One message of the history; its fields are in the order of the JSON output."""

    role: Role
    content: str
    """The text that was said; for an interrupted reply exactly what was heard."""
    turn_id: int
    timestamp: int
    """Unix ms when the message began; a producer's number is passed through unscaled."""
    metadata: dict[str, Any]


class ToolUse(Struct, frozen=True, gc=False):
    """One tool call and, once it has arrived, its result; both as the producer gave them."""

    turn_id: int
    timestamp: int
    """Unix ms of the tool call, which is before the messages of its turn that began later."""
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
    """A summary, written by an LLM, that replaces the first turns of a call."""

    through_turn: int
    """It covers all messages up to and including this turn."""
    text: str
    messages: int
    """The number of these messages."""
    model: str | None = None


class Extracted(Struct, frozen=True, gc=False):
    """The part of a call that was read for memories that an LLM makes of it."""

    through: int = 0
    """The position of the journal up to which something began."""
    calls: int = 0
    """How many requests to the LLM that took."""


class Forgotten(Struct, frozen=True, gc=False):
    """The part that is left out of every context; the history still has it."""

    through_turn: int = -1
    """All messages up to and including this turn are forgotten."""
    turn: int | None = None
    """In this later turn, what began up to `position` is, except what began at the positions `kept`."""
    position: int = 0
    kept: tuple[int, ...] = ()

    def covers(self, turn_id: int, order: int) -> bool:
        """Return whether what began at the journal position `order` is forgotten."""
        if turn_id <= self.through_turn:
            return True
        return turn_id == self.turn and order <= self.position and order not in self.kept
