"""Plain frames, which nearly all of a call comes in, without the library's parser (RFC 6455, section 5.2).

Plain is a whole message of text in one masked frame. The parser of `websockets` takes longer for such a frame than
voicemem takes for the event in it; everything else is left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from websockets import frames

apply_mask: Callable[[bytes, bytes], bytes] | None = getattr(frames, "apply_mask", None)
"""The library's own, in C where there is one. A library without it parses all frames itself."""

TEXT, PING, PONG = 0x81, 0x89, 0x8A
"""The first byte of a frame that is final and not extended."""
MASKED = 0x80
MIN_FRAME_BYTES = 6
"""Bytes of a masked frame without content."""
MAX_CONTROL_BYTES = 125
"""Bytes of content in a ping or a pong."""


class FastFrames(NamedTuple):
    """What stands at the beginning of received bytes."""

    texts: list[bytes]
    stop: int
    """Where the texts end."""
    needed: int
    """Bytes that must be there from `stop` on to see more; 0 when what stands there is not plain."""


def parse_fast_frames(data: bytes, at: int, limit: int) -> FastFrames:
    """The plain frames from `at` on; one with more than `limit` bytes of text is not plain."""
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
    """How long the ping or pong at `at` is, as far as can be seen; 0 for anything else."""
    begun = data[at : at + 2]
    if begun[0] not in (PING, PONG):
        return 0
    length = begun[-1] - MASKED if len(begun) == 2 else 0
    return MIN_FRAME_BYTES + length if 0 <= length <= MAX_CONTROL_BYTES else 0
