"""What is remembered of one session of the ADK, in runs of texts and in live runs."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.conversation import Conversation
from voicemem.integrations.google_adk.contents import RunContent, text_of
from voicemem.integrations.google_adk.live import LiveListener
from voicemem.integrations.ledger import Ledger
from voicemem.integrations.runs import run_start

MAX_TEXTS = 100


class AdkSession(Conversation):
    """One session. Its replies have ids of their own, since the ADK gives each piece of a stream another one."""

    def __init__(self, session: BackgroundSession) -> None:
        super().__init__(session)
        self.ledger = Ledger(session.send, self.prefix)
        self.live: LiveListener | None = None
        """Hears of live runs, once there was one."""
        self.growing: dict[tuple[str, str | None], str] = {}
        """Replies that are being streamed, by their agents and branches."""
        self.texts: OrderedDict[str, str] = OrderedDict()
        """The newest replies, whole."""
        self.opening: frozenset[str] | None = None
        """Contents that were there before the memory knew anything, by their places."""

    # Runs of texts

    def on_user_message(self, message: Any, item: str) -> None:
        """A run begins. What another has left unfinished will not grow."""
        for unfinished in self.growing.values():
            self.replied(None, unfinished)
        self.growing.clear()
        if text := text_of(message):
            self.user_said(text, item)
        self.on_tools(message)

    def on_event(self, event: Any) -> None:
        """What an agent has said, in parts and whole, and its tools."""
        if event.author == "user":
            return
        agent, text = (event.author, getattr(event, "branch", None)), text_of(event.content)
        if event.partial:
            if text:
                item = self.growing.get(agent) or self.growing.setdefault(agent, self.new_item())
                self.reply_grew(text, item)
            return
        if text:
            item = self.growing.pop(agent, "") or self.new_item()
            self.replied(text, item)
            self.texts[item] = text
            if len(self.texts) > MAX_TEXTS:
                self.texts.popitem(last=False)
        self.on_tools(event.content)

    def on_tools(self, content: Any) -> None:
        for part in (None if content is None else content.parts) or []:
            if part.function_call is not None:
                self.tool_called(part.function_call.id, part.function_call.name, part.function_call.args or {})
            elif part.function_response is not None:
                self.tool_returned(part.function_response.id, part.function_response.response)

    async def context(self, own: Sequence[RunContent]) -> list[Any] | None:
        """What the memory knows, in OpenAI's form."""
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return None
        if self.opening is None:
            before = run_start(own)
            said = {one.content for one in own[before:]}
            is_new = all(one["content"] in said for one in body["messages"] if one["role"] in ("user", "assistant"))
            self.opening = frozenset(one.id for one in own[:before]) if is_new else frozenset()
        messages: list[Any] = body["messages"]
        return messages

    def heard_texts(self) -> list[tuple[str, str]]:
        """Texts of replies that were cut, and what was heard of each."""
        return [(self.texts[item], heard) for item, heard in self.heard.items() if item in self.texts]

    # Live runs

    def on_live_event(self, event: Any) -> None:
        if self.live is None:
            self.live = LiveListener(self.ledger)
        self.live.on_event(event, now_ms())

    # What your player calls

    def interrupted(
        self, heard_text: str | None = None, audio_end_ms: float | None = None, *, item: str | None = None
    ) -> None:
        """The user cut a reply short; in a live run the newest."""
        if self.live is None or item is not None:
            super().interrupted(heard_text, audio_end_ms, item=item)
        else:
            self.live.cut(audio_end_ms, heard_text, now_ms())

    def played(
        self,
        audio_ms: float | None = None,
        total_audio_ms: float | None = None,
        done: bool = False,
        *,
        item: str | None = None,
    ) -> None:
        """How far a reply has been played; in a live run the newest, and its `audio_ms` alone."""
        if self.live is None or item is not None:
            super().played(audio_ms, total_audio_ms, done, item=item)
        elif audio_ms is not None:
            self.live.played(audio_ms, now_ms())

    def end(self, reason: str | None = None) -> None:
        """The call is over; what plays in a live run is cut where it is."""
        if self.live is None:
            super().end(reason)
        else:
            self.live.end(now_ms(), reason)


def now_ms() -> float:
    return time.time() * 1000.0
