"""Plain frames: taken as the library's parser would take them, however the bytes arrive."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from voicemem.server.ingest.websocket import control_frame_size, parse_fast_frames

LIMIT = 70_000
TEXTS = st.binary(max_size=200) | st.sampled_from([b"x" * size for size in (125, 126, 65_535, 65_536, LIMIT)])


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, mask: bool = True, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


@given(st.lists(TEXTS, max_size=5), st.data())
def test_the_texts_are_those_that_were_sent(texts: list[bytes], data: st.DataObject) -> None:
    """Whole frames are taken; of the rest it is known how much more must come."""
    sent = b"".join(map(frame, texts))
    cut = data.draw(st.integers(0, len(sent)))
    taken = parse_fast_frames(sent[:cut], 0, LIMIT)
    assert texts[: len(taken.texts)] == taken.texts
    assert taken.stop == len(b"".join(map(frame, taken.texts)))
    assert cut - taken.stop < taken.needed <= max(1, len(sent) - taken.stop)
    rest = parse_fast_frames(sent, taken.stop, LIMIT)
    assert texts == taken.texts + rest.texts
    assert (len(sent), 1) == (rest.stop, rest.needed)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(frame(b"x" * (LIMIT + 1)), id="too long"),
        pytest.param(frame(b"text", mask=False), id="not masked"),
        pytest.param(frame(b"", mask=False), id="not masked and empty"),
        pytest.param(frame(b"text", fin=False), id="a fragment"),
        pytest.param(frame(b"text", Opcode.CONT), id="a continuation"),
        pytest.param(frame(b"text", Opcode.BINARY), id="binary"),
        pytest.param(frame(b"\x03\xe8", Opcode.CLOSE), id="a close"),
        pytest.param(b"\xc1" + frame(b"text")[1:], id="extended"),
        pytest.param(b"\x83" + frame(b"text")[1:], id="an unknown opcode"),
    ],
)
def test_anything_else_is_left_to_the_library(other: bytes) -> None:
    """What stands before it is taken, and nothing of it, as soon as its head is there."""
    assert ([b"one"], 9, 0) == parse_fast_frames(frame(b"one") + other, 0, LIMIT)
    assert ([], 0, 0) == parse_fast_frames(other[:14], 0, LIMIT)
    assert 0 == control_frame_size(other, 0)


def test_pings_and_pongs_are_told_from_the_rest() -> None:
    """They come in any call, so they do not end the short way; one that is wrong does."""
    for opcode in (Opcode.PING, Opcode.PONG):
        assert ([], 0, 0) == parse_fast_frames(frame(b"1234", opcode), 0, LIMIT)
        assert 10 == control_frame_size(frame(b"1234", opcode), 0)
        assert 6 == control_frame_size(frame(b"1234", opcode)[:1], 0)
        assert 0 == control_frame_size(frame(b"1234", opcode, mask=False), 0)
        assert 0 == control_frame_size(bytes([0x80 | opcode, 0xFE, 0, 0, 0, 0, 0, 0]), 0)
