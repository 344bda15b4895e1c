"""Passes Pipecat's frames, seen between its processors, on to the tracker of replies and to the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from voicemem.integrations.ledger import Ledger
from voicemem.integrations.pipecat.audio import NS_PER_MS
from voicemem.integrations.pipecat.replies import Audio, ReplyTracker

LOG = logging.getLogger("voicemem.integrations")
CAUGHT_UP_S = 0.3
MAX_REQUESTS = 16


def audio_of(frame: Any) -> Audio:
    return Audio(frame.audio, frame.sample_rate, frame.num_channels)


def plain(value: Any) -> Any:
    """A value as JSON has it; as text if it is something else."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError):
        return str(value)


class FrameListener:
    """Hears of each frame once for each processor that pushes it. It never raises and never waits."""

    def __init__(self, ledger: Ledger, client_buffer_ms: float) -> None:
        from pipecat.frames import frames
        from pipecat.processors.frame_processor import FrameDirection
        from pipecat.services.tts_service import TTSService
        from pipecat.transports.base_output import BaseOutputTransport

        self.ledger = ledger
        self.replies = ReplyTracker(ledger, client_buffer_ms)
        self.upstream = FrameDirection.UPSTREAM
        self.output_type, self.tts_type = BaseOutputTransport, TTSService
        self.unix_ns: int | None = None
        """The Unix time of the pipeline clock's zero."""
        self.has_tts = False
        """Whether a TTS makes the audio, or else the LLM itself."""
        self.has_warned = False
        self.requested: OrderedDict[int, asyncio.Event] = OrderedDict()
        """Requests to the LLM that somebody waits for, or that have passed."""
        self.arrived = asyncio.Event()
        """Set while no interruption is on its way to the output."""
        self.arrived.set()
        user_turn = getattr(frames, "LLMContextUserTurnFrame", None)
        self.tells_user_turns = user_turn is not None
        """Whether the end of the caller's turn has a frame of its own; else the request to the LLM is it."""
        self.handlers: dict[type, Callable[[Any, Any], None] | None] = {
            frames.StartFrame: self.on_start,
            frames.TranscriptionFrame: self.on_transcription,
            frames.InterimTranscriptionFrame: self.on_interim,
            frames.LLMMessagesAppendFrame: self.on_messages,
            frames.LLMFullResponseStartFrame: self.on_response_start,
            frames.LLMTextFrame: self.on_llm_text,
            frames.LLMFullResponseEndFrame: self.on_response_end,
            frames.TTSSpeakFrame: self.on_speak,
            frames.AggregatedTextFrame: self.on_aggregated_text,
            frames.TTSTextFrame: self.on_tts_text,
            frames.TTSAudioRawFrame: self.on_audio,
            frames.TTSStoppedFrame: self.on_tts_stopped,
            frames.InterruptionFrame: self.on_interruption,
            frames.FunctionCallInProgressFrame: self.on_tool_call,
            frames.FunctionCallResultFrame: self.on_tool_result,
            frames.FunctionCallCancelFrame: self.on_tool_cancel,
            frames.UserMuteStartedFrame: self.on_mute,
            frames.UserMuteStoppedFrame: self.on_unmute,
            frames.LLMContextFrame: self.on_context,
            frames.EndFrame: self.on_end,
            frames.CancelFrame: self.on_cancel,
        }
        if user_turn is not None:
            self.handlers[user_turn] = self.on_user_turn
        self.is_muted = False
        """Whether the pipeline drops what the caller says."""

    def on_push(self, pushed: Any) -> None:
        """A processor pushed a frame: `FramePushed` of pipecat."""
        kind = type(pushed.frame)
        if kind not in self.handlers:
            self.handlers[kind] = next((self.handlers[base] for base in kind.__mro__ if base in self.handlers), None)
        handler = self.handlers[kind]
        if handler is None or (pushed.direction is self.upstream and pushed.frame.broadcast_sibling_id is not None):
            return
        try:
            at = self.unix_ms(pushed)
            self.replies.settle(at)
            handler(pushed, at)
        except Exception as error:  # whatever it is, the call on the phone goes on
            if not self.has_warned:
                self.has_warned = True
                LOG.warning("The memory has missed a %s of a call: %r.", kind.__name__, error)

    def unix_ms(self, pushed: Any) -> float:
        """When a frame was pushed."""
        if not pushed.timestamp:  # the clock of the pipeline has not started
            return time.time() * 1000.0
        if self.unix_ns is None:
            self.unix_ns = time.time_ns() - pushed.source.get_clock().get_time()
        return float((self.unix_ns + pushed.timestamp) / NS_PER_MS)

    def now_ms(self) -> float:
        return time.time() * 1000.0

    def is_output(self, pushed: Any) -> bool:
        return isinstance(pushed.source, self.output_type)

    def is_voice(self, pushed: Any) -> bool:
        """Whether a frame comes from what makes the audio."""
        return isinstance(pushed.source, self.tts_type) if self.has_tts else bool(pushed.first_push)

    def on_start(self, pushed: Any, at: float) -> None:
        self.has_tts |= isinstance(pushed.source, self.tts_type)
        self.replies.speaks |= self.has_tts

    # The caller

    def on_transcription(self, pushed: Any, at: float) -> None:
        self.heard_user(pushed, at, final=True)

    def on_interim(self, pushed: Any, at: float) -> None:
        self.heard_user(pushed, at, final=False)

    def heard_user(self, pushed: Any, at: float, final: bool) -> None:
        frame = pushed.frame
        if pushed.first_push and frame.text and not self.is_muted:
            language = None if frame.language is None else str(frame.language)
            self.ledger.user_said(frame.text, at, final=final, user=frame.user_id or None, language=language)

    def on_mute(self, pushed: Any, at: float) -> None:
        """Until this ends, what is recognised comes to nobody."""
        self.is_muted = True

    def on_unmute(self, pushed: Any, at: float) -> None:
        self.is_muted = False

    def on_user_turn(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.ledger.user_turn_ended()

    def on_messages(self, pushed: Any, at: float) -> None:
        if not pushed.first_push:
            return
        for message in pushed.frame.messages:
            if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
                self.ledger.user_typed(message["content"], at)

    # The agent

    def on_response_start(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.replies.response_started(pushed.frame.id, bool(pushed.frame.skip_tts))
        if self.is_voice(pushed):
            self.replies.voicing_started(pushed.frame.id)

    def on_llm_text(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.replies.generated(pushed.frame.text, bool(pushed.frame.skip_tts), at)

    def on_response_end(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.replies.response_ended(at)
        if self.is_voice(pushed):
            self.replies.voicing_ended(at)

    def on_speak(self, pushed: Any, at: float) -> None:
        if pushed.first_push:
            self.replies.speech_asked(pushed.frame.text, pushed.frame.interruptible)

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

    def on_context(self, pushed: Any, at: float) -> None:
        if pushed.first_push and not self.tells_user_turns:
            self.ledger.user_turn_ended()
        self.request(pushed.frame.id).set()

    def request(self, frame_id: int) -> asyncio.Event:
        event = self.requested.setdefault(frame_id, asyncio.Event())
        while len(self.requested) > MAX_REQUESTS:
            self.requested.popitem(last=False)
        return event

    async def caught_up(self, frame_id: int) -> None:
        """Wait until everything that was pushed before this request has been heard of; at most a moment.

        An interruption has come to the output then: a TTS may take its time to pass one on, and what was heard is known
        only behind it. One that does not come in time is not waited for again.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CAUGHT_UP_S):
                await self.request(frame_id).wait()
                await self.arrived.wait()
        self.arrived.set()

    # Tools and the end

    def on_tool_call(self, pushed: Any, at: float) -> None:
        frame = pushed.frame
        if pushed.first_push:
            self.ledger.tool_called(frame.tool_call_id, frame.function_name, plain(frame.arguments), at)

    def on_tool_result(self, pushed: Any, at: float) -> None:
        frame = pushed.frame
        if pushed.first_push and getattr(frame.properties, "is_final", True):
            self.ledger.tool_returned(frame.tool_call_id, plain(frame.result), at, frame.function_name)

    def on_tool_cancel(self, pushed: Any, at: float) -> None:
        """A call that an interruption or its own timeout has ended; Pipecat tells the LLM the same."""
        frame = pushed.frame
        if pushed.first_push:
            self.ledger.tool_returned(frame.tool_call_id, "CANCELLED", at, frame.function_name)

    def on_end(self, pushed: Any, at: float) -> None:
        """The end of the pipeline: the output passes it on when it has played what was before it."""
        if self.is_output(pushed):
            self.end(at, pushed.frame.reason)

    def on_cancel(self, pushed: Any, at: float) -> None:
        self.end(at, pushed.frame.reason)

    def end(self, at: float | None = None, reason: Any = None) -> None:
        """The call is over, now if `at` is not given."""
        self.replies.end(self.now_ms() if at is None else at, reason if isinstance(reason, str) and reason else None)
