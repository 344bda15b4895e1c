"""What every vendor but `custom` gets: role and text of what was said, since many refuse keys that they do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.transcript.messages import Message

KEEPS_BLANK = False
RESERVED_PARAMS: frozenset[str] = frozenset()


def message_fields(_message: Message) -> dict[str, Any]:
    """Nothing beside role and content."""
    return {}


def top_fields(_memory: Sequence[Message], _interruptable: bool) -> dict[str, Any]:
    """Nothing beside the conversation."""
    return {}
