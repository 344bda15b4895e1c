"""Reading and writing of large JSON in pieces, so that it is never decoded or joined as a whole."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from voicemem.protocol.codec import ENCODER, JSON_DECODER, MALFORMED
from voicemem.protocol.types import MAX_DEPTH, MAX_FRAME_BYTES

MAX_PIECE_BYTES = MAX_FRAME_BYTES + 4096
"""The most bytes of one value: the largest event and its envelope."""
MAX_BLANKS = 65_536
"""The most white space in one place."""
STRING_PATTERN = r'"(?:[^"\\]++|\\.)*+"'


def value_pattern(depth: int) -> str:
    """Return a pattern of a value of at most this depth, or of the text between two values.

    It only finds the end of a value: whether it is JSON shows when it is decoded. Every repetition is possessive, so
    the time is linear.
    """
    pattern = rf'(?:[^"{{}}\[\]]++|{STRING_PATTERN})'
    for _ in range(depth):
        pattern = rf'(?:[^"{{}}\[\]]++|{STRING_PATTERN}|[{{\[]{pattern}*+[}}\]])'
    return pattern


# A few levels more than events may have, so that an event that is too deep is found, and refused as such.
VALUE = re.compile(
    rf'{STRING_PATTERN}|[{{\[]{value_pattern(MAX_DEPTH + 4)}*+[}}\]]|[^\s",:{{}}\[\]]++'.encode(), re.DOTALL
)
BLANKS = re.compile(rb"[ \t\r\n]{0,%d}+" % MAX_BLANKS)


class Unreadable(ValueError):
    """The text is not JSON, or a value in it is too large or too deep."""


class Pieces:
    """A reader of a JSON text, value by value. All methods raise `Unreadable`."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def follows(self, sign: bytes) -> bool:
        blanks = BLANKS.match(self.text, self.at)
        self.at = blanks.end() if blanks else self.at
        return self.text.startswith(sign, self.at)

    def take(self, sign: bytes) -> bool:
        follows = self.follows(sign)
        self.at += len(sign) if follows else 0
        return follows

    def expect(self, sign: bytes) -> None:
        if not self.take(sign):
            raise Unreadable

    def value(self) -> slice:
        self.follows(b"")
        match = VALUE.match(self.text, self.at, self.at + MAX_PIECE_BYTES)
        # A match that ends at the bound may be cut off.
        if match is None or match.end() == self.at + MAX_PIECE_BYTES:
            raise Unreadable
        self.at = match.end()
        return slice(*match.span())

    def names(self) -> Iterator[str]:
        """Yield the names in the next object; each one's value must be taken before the next name."""
        self.expect(b"{")
        known: set[str] = set()
        ended = self.take(b"}")
        while not ended:
            name = self.decode(self.value())
            if not isinstance(name, str) or name in known:
                raise Unreadable
            known.add(name)
            self.expect(b":")
            yield name
            ended = self.take(b"}")
            if not ended:
                self.expect(b",")

    def items(self) -> Iterator[slice]:
        self.expect(b"[")
        ended = self.take(b"]")
        while not ended:
            yield self.value()
            ended = self.take(b"]")
            if not ended:
                self.expect(b",")

    def end(self) -> None:
        self.follows(b"")
        if self.at < len(self.text):
            raise Unreadable

    def decode(self, place: slice) -> object:
        try:
            value: object = JSON_DECODER.decode(self.text[place])
        except MALFORMED:
            raise Unreadable from None
        return value


LONG_TEXT = 64 * 1024
"""Characters of a text that has several parts: a message may be as long as all that was said in a call."""
WHOLE_ENCODER = msgspec.json.Encoder(enc_hook=list)
"""Encodes iterators in one piece."""


def json_parts(value: object) -> Iterator[bytes]:
    """Yield the JSON of a value in parts: an iterator in it is an array, an item at a time; a long text has several."""
    if not has_parts(value):
        yield ENCODER.encode(value)
    elif isinstance(value, str):
        starts = range(0, len(value), LONG_TEXT)
        yield b'"'
        yield from (ENCODER.encode(value[at : at + LONG_TEXT])[1:-1] for at in starts)
        yield b'"'
    elif isinstance(value, Iterator):
        mark = b"["
        for item in value:
            parts = json_parts(item)
            yield mark + next(parts)
            yield from parts
            mark = b","
        yield b"]" if mark == b"," else b"[]"
    else:
        yield from object_parts(value if isinstance(value, dict) else msgspec.to_builtins(value))


def object_parts(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the JSON of an object in parts, those of each field after its name."""
    mark = b"{"
    for name, value in fields.items():
        yield mark + ENCODER.encode(name) + b":"
        yield from json_parts(value)
        mark = b","
    yield b"}" if fields else b"{}"


def has_parts(value: object) -> bool:
    """Return whether a value is not made JSON in one piece."""
    if isinstance(value, str):
        return len(value) > LONG_TEXT
    if isinstance(value, dict):
        return any(map(has_parts, value.values()))
    if isinstance(value, Struct):
        return any(map(has_parts, astuple(value)))
    return isinstance(value, Iterator)
