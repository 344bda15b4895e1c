"""The way back: what the LLM gets is what was heard."""

from __future__ import annotations

import logging
from typing import Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.livekit.messages import chat_context, text_of

LOG = logging.getLogger("voicemem.integrations")
TOOLS = ("function_call", "function_call_output")
INSTRUCTIONS = ("system", "developer")


class Remembering:
    """Puts the heard memory in the place of the framework's own messages."""

    def __init__(self, session: BackgroundSession) -> None:
        self.session = session
        self.has_failed = False

    async def remembered(self, chat_ctx: Any) -> Any:
        """The context for one request; the framework's own while the memory is away."""
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return chat_ctx
        try:
            return rebuilt(chat_ctx, chat_context(body["messages"]))
        except Exception as error:  # a version whose chat items are others
            if not self.has_failed:
                LOG.warning("The LLM gets the framework's own messages: %r.", error)
            self.has_failed = True
            return chat_ctx


def rebuilt(own: Any, known: Any) -> Any:
    """The framework's instructions, then the memory, then what the memory cannot know yet.

    That is tools which run, and the caller's last words while the recogniser has not finished them (LiveKit may ask the
    LLM ahead of that).
    """
    remembered = {(item.type, item.call_id) for item in known.items if item.type in TOOLS}
    head = [item for item in own.items if item.type == "message" and item.role in INSTRUCTIONS]
    tail = [item for item in own.items if item.type in TOOLS and (item.type, item.call_id) not in remembered]
    own_last, known_last = last_words(own), last_words(known)
    asked = own.items[-1] if own.items else None
    if own_last is not None and asked is own_last and not is_said(own_last, known_last):
        tail.append(own_last)
    return type(own)([*head, *known.items, *tail])


def last_words(context: Any) -> Any:
    """The newest message of the user."""
    return next((item for item in reversed(context.items) if item.type == "message" and item.role == "user"), None)


def is_said(own: Any, known: Any) -> bool:
    if known is None:
        return False
    said, asked = (" ".join(text_of(item).casefold().split()) for item in (known, own))
    return bool(asked) and said.endswith(asked)
