"""What every vendor but `custom` gets: role and text alone, since many vendors refuse unknown fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.transcript.messages import Message

KEEPS_BLANK = False
RESERVED_PARAMS: frozenset[str] = frozenset()
message_fields = None


def top_fields(_memory: Sequence[Message], _interruptable: bool) -> dict[str, Any]:
    """Nothing besides the conversation."""
    return {}
