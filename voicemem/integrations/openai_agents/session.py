"""A session of the Agents SDK whose history is what was heard."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from typing import Any, NamedTuple

from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.openai_agents.items import input_items, newest, parsed, text_of
from voicemem.protocol.types import JsonObject

LOG = logging.getLogger("voicemem.integrations")
MAX_OWN_ITEMS = 1000


class Added(NamedTuple):
    """An item that this process added, and the event that takes it back, if there is one."""

    item: JsonObject
    undo: JsonObject | None


class AgentsSession:
    """`agents.memory.Session`: the SDK asks it for the items before a run, and gives it the new ones."""

    session_settings: Any = None

    def __init__(self, session: BackgroundSession) -> None:
        self.session = session
        """What is sent and read; `session.session` is the client's session once it is open, else None."""
        self.session_id = session.session_id
        self.prefix = f"{secrets.token_hex(4)}-"
        self.count = 0
        self.added: deque[Added] = deque(maxlen=MAX_OWN_ITEMS)
        """What this process added, which is used while the memory is away."""
        self.reply: str | None = None
        """The newest reply, by its item in the memory."""

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

    def interrupted(self, heard_text: str | None = None, audio_end_ms: float | None = None) -> None:
        """The user cut the newest reply short: they had heard this text, or this much of its audio.

        Give `audio_end_ms` after `played`, or else the length of the audio is not known.
        """
        if self.reply is None:
            return
        position = None if audio_end_ms is None else round(audio_end_ms)
        self.send({"type": "interrupt", "item": self.reply, "heard_text": heard_text, "audio_end_ms": position})
        own = next((one.item for one in reversed(self.added) if one.item.get("role") == "assistant"), None)
        if own is not None and heard_text is not None:
            own["content"] = heard_text

    def played(self, audio_ms: float | None = None, total_audio_ms: float | None = None, done: bool = False) -> None:
        """How far the newest reply has been played, how long its audio is, and whether it was played to its end."""
        if self.reply is not None:
            position, total = (None if ms is None else round(ms) for ms in (audio_ms, total_audio_ms))
            event = {"audio_ms": position, "total_audio_ms": total, "done": done or None}
            self.send({"type": "tts", "item": self.reply, **event})

    def end(self, reason: str | None = None) -> None:
        """The call is over."""
        self.send({"type": "session.end", "reason": reason})

    async def aclose(self) -> None:
        """Wait a few seconds until all of it is on disk. Never raises."""
        await self.session.aclose()

    # Events

    def add(self, item: JsonObject) -> None:
        kind, role = item.get("type", "message"), item.get("role")
        undo = None
        if kind == "function_call":
            call = {"call_id": item["call_id"], "name": item["name"], "arguments": parsed(item["arguments"])}
            self.send({"type": "tool.call", **call})
        elif kind == "function_call_output":
            self.send({"type": "tool.result", "call_id": item["call_id"], "result": parsed(item["output"])})
        elif kind == "message" and role in ("user", "assistant") and (text := text_of(item)):
            undo = self.add_message(role, text)
        self.added.append(Added(item, undo))

    def add_message(self, role: str, text: str) -> JsonObject:
        """Send a message; returns what takes it back."""
        self.count += 1
        name = f"{self.prefix}{self.count}"
        if role == "user":
            said = {"type": "asr", "item": name, "segment": 0, "final": True}
            self.send({**said, "text": text})
            return {**said, "text": ""}
        self.reply = name
        self.send({"type": "llm.done", "item": name, "text": text})
        return {"type": "llm.cancel", "item": name}

    def send(self, event: JsonObject) -> None:
        known = {name: value for name, value in event.items() if value is not None}
        self.session.send({"ts": time.time_ns() // 1_000_000, **known})
