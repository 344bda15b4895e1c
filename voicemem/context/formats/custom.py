"""What the vendor `custom` gets: every field of every message, and the position of the call (Agora's custom LLM).

Only messages of the memory have these fields. What a style adds (tool calls, "(silence)") has none, and a message
that was joined from several has those of the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.transcript.messages import Message

KEEPS_BLANK = True
RESERVED_PARAMS = frozenset({"turn_id", "timestamp", "interruptable"})


def message_fields(message: Message) -> dict[str, Any]:
    """All fields of a message besides role and content, in the order of the JSON output."""
    return {"turn_id": message.turn_id, "timestamp": message.timestamp, "metadata": message.metadata}


def top_fields(memory: Sequence[Message], interruptable: bool) -> dict[str, Any]:
    """Turn and time of the newest message, if there is one, and whether the next reply may be interrupted."""
    newest = {"turn_id": memory[-1].turn_id, "timestamp": memory[-1].timestamp} if memory else {}
    return newest | {"interruptable": interruptable}
