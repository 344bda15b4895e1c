"""The event socket: whatever comes, and in whatever pieces, it hears what the library alone would hear."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import apply_mask  # type: ignore[attr-defined]

from tests.support.profiles import examples
from voicemem.server.ingest.shared_poll import SharedPoll
from voicemem.server.ingest.websocket import EventSocket

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(first: int, data: bytes, masked: bool = True) -> bytes:
    """A frame with any first byte, also one that the library would not send."""
    size = len(data) | 0x80 * masked
    head = bytes([first, size]) if len(data) < 126 else bytes([first, 126 | 0x80 * masked, *len(data).to_bytes(2)])
    return head + (b"\1\2\3\4" + apply_mask(data, b"\1\2\3\4") if masked else data)


TEXT, PING = 0x81, 0x89
FRAMES = st.lists(
    st.one_of(
        st.builds(frame, st.just(TEXT), st.binary(max_size=300)),
        st.builds(frame, st.just(TEXT), st.binary(max_size=300)),
        st.builds(frame, st.sampled_from([PING, 0x8A]), st.binary(max_size=9)),
        st.builds(frame, st.sampled_from([0x01, 0x00, 0x80, 0x82, 0x88]), st.binary(max_size=9)),
        st.builds(frame, st.integers(0, 255), st.binary(max_size=130), st.booleans()),
    ),
    max_size=12,
).map(b"".join)


class LibrarySocket(EventSocket):
    """Never takes the short way."""

    def listen(self, listener: object) -> None:
        super().listen(listener)  # type: ignore[arg-type]
        self.fast = False


Heard = list[tuple[bytes, bool]]


@asynccontextmanager
async def listening(
    kind: type[EventSocket], in_shared_poll: bool = False
) -> AsyncIterator[tuple[int, asyncio.Queue[tuple[Heard, bool]]]]:
    """A server's port, and what each of its connections has heard by its end, with whether it went the short way."""
    shared_poll = SharedPoll() if in_shared_poll else None
    done: asyncio.Queue[tuple[Heard, bool]] = asyncio.Queue()

    async def handle(websocket: ServerConnection) -> None:
        assert isinstance(websocket, EventSocket)
        heard: Heard = []
        websocket.listen(lambda message, binary: heard.append((message, binary)))
        await websocket.wait_closed()
        await done.put((heard, websocket.fast))

    create = cast(Any, partial(kind, shared_poll=shared_poll))
    async with serve(handle, "127.0.0.1", 0, create_connection=create, compression=None, close_timeout=0.2) as server:
        yield next(iter(server.sockets)).getsockname()[1], done
    if shared_poll is not None:
        assert not shared_poll.watched
        shared_poll.close()


async def say(port: int, chunks: Sequence[bytes], ahead: bool = False) -> bytes:
    """Everything that the server sends to a client that sends this, each chunk by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if ahead:
        writer.write(REQUEST + b"".join(chunks))
        await reader.readuntil(b"\r\n\r\n")
    else:
        writer.write(REQUEST[:30])
        await asyncio.sleep(0)
        writer.write(REQUEST[30:])
        await reader.readuntil(b"\r\n\r\n")
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0.001)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def cut(sent: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    marks = [0, *sorted(place % (len(sent) + 1) for place in places), len(sent)]
    return [sent[start:stop] for start, stop in pairwise(marks) if stop > start]


@examples(0.6)
@given(FRAMES, st.lists(st.integers(0, 2_000), max_size=6))
def test_the_short_way_hears_what_the_library_hears(sent: bytes, places: list[int]) -> None:
    """The same messages in the same order, and the same answers: the last pong, and the code of the close.

    Of pings that come together, the last one is answered.
    """
    chunks = cut(sent, places)

    async def run(kind: type[EventSocket], in_shared_poll: bool = False) -> tuple[bytes, Heard]:
        async with listening(kind, in_shared_poll) as (port, done):
            answer = await say(port, chunks)
            heard, _ = await done.get()
            return answer, heard

    answer, heard = asyncio.run(run(LibrarySocket))
    expected = frames_in(answer)
    for in_shared_poll in (False, True):
        answer, heard_here = asyncio.run(run(EventSocket, in_shared_poll))
        frames = frames_in(answer)
        assert (heard, last_ones(expected)) == (heard_here, last_ones(frames))
        rest = iter(expected)
        assert all(one in rest for one in frames)


def last_ones(frames: list[bytes]) -> list[bytes]:
    """The last pong, and the last frame of all, if there are any."""
    return [some[-1] for some in ([one for one in frames if one[0] == 0x8A], frames) if some]


def frames_in(sent: bytes) -> list[bytes]:
    """The frames of a server, which are short and have no mask."""
    frames = []
    while sent:
        frames.append(sent[: 2 + sent[1]])
        sent = sent[2 + sent[1] :]
    return frames


@pytest.mark.parametrize("in_shared_poll", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
async def test_frames_behind_the_request_are_left_to_the_library(ahead: bool, in_shared_poll: bool) -> None:
    """A client that does not wait for the answer is heard, too."""
    texts = [b"one", b"two" * 100, b""]
    async with listening(EventSocket, in_shared_poll) as (port, done):
        await say(port, [b"".join(frame(TEXT, text) for text in texts)], ahead)
        heard, plain = await done.get()
    assert [(text, False) for text in texts] == heard
    assert plain is not ahead


@pytest.mark.parametrize("in_shared_poll", [False, True])
async def test_pings_do_not_end_the_short_way(in_shared_poll: bool) -> None:
    """They are answered, also when they come in pieces between messages."""
    sent = frame(TEXT, b"one") + frame(PING, b"x") + frame(TEXT, b"two")
    async with listening(EventSocket, in_shared_poll) as (port, done):
        answer = await say(port, [sent[:11], sent[11:]])
        heard, plain = await done.get()
    assert ([(b"one", False), (b"two", False)], True) == (heard, plain)
    assert b"\x8a\x01x" in answer


@pytest.mark.parametrize("in_shared_poll", [False, True])
async def test_a_long_message_may_come_in_many_pieces(in_shared_poll: bool) -> None:
    """It is put together once, and heard once."""
    text = b"word " * 12_000
    sent = frame(TEXT, text) + frame(TEXT, b"end")
    async with listening(EventSocket, in_shared_poll) as (port, done):
        await say(port, [sent[start : start + 7_000] for start in range(0, len(sent), 7_000)])
        heard, plain = await done.get()
    assert ([(text, False), (b"end", False)], True) == (heard, plain)


async def test_without_the_mask_of_the_library_there_is_no_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `websockets` that has it elsewhere parses all frames itself, and the same is heard."""
    monkeypatch.setattr("voicemem.server.ingest.websocket.apply_mask", None)
    async with listening(EventSocket) as (port, done):
        await say(port, [frame(TEXT, b"one") + frame(TEXT, b"two")])
        heard, fast = await done.get()
    assert ([(b"one", False), (b"two", False)], False) == (heard, fast)


async def test_long_and_short_answers_are_text_frames() -> None:
    """Both ways of sending say the same."""

    async def answer(websocket: ServerConnection) -> None:
        assert isinstance(websocket, EventSocket)
        for size in (0, 125, 126, 70_000):
            websocket.send_nowait(b"x" * size)
        await websocket.close()

    async with (
        serve(answer, "127.0.0.1", 0, create_connection=EventSocket, compression=None) as server,
        connect(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}") as client,
    ):
        assert ["x" * size for size in (0, 125, 126, 70_000)] == [message async for message in client]
