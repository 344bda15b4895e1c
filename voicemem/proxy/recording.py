"""What of a call goes to its memory: bytes that were forwarded, read once the event loop has sent them on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from voicemem.dialects.dialect import MalformedFrame
from voicemem.integrations.tee import frames
from voicemem.integrations.tee.connections import CLEAN_CODES
from voicemem.integrations.tee.memory import CallMemory
from voicemem.proxy.messages import Broken, MessageReader

LOG = logging.getLogger("voicemem.proxy")


class Turns:
    """Reads what all calls have forwarded, in the turn of the event loop after it was handed to the sockets."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiting: list[tuple[Direction, bytes, int]] = []

    def put(self, direction: Direction, data: bytes) -> None:
        """Put bytes aside, with the time: the only thing that a call waits for."""
        if not self.waiting:
            self.loop.call_soon(self.work)
        self.waiting.append((direction, data, frames.now_ms()))

    def work(self) -> None:
        """Read everything. No more of it comes than the sockets had in one turn of the loop."""
        waiting, self.waiting = self.waiting, []
        for direction, data, ts in waiting:
            direction.read(data, ts)


class Direction:
    """One direction of a call. Nothing here raises."""

    def __init__(self, recording: Recording, copy: Callable[[bytes, bool, int], None], by_caller: bool) -> None:
        self.recording = recording
        self.copy = copy
        self.by_caller = by_caller
        self.reader = MessageReader(self)
        self.ts = 0
        self.frames = 0
        self.bytes = 0
        self.close_code: int | None = None

    def forwarded(self, data: bytes) -> None:
        """Bytes that are on their way."""
        self.bytes += len(data)
        self.recording.turns.put(self, data)

    def read(self, data: bytes, ts: int) -> None:
        if self.recording.is_broken or self.close_code is not None:
            return
        self.ts = ts
        try:
            self.reader.feed(data)
        except Broken:
            self.recording.give_up("What crosses the connection is not a websocket's")
        except Exception as error:  # the call goes on whatever it is
            self.recording.give_up(f"It could not be read ({type(error).__name__})")

    # From the reader

    def message(self, data: bytes, is_text: bool) -> None:
        self.frames += 1
        self.copy(data, is_text, self.ts)

    def too_big(self) -> None:
        self.frames += 1
        self.recording.memory.failed(MalformedFrame("A frame may be at most 16 MiB."))

    def closing(self, code: int) -> None:
        self.close_code = code


class Recording:
    """The memory of one call, and how much has crossed it."""

    def __init__(self, memory: CallMemory, turns: Turns) -> None:
        self.memory = memory
        self.turns = turns
        self.from_caller = Direction(self, memory.sent, True)
        self.from_upstream = Direction(self, memory.received, False)
        self.is_broken = False

    def give_up(self, reason: str) -> None:
        """Read nothing more of this call, which goes on."""
        self.is_broken = True
        LOG.warning("%s: the rest of the call is not remembered.", reason, extra={"session": self.memory.session_id})

    @property
    def close_code(self) -> int:
        """How the connection was closed, or 1006 for one that was lost."""
        codes = [one.close_code for one in (self.from_upstream, self.from_caller) if one.close_code is not None]
        return codes[0] if codes else 1006

    def over(self) -> None:
        """The connection has gone; call it when everything has been read."""
        code = self.close_code
        by_caller = self.from_caller.close_code is not None and self.from_upstream.close_code is None
        self.memory.closed(code in CLEAN_CODES, by_app=by_caller)
