"""Server-sent events (https://html.spec.whatwg.org, 9.2), encoded and decoded as bytes.

A line ends with `\\n` or `\\r\\n`. A lone `\\r`, also a line end in the standard, stays in its line: proxies do not
write it, and data is passed on unchanged.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

EVENT_STREAM = "text/event-stream"
HEADERS = MappingProxyType({"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
"""Headers of a stream of events, so that no proxy buffers it."""
DONE = b"[DONE]"
"""The data of the last event of a chat completion."""
MAX_LINES = 10_000
"""The most data lines of one event; empty lines cost a reader too."""
KEEP_ALIVE = b": nothing new\n\n"
"""A comment, which readers skip."""


class SseEvent(NamedTuple):
    """One event; `data` is None without a data line, `event` is empty without a name."""

    data: bytes | None
    event: str = ""
    id: str | None = None


class TooLong(ValueError):
    """An event, or a single line, is larger than its reader accepts."""


def encode(data: bytes | None = None, *, event: str = "", id: str | None = None) -> bytes:
    """Encode one event; each line of data becomes a data line. `event` and `id` must be one line each."""
    if data is not None and b"\n" in data:
        data = data.replace(b"\n", b"\ndata: ")
    text = b"\n" if data is None else b"data: %b\n\n" % data
    if not event and id is None:
        return text
    head = ("" if id is None else f"id: {id}\n") + (f"event: {event}\n" if event else "")
    return head.encode() + text


def retry(ms: int) -> bytes:
    """Encode how long a reader waits before it reconnects."""
    return b"retry: %d\n\n" % ms


class Decoder:
    """Decodes bytes, in pieces of any size, into events of at most `max_bytes` of data."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.unfinished = bytearray()
        """The beginning of an incomplete line."""
        self.lines: list[bytes] = []
        self.size = 0
        """Bytes of data in `lines`."""
        self.event = ""
        self.id: str | None = None

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """Yield the events that end in this piece. Raises `TooLong`."""
        # Only the new piece is searched, so a large event in small pieces takes linear time.
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            line = piece[start:end].removesuffix(b"\r")
            if self.unfinished:
                self.unfinished += piece[start:end]
                line = bytes(self.unfinished.removesuffix(b"\r"))
                self.unfinished.clear()
            start = end + 1
            if line:
                self.add_line(line)
            elif self.lines or self.event or self.id is not None:
                yield self.end_event()
        if start < len(piece):
            self.unfinished += piece[start:]
            self.check_size(len(self.unfinished))

    def close(self) -> Iterator[SseEvent]:
        """Yield the last event if only its blank line is missing, as servers often omit it."""
        if not self.unfinished and (self.lines or self.event or self.id is not None):
            yield self.end_event()

    def add_line(self, line: bytes) -> None:
        """Read a field. Comments, `retry` and unknown fields are ignored."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self.check_size(len(value))
            if len(self.lines) == MAX_LINES:
                raise TooLong
            self.lines.append(value)
            self.size += len(value)
        elif name == b"event":
            self.event = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self.id = value.decode(errors="replace")

    def end_event(self) -> SseEvent:
        ended = SseEvent(b"\n".join(self.lines) if self.lines else None, self.event, self.id)
        self.lines, self.size, self.event, self.id = [], 0, "", None
        return ended

    def check_size(self, more: int) -> None:
        if self.size + more > self.max_bytes:
            raise TooLong
