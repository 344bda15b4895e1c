"""Followers of an agent's nodes, which report the items that pass through unchanged; their failures stay here."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from functools import partial
from typing import Any

from voicemem.integrations.background_session import NewestEntries
from voicemem.integrations.ledger import Ledger, now_ms
from voicemem.integrations.livekit.playback import Playback, Speech, Speeches, TypedMessages
from voicemem.integrations.livekit.remembering import Remembering, user_message

TIMED = "lk.timed_transcripts"
"""A frame's key for the words of its audio."""


# Followers take the items that pass through a node, and learn whether the stream was complete.


class TextFollower:
    """Follows the text that a TTS or a realtime model speaks; `is_new` if the program, not an LLM node, has made it."""

    def __init__(self, ledger: Ledger, reply: str, is_new: bool = True) -> None:
        self.ledger = ledger
        self.reply = reply
        self.is_new = is_new
        self.audio: RealtimeFollower | None = None

    def take(self, item: Any) -> None:
        if self.is_new:
            self.ledger.said(self.reply, str(item), now_ms())
        self.ledger.voiced(self.reply, str(item))

    def close(self, complete: bool = True) -> None:
        if self.is_new:
            self.ledger.said_all(self.reply, now_ms())
        if self.audio is not None and complete:
            self.audio.text_is_complete = True
            self.audio.close(self.audio.is_complete)


class LlmFollower:
    """Reports what an LLM generates: a reply up to each flush, and tool calls."""

    def __init__(self, ledger: Ledger, speeches: Speeches) -> None:
        self.ledger = ledger
        self.speeches = speeches
        self.speech = speeches.current()
        self.reply: str | None = None

    def take(self, item: Any) -> None:
        if type(item).__name__ == "FlushSentinel":
            self.close()
            return
        delta = getattr(item, "delta", None)
        text = item if isinstance(item, str) else getattr(delta, "content", None) or ""
        if text and self.reply is None:
            self.reply = self.speech.new_reply()
            self.speech.for_tts.append(self.reply)
            self.speech.for_playback.append(self.reply)
        if text and self.reply is not None:
            self.ledger.said(self.reply, text, now_ms())
        for tool in getattr(delta, "tool_calls", None) or ():
            self.speeches.tools[tool.call_id] = self.reply or f"{self.speech.name}.tool{self.speech.count}"

    def close(self, complete: bool = True) -> None:
        if self.reply is not None:
            self.ledger.said_all(self.reply, now_ms())
            self.reply = None


class AudioFollower:
    """Follows the audio of one reply for its length."""

    def __init__(self, ledger: Ledger, reply: str) -> None:
        self.ledger = ledger
        self.reply = reply

    def take(self, item: Any) -> None:
        self.ledger.audio_made(self.reply, item.duration * 1000)

    def close(self, complete: bool = True) -> None:
        if complete:
            self.ledger.span_made(self.reply, now_ms())


class RealtimeFollower(AudioFollower):
    """Follows audio of a realtime model or the program, which belongs to the text once both are complete."""

    is_complete = text_is_complete = False

    def close(self, complete: bool = True) -> None:
        self.is_complete = complete
        super().close(complete and self.text_is_complete)


class TtsFollower(AudioFollower):
    """Follows the audio of a TTS, with the times of its words or sentences."""

    def __init__(self, ledger: Ledger, speech: Speech) -> None:
        is_new = not speech.for_tts
        super().__init__(ledger, speech.expect() if is_new else speech.for_tts.popleft())
        speech.without_text.discard(self.reply)
        self.text = TextFollower(ledger, self.reply, is_new)
        self.begun: tuple[str, float] | None = None
        """A piece of text whose end is not known yet, and its start in the audio, in ms."""

    def take(self, item: Any) -> None:
        words = []
        for timed in item.userdata.get(TIMED) or ():
            start, end = getattr(timed, "start_time", None), getattr(timed, "end_time", None)
            if isinstance(start, int | float) and isinstance(end, int | float):
                words.append((str(timed), start * 1000, end * 1000))
            elif isinstance(start, int | float):  # a word or a sentence of which only the start is known
                if self.begun is not None and self.begun[0].strip():
                    text, start_ms = self.begun
                    self.ledger.span_made(self.reply, now_ms(), text, start * 1000 - start_ms)
                self.begun = (str(timed), start * 1000)
        if words:
            self.ledger.words_timed(self.reply, words, now_ms())
        super().take(item)


class Nodes:
    """Wraps the nodes of agents."""

    def __init__(self, ledger: Ledger, remembering: Remembering | None) -> None:
        self.ledger = ledger
        self.speeches = Speeches(ledger)
        self.playback = Playback(ledger)
        self.typed = TypedMessages(ledger)
        self.remembering = remembering
        self.realtime: NewestEntries[str, RealtimeFollower] = NewestEntries(64)
        """Followers of segments whose audio, but not yet the text, is followed."""

    def wrap(self, owner: Any, name: str) -> None:
        """Wrap a node of an agent, where the activity looks it up, or a method of the session."""
        try:
            setattr(owner, name, partial(getattr(self, name), getattr(owner, name)))
        except Exception as error:  # an agent that cannot be wrapped still has its call
            self.ledger.missed(name, error)

    async def llm_node(self, original: Any, chat_ctx: Any, tools: Any, model_settings: Any) -> Any:
        self.guarded("llm_node", lambda: self.typed.report_all(chat_ctx))
        if self.remembering is not None:
            chat_ctx = await self.remembering.remembered(chat_ctx, self.typed.known)
        result = original(chat_ctx, tools, model_settings)
        result = await result if asyncio.iscoroutine(result) else result
        follower = self.guarded("llm_node", lambda: LlmFollower(self.ledger, self.speeches))
        if follower is None:
            return result
        if isinstance(result, str):
            self.guarded("llm_node", lambda: (follower.take(result), follower.close()))
            return result
        return self.followed(result, "llm_node", follower) if isinstance(result, AsyncIterable) else result

    async def on_user_turn_completed(self, original: Any, turn_ctx: Any, new_message: Any) -> None:
        """Note the caller's message, and pass it to the program, which may edit it before the LLM request."""
        if self.remembering is not None:
            self.remembering.newest = getattr(new_message, "id", None)
        await original(turn_ctx, new_message=new_message)

    async def tts_node(self, original: Any, text: Any, model_settings: Any) -> Any:
        follower = self.guarded("tts_node", lambda: TtsFollower(self.ledger, self.speeches.current()))
        if follower is not None:
            text = self.followed(text, "tts_node", follower.text)
        result = original(text, model_settings)
        result = await result if asyncio.iscoroutine(result) else result
        if follower is None or not isinstance(result, AsyncIterable):
            return result
        return self.followed(result, "tts_node", follower)

    def transcription_node(self, original: Any, text: Any, model_settings: Any) -> Any:
        follower = self.guarded("transcription_node", self.next_segment)
        if follower is not None:
            text = self.followed(text, "transcription_node", follower)
        return original(text, model_settings)

    async def realtime_audio_output_node(self, original: Any, audio: Any, model_settings: Any) -> Any:
        follower = self.guarded("realtime_audio_output_node", self.realtime_segment)
        if follower is not None:
            audio = self.followed(audio, "realtime_audio_output_node", follower)
        result = original(audio, model_settings)
        return await result if asyncio.iscoroutine(result) else result

    def say(self, original: Any, text: Any, **named: Any) -> Any:
        """Follow the program's audio, if it gives one for the text to say."""
        if not isinstance(named.get("audio"), AsyncIterable):
            return original(text, **named)
        follower = RealtimeFollower(self.ledger, "")
        handle = original(text, **{**named, "audio": self.followed(named["audio"], "say", follower)})
        follower.reply = f"{getattr(handle, 'id', '')}.1"  # the only one of this speech; nothing has run yet
        self.realtime[follower.reply] = follower
        return handle

    def generate_reply(self, original: Any, **named: Any) -> Any:
        """Expect a message that the program gives in place of the user, with an id from here."""
        message: Any = named.get("user_input")
        if isinstance(message, str):
            message = named["user_input"] = self.guarded("generate_reply", partial(user_message, message)) or message
        handle = original(**named)
        if hasattr(message, "created_at"):
            self.typed.known[message.id] = False  # nothing has run yet
        return handle

    def realtime_segment(self) -> RealtimeFollower:
        """Return the follower of a realtime model's segment, whose transcript may come before or after the audio."""
        reply = self.speeches.current().expect()
        follower = self.realtime[reply] = RealtimeFollower(self.ledger, reply)
        return follower

    def next_segment(self) -> TextFollower | None:
        """Begin the segment that plays next, and return a follower if its text is still unknown."""
        speech = self.speeches.current()
        if not speech.for_playback:
            speech.expect()
        reply = speech.for_playback.popleft()
        self.playback.begin(reply)
        if reply not in speech.without_text:
            return None
        speech.without_text.discard(reply)
        follower = TextFollower(self.ledger, reply)
        follower.audio = self.realtime.pop(reply, None)
        return follower

    async def followed(
        self, source: Any, name: str, follower: TextFollower | LlmFollower | AudioFollower
    ) -> AsyncIterator[Any]:
        """Yield the items of a source. The follower learns whether the stream was complete."""
        complete = False
        try:
            async for item in source:
                self.guarded(name, partial(follower.take, item))
                yield item
            complete = True
        finally:
            self.guarded(name, partial(follower.close, complete))
            if hasattr(source, "aclose"):
                await source.aclose()

    def guarded(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # whatever it is, the phone call continues
            self.ledger.missed(name, error)
            return None
