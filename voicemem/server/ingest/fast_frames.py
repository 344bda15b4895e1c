"""A parser for fast frames, in which nearly all events of a call come (RFC 6455, section 5.2).

A fast frame is a whole text message in one masked frame. The parser of `websockets` takes longer for such a frame than
voicemem takes for the event in it; all other frames are left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from websockets import frames

apply_mask: Callable[[bytes, bytes], bytes] | None = getattr(frames, "apply_mask", None)
"""The library's own, written in C where that is installed. Where it is missing, the library parses all frames."""

TEXT, PING, PONG = 0x81, 0x89, 0x8A
"""The first byte of a frame that is final and uses no extension."""
MASKED = 0x80
MIN_FRAME_BYTES = 6
"""Bytes of a masked frame without a payload."""
MAX_CONTROL_BYTES = 125
"""Bytes of payload in a ping or a pong."""


class FastFrames(NamedTuple):
    """The fast frames at the beginning of received bytes."""

    texts: list[bytes]
    stop: int
    """Where the last of them ends."""
    needed: int
    """How many bytes, from `stop` on, are needed to go on; 0 when the next frame is not a fast one."""


def parse_fast_frames(data: bytes, at: int, limit: int) -> FastFrames:
    """Parse the fast frames from `at` on; a frame with more than `limit` bytes of text is not one."""
    assert apply_mask is not None
    texts: list[bytes] = []
    end = len(data)
    while end - at >= MIN_FRAME_BYTES:
        length = data[at + 1] - MASKED
        if data[at] != TEXT or length < 0:
            return FastFrames(texts, at, 0)
        start = at + MIN_FRAME_BYTES
        if length > 125:
            start += 2 if length == 126 else 8
            if start > end:
                break
            length = int.from_bytes(data[at + 2 : start - 4])
            if length > limit:
                return FastFrames(texts, at, 0)
        stop = start + length
        if stop > end:
            return FastFrames(texts, at, stop - at)
        texts.append(apply_mask(data[start:stop], data[start - 4 : start]))
        at = stop
    begun = data[at : at + 2]
    if begun and (begun[0] != TEXT or begun[-1] < MASKED):
        return FastFrames(texts, at, 0)
    return FastFrames(texts, at, end - at + 1)


def control_frame_size(data: bytes, at: int) -> int:
    """Return the size in bytes of the ping or pong at `at`, as far as is known yet; 0 for any other frame."""
    begun = data[at : at + 2]
    if begun[0] not in (PING, PONG):
        return 0
    length = begun[-1] - MASKED if len(begun) == 2 else 0
    return MIN_FRAME_BYTES + length if 0 <= length <= MAX_CONTROL_BYTES else 0
