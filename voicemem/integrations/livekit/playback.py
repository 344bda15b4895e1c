"""What the audio output has played."""

from __future__ import annotations

import time
from functools import wraps
from typing import Any

from voicemem.integrations.ledger import Ledger

EVENTS = ("playback_started", "playback_progressed", "playback_finished")


class Playback:
    """Follows one audio output at a time; segments are played one after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.output: Any = None
        self.reply: str | None = None
        """What plays, or is about to."""
        self.position_ms: float | None = None
        self.stopped_at: float | None = None
        self.is_paused = False
        self.is_text = False

    def watch(self, output: Any) -> None:
        """Follow another output, if it is another one."""
        if output is self.output:
            return
        if self.output is not None:
            for name in EVENTS:
                self.output.off(name, getattr(self, name))
        self.output = output
        if output is not None:
            for name in EVENTS:
                output.on(name, getattr(self, name))
            self.follow_pauses(output)

    def follow_pauses(self, output: Any) -> None:
        """Know of a pause when it begins: what has stopped then may be a false alarm."""
        pause = output.pause

        @wraps(pause)
        def paused() -> None:
            self.is_paused = True
            pause()

        output.pause = paused

    def begin(self, reply: str) -> None:
        """A segment is about to be played."""
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
        at = time.time() * 1000 if self.stopped_at is None else self.stopped_at
        if not event.interrupted:
            if self.is_paused:  # it ran to its end during a pause
                self.ledger.resumed(self.reply, at)
            self.ledger.finished(self.reply, at)
        else:
            position = event.playback_position * 1000 if self.position_ms is None else self.position_ms
            self.ledger.cut(self.reply, position, at, heard_text=event.synchronized_transcript)
        self.reply = None

    def resumed(self, at: float) -> None:
        """The pause was a false alarm."""
        self.is_paused = False
        if self.reply is not None:
            self.ledger.resumed(self.reply, at)

    def text_ended(self, interrupted: bool, text: str, at: float) -> None:
        """A reply without audio is over: what was shown of it is known."""
        if self.reply is None:
            return
        if interrupted:
            self.ledger.cut(self.reply, None, at, heard_text=text)
        else:
            self.ledger.finished(self.reply, at)
        self.reply = None
