"""Frames of Pipecat, seen between its processors, reported to the tracker of replies and to the ledger."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from voicemem.integrations.background_session import NewestEntries
from voicemem.integrations.ledger import Ledger, now_ms
from voicemem.integrations.pipecat.audio import NS_PER_MS
from voicemem.integrations.pipecat.caller import Caller, role_of
from voicemem.integrations.pipecat.replies import Audio, ReplyTracker

Handler = Callable[[Any, float], None]
"""Called with a push (`FramePushed` of pipecat) and its time, Unix ms."""


def audio_of(frame: Any) -> Audio:
    return Audio(frame.audio, frame.sample_rate, frame.num_channels)


def plain(value: Any) -> Any:
    """Return a value as JSON; as text if it has no JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError):
        return str(value)


def at_first_push(handler: Handler) -> Handler:
    """Return a handler of pushes that calls `handler` once for each frame, at its first push."""

    def on_push(pushed: Any, at: float) -> None:
        if pushed.first_push:
            handler(pushed.frame, at)

    return on_push


class FrameListener:
    """Handles each frame once for each processor that pushes it. It never raises and never waits."""

    def __init__(self, ledger: Ledger, client_buffer_ms: float) -> None:
        from pipecat.frames import frames
        from pipecat.processors.frame_processor import FrameDirection
        from pipecat.services.tts_service import TTSService
        from pipecat.transports.base_output import BaseOutputTransport

        self.ledger = ledger
        self.replies = ReplyTracker(ledger, client_buffer_ms)
        self.caller = Caller(ledger)
        self.upstream = FrameDirection.UPSTREAM
        self.output_type, self.tts_type = BaseOutputTransport, TTSService
        self.unix_ns: int | None = None
        """The Unix time of the pipeline clock's zero."""
        self.has_tts = False
        """True if a TTS, not the LLM itself, makes the audio."""
        self.requested: NewestEntries[int, asyncio.Event] = NewestEntries(16)
        """Requests to the LLM that have passed, or that code waits for."""
        self.arrived = asyncio.Event()
        """Set unless an interruption is on its way to the output."""
        self.arrived.set()
        self.handlers = self.handlers_of(frames)

    def handlers_of(self, frames: Any) -> dict[type, Handler | None]:
        """Return the handlers of Pipecat's types of frames; derived types are added when they come."""
        return {
            frames.StartFrame: self.on_start,
            frames.TranscriptionFrame: self.caller.transcribed,
            frames.InterimTranscriptionFrame: at_first_push(self.caller.said),
            frames.VADUserStartedSpeakingFrame: at_first_push(lambda frame, at: self.ledger.user_spoke(None)),
            frames.VADUserStoppedSpeakingFrame: at_first_push(self.caller.stopped),
            frames.LLMMessagesAppendFrame: at_first_push(self.on_messages),
            frames.LLMFullResponseStartFrame: self.on_response_start,
            frames.LLMTextFrame: at_first_push(
                lambda frame, at: self.replies.generated(frame.text, bool(frame.skip_tts), at)
            ),
            frames.LLMFullResponseEndFrame: self.on_response_end,
            frames.TTSSpeakFrame: at_first_push(
                lambda frame, at: self.replies.speeches.append((frame.text, frame.interruptible))
            ),
            frames.AggregatedTextFrame: self.on_aggregated_text,
            frames.TTSTextFrame: self.on_tts_text,
            frames.TTSAudioRawFrame: self.on_audio,
            frames.TTSStoppedFrame: self.on_tts_stopped,
            frames.InterruptionFrame: self.on_interruption,
            frames.FunctionCallInProgressFrame: at_first_push(self.on_tool_call),
            frames.FunctionCallResultFrame: at_first_push(self.on_tool_result),
            frames.FunctionCallCancelFrame: at_first_push(self.on_tool_cancel),
            frames.UserMuteStartedFrame: partial(self.on_mute, True),
            frames.UserMuteStoppedFrame: partial(self.on_mute, False),
            frames.LLMContextUserTurnFrame: self.on_user_turn,
            frames.LLMContextFrame: lambda pushed, at: self.request(pushed.frame.id).set(),
            frames.EndFrame: self.on_end,
            frames.CancelFrame: lambda pushed, at: self.end(at, pushed.frame.reason),
        }

    def on_push(self, pushed: Any) -> None:
        """Handle a frame that a processor pushed: Pipecat's `FramePushed`."""
        kind = type(pushed.frame)
        if kind not in self.handlers:
            self.handlers[kind] = next((self.handlers[base] for base in kind.__mro__ if base in self.handlers), None)
        handler = self.handlers[kind]
        if handler is None or (pushed.direction is self.upstream and pushed.frame.broadcast_sibling_id is not None):
            return
        try:
            at = now_ms()
            if pushed.timestamp:  # the clock of the pipeline has started
                if self.unix_ns is None:
                    self.unix_ns = time.time_ns() - pushed.source.get_clock().get_time()
                at = float((self.unix_ns + pushed.timestamp) / NS_PER_MS)
            self.replies.settle(at)
            handler(pushed, at)
        except Exception as error:  # whatever it is, the phone call continues
            self.ledger.missed(kind.__name__, error)

    def is_output(self, pushed: Any) -> bool:
        return isinstance(pushed.source, self.output_type)

    def is_voice(self, pushed: Any) -> bool:
        """Return whether a frame comes from the processor that makes the audio."""
        return isinstance(pushed.source, self.tts_type) if self.has_tts else bool(pushed.first_push)

    def on_start(self, pushed: Any, at: float) -> None:
        self.has_tts |= isinstance(pushed.source, self.tts_type)
        self.replies.speaks |= self.has_tts

    # The caller

    def on_user_turn(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.caller.turn_ended(pushed.source, getattr(pushed.source, "context", None), at)

    def on_mute(self, begins: bool, pushed: Any, at: float) -> None:
        self.caller.is_muted = begins

    def on_messages(self, frame: Any, at: float) -> None:
        for message in frame.messages:
            if role_of(message) == "user" and isinstance(message.get("content"), str):
                self.caller.typed(message, at)

    # The agent

    def on_response_start(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.replies.response_started(pushed.frame.id, bool(pushed.frame.skip_tts))
        if self.is_voice(pushed):
            self.replies.voicing_started(pushed.frame.id)

    def on_response_end(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.replies.response_ended(at)
        if self.is_voice(pushed):
            self.replies.voicing_ended(at)

    def on_aggregated_text(self, pushed: Any, at: float) -> None:
        frame = pushed.frame
        if frame.will_be_spoken and self.is_voice(pushed):
            self.replies.announced(frame.context_id, frame.text, at)

    def on_tts_text(self, pushed: Any, at: float) -> None:
        frame = pushed.frame
        if pushed.first_push:
            self.replies.text_made(frame.context_id, frame.text, frame.pts, at, pushed.timestamp)

    def on_audio(self, pushed: Any, at: float) -> None:
        frame = pushed.frame
        if self.is_output(pushed):
            self.replies.played(audio_of(frame).length_ms, at)
        elif pushed.first_push:
            self.replies.audio_made(frame.context_id, audio_of(frame), frame.interruptible, at, pushed.timestamp)

    def on_tts_stopped(self, pushed: Any, at: float) -> None:
        if self.is_output(pushed):
            self.replies.context_played(pushed.frame.context_id, at)
        elif pushed.first_push:
            self.replies.context_stopped(pushed.frame.context_id, at)

    def on_interruption(self, pushed: Any, at: float) -> None:
        self.replies.interruption_seen(pushed.frame.id)
        if self.is_output(pushed):
            self.replies.interrupted(pushed.frame.id, at)
        if self.replies.is_interrupting():
            self.arrived.clear()
        else:
            self.arrived.set()

    # Requests to the LLM

    def request(self, frame_id: int) -> asyncio.Event:
        return self.requested.setdefault(frame_id, asyncio.Event())

    async def caught_up(self, frame_id: int) -> None:
        """Wait, at most a moment, until everything pushed before this request is handled.

        An interruption has come to the output then: a TTS may take its time to pass one on, and what was heard is known
        only behind it. One that does not come in time is not waited for again.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await self.request(frame_id).wait()
                await self.arrived.wait()
        self.arrived.set()

    # Tools and the end

    def on_tool_call(self, frame: Any, at: float) -> None:
        self.ledger.tool_called(frame.tool_call_id, frame.function_name, plain(frame.arguments), at)

    def on_tool_result(self, frame: Any, at: float) -> None:
        if getattr(frame.properties, "is_final", True):
            self.ledger.tool_returned(frame.tool_call_id, plain(frame.result), at, frame.function_name)

    def on_tool_cancel(self, frame: Any, at: float) -> None:
        """Report a tool call that an interruption or its timeout has ended, as Pipecat reports it to the LLM."""
        self.ledger.tool_returned(frame.tool_call_id, "CANCELLED", at, frame.function_name)

    def on_end(self, pushed: Any, at: float) -> None:
        """Take the end of the pipeline, which the output forwards once it has played everything before it."""
        if self.is_output(pushed):
            self.end(at, pushed.frame.reason)

    def end(self, at: float | None = None, reason: Any = None) -> None:
        self.replies.end(now_ms() if at is None else at, reason if isinstance(reason, str) and reason else None)
