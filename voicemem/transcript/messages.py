"""The records of a memory: chat messages, the tool calls between them, summaries (docs/memory.md).

The fold derives them from the journal; nothing edits them afterwards.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from voicemem.protocol.checks import METADATA_ORDER, RESERVED_METADATA

Role = Literal["user", "assistant"]
OF_CLIENT = "agent_memory"
"""The key in the metadata of a message of a working memory: a client wrote it down, so it is said as it stands."""


class Message(Struct, frozen=True, gc=False):
    """One message of the history; its fields are in the order of the JSON output."""

    role: Role
    content: str
    """What was said; for an interrupted reply exactly what was heard."""
    turn_id: int
    timestamp: int
    """Unix ms when the message began; a producer's number is passed through unscaled."""
    metadata: dict[str, Any]


class ToolUse(Struct, frozen=True, gc=False):
    """One tool call and, once it has arrived, its result; both as the producer gave them."""

    turn_id: int
    timestamp: int
    """Unix ms of the tool call, which stands before the messages of its turn that began later."""
    call_id: str
    name: str
    arguments: Any
    result: Any = None
    answered: bool = False
    """Whether the result has arrived; an unanswered tool call is not shown to an LLM."""


class Summary(Struct, frozen=True, gc=False):
    """A summary, written by an LLM, that stands for the first turns of a call."""

    through_turn: int
    """It stands for all messages up to and including this turn."""
    text: str
    messages: int
    """The number of these messages."""
    model: str | None = None


class Extracted(Struct, frozen=True, gc=False):
    """Which part of a call was read for memories that an LLM makes of it."""

    through: int = 0
    """What began up to this position of the journal."""
    calls: int = 0
    """How many requests to the LLM that took."""


class Forgotten(Struct, frozen=True, gc=False):
    """What is left out of every context; the history still has it."""

    through_turn: int = -1
    """All messages up to and including this turn are forgotten."""
    turn: int | None = None
    """In this later turn, what began up to `position` is, except what began at the positions `kept`."""
    position: int = 0
    kept: tuple[int, ...] = ()

    def covers(self, turn_id: int, order: int) -> bool:
        """Whether what began at the journal position `order` is forgotten."""
        if turn_id <= self.through_turn:
            return True
        return turn_id == self.turn and order <= self.position and order not in self.kept


def order_metadata(values: dict[str, Any]) -> dict[str, Any]:
    """The same metadata, with the keys that voicemem writes first, in their documented order."""
    own = {key: values[key] for key in METADATA_ORDER if key in values}
    return own | {key: value for key, value in values.items() if key not in RESERVED_METADATA}
