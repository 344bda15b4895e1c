"""The way back: what the LLM gets is what was heard."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.pipecat.caller import INSTRUCTIONS, Instruction, Remembered, role_of
from voicemem.integrations.pipecat.frames import FrameListener
from voicemem.integrations.runs import UserMessage, as_passed_on, followed_by, instructions_apart
from voicemem.protocol.types import JsonObject

FIELDS = ("turn_id", "timestamp", "metadata")


class Remembering:
    """Puts the heard memory in place of Pipecat's messages in its `LLMContext`."""

    def __init__(self, session: BackgroundSession, listener: FrameListener) -> None:
        self.session = session
        self.listener = listener
        self.opening: list[Any] | None = None
        """Messages that the program put into the context before the call."""

    async def before(self, llm: Any, frame: Any) -> None:
        """Prepare a frame that an LLM service is about to process. Never raises."""
        try:
            if type(frame).__name__ == "LLMContextFrame":
                await self.listener.caught_up(frame.id)
                await self.remember(frame.context, getattr(llm, "_settings", None))
        except Exception as error:  # a version with other contexts
            self.session.log_once("The LLM gets the framework's own messages.", error)

    async def remember(self, context: Any, settings: Any) -> None:
        """Rewrite a context, unless the memory is away.

        Where the LLM's `settings` have a system message, a second one would be dropped or refused.
        """
        user_messages = self.listener.caller.user_messages_in(context.messages)
        if self.opening is None:
            self.opening = before_call(context.messages, user_messages, self.listener.replies.count)
        body = await self.session.context(style="openai", tools=True, fields=True)
        if body is None:
            return
        known = body["messages"]
        if any(role_of(message) not in INSTRUCTIONS for message in known):
            role = "developer" if getattr(settings, "system_instruction", None) else "system"
            context.set_messages(rebuilt(context.messages, known, self.opening, user_messages, role))


def context_messages(messages: Iterable[JsonObject]) -> list[Any]:
    """Return messages for an `LLMContext`, from OpenAI's form as `session.context()` returns it in `messages`."""
    return list(map(context_message, messages))


def context_message(message: JsonObject) -> Remembered:
    return Remembered({name: one for name, one in message.items() if one is not None and name not in FIELDS})


def before_call(own: Sequence[Any], user_messages: Sequence[UserMessage], replies: int) -> list[Any]:
    """Return the part of a context from before a call with so many replies, none of them to the `user_messages`."""
    questions = {id(one.message) for one in user_messages}
    began = next((at for at, one in enumerate(own) if id(one) in questions), len(own))
    while replies and began and role_of(own[began - 1]) == "assistant":
        began, replies = began - 1, replies - 1
    return [one for one in own[:began] if role_of(one) in ("user", "assistant") and not isinstance(one, Remembered)]


def rebuilt(
    own: Sequence[Any],
    known: Sequence[JsonObject],
    opening: list[Any],
    user_messages: Sequence[UserMessage],
    role: str = "system",
) -> list[Any]:
    """Return instructions and messages from before the call, then the memory, then messages that it cannot have yet.

    That is tools that run, the words that the LLM is to answer if their transcript is on its way, and what the program
    adds for this answer alone. Tools that were called before the caller's newest words stay before those.
    """
    texts, known = instructions_apart(known)
    own = [one.of_program if isinstance(one, Instruction) else one for one in own]
    returned = {message["tool_call_id"] for message in known if role_of(message) == "tool"}
    before, questions = {id(one) for one in opening}, {id(one.message) for one in user_messages}
    active = [at for at, one in enumerate(own) if role_of(one) not in INSTRUCTIONS]
    replies = [at for at in active if role_of(own[at]) == "assistant" and own[at].get("content")]
    places = [at for at in active if id(own[at]) in questions]
    last, replied, newest = (max(some, default=-1) for some in (active, replies, places))
    since = max((at for at in replies if at < newest), default=-1)
    words, left = as_passed_on(known, user_messages, len(user_messages) - sum(at > since for at in places))
    waiting = {id(one) for one in left}
    head: list[Any] = []
    running: list[Any] = []
    tail: list[Any] = []
    for at, message in enumerate(own):
        is_instruction = role_of(message) in INSTRUCTIONS
        is_unknown = id(message) in waiting or (role_of(message) == "user" and id(message) not in questions)
        if isinstance(message, Remembered) or (is_settled(message, returned) and at < last):
            continue
        if id(message) in before or (is_instruction and at < last) or role_of(message) is None:
            head.append(message)
        elif calls_of(message) - returned:
            (running if at < newest else tail).append(message)
        elif is_instruction or (is_unknown and at > replied):
            tail.append(message)
    place = next((at for at, one in enumerate(words) if newest >= 0 and one is own[newest]), len(words))
    words = [one if id(one) in questions else context_message(one) for one in words]
    return [*instructed(head, texts, role), *words[:place], *running, *words[place:], *tail]


def instructed(head: list[Any], texts: Sequence[str], role: str) -> list[Any]:
    """Return the program's own messages, its system message followed by the memory's, or a new one of `role`."""
    if not texts:
        return head
    at = next((at for at, one in enumerate(head) if role_of(one) == "system"), None)
    if at is None:
        return [Remembered(role=role, content=followed_by("", texts)), *head]
    return [*head[:at], Instruction(head[at], texts), *head[at + 1 :]]


def is_settled(message: Any, returned: set[str]) -> bool:
    """Return whether a message reports a late tool result that the memory has."""
    content = message.get("content") if role_of(message) == "developer" else None
    if not isinstance(content, str) or '"tool_call_id"' not in content:
        return False
    return any(json.dumps(call_id) in content for call_id in returned)


def calls_of(message: Any) -> set[str]:
    if role_of(message) == "tool":
        return {message["tool_call_id"]}
    return {call["id"] for call in message.get("tool_calls") or ()}
