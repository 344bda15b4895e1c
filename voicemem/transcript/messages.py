"""What is kept of a call: chat messages, and the tool calls between them (design, section 2).

A message is derived from the journal by the fold and never edited by hand.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from voicemem.protocol.checks import METADATA_ORDER, RESERVED_METADATA

Role = Literal["user", "assistant"]


class Message(Struct, frozen=True, gc=False):
    """One chat entry of the memory; its fields are in the order of the JSON output."""

    role: Role
    content: str
    """What was said; for an interrupted reply exactly what was heard."""
    turn_id: int
    timestamp: int
    """Unix ms when the message began; a producer's numbers pass through unscaled."""
    metadata: dict[str, Any]


class ToolUse(Struct, frozen=True, gc=False):
    """One tool call and, once it came, its result; both as the producer gave them."""

    turn_id: int
    timestamp: int
    """Unix ms of the call; it stands before the messages of its turn that began later."""
    call_id: str
    name: str
    arguments: Any
    result: Any = None
    answered: bool = False
    """Whether the result has come; an unanswered call is not shown to an LLM."""


class Summary(Struct, frozen=True, gc=False):
    """What stands for the first turns of a call, as an LLM wrote it."""

    through_turn: int
    """It stands for all messages up to this turn, it included."""
    text: str
    messages: int
    """How many these are."""
    model: str | None = None


class Forgotten(Struct, frozen=True, gc=False):
    """What no context shows any more; it stands in the history."""

    through_turn: int = -1
    """All messages up to this turn, it included."""
    turn: int | None = None
    """In this later turn, what began up to `position`, but for what began at the positions `kept`."""
    position: int = 0
    kept: tuple[int, ...] = ()

    def covers(self, turn_id: int, order: int) -> bool:
        """Whether what began at the position `order` of the journal is forgotten."""
        if turn_id <= self.through_turn:
            return True
        return turn_id == self.turn and order <= self.position and order not in self.kept


def order_metadata(values: dict[str, Any]) -> dict[str, Any]:
    """The same metadata with voicemem's own keys first, in their documented order."""
    own = {key: values[key] for key in METADATA_ORDER if key in values}
    return own | {key: value for key, value in values.items() if key not in RESERVED_METADATA}
