"""Server-sent events, written and read, wherever the network cuts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.llm.client import read_sse_data
from voicemem.protocol.sse import KEEP_ALIVE, MAX_LINES, Decoder, SseEvent, TooLong, encode, retry

LINE = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8)
DATA = st.binary(max_size=20).map(lambda data: data.replace(b"\r", b""))
EVENTS = st.builds(SseEvent, st.none() | DATA, LINE, st.none() | LINE).filter(lambda event: event != SseEvent(None))


def decode(*pieces: bytes, max_bytes: int = 100) -> list[SseEvent]:
    decoder = Decoder(max_bytes)
    return [event for piece in pieces for event in decoder.feed(piece)] + [*decoder.close()]


LLM_EVENTS = st.lists(
    st.lists(
        st.binary(max_size=6).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"")), min_size=1, max_size=3
    ),
    max_size=5,
)


@given(st.lists(EVENTS, max_size=5), st.lists(st.integers(0, 200)), st.booleans())
def test_what_is_written_is_read(events: list[SseEvent], cuts: list[int], crlf: bool) -> None:
    """Wherever the network cuts the bytes, with either line end, comments and `retry` between the events."""
    text = retry(ms=1_000) + KEEP_ALIVE.join(encode(data, event=name, id=id) for data, name, id in events)
    if crlf:
        text = text.replace(b"\n", b"\r\n")
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert events == decode(*(text[first:last] for first, last in pairwise(places)))


@every_row(
    ("text", "expected"),
    [
        (b"data:1\n\n", [SseEvent(b"1")]),
        (b"data:  1\n\n", [SseEvent(b" 1")]),
        (b"data\n\n", [SseEvent(b"")]),
        (b"data: 1\n", [SseEvent(b"1")]),
        (b"data: 1\ndata: 2", []),
        (b"id: a\0b\ndata: 1\n\n", [SseEvent(b"1")]),
        (b"id: 7\n\n\n\n", [SseEvent(None, id="7")]),
        (b"id: 7\n\ndata: 1\n\n", [SseEvent(None, id="7"), SseEvent(b"1")]),
        (b"event: end\nid: 7\nretry: 5\nother: 6\n: 8\ndata: 1\n\n", [SseEvent(b"1", "end", "7")]),
        (b"data: a\rb\n\n", [SseEvent(b"a\rb")]),
    ],
)
def test_odd_events(text: bytes, expected: list[SseEvent]) -> None:
    """What others write, and what is cut off."""
    assert expected == decode(text)


@pytest.mark.parametrize(
    "pieces",
    [
        (b"data: " + b"x" * 101 + b"\n",),
        (b"x" * 60, b"x" * 60),
        (b"data: " + b"x" * 60 + b"\n", b"data: " + b"x" * 60 + b"\n"),
        (b": " + b"x" * 200,),
    ],
)
def test_an_event_has_a_bound(pieces: tuple[bytes, ...]) -> None:
    """One that never ends does not fill the memory."""
    with pytest.raises(TooLong):
        decode(*pieces)
    assert [SseEvent(b"x" * 60)] * 9 == decode((b"data: " + b"x" * 60 + b"\n\n") * 9)


def test_lines_of_nothing_have_a_bound() -> None:
    """Lines of data without any data on them do not fill the memory either."""
    assert [SseEvent(b"\n" * (MAX_LINES - 1))] == decode(b"data:\n" * MAX_LINES + b"\n", max_bytes=10 * MAX_LINES)
    with pytest.raises(TooLong):
        decode(b"data:\n" * (MAX_LINES + 1), max_bytes=10 * MAX_LINES)


@given(LLM_EVENTS, st.lists(st.integers(0, 200)), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_events_wherever_the_network_cuts(told: list[list[bytes]], cuts: list[int], end: bytes, comments: bool) -> None:
    """However the bytes are cut into pieces, the events are the same; other fields are passed over."""
    text = b"".join(
        (b": x" + end + b"event: y" + end if comments else b"")
        + b"".join(b"data: " + line + end for line in lines)
        + end
        for lines in told
    )
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})

    async def pieces() -> AsyncIterator[bytes]:
        for first, last in pairwise(places):
            yield text[first:last]

    async def read() -> list[bytes]:
        return [data async for data in read_sse_data(pieces())]

    assert [b"\n".join(lines) for lines in told] == asyncio.run(read())
