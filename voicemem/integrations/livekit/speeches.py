"""Which text belongs to which speech: the replies of each speech handle, in the order in which they are spoken."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import Any

from voicemem.integrations.ledger import Ledger

MAX_SPEECHES = 64
MAX_TOOLS = 256


class Speech:
    """The replies of one speech handle: usually one, more around tools and flushes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.for_tts: deque[str] = deque()
        """Replies whose text no TTS has got yet."""
        self.for_playback: deque[str] = deque()
        """Replies that have not begun to play."""
        self.without_text: set[str] = set()
        """Those of them whose text nothing has shown yet."""

    def new_reply(self) -> str:
        self.count += 1
        return f"{self.name}.{self.count}"

    def expect(self) -> str:
        """A reply that no LLM of ours has made, and that is played next."""
        reply = self.new_reply()
        self.for_playback.append(reply)
        self.without_text.add(reply)
        return reply


class Speeches:
    """All speeches that are under way."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.known: OrderedDict[str, Speech] = OrderedDict()
        self.tools: OrderedDict[str, str] = OrderedDict()

    def current(self) -> Speech:
        """The speech in whose task this is called."""
        handle = current_handle()
        name = "speech" if handle is None else str(handle.id)
        speech = self.known.get(name)
        if speech is None:
            speech = self.known[name] = Speech(name)
            if handle is not None:
                handle.add_done_callback(lambda _: self.done(name))
            while len(self.known) > MAX_SPEECHES:
                self.known.popitem(last=False)
        return speech

    def done(self, name: str) -> None:
        """A speech is over: those of its replies of which nothing was played never existed."""
        speech = self.known.pop(name, None)
        if speech is not None:
            for number in range(1, speech.count + 1):
                self.ledger.withdrawn(f"{name}.{number}", time.time() * 1000)

    def tool_called(self, call_id: str, reply: str) -> None:
        self.tools[call_id] = reply
        while len(self.tools) > MAX_TOOLS:
            self.tools.popitem(last=False)

    def reply_of_tool(self, call_id: str) -> str | None:
        return self.tools.pop(call_id, None)


def current_handle() -> Any:
    """The framework's `SpeechHandle` of this task; None where a version keeps it elsewhere."""
    try:
        from livekit.agents.voice.agent_activity import _SpeechHandleContextVar
    except ImportError:
        return None
    return _SpeechHandleContextVar.get(None)
