"""Messages of a memory as items of OpenAI's Responses API, and back to what is known of an item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from voicemem.protocol.types import JsonObject


def input_items(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Items of messages in OpenAI's form, as `session.context()` has them in `messages`."""
    return [item for message in messages for item in items_of(message)]


def items_of(message: JsonObject) -> Iterator[JsonObject]:
    """The items of one message: each call of a tool is one, and each result."""
    content = message.get("content")
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": content or ""}
        return
    if content:
        yield {"role": message["role"], "content": content}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield {
            "type": "function_call",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        }


def newest(items: list[JsonObject], limit: int | None) -> list[JsonObject]:
    """The newest items, none of them the result of a call that is left out."""
    if limit is None or len(items) <= limit:
        return items
    chosen = items[len(items) - limit :]
    called = {item["call_id"] for item in chosen if item.get("type") == "function_call"}
    return [one for one in chosen if one.get("type") != "function_call_output" or one["call_id"] in called]


def text_of(item: Any) -> str:
    """The text of an item; parts that are no text are left out."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part.get("text") or part.get("transcript") or "" for part in parts if isinstance(part, dict))
