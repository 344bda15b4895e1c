"""The messages of one direction of a websocket, out of its bytes (RFC 6455, section 5)."""

from __future__ import annotations

from typing import Protocol

from voicemem.dialects.envelope import MAX_DIALECT_FRAME_BYTES as MAX_MESSAGE_BYTES

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without the library's C extension
    from websockets.utils import apply_mask

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FINAL, OPCODE, RESERVED, MASKED, LENGTH = 0x80, 0x0F, 0x70, 0x80, 0x7F
NO_CODE = 1005
"""What a close without a code counts as."""
MAX_FRAGMENTS = 100_000
"""Of one message: empty ones cost nothing to send."""


class Broken(Exception):
    """The bytes are not those of a websocket, so where the next frame begins is not known."""


class Listener(Protocol):
    """Gets what was read."""

    def message(self, data: bytes, is_text: bool) -> None: ...

    def too_big(self) -> None:
        """A message was larger than 16 MiB, and is left out."""

    def closing(self, code: int) -> None:
        """A close frame."""


class MessageReader:
    """Reads frames out of pieces of any size. It keeps one message at most, and none above 16 MiB."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.partial = bytearray()
        """The beginning of a frame whose rest has not come; `needed` is its size as far as is known."""
        self.needed = 0
        self.skipped = 0
        """How many bytes of a frame that is too large are still to come."""
        self.fragments: list[bytes] = []
        self.fragments_bytes = 0
        self.is_text = False
        self.in_message = False
        self.leaves_out = False
        """Whether the message that is coming in fragments is too large."""

    @property
    def held_bytes(self) -> int:
        return len(self.partial) + self.fragments_bytes

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises `Broken`."""
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
            stop = self.read(data, at)
            if stop > len(data) and not self.skipped:
                self.partial += data[at:]
                self.needed = stop - at
                return
            at = stop

    def read(self, data: bytes, at: int) -> int:
        """Read the frame that begins at `at`; where it ends, or would, as far as is known."""
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
        if length + self.fragments_bytes > MAX_MESSAGE_BYTES and first & OPCODE < CLOSE:
            self.skip(first, stop - len(data))
        elif stop <= len(data):
            self.take(first, apply_mask(data[start:stop], mask) if mask else data[start:stop])
        return stop

    def skip(self, first: int, missing: int) -> None:
        """Leave out the message of a frame that is too large."""
        self.skipped = max(0, missing)
        self.fragments, self.fragments_bytes = [], 0
        if not self.leaves_out:
            self.listener.too_big()
        self.in_message = self.leaves_out = not first & FINAL

    def take(self, first: int, payload: bytes) -> None:
        """Take a whole frame."""
        opcode = first & OPCODE
        if first & RESERVED:
            raise Broken
        if opcode in (PING, PONG):
            return
        if opcode == CLOSE:
            self.listener.closing(int.from_bytes(payload[:2]) if len(payload) >= 2 else NO_CODE)
        elif opcode in (TEXT, BINARY) and not self.in_message:
            self.is_text = opcode == TEXT
            self.add(payload, bool(first & FINAL))
        elif opcode == CONTINUATION and self.in_message:
            self.add(payload, bool(first & FINAL))
        else:
            raise Broken

    def add(self, payload: bytes, is_final: bool) -> None:
        """Add a frame to its message."""
        if is_final and not self.in_message:
            self.listener.message(payload, self.is_text)
            return
        self.in_message = not is_final
        if self.leaves_out:
            self.leaves_out = not is_final
            return
        self.fragments.append(payload)
        self.fragments_bytes += len(payload)
        if len(self.fragments) > MAX_FRAGMENTS:
            raise Broken
        if is_final:
            whole, self.fragments, self.fragments_bytes = b"".join(self.fragments), [], 0
            self.listener.message(whole, self.is_text)
