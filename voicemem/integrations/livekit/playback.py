"""Playback of replies: the segments of each speech handle, the position of the output, and typed messages."""

from collections import deque
from functools import wraps
from typing import Any

from voicemem.integrations.background_session import NewestEntries
from voicemem.integrations.ledger import Ledger, now_ms
from voicemem.integrations.livekit.remembering import text_of

EVENTS = ("playback_started", "playback_progressed", "playback_finished")


class Playback:
    """Follows one audio output at a time, which plays one segment after another."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.output: Any = None
        self.reply: str | None = None
        self.position_ms: float | None = None
        self.stopped_at: float | None = None
        self.is_paused = False

    def watch(self, output: Any) -> None:
        """Follow a new output and its pauses, each of which may be a false alarm."""
        if output is self.output:
            return
        if self.output is not None:
            for name in EVENTS:
                self.output.off(name, getattr(self, name))
        self.output = output
        if output is None:
            return
        for name in EVENTS:
            output.on(name, getattr(self, name))
        pause = output.pause

        @wraps(pause)
        def paused() -> None:
            self.is_paused = True
            pause()

        output.pause = paused

    def begin(self, reply: str) -> None:
        self.reply, self.position_ms, self.stopped_at, self.is_paused = reply, None, None, False

    # Events of the output; its times are in seconds

    def playback_started(self, event: Any) -> None:
        if self.reply is not None:
            self.ledger.played(self.reply, 0, event.created_at * 1000)

    def playback_progressed(self, event: Any) -> None:
        if self.reply is None:
            return
        self.position_ms = (event.offset + event.duration) * 1000
        self.stopped_at = (event.started_at + event.duration) * 1000
        if self.is_paused:
            self.ledger.cut(self.reply, self.position_ms, self.stopped_at)
        else:
            self.ledger.played(self.reply, self.position_ms, self.stopped_at)

    def playback_finished(self, event: Any) -> None:
        if self.reply is None:
            return
        at = now_ms() if self.stopped_at is None else self.stopped_at
        if not event.interrupted:
            if self.is_paused:  # it played to its end during a pause
                self.ledger.resumed(self.reply, at)
            self.ledger.finished(self.reply, at)
        else:
            position = event.playback_position * 1000 if self.position_ms is None else self.position_ms
            self.ledger.cut(self.reply, position, at, heard_text=event.synchronized_transcript)
        self.reply = None

    def resumed(self, at: float) -> None:
        """Report that the pause was a false alarm."""
        self.is_paused = False
        if self.reply is not None:
            self.ledger.resumed(self.reply, at)

    def text_ended(self, interrupted: bool, text: str, at: float) -> None:
        """Report that a reply without audio is over, with the text that was shown."""
        if self.reply is None:
            return
        if interrupted:
            self.ledger.cut(self.reply, None, at, heard_text=text)
        else:
            self.ledger.finished(self.reply, at)
        self.reply = None


class Speech:
    """The replies of one speech handle: usually one, more around tools and flushes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.for_tts: deque[str] = deque()
        """Replies whose text the TTS has not got yet."""
        self.for_playback: deque[str] = deque()
        """Replies that have not begun to play yet."""
        self.without_text: set[str] = set()
        """Those of them whose text is still unknown."""

    def new_reply(self) -> str:
        self.count += 1
        return f"{self.name}.{self.count}"

    def expect(self) -> str:
        """Add a reply that no followed LLM has made, to be played next."""
        reply = self.new_reply()
        self.for_playback.append(reply)
        self.without_text.add(reply)
        return reply


class Speeches:
    """All speeches in progress."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.known: NewestEntries[str, Speech] = NewestEntries(64)
        self.tools: NewestEntries[str, str] = NewestEntries(256)
        """Replies by the id of their tool calls."""

    def current(self) -> Speech:
        """Return the speech of the current task."""
        try:
            from livekit.agents.voice.agent_activity import _SpeechHandleContextVar

            handle = _SpeechHandleContextVar.get(None)
        except ImportError:  # a version that keeps it elsewhere
            handle = None
        name = "speech" if handle is None else str(handle.id)
        if name not in self.known:
            self.known[name] = Speech(name)
            if handle is not None:
                handle.add_done_callback(lambda _: self.done(name))
        return self.known[name]

    def done(self, name: str) -> None:
        """Withdraw the replies of an ended speech that were never played."""
        speech = self.known.pop(name, None)
        if speech is not None:
            for number in range(1, speech.count + 1):
                self.ledger.withdrawn(f"{name}.{number}", now_ms())


class TypedMessages:
    """The newest user messages that the program gives to `generate_reply`, by id.

    They come before the LLM's answers to them. LiveKit reports one only just before its answer plays.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.known: NewestEntries[str, bool] = NewestEntries(64)
        """Whether the memory has each already."""

    def report_all(self, chat_ctx: Any) -> None:
        """Report the messages that are in a context, before the LLM answers it."""
        if not all(self.known.values()):
            for item in chat_ctx.items:
                self.report(item)

    def report(self, item: Any) -> bool:
        """Report a message, if it is one of these and not reported yet. Return whether it is one."""
        if item.id not in self.known:
            return False
        text = text_of(item)
        if text and not self.known[item.id]:
            self.ledger.user_typed(text, item.created_at * 1000)
        self.known[item.id] = True
        return True
