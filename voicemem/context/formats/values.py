"""Values that vendors want in different forms: a tool's arguments and results, and the text of system messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson

MAX_DEPTH = 32
"""How deep JSON inside a text may be nested: the limit for events does not look into strings."""


def json_text(value: Any) -> str:
    """A value as text: text unchanged, anything else as JSON.

    Not with orjson, which raises for integers beyond 64 bits: a tool may return them.
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_object(value: Any, name: str) -> dict[str, Any]:
    """A value as a JSON object: itself, the object in its text (as OpenAI sends arguments), or wrapped as `name`."""
    parsed = _parsed(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, dict) else {name: value}


def arguments_object(arguments: Any) -> dict[str, Any]:
    """A tool's arguments as an object; missing or blank arguments become an empty one."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    return as_object(arguments, "arguments")


def system_text(system_messages: Sequence[dict[str, Any]]) -> str:
    """The text of all system messages, for vendors that keep it apart from the conversation.

    Reads OpenAI's content (a string, or parts of type `text`) and Gemini's `parts`; everything else is ignored.
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
    """The JSON value in a text; None if it is not JSON, or nested too deeply."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    # orjson reads deeper JSON than it writes, and the body must be written.
    return value if _is_within(value, MAX_DEPTH) else None


def _is_within(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    return depth > 0 and all(
        _is_within(child, depth - 1) for child in (value.values() if isinstance(value, dict) else value)
    )
