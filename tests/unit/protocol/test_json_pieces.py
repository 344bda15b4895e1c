"""Large JSON is walked through value by value, and no value of it is made."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.rows import every_row
from voicemem.protocol.pieces import (
    LONG_TEXT,
    MAX_PIECE_BYTES,
    WHOLE_ENCODER,
    Pieces,
    Unreadable,
    json_parts,
    object_parts,
)
from voicemem.transcript.messages import Message

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@examples(1)
@given(st.dictionaries(st.text(), JSON, max_size=5), st.lists(JSON, max_size=5), st.sampled_from([None, 2]))
def test_every_value_is_found_where_it_stands(members: dict[str, Any], values: list[Any], indent: int | None) -> None:
    """Names and values of an object, and the values of an array, are the text's own, however it is written."""
    text = json.dumps(members, indent=indent).encode() + json.dumps(values, indent=indent).encode() + b" \n"
    pieces = Pieces(text)
    found = {name: json.loads(text[pieces.value()]) for name in pieces.names()}
    assert found == members
    assert [json.loads(text[place]) for place in pieces.items()] == values
    pieces.end()


BROKEN = [
    b"",
    b"{",
    b'{"a"',
    b'{"a":',
    b'{"a":1',
    b'{"a":1,',
    b'{"a":1 "b":2}',
    b"{1:2}",
    b'{"a":1,"a":2}',
    b"[]",
    b'{"',
]


@every_row("text", BROKEN, ids=range(len(BROKEN)))
def test_what_is_not_an_object_is_unreadable(text: bytes) -> None:
    """A text that ends early, lacks a sign, or has a name twice."""
    pieces = Pieces(text)
    with pytest.raises(Unreadable):
        _ = [pieces.value() for _ in pieces.names()]


TOO_MUCH = {
    "long": b'["' + b"x" * MAX_PIECE_BYTES + b'"]',
    "without end": b'["' + b"x" * 10,
    "deep": b"[" + b"[" * 100 + b"]" * 100 + b"]",
    "closed twice": b"[1]]",
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_is_too_much_is_unreadable(text: bytes) -> None:
    """A value that is larger or deeper than any that is taken; or more than one value."""
    with pytest.raises(Unreadable):
        walk(text)


def walk(text: bytes) -> None:
    pieces = Pieces(text)
    list(pieces.items())
    pieces.end()


@pytest.mark.long
def test_values_are_not_made() -> None:
    """To walk through a million numbers takes no memory for them."""
    text = b"[" + b"[0,0,0,0]," * 200_000 + b"0]"
    tracemalloc.start()
    try:
        assert sum(1 for _ in Pieces(text).items()) == 200_001
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def lazily(value: Any) -> Any:
    """A value with an iterator in place of each list."""
    if isinstance(value, list):
        return iter([lazily(one) for one in value])
    return {name: lazily(one) for name, one in value.items()} if isinstance(value, Mapping) else value


@examples(1)
@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_parts_are_the_whole(value: dict[str, Any]) -> None:
    """The parts of an object, in which any array may be an iterator, give the same JSON as the object in one piece."""
    assert b"".join(object_parts(lazily(value))) == WHOLE_ENCODER.encode(value)


def test_a_long_text_has_small_parts() -> None:
    """A message of a long text, with whatever characters, is never JSON in one piece, and the same as if it were."""
    text = 'a"\u2028\U0001f9a9\n\\' * LONG_TEXT
    message = Message("assistant", text, 1, 2, {"original": text, "interrupted": True})
    parts = list(json_parts(iter([message, {"body": {"heard": text}}])))
    assert b"".join(parts) == WHOLE_ENCODER.encode([message, {"body": {"heard": text}}])
    assert max(map(len, parts)) < 4 * LONG_TEXT
