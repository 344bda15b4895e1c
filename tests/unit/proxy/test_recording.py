"""Messages are read out of a websocket's bytes, however those are cut, in bounded memory (RFC 6455)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from voicemem.dialects.registry import MAX_DIALECT_FRAME_BYTES
from voicemem.proxy import recording
from voicemem.proxy.recording import Direction, InvalidWebsocketData, Recording


class Heard(Direction):
    """Keeps what was read."""

    def __init__(self, max_bytes: int = MAX_DIALECT_FRAME_BYTES) -> None:
        super().__init__(cast(Recording, None), self.message, max_bytes)
        self.messages: list[tuple[bytes, bool]] = []
        self.too_many_bytes = 0

    def message(self, data: bytes, is_text: bool, ts: int) -> None:
        self.messages.append((data, is_text))

    def too_big(self) -> None:
        self.too_many_bytes += 1


def wire(opcode: Opcode, data: bytes, fin: bool = True, mask: bool = False) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


def heard(data: bytes, cuts: list[int] | None = None) -> Heard:
    """What is read of bytes that come in pieces."""
    listener = Heard()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    for start, stop in pairwise(places):
        listener.feed(data[start:stop])
    return listener


pieces = st.lists(st.binary(max_size=200), min_size=1, max_size=4)
sent = st.lists(st.tuples(st.sampled_from([Opcode.TEXT, Opcode.BINARY]), pieces), max_size=5)


@given(sent, st.booleans(), st.lists(st.integers(0, 10_000), max_size=8), st.booleans())
def test_messages_in_any_pieces(
    sent: list[tuple[Opcode, list[bytes]]], mask: bool, cuts: list[int], with_pings: bool
) -> None:
    """Fragments, masks, lengths and pings in between change nothing."""
    stream = b""
    for opcode, parts in sent:
        for number, part in enumerate(parts):
            kind = Opcode.CONT if number else opcode
            stream += wire(kind, part, number == len(parts) - 1, mask)
            stream += wire(Opcode.PING, b"p", mask=mask) if with_pings else b""
    stream += wire(Opcode.CLOSE, (4321).to_bytes(2) + b"why", mask=mask)
    read = heard(stream, cuts)
    assert [(b"".join(parts), opcode is Opcode.TEXT) for opcode, parts in sent] == read.messages
    assert 4321 == read.close_code


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536, 200_000])
def test_every_form_of_a_length(size: int) -> None:
    """One, three and nine bytes of it."""
    data = bytes(size)
    assert [(data, False)] == heard(wire(Opcode.BINARY, data, mask=True), [1, 5, 9, 70_000]).messages


@pytest.mark.parametrize("fragments", [1, 3])
def test_what_is_too_large_is_left_out(fragments: int) -> None:
    """Its bytes are skipped as they come, also in fragments, and the next message is read."""
    parts = [bytes(1_001 // fragments + 1)] * fragments
    stream = b"".join(
        wire(Opcode.CONT if number else Opcode.TEXT, part, number == fragments - 1) for number, part in enumerate(parts)
    )
    stream += wire(Opcode.PING, b"") + wire(Opcode.TEXT, b"next")
    listener = Heard(max_bytes=1_000)
    for at in range(0, len(stream), 100):
        listener.feed(stream[at : at + 100])
        assert 1_200 > len(listener.partial) + listener.fragments_bytes
    assert (1, [(b"next", True)]) == (listener.too_many_bytes, listener.messages)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1\x00",
        b"\x83\x00",
        wire(Opcode.CONT, b"x"),
        wire(Opcode.TEXT, b"x", fin=False) + wire(Opcode.TEXT, b"y"),
        wire(Opcode.TEXT, b"", fin=False) + wire(Opcode.CONT, b"", fin=False) * (recording.MAX_FRAGMENTS + 1),
    ],
    ids=["compressed", "reserved opcode", "nothing to go on", "two at once", "endless"],
)
def test_what_is_no_websocket(data: bytes) -> None:
    """It is said, since no one knows where the next frame begins."""
    with pytest.raises(InvalidWebsocketData):
        heard(data)


def test_a_close_without_a_code() -> None:
    """It counts as 1005."""
    assert 1005 == heard(wire(Opcode.CLOSE, b"")).close_code
