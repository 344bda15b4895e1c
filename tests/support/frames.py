"""Whole frames and bodies decoded at once; the service decodes their events one by one, as their turn comes."""

from __future__ import annotations

from voicemem.protocol.codec import DecodedEvent, RejectedEvent, decode_event, split_frame, split_lines


def decode_frame(frame: bytes) -> list[DecodedEvent | RejectedEvent]:
    """The events of one frame: a JSON object, or an array of objects. Raises `InvalidFrame`."""
    return [decode_event(piece) for piece in map(bytes, split_frame(frame))]


def decode_lines(body: bytes) -> list[DecodedEvent | RejectedEvent]:
    """The events of an HTTP body: a JSON array, or JSON lines. Raises `InvalidFrame`."""
    return [decode_event(piece) for piece in map(bytes, split_lines(body))]
