"""Messages of a memory as LiveKit's chat items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from voicemem.protocol.types import JsonObject

if TYPE_CHECKING:
    from livekit.agents import ChatContext


def chat_context(messages: Iterable[JsonObject]) -> ChatContext:
    """A `ChatContext` of messages in OpenAI's form, as `session.context()` has them in `messages`."""
    from livekit.agents import ChatContext

    return ChatContext([item for message in messages for item in items_of(message)])


def items_of(message: JsonObject) -> Iterator[Any]:
    """The chat items of one message: a call of tools is an item of its own, as is each result."""
    from livekit.agents import llm

    role, content = message["role"], message.get("content")
    if role == "tool":
        call_id = message["tool_call_id"]
        yield llm.FunctionCallOutput(call_id=call_id, name="", output=str(content or ""), is_error=False)
        return
    if content:
        yield llm.ChatMessage(role=role, content=[content] if isinstance(content, str) else texts_of(content))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield llm.FunctionCall(call_id=call["id"], name=function["name"], arguments=function["arguments"])


def user_message(text: str) -> Any:
    """A chat message of the user."""
    from livekit.agents import llm

    return llm.ChatMessage(role="user", content=[text])


def text_of(message: Any) -> str:
    """The text of a chat message as it was generated; LiveKit's own property has had several names."""
    return "\n".join(part for part in message.content if isinstance(part, str))


def texts_of(parts: Iterable[Any]) -> list[Any]:
    """The texts of a content in parts."""
    return [part["text"] for part in parts if isinstance(part, dict) and part.get("type") == "text"]
