"""The way back: what the LLM gets is what was heard."""

import json
from collections.abc import Iterable
from typing import Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.pipecat.frames import FrameListener
from voicemem.protocol.types import JsonObject

INSTRUCTIONS = ("system", "developer")


class Remembering:
    """Puts the heard memory in the place of what Pipecat has in its `LLMContext`."""

    def __init__(self, session: BackgroundSession, listener: FrameListener) -> None:
        self.session = session
        self.listener = listener
        self.opening: list[Any] | None = None
        """Messages that the program put into the context before the call."""

    async def before(self, llm: Any, frame: Any) -> None:
        """An LLM service is about to process a frame; never raises."""
        try:
            if type(frame).__name__ == "LLMContextFrame":
                await self.listener.caught_up(frame.id)
                await self.remember(frame.context)
        except Exception as error:  # a version whose contexts are others
            self.session.log_once("The LLM gets the framework's own messages.", error)

    async def remember(self, context: Any) -> None:
        """Rewrite a context; it stays as it is while the memory is away."""
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return
        own, known = list(context.messages), body["messages"]
        if self.opening is None:
            said = {text_of(message) for message in known}
            self.opening = [one for one in own if role_of(one) in ("user", "assistant") and text_of(one) not in said]
        if any(role_of(message) not in INSTRUCTIONS for message in known):
            context.set_messages(rebuilt(own, known, self.opening))


def context_messages(messages: Iterable[JsonObject]) -> list[Any]:
    """Messages for an `LLMContext` of messages in OpenAI's form, as `session.context()` has them in `messages`."""
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def rebuilt(own: list[Any], known: list[JsonObject], opening: list[Any]) -> list[Any]:
    """Instructions and what was there before the call, then the memory, then what the memory cannot know yet.

    That is tools that run, the words that the LLM is to answer if their transcript is on its way, and instructions
    for this answer alone. Tools that were called before the caller's newest words stay before those.
    """
    returned = {message["tool_call_id"] for message in known if role_of(message) == "tool"}
    last = max((at for at, one in enumerate(own) if role_of(one) not in INSTRUCTIONS), default=-1)
    question = own[last] if last >= 0 and role_of(own[last]) == "user" else None
    newest = max((at for at, one in enumerate(known) if role_of(one) == "user"), default=len(known))
    said, asked = text_of(known[newest] if known[newest:] else None), text_of(question)
    place = newest if question is not None and said == asked else len(known)
    is_said = bool(asked) and said.endswith(asked)
    head: list[Any] = []
    running: list[Any] = []
    tail: list[Any] = []
    for at, message in enumerate(own):
        is_instruction = role_of(message) in INSTRUCTIONS
        if is_settled(message, returned) and at < last:
            continue
        is_opening = any(message is one for one in opening)
        if is_opening or (is_instruction and at < last) or role_of(message) is None:
            head.append(message)
        elif calls_of(message) - returned:
            (running if at < last else tail).append(message)
        elif is_instruction or (message is question and not is_said):
            tail.append(message)
    return [*head, *context_messages(known[:place]), *running, *context_messages(known[place:]), *tail]


def role_of(message: Any) -> str | None:
    """The role of a message; None for one of a vendor's own."""
    return message.get("role") if isinstance(message, dict) else None


def is_settled(message: Any, returned: set[str]) -> bool:
    """Return whether a message reports the result of a tool that ran on, and the memory has that result."""
    content = message.get("content") if role_of(message) == "developer" else None
    if not isinstance(content, str) or '"tool_call_id"' not in content:
        return False
    return any(json.dumps(call_id) in content for call_id in returned)


def calls_of(message: Any) -> set[str]:
    if role_of(message) == "tool":
        return {message["tool_call_id"]}
    return {call["id"] for call in message.get("tool_calls") or ()}


def text_of(message: Any) -> str:
    """The text of a message, without regard to case and white space."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return " ".join((content or "").casefold().split())
