"""Helpers for the `reduce`, `texts` and webhooks of dialects: reading of values and texts."""

import hashlib
import hmac
import json
import re
from binascii import crc32
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import msgspec

from voicemem.dialects.dialect import AUDIO_BYTES, MalformedFrame, RawFrame, Speaker, Text
from voicemem.dialects.kinds import require_object
from voicemem.errors import InvalidFrame, Refused
from voicemem.protocol.codec import (
    JSON_DECODER,
    MALFORMED,
    check_frame,
    may_have_large_number,
    replace_nul,
    whole_characters,
)
from voicemem.protocol.memories import time_ms
from voicemem.protocol.types import MAX_INTEGER, JsonObject

MAX_DIGITS = 15
LONGEST_MS = 72 * 3600 * 1000
"""The longest call: a later time within a call is invalid."""
PHONE_NUMBER = re.compile(r"(?:sip|tel)?[:_]?\+?[\d\s().-]{7,}(?:@.*)?")
"""A user id that telephony made from the caller's number."""

WORDLESS = re.compile(r"[\s.,;:!?…。、，！？،؟।¡¿–—-]+")


def has_words(text: str) -> bool:
    """Return whether a transcript has words: some recognisers write `...` for silence."""
    return bool(text) and WORDLESS.fullmatch(text) is None


def decode_json(text: bytes) -> Any:
    """Decode a stack's JSON. Raises `Refused`, one of `MALFORMED`.

    One bad value does not lose the rest: `NaN` and numbers beyond a double become null, integers beyond 2^53, such as
    ids in tool arguments, become texts, and a lone surrogate becomes U+FFFD.
    """
    text = replace_nul(text)
    try:
        value = JSON_DECODER.decode(text)
    except MALFORMED as error:
        try:
            return with_kept_values(json.loads(text, parse_constant=lambda _: None))
        except ValueError:
            raise error from None
    return with_kept_values(value) if may_have_large_number(text) else value


def with_kept_values(value: Any) -> Any:
    match value:
        case dict():
            return {whole_characters(name): with_kept_values(one) for name, one in value.items()}
        case list():
            return [with_kept_values(one) for one in value]
        case str():
            return whole_characters(value)
        case int():
            return value if abs(value) <= MAX_INTEGER else str(value)
        case float():
            return value if isfinite(value) else None
    return value


def json_object(frame: RawFrame, max_bytes: int) -> JsonObject:
    """Return a frame that must be a JSON object, perhaps as text or bytes. Raises `MalformedFrame`."""
    if isinstance(frame, str | bytes):
        try:
            text = frame.encode() if isinstance(frame, str) else frame
            check_frame(text, max_bytes)
            frame = decode_json(text)
        except (InvalidFrame, Refused, UnicodeEncodeError, *MALFORMED):
            raise MalformedFrame("A frame of this dialect is JSON.") from None
    return require_object(frame)


def audio_bytes(frame: JsonObject, field: str) -> int:
    """Return the number of audio bytes in a base64 field, or of a reduced frame. Raises `MalformedFrame`."""
    counted = frame.get(AUDIO_BYTES)
    if type(counted) is int and 0 <= counted <= MAX_INTEGER:
        return counted
    audio = frame.get(field)
    if not isinstance(audio, str):
        raise MalformedFrame("An audio frame has no audio.")
    return len(audio.rstrip("=")) * 3 // 4


def byte_count(frame: RawFrame) -> int | None:
    """Return the bytes of a binary frame, even if it comes reduced; None for any other frame."""
    if isinstance(frame, bytes):
        return len(frame)
    if isinstance(frame, dict) and AUDIO_BYTES in frame and "type" not in frame:
        return audio_bytes(frame, AUDIO_BYTES)
    return None


def whole(value: Any, most: int = MAX_INTEGER) -> int | None:
    """Return a time or number as an integer, without a fraction; None for anything else."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
    return round(value) if fits else None


def unix_ms(time: Any) -> int | None:
    """Return Unix ms from ISO 8601 (UTC without an offset) or a number; None for anything else."""
    if isinstance(time, str):
        try:
            time = time_ms(time)
        except ValueError:
            return None
    return whole(time)


def digest(value: Any) -> str:
    """Return a short name for a JSON value, for frames without an id."""
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def checksum(value: Any) -> int:
    """Return a number that shows whether a JSON value has changed; it costs less than a digest."""
    text = msgspec.json.encode(value)
    return len(text) << 32 | crc32(text)


def names_someone(user: str) -> bool:
    """Return whether a user id names someone, and is not the caller's number."""
    return bool(user) and not PHONE_NUMBER.fullmatch(user)


def speaker(role: str | None) -> Speaker:
    """Return the speaker that a role names."""
    return "user" if role == "user" else "agent"


def values(holder: JsonObject, *fields: str) -> Iterator[Text]:
    """Yield a tool's arguments or results: those of these fields that exist."""
    return (Text(holder, field, "value") for field in fields if holder.get(field) is not None)


def is_recent(stated: str, now: int, tolerance_s: int) -> bool:
    """Return whether a text is a time in Unix seconds close to now (Unix ms)."""
    is_time = stated.isascii() and stated.isdecimal() and len(stated) <= MAX_DIGITS
    return is_time and abs(now - int(stated) * 1000) <= tolerance_s * 1000


def is_signed(payload: bytes, secret: str, signatures: Iterable[str]) -> bool:
    """Return whether one of these is the HMAC-SHA256 of a payload with a secret, in hex."""
    expected = hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest().encode()
    return any(hmac.compare_digest(expected, one.encode(errors="replace")) for one in signatures)


def join_part(parts: dict[str, Any], number: int, of: int | None, data: str) -> str | None:
    """Add a part of a message to those that have arrived. Return the whole text once none is missing."""
    parts[str(number)] = data
    if of is not None:
        parts["of"] = of
    count = parts.get("of", 0)
    pieces = [parts[index] for index in map(str, range(1, count + 1)) if index in parts]
    return "".join(pieces) if count and len(pieces) == count else None
