"""LiveKit's chat items for the memory's messages, and requests to the LLM with the heard memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.ledger import now_ms
from voicemem.integrations.runs import UserMessage, as_passed_on, followed_by, instructions_apart, typed
from voicemem.protocol.types import JsonObject

if TYPE_CHECKING:
    from livekit.agents import ChatContext
    from livekit.agents.llm import ChatItem

TOOLS = ("function_call", "function_call_output")
INSTRUCTIONS = ("system", "developer")


def chat_context(messages: Iterable[JsonObject | ChatItem]) -> ChatContext:
    """Return a `ChatContext` for messages in OpenAI's form, as `session.context()` returns them in `messages`.

    Chat items among them stay unchanged.
    """
    from livekit.agents import ChatContext, llm

    items: list[Any] = []
    for message in messages:
        if not isinstance(message, dict):
            items.append(message)
            continue
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
    """Return the text of a chat message as generated; LiveKit's own property has had several names."""
    return "\n".join(part for part in message.content if isinstance(part, str))


class Remembering:
    """Puts the heard memory in place of the framework's own messages."""

    def __init__(self, session: BackgroundSession, call_items: Callable[[], Iterable[Any]]) -> None:
        self.session = session
        self.call_items = call_items
        """Returns the chat items of this call so far; others in a context are the program's."""
        self.began = now_ms()
        self.newest: str | None = None
        """The id of the message of the caller's newest turn, which becomes a chat item with its answer."""

    async def remembered(self, chat_ctx: Any, typed_ids: Collection[str]) -> Any:
        """Return the context for one request; the framework's own while the memory is away."""
        body = await self.session.context(style="openai", tools=True, fields=True)
        if body is None:
            return chat_ctx
        try:
            return rebuilt(chat_ctx, body["messages"], self.call(chat_ctx, typed_ids), typed_ids, self.began)
        except Exception as error:  # a version with other chat items
            self.session.log_once("The LLM gets the framework's own messages.", error)
            return chat_ctx

    def call(self, chat_ctx: Any, typed_ids: Container[str]) -> dict[str, Any]:
        """Return the chat items of the call by id, including those that a context has before the session."""
        call = {item.id: item for item in self.call_items()}
        is_ahead = self.newest in call or all(item.id != self.newest for item in chat_ctx.items)
        last = next((one for one in reversed(chat_ctx.items) if not is_message(one, *INSTRUCTIONS)), None)
        for item in filter(is_user, chat_ctx.items):
            is_first_seen = item.id in typed_ids or item.id == self.newest or (is_ahead and item is last)
            if item.id in call or is_first_seen:
                call[item.id] = item
        return call


def rebuilt(
    own: Any, known: Sequence[JsonObject], call: Mapping[str, Any], typed_ids: Container[str], began: float
) -> Any:
    """Return instructions and the program's items from before the call, then the memory, then items that it lacks.

    It may lack running tools, the program's additions to only this request, and words of the caller that are not a
    message of the memory yet. `call` are the chat items of the call by id, which began at `began`.
    """
    texts, known = instructions_apart(known)
    user_messages = user_messages_of(own, call, typed_ids, began)
    places = {item.id: at for at, item in enumerate(own.items)}
    replies = [at for at, item in enumerate(own.items) if is_message(item, "assistant") and item.id in call]
    newest = max((places[one.message.id] for one in user_messages), default=-1)
    replied = max((at for at in replies if at < newest), default=-1)
    words, left = as_passed_on(known, user_messages, sum(places[one.message.id] < replied for one in user_messages))
    waiting = set() if any(at > newest for at in replies) else {message.id for message in left}
    remembered = {("function_call", use["id"]) for one in known for use in one.get("tool_calls") or ()}
    remembered |= {("function_call_output", one["tool_call_id"]) for one in known if one["role"] == "tool"}
    start = next((at for at, item in enumerate(own.items) if item.id in call), len(own.items))
    head, tail = [], []
    for at, item in enumerate(own.items):
        is_added = item.type == "message" and item.id not in call
        if is_message(item, *INSTRUCTIONS) or (is_added and at < start):
            head.append(item)
        elif is_added or item.id in waiting or (item.type in TOOLS and (item.type, item.call_id) not in remembered):
            tail.append(item)
    return type(own)([*instructed(head, texts), *chat_context(words).items, *tail])


def instructed(head: list[Any], texts: Sequence[str]) -> list[Any]:
    """Return the program's own items, with its system message followed by the memory's."""
    if not texts:
        return head
    at = next((at for at, item in enumerate(head) if is_message(item, "system")), None)
    if at is None:
        return [*chat_context([{"role": "system", "content": followed_by("", texts)}]).items, *head]
    item = head[at].model_copy(update={"content": [followed_by(text_of(head[at]), texts)]})
    return [*head[:at], item, *head[at + 1 :]]


def user_messages_of(own: Any, call: Mapping[str, Any], typed_ids: Container[str], began: float) -> list[UserMessage]:
    """Return the caller's messages in a context; each has what was reported since the one before it."""
    present, user_messages, since = {item.id for item in own.items}, [], began
    for message in sorted(filter(is_user, call.values()), key=lambda one: one.created_at):
        at = message.created_at * 1000
        if message.id in typed_ids:
            user_message = typed(message, at)
        else:
            user_message, since = UserMessage(message, since, round(at)), round(at)
        if message.id in present:
            user_messages.append(user_message)
    return user_messages


def is_message(item: Any, *roles: str) -> bool:
    return item.type == "message" and item.role in roles


def is_user(item: Any) -> bool:
    return is_message(item, "user")
