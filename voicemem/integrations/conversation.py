"""A conversation whose framework tells texts and tools, and whose player, if it speaks, tells how far it came."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from typing import Any

import msgspec

from voicemem.integrations.background_session import BackgroundSession
from voicemem.protocol.types import JsonObject

MAX_CUTS = 100
"""Of how many cut replies it is known here what was heard."""


class Conversation:
    """What is sent of one session, and the newest reply, which a player means when it names none.

    `item` is the id of an utterance or reply in the memory, by which any other producer may speak of it, too.
    """

    def __init__(self, session: BackgroundSession) -> None:
        self.session = session
        """What is sent and read; `session.session` is the client's session once it is open, else None."""
        self.session_id = session.session_id
        self.prefix = f"{secrets.token_hex(4)}-"
        self.count = 0
        self.reply: str | None = None
        """The newest reply, by its item."""
        self.utterance: str | None = None
        """The user's newest utterance that was sent from here: tools that are called next are of its turn."""
        self.heard: OrderedDict[str, str] = OrderedDict()
        """What was heard of replies that were cut, for while the memory is away."""
        self.after_tools = 0
        """The earliest time of what comes next: an answer is later than the tools that were called for it."""

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, so that it must be opened again for more."""
        return self.session.session is not None and self.session.session.state == "ended"

    # What your player calls

    def interrupted(
        self, heard_text: str | None = None, audio_end_ms: float | None = None, *, item: str | None = None
    ) -> None:
        """The user cut a reply short, the newest by default: they had heard this text, or this much of its audio.

        Give `audio_end_ms` after `played`, or else the length of the audio is not known.
        """
        item = item or self.reply
        if item is None:
            return
        position = None if audio_end_ms is None else round(audio_end_ms)
        self.send({"type": "interrupt", "item": item, "heard_text": heard_text, "audio_end_ms": position})
        if heard_text is not None:
            self.heard[item] = heard_text
            if len(self.heard) > MAX_CUTS:
                self.heard.popitem(last=False)

    def played(
        self,
        audio_ms: float | None = None,
        total_audio_ms: float | None = None,
        done: bool = False,
        *,
        item: str | None = None,
    ) -> None:
        """How far a reply has been played, how long its audio is, and whether it was played to its end."""
        item = item or self.reply
        if item is not None:
            position, total = (None if ms is None else round(ms) for ms in (audio_ms, total_audio_ms))
            event = {"audio_ms": position, "total_audio_ms": total, "done": done or None}
            self.send({"type": "tts", "item": item, **event})

    def announced(self, text: str) -> None:
        """The agent says this without a model, such as a greeting."""
        self.reply = self.new_item()
        said = {"role": "assistant", "source": "greeting", "text": text}
        self.send({"type": "message", "item": self.reply, **said})

    def end(self, reason: str | None = None) -> None:
        """The call is over."""
        self.send({"type": "session.end", "reason": reason})

    async def aclose(self) -> None:
        """Wait a few seconds until all of it is on disk. Never raises."""
        await self.session.aclose()

    # What the framework tells

    def new_item(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"

    def user_said(self, text: str, item: str) -> JsonObject:
        """A whole utterance; returns what takes it back."""
        self.utterance = item
        said = {"type": "asr", "item": item, "segment": 0, "final": True}
        self.send({**said, "text": text})
        return {**said, "text": ""}

    def reply_grew(self, text: str, item: str) -> None:
        """The LLM generated more of a reply."""
        self.reply = item
        self.send({"type": "llm.delta", "item": item, "text": text})

    def replied(self, text: str | None, item: str) -> JsonObject:
        """The whole text of a reply, or what it has grown to if there is none; returns what takes it back."""
        self.reply = item
        self.send({"type": "llm.done", "item": item, "text": text})
        return {"type": "llm.cancel", "item": item}

    def tool_called(self, call_id: str, name: str, arguments: Any) -> None:
        """The LLM called a tool, with JSON or a string of it."""
        call = {"call_id": call_id, "name": name, "arguments": parsed(arguments)}
        self.send({"type": "tool.call", "item": self.utterance, **call})

    def tool_returned(self, call_id: str, result: Any) -> None:
        self.send({"type": "tool.result", "call_id": call_id, "result": parsed(result)})

    def send(self, event: JsonObject) -> None:
        """Send an event at this time, without what is None in it."""
        known = {name: value for name, value in event.items() if value is not None}
        at = max(time.time_ns() // 1_000_000, self.after_tools)
        if event["type"].startswith("tool."):
            self.after_tools = at + 1
        self.session.send({"ts": at, **known})


def parsed(value: Any) -> Any:
    """The JSON of a string; anything else as it is."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else msgspec.json.decode(msgspec.json.encode(value))
    except (msgspec.DecodeError, TypeError, ValueError):
        return str(value)
