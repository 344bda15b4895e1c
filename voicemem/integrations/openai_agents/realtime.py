"""A realtime call of the Agents SDK: what its model said, and how far the player came."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

from voicemem.integrations.conversation import parsed
from voicemem.integrations.ledger import Ledger

LOG = logging.getLogger("voicemem.integrations")
PLAYED_OUT_MS = 60.0
"""A reply of which no more than this is left was played to its end."""
GUARDRAIL = "guardrail triggered: "
"""So begins what the SDK tells the model, in the user's name, when a guardrail has stopped a reply."""


class PlaybackTracker(Protocol):
    """What is asked of the SDK's `RealtimePlaybackTracker`."""

    def get_state(self) -> Any:
        """A mapping with `current_item_id` and `elapsed_ms`."""


class Spoken:
    """One item of the model's speech."""

    def __init__(self) -> None:
        self.made_ms = 0.0
        self.complete = False


class RealtimeListener:
    """A `RealtimeModelListener`: hears of each event of the model. It never raises and never waits."""

    def __init__(self, ledger: Ledger, tracker: PlaybackTracker | None, bytes_per_ms: float) -> None:
        self.ledger = ledger
        self.tracker = tracker
        self.bytes_per_ms = bytes_per_ms
        self.spoken: dict[str, Spoken] = {}
        """Replies that are not over, oldest first."""
        self.users: set[str] = set()
        self.is_stopped = False
        """Whether the program has asked the model to stop, and not the caller."""
        self.has_warned = False
        self.handlers: dict[str, Callable[[Any, float], None]] = {
            "item_updated": self.on_item,
            "input_audio_transcription_completed": self.on_transcript,
            "transcript_delta": self.on_delta,
            "output_text_delta": self.on_delta,
            "audio": self.on_audio,
            "audio_interrupted": self.on_interrupted,
            "turn_ended": self.on_turn_ended,
            "function_call": self.on_tool_call,
        }

    async def on_event(self, event: Any) -> None:
        """One event of the model."""
        try:
            handler = self.handlers.get(event.type)
            if handler is not None:
                now = time.time() * 1000.0
                self.follow_player(now)
                handler(event, now)
        except Exception as error:  # whatever it is, the call on the phone goes on
            self.missed(event, error)

    def follow_sending(self, model: Any) -> None:
        """Hear of what the SDK sends to the model: the results of tools are told to nobody else."""
        original = model.send_event

        @wraps(original)
        async def send_event(event: Any) -> None:
            try:
                self.on_sending(event, time.time() * 1000.0)
            except Exception as error:  # whatever it is, the call on the phone goes on
                self.missed(event, error)
            await original(event)

        model.send_event = send_event

    def on_sending(self, event: Any, at: float) -> None:
        kind = type(event).__name__
        if kind == "RealtimeModelSendToolOutput":
            self.ledger.tool_returned(event.tool_call.call_id, parsed(event.output), at, event.tool_call.name)
        elif kind == "RealtimeModelSendInterrupt":
            self.is_stopped = True

    def missed(self, event: Any, error: Exception) -> None:
        if not self.has_warned:
            self.has_warned = True
            LOG.warning("The memory has missed a `%s` of a call: %r.", getattr(event, "type", event), error)

    # The caller

    def on_item(self, event: Any, at: float) -> None:
        """The caller's turn has its place as soon as it begins; its transcript may come after the reply."""
        item = event.item
        if getattr(item, "role", None) != "user" or item.item_id in self.users:
            return
        texts = [part.text for part in item.content if part.type == "input_text" and part.text]
        self.users.add(item.item_id)
        if texts and texts[0].startswith(GUARDRAIL):
            return
        if texts:
            self.ledger.user_typed("\n".join(texts), at)
        else:
            self.hear(item.item_id, "", False, at)

    def on_transcript(self, event: Any, at: float) -> None:
        self.users.add(event.item_id)
        self.hear(event.item_id, event.transcript.strip(), True, at)

    def hear(self, item_id: str, text: str, final: bool, at: float) -> None:
        if not self.ledger.ended:
            said = {"type": "asr", "segment": 0, "text": text, "final": final}
            self.ledger.emit(said, at, self.ledger.item_of(item_id))

    # The agent

    def speech(self, item_id: str) -> Spoken:
        return self.spoken.setdefault(item_id, Spoken())

    def on_delta(self, event: Any, at: float) -> None:
        self.speech(event.item_id)
        self.ledger.said(event.item_id, event.delta, at)

    def on_audio(self, event: Any, at: float) -> None:
        audio_ms = len(event.data) / self.bytes_per_ms
        self.speech(event.item_id).made_ms += audio_ms
        self.ledger.audio_made(event.item_id, audio_ms)

    def on_turn_ended(self, event: Any, at: float) -> None:
        """The response is generated whole; it may be played for long."""
        for item_id, spoken in list(self.spoken.items()):
            if not spoken.complete:
                spoken.complete = True
                self.ledger.said_all(item_id, at)
                self.ledger.span_made(item_id, at)
                if not spoken.made_ms:
                    self.finish(item_id, at)

    def on_tool_call(self, event: Any, at: float) -> None:
        self.ledger.tool_called(event.call_id, event.name, parsed(event.arguments or "{}"), at)

    # The player

    def position(self) -> tuple[str | None, float]:
        """The item that the player is at, and how much of it was played; it is asked before the SDK forgets it."""
        state = {} if self.tracker is None else self.tracker.get_state()
        return state.get("current_item_id"), state.get("elapsed_ms") or 0.0

    def follow_player(self, at: float) -> None:
        """Note what is played, and that everything before it was played to its end."""
        current, played_ms = self.position()
        if current not in self.spoken:
            return
        for item_id in list(self.spoken):
            if item_id == current:
                self.ledger.played(item_id, played_ms, at)
                break
            self.finish(item_id, at)

    def on_interrupted(self, event: Any, at: float) -> None:
        current, played_ms = self.position()
        cause, self.is_stopped = "command" if self.is_stopped else "user_speech", False
        for item_id, spoken in list(self.spoken.items()):
            if item_id == current and spoken.complete and played_ms >= spoken.made_ms - PLAYED_OUT_MS:
                self.finish(item_id, at)
            elif item_id == current or (self.tracker is None and item_id == event.item_id):
                self.ledger.cut(item_id, None if self.tracker is None else played_ms, at, cause=cause)
                del self.spoken[item_id]
            elif self.tracker is None:
                self.finish(item_id, at)
            else:
                self.ledger.withdrawn(item_id, at)
                del self.spoken[item_id]

    def finish(self, item_id: str, at: float) -> None:
        self.ledger.finished(item_id, at)
        self.spoken.pop(item_id, None)

    def end(self) -> None:
        """The call is over; what was not played by now is not heard."""
        at = time.time() * 1000.0
        self.follow_player(at)
        current, played_ms = self.position()
        for item_id, spoken in list(self.spoken.items()):
            if self.tracker is None or (item_id == current and played_ms >= spoken.made_ms - PLAYED_OUT_MS):
                self.finish(item_id, at)
        self.ledger.end(at)
