"""Values whose form vendors disagree about: a tool's arguments and results, and the text of system messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson

MAX_DEPTH = 32
"""How deep JSON inside a text may be nested; the limit of an event does not see into its strings."""


def json_text(value: Any) -> str:
    """A value as text: text as it is, anything else as JSON.

    Not orjson, which raises for integers beyond 64 bits; a tool may give them.
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_object(value: Any, name: str) -> dict[str, Any]:
    """A value as a JSON object: itself, the object in its text (so OpenAI sends arguments), or wrapped under `name`."""
    found = _parsed(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {name: value}


def arguments_object(arguments: Any) -> dict[str, Any]:
    """A tool's arguments as an object; no arguments, or none yet written, are an empty one."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    return as_object(arguments, "arguments")


def system_text(system_messages: Sequence[dict[str, Any]]) -> str:
    """The text of all system messages, for vendors that take it apart from the conversation.

    Takes OpenAI's content (a string, or parts of type `text`) and Gemini's `parts`; what is no text has no place there.
    """
    texts = (text for message in system_messages for text in _texts(message.get("content", message.get("parts"))))
    return "\n".join(text for text in texts if text.strip())


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list | tuple) else ()
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return [text for text in texts if isinstance(text, str)]


def _parsed(text: str) -> Any:
    """The JSON value in a text; None when it is no JSON, or too deep."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    # What orjson reads may be deeper than what it writes, and the body must be written.
    return value if _is_within(value, MAX_DEPTH) else None


def _is_within(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    return depth > 0 and all(
        _is_within(child, depth - 1) for child in (value.values() if isinstance(value, dict) else value)
    )
