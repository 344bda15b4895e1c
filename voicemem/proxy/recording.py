"""The recording of a call: websocket messages, read from its bytes after they were forwarded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from voicemem.dialects.dialect import MalformedFrame
from voicemem.dialects.registry import MAX_DIALECT_FRAME_BYTES
from voicemem.integrations.tee import memory as tee_memory
from voicemem.integrations.tee.connections import CLEAN_CODES
from voicemem.integrations.tee.memory import CallMemory

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without the library's C extension
    from websockets.utils import apply_mask

LOG = logging.getLogger("voicemem.proxy")
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FINAL, OPCODE, RESERVED, MASKED, LENGTH = 0x80, 0x0F, 0x70, 0x80, 0x7F
MAX_FRAGMENTS = 100_000
"""The most fragments of one message; a sender could make any number of empty ones."""


class InvalidWebsocketData(Exception):
    """The bytes are not valid websocket frames, so the start of the next frame is unknown."""


class Direction:
    """One direction of a call: reads frames from pieces of any size, and holds at most one message, up to 16 MiB."""

    def __init__(
        self, recording: Recording, copy: Callable[[bytes, bool, int], None], max_bytes: int = MAX_DIALECT_FRAME_BYTES
    ) -> None:
        self.recording = recording
        self.copy = copy
        self.max_bytes = max_bytes
        self.ts = 0
        """The time at which the current bytes were forwarded."""
        self.frames = 0
        self.bytes = 0
        self.close_code: int | None = None
        self.partial = bytearray()
        """The beginning of an incomplete frame; `needed` is its size as far as is known."""
        self.needed = 0
        self.skipped = 0
        """How many bytes of an oversized frame are still to come."""
        self.fragments: list[bytes] = []
        self.fragments_bytes = 0
        self.is_text = False
        self.in_message = False
        self.leaves_out = False
        """True if the current fragmented message is too large."""

    def forwarded(self, data: bytes) -> None:
        self.bytes += len(data)
        self.recording.reads.put(self, data)

    def read(self, data: bytes, ts: int) -> None:
        """Read the next bytes, which were forwarded at `ts`. Never raises."""
        if self.recording.is_broken or self.close_code is not None:
            return
        self.ts = ts
        try:
            self.feed(data)
        except InvalidWebsocketData:
            self.recording.give_up("The data of the connection are not a websocket's")
        except Exception as error:  # the call must continue
            self.recording.give_up(f"It could not be read ({type(error).__name__})")

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises `InvalidWebsocketData`."""
        if self.skipped:
            gone = min(self.skipped, len(data))
            self.skipped -= gone
            data = data[gone:]
        if self.partial:
            self.partial += data
            if len(self.partial) < self.needed:
                return
            data, self.partial = bytes(self.partial), bytearray()
        at = 0
        while at < len(data):
            stop = self.read_frame(data, at)
            if stop > len(data) and not self.skipped:
                self.partial += data[at:]
                self.needed = stop - at
                return
            at = stop

    def read_frame(self, data: bytes, at: int) -> int:
        """Read the frame that begins at `at`. Return its end, as far as it is known."""
        start = at + 2
        if start > len(data):
            return start
        first, length = data[at], data[at + 1] & LENGTH
        if length > 125:
            size = 2 if length == 126 else 8
            start += size
            if start > len(data):
                return start
            length = int.from_bytes(data[start - size : start])
        mask = data[start : start + 4] if data[at + 1] & MASKED else b""
        start += 4 if data[at + 1] & MASKED else 0
        stop = start + length
        if length + self.fragments_bytes > self.max_bytes and first & OPCODE < CLOSE:
            self.skipped = max(0, stop - len(data))
            self.fragments, self.fragments_bytes = [], 0
            if not self.leaves_out:
                self.too_big()
            self.in_message = self.leaves_out = not first & FINAL
        elif stop <= len(data):
            self.take(first, apply_mask(data[start:stop], mask) if mask else data[start:stop])
        return stop

    def take(self, first: int, payload: bytes) -> None:
        opcode, is_final = first & OPCODE, bool(first & FINAL)
        if first & RESERVED:
            raise InvalidWebsocketData
        if opcode in (PING, PONG):
            return
        if opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2]) if len(payload) >= 2 else 1005  # no code
        elif opcode in (TEXT, BINARY) and not self.in_message:
            self.is_text = opcode == TEXT
            self.add(payload, is_final)
        elif opcode == CONTINUATION and self.in_message:
            self.add(payload, is_final)
        else:
            raise InvalidWebsocketData

    def add(self, payload: bytes, is_final: bool) -> None:
        if self.leaves_out:
            self.in_message = self.leaves_out = not is_final
            return
        if self.in_message or not is_final:
            self.fragments.append(payload)
            self.fragments_bytes += len(payload)
            if len(self.fragments) > MAX_FRAGMENTS:
                raise InvalidWebsocketData
        self.in_message = not is_final
        if is_final:
            whole = b"".join(self.fragments) if self.fragments else payload
            self.fragments, self.fragments_bytes = [], 0
            self.frames += 1
            self.copy(whole, self.is_text, self.ts)

    def too_big(self) -> None:
        self.frames += 1
        self.recording.memory.failed(MalformedFrame("A frame may be at most 16 MiB."))


class ReadQueue:
    """Reads the bytes that all calls have forwarded, one iteration of the event loop after the sockets got them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiting: list[tuple[Direction, bytes, int]] = []

    def put(self, direction: Direction, data: bytes) -> None:
        """Queue bytes with the time; a call waits for nothing else."""
        if not self.waiting:
            self.loop.call_soon(self.work)
        self.waiting.append((direction, data, tee_memory.now_ms()))

    def work(self) -> None:
        """Read everything: at most what the sockets delivered in one iteration of the loop."""
        waiting, self.waiting = self.waiting, []
        for direction, data, ts in waiting:
            direction.read(data, ts)


class Recording:
    """The memory of one call, and the counts of its traffic."""

    def __init__(self, memory: CallMemory, reads: ReadQueue) -> None:
        self.memory = memory
        self.reads = reads
        self.from_caller = Direction(self, memory.sent)
        self.from_upstream = Direction(self, memory.received)
        self.is_broken = False

    def give_up(self, reason: str) -> None:
        """Read nothing more of this call, which continues."""
        self.is_broken = True
        LOG.warning("%s: the rest of the call is not recorded.", reason, extra={"session": self.memory.session_id})

    @property
    def close_code(self) -> int:
        """The close code of the connection, or 1006 for one that was lost."""
        codes = [one.close_code for one in (self.from_upstream, self.from_caller) if one.close_code is not None]
        return codes[0] if codes else 1006

    def over(self) -> None:
        """Note that the connection is gone. Call it once everything has been read."""
        code = self.close_code
        by_caller = self.from_caller.close_code is not None and self.from_upstream.close_code is None
        self.memory.closed(code in CLEAN_CODES, by_app=by_caller)
