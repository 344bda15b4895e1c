"""The way back: what the LLM gets is what was heard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set
from typing import Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.livekit.messages import chat_context, text_of

LOG = logging.getLogger("voicemem.integrations")
TOOLS = ("function_call", "function_call_output")
INSTRUCTIONS = ("system", "developer")


class Remembering:
    """Puts the heard memory in the place of the framework's own messages."""

    def __init__(self, session: BackgroundSession, call_items: Callable[[], Iterable[Any]]) -> None:
        self.session = session
        self.call_items = call_items
        """The chat items of this call so far; what else is in a context was put there by the program."""
        self.has_failed = False

    async def remembered(self, chat_ctx: Any) -> Any:
        """The context for one request; the framework's own while the memory is away."""
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return chat_ctx
        try:
            return rebuilt(chat_ctx, chat_context(body["messages"]), {item.id for item in self.call_items()})
        except Exception as error:  # a version whose chat items are others
            if not self.has_failed:
                LOG.warning("The LLM gets the framework's own messages: %r.", error)
            self.has_failed = True
            return chat_ctx


def rebuilt(own: Any, known: Any, of_call: Set[str]) -> Any:
    """The framework's instructions and what the program put before the call, then the memory, then what it cannot know.

    That is tools which run, what the program adds to this request alone, and the caller's last words while the
    recogniser has not finished them (LiveKit may ask the LLM ahead of that).
    """
    remembered = {(item.type, item.call_id) for item in known.items if item.type in TOOLS}
    own_last, known_last = last_words(own), last_words(known)
    added = {item.id for item in own.items if is_added(item, of_call) and item is not own_last}
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


def is_added(item: Any, of_call: Set[str]) -> bool:
    """Whether the program has put a message into the context: nobody has said it on this call."""
    return item.type == "message" and item.role not in INSTRUCTIONS and item.id not in of_call


def last_words(context: Any) -> Any:
    """The newest message of the user."""
    return next((item for item in reversed(context.items) if item.type == "message" and item.role == "user"), None)


def is_said(own: Any, known: Any) -> bool:
    if known is None:
        return False
    said, asked = (" ".join(text_of(item).casefold().split()) for item in (known, own))
    return bool(asked) and said.endswith(asked)
