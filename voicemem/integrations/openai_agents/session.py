"""A session of the Agents SDK whose history is what was heard."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, NamedTuple

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.conversation import Conversation
from voicemem.integrations.openai_agents.items import input_items, newest, text_of
from voicemem.protocol.types import JsonObject

LOG = logging.getLogger("voicemem.integrations")
MAX_OWN_ITEMS = 1000


class Added(NamedTuple):
    """An item that this process added, and the event that takes it back, if there is one."""

    item: JsonObject
    undo: JsonObject | None


class AgentsSession(Conversation):
    """`agents.memory.Session`: the SDK asks it for the items before a run, and gives it the new ones."""

    session_settings: Any = None

    def __init__(self, session: BackgroundSession) -> None:
        super().__init__(session)
        self.added: deque[Added] = deque(maxlen=MAX_OWN_ITEMS)
        """What this process added, which is used while the memory is away."""

    # What the SDK calls

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """What was heard, the newest `limit` items of it; what this process added while the memory is away."""
        body = await self.session.context(style="openai", tools=True)
        items = [one.item for one in self.added] if body is None else input_items(body["messages"])
        return newest(items, limit)

    async def add_items(self, items: list[Any]) -> None:
        """Take the new items of a run. It does not wait."""
        for item in items:
            try:
                self.add(dict(item))
            except Exception as error:  # items of a kind that this version does not know
                LOG.warning("The memory has missed an item of a run: %r.", error)

    async def pop_item(self) -> Any | None:
        """Take back the newest item that this process added: it is in no message any more; None if there is none.

        Traces of tools stay in the journal, where a call without a result is in no context.
        """
        if not self.added:
            return None
        item, undo = self.added.pop()
        if undo is not None:
            self.send(undo)
        return item

    async def clear_session(self) -> None:
        """Forget everything up to now. Raises `ClientError` while the memory is away."""
        self.added.clear()
        self.reply = None
        if self.session.session is not None:
            await self.session.session.flush(self.session.client.options.read_timeout_s)
            await self.session.session.forget(everything=True)

    # What your player calls

    def interrupted(
        self, heard_text: str | None = None, audio_end_ms: float | None = None, *, item: str | None = None
    ) -> None:
        """The user cut a reply short, the newest by default: they had heard this text, or this much of its audio.

        Give `audio_end_ms` after `played`, or else the length of the audio is not known.
        """
        super().interrupted(heard_text, audio_end_ms, item=item)
        own = next((one.item for one in reversed(self.added) if one.item.get("role") == "assistant"), None)
        if own is not None and heard_text is not None and item in (None, self.reply):
            own["content"] = heard_text

    # Events

    def add(self, item: JsonObject) -> None:
        kind, role = item.get("type", "message"), item.get("role")
        undo = None
        if kind == "function_call":
            self.tool_called(item["call_id"], item["name"], item["arguments"])
        elif kind == "function_call_output":
            self.tool_returned(item["call_id"], item["output"])
        elif kind == "message" and role in ("user", "assistant") and (text := text_of(item)):
            said = self.user_said if role == "user" else self.replied
            undo = said(text, self.new_item())
        self.added.append(Added(item, undo))
