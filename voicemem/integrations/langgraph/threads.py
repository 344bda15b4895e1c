"""What is remembered of one thread of an agent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.conversation import Conversation
from voicemem.integrations.langgraph.messages import unrecorded
from voicemem.integrations.runs import run_start, text_of

MAX_SEEN = 1000


class ThreadMemory(Conversation):
    """What is remembered of one thread."""

    def __init__(self, session: BackgroundSession, record: Collection[str]) -> None:
        super().__init__(session)
        self.kinds = record
        self.recorded: OrderedDict[str, None] = OrderedDict()
        """Messages of the newest runs that are recorded, by their ids."""
        self.opening: frozenset[str] | None = None
        """Messages that were there before the memory knew anything."""

    def record(self, messages: Sequence[Any], item_of: Callable[[str], str] = str) -> None:
        """Record what a run has added since it was last asked."""
        for message in unrecorded(messages):
            name = message.id or self.new_item()
            if name not in self.recorded:
                self.recorded[name] = None
                self.record_message(message, item_of(name))
        while len(self.recorded) > MAX_SEEN:
            self.recorded.popitem(last=False)

    def record_message(self, message: Any, item: str) -> None:
        text = text_of(message.content)
        if message.type == "human" and text and "user" in self.kinds:
            if not message.additional_kwargs.get("lc_source"):  # a summary, which another middleware put there
                self.user_said(text, item)
        elif message.type == "ai":
            if text and "replies" in self.kinds:
                self.replied(text, item)
            for call in message.tool_calls if "tools" in self.kinds else ():
                self.tool_called(call["id"], call["name"], call["args"])
        elif message.type == "tool" and "tools" in self.kinds:
            self.tool_returned(message.tool_call_id, text or message.content)

    async def context(self, own: Sequence[Any], added: Sequence[Any]) -> list[Any] | None:
        """What the memory knows, in OpenAI's form, once this run is recorded as far as it has come."""
        self.record(added)
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return None
        if self.opening is None:
            before = own[: run_start(own)]
            said = {text_of(one.content) for one in own[len(before) :]}
            news = (one for one in body["messages"] if one["role"] in ("user", "assistant") and one["content"])
            is_new = all(one["content"] in said for one in news)
            self.opening = frozenset(one.id for one in before if one.id) if is_new else frozenset()
        messages: list[Any] = body["messages"]
        return messages
