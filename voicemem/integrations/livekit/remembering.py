"""The way back, LiveKit's: chat items of the memory's messages, and requests to the LLM with what was heard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.protocol.types import JsonObject

if TYPE_CHECKING:
    from livekit.agents import ChatContext

TOOLS = ("function_call", "function_call_output")
INSTRUCTIONS = ("system", "developer")


def chat_context(messages: Iterable[JsonObject]) -> ChatContext:
    """A `ChatContext` of messages in OpenAI's form, as `session.context()` has them in `messages`."""
    from livekit.agents import ChatContext, llm

    items: list[Any] = []
    for message in messages:
        content: Any = message.get("content")
        if message["role"] == "tool":
            output, call_id = str(content or ""), message["tool_call_id"]
            items.append(llm.FunctionCallOutput(call_id=call_id, name="", output=output, is_error=False))
            continue
        if content:
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts: list[Any] = [one["text"] for one in parts if isinstance(one, dict) and one.get("type") == "text"]
            items.append(llm.ChatMessage(role=message["role"], content=texts))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            items.append(llm.FunctionCall(call_id=call["id"], name=function["name"], arguments=function["arguments"]))
    return ChatContext(items)


def user_message(text: str) -> Any:
    from livekit.agents import llm

    return llm.ChatMessage(role="user", content=[text])


def text_of(message: Any) -> str:
    """The text of a chat message as it was generated; LiveKit's own property has had several names."""
    return "\n".join(part for part in message.content if isinstance(part, str))


class Remembering:
    """Puts the heard memory in the place of the framework's own messages."""

    def __init__(self, session: BackgroundSession, call_items: Callable[[], Iterable[Any]]) -> None:
        self.session = session
        self.call_items = call_items
        """The chat items of this call so far; what else is in a context was put there by the program."""

    async def remembered(self, chat_ctx: Any) -> Any:
        """The context for one request; the framework's own while the memory is away."""
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return chat_ctx
        try:
            return rebuilt(chat_ctx, chat_context(body["messages"]), {item.id for item in self.call_items()})
        except Exception as error:  # a version whose chat items are others
            self.session.log_once("The LLM gets the framework's own messages.", error)
            return chat_ctx


def rebuilt(own: Any, known: Any, of_call: Set[str]) -> Any:
    """The framework's instructions and what the program put before the call, then the memory, then what it cannot know.

    That is tools which run, what the program adds to this request alone, and the caller's last words while the
    recogniser has not finished them (LiveKit may ask the LLM ahead of that).
    """
    remembered = {(item.type, item.call_id) for item in known.items if item.type in TOOLS}
    own_last, known_last = last_words(own), last_words(known)
    messages = [one for one in own.items if one.type == "message" and one.role not in INSTRUCTIONS]
    added = {item.id for item in messages if item.id not in of_call and item is not own_last}
    last = next((item for item in reversed(own.items) if item.id not in added), None)
    pending = own_last is not None and last is own_last and not is_said(own_last, known_last)
    began = next((at for at, item in enumerate(own.items) if item.id in of_call or item is own_last), len(own.items))
    head, tail = [], []
    for at, item in enumerate(own.items):
        if (item.type == "message" and item.role in INSTRUCTIONS) or (item.id in added and at < began):
            head.append(item)
        elif (
            item.id in added
            or (item.type in TOOLS and (item.type, item.call_id) not in remembered)
            or (item is own_last and pending)
        ):
            tail.append(item)
    return type(own)([*head, *known.items, *tail])


def last_words(context: Any) -> Any:
    return next((item for item in reversed(context.items) if item.type == "message" and item.role == "user"), None)


def is_said(own: Any, known: Any) -> bool:
    if known is None:
        return False
    said, words = (" ".join(text_of(item).casefold().split()) for item in (known, own))
    return bool(words) and said.endswith(words)
