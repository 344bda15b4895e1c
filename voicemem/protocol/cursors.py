"""Cursors of pages: a proof of what they belong to and a place in it, as text that fits into an address."""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeVar

import msgspec

from voicemem.errors import Refused

Place = TypeVar("Place")


def join_cursor(proof: bytes, place: bytes) -> str:
    """The cursor with this proof and this place, which hides neither."""
    return base64.urlsafe_b64encode(proof + place).decode().rstrip("=")


def split_cursor(cursor: str, proof_bytes: int) -> tuple[bytes, bytes]:
    """The proof and the place of a cursor, of which nothing is checked. Raises `Refused` (`invalid_cursor`)."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except (binascii.Error, ValueError):
        raise Refused("invalid_cursor") from None
    return raw[:proof_bytes], raw[proof_bytes:]


def format_place(digest: bytes, place: Any) -> str:
    """The cursor of a place in what has this digest."""
    return join_cursor(digest, msgspec.json.encode(place))


def parse_place(cursor: str, digest: bytes, kind: type[Place], detail: str | None = None) -> Place:
    """The place of a cursor. Raises `Refused` (`invalid_cursor`) unless it is one in what has this digest."""
    try:
        found, place = split_cursor(cursor, len(digest))
        parsed = msgspec.json.decode(place, type=kind)
    except (Refused, ValueError):
        raise Refused("invalid_cursor", detail) from None
    if found != digest:
        raise Refused("invalid_cursor", detail)
    return parsed
