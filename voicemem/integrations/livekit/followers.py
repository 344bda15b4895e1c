"""What listens to the things that pass through an agent's nodes, and reports them to the ledger."""

from __future__ import annotations

import time
from typing import Any

from voicemem.integrations.ledger import Ledger
from voicemem.integrations.livekit.speeches import Speech, Speeches

TIMED = "lk.timed_transcripts"
"""The key under which a frame has the words of its audio."""


class Follower:
    """Gets what passes through a node."""

    def take(self, item: Any) -> None:
        raise NotImplementedError

    def close(self, complete: bool = True) -> None:
        raise NotImplementedError


class TextFollower(Follower):
    """The text of one reply that comes from no LLM of ours: what the agent is told to say, or a realtime model says."""

    def __init__(self, ledger: Ledger, reply: str, voiced: bool) -> None:
        self.ledger = ledger
        self.reply = reply
        self.voiced = voiced
        self.audio: RealtimeFollower | None = None

    def take(self, item: Any) -> None:
        self.ledger.said(self.reply, str(item), now_ms())
        if self.voiced:
            self.ledger.voiced(self.reply, str(item))

    def close(self, complete: bool = True) -> None:
        self.ledger.said_all(self.reply, now_ms())
        if self.audio is not None and complete:
            self.audio.text_is_complete = True
            self.audio.end()


class VoicedFollower(TextFollower):
    """The text that a TTS gets of a reply that the LLM has said."""

    def take(self, item: Any) -> None:
        self.ledger.voiced(self.reply, str(item))

    def close(self, complete: bool = True) -> None:
        """That the LLM has finished is known elsewhere."""


class LlmFollower(Follower):
    """What an LLM generates: a reply up to each flush, and tool calls."""

    def __init__(self, ledger: Ledger, speeches: Speeches) -> None:
        self.ledger = ledger
        self.speeches = speeches
        self.speech = speeches.current()
        self.reply: str | None = None

    def take(self, item: Any) -> None:
        if isinstance(item, str):
            self.say(item)
        elif type(item).__name__ == "FlushSentinel":
            self.close()
        elif getattr(item, "delta", None) is not None:
            self.say(item.delta.content or "")
            for tool in item.delta.tool_calls or ():
                self.speeches.tool_called(tool.call_id, self.reply or f"{self.speech.name}.tool{self.speech.count}")

    def say(self, text: str) -> None:
        if not text:
            return
        if self.reply is None:
            self.reply = self.speech.new_reply()
            self.speech.for_tts.append(self.reply)
            self.speech.for_playback.append(self.reply)
        self.ledger.said(self.reply, text, now_ms())

    def close(self, complete: bool = True) -> None:
        if self.reply is not None:
            self.ledger.said_all(self.reply, now_ms())
            self.reply = None


class AudioFollower(Follower):
    """The audio of one reply: how long it is."""

    def __init__(self, ledger: Ledger, reply: str) -> None:
        self.ledger = ledger
        self.reply = reply

    def take(self, item: Any) -> None:
        self.ledger.audio_made(self.reply, item.duration * 1000)

    def close(self, complete: bool = True) -> None:
        if complete:
            self.ledger.span_made(self.reply, now_ms())


class RealtimeFollower(AudioFollower):
    """Audio that no TTS makes, of a realtime model or the program: it is that of the text once both are complete."""

    def __init__(self, ledger: Ledger, reply: str) -> None:
        super().__init__(ledger, reply)
        self.is_complete = False
        self.text_is_complete = False

    def close(self, complete: bool = True) -> None:
        self.is_complete = complete
        self.end()

    def end(self) -> None:
        super().close(self.is_complete and self.text_is_complete)


class TtsFollower(AudioFollower):
    """The audio that a TTS makes: also where its words or sentences begin."""

    def __init__(self, ledger: Ledger, speech: Speech) -> None:
        if speech.for_tts:
            super().__init__(ledger, speech.for_tts.popleft())
            self.text: TextFollower = VoicedFollower(ledger, self.reply, voiced=True)
        else:  # a text that no LLM made
            super().__init__(ledger, speech.expect())
            speech.without_text.discard(self.reply)
            self.text = TextFollower(ledger, self.reply, voiced=True)
        self.begun: tuple[str, float] | None = None
        """A piece of text whose end is not known yet, and where it begins in the audio, in ms."""

    def take(self, item: Any) -> None:
        words = [word for timed in item.userdata.get(TIMED) or () if (word := self.word(timed))]
        if words:
            self.ledger.words_timed(self.reply, words, now_ms())
        super().take(item)

    def word(self, timed: Any) -> tuple[str, float, float] | None:
        """A word with both its times. Of other pieces, words or sentences, only the begin is known."""
        start, end = getattr(timed, "start_time", None), getattr(timed, "end_time", None)
        if not isinstance(start, int | float):
            return None
        if isinstance(end, int | float):
            return str(timed), start * 1000, end * 1000
        self.end_piece(start * 1000)
        self.begun = (str(timed), start * 1000)
        return None

    def end_piece(self, at_ms: float) -> None:
        if self.begun is not None and self.begun[0].strip():
            text, start_ms = self.begun
            self.ledger.span_made(self.reply, now_ms(), text, at_ms - start_ms)


def now_ms() -> float:
    return time.time() * 1000
