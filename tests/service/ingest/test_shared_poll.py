"""The shared poll: connections that are read together are served as if each were read by itself."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import select
import socket
from contextlib import AsyncExitStack

import pytest

from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.raw_websocket import PING, TEXT, RawSocket, upgraded_socket, websocket_frame
from tests.support.callers.rest import RestClient, bearer_header, make_key
from tests.support.events import final_transcript
from tests.support.services import Serve
from tests.support.services import serve as serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.server.ingest.connection import Connection
from voicemem.server.ingest.shared_poll import ENDS_TOGETHER, PIECE, SharedPoll, plain_socket

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs an epoll")
CONNECTIONS = 20


def poll_of(app: App) -> SharedPoll:
    assert app.ingest.shared_poll is not None
    return app.ingest.shared_poll


@pytest.fixture
async def in_shared_poll(serve: Serve) -> App:
    """A service that reads busy connections together."""
    return await serve(ingest_looks=True)


async def open_many(app: App, stack: AsyncExitStack, number: int = CONNECTIONS) -> list[Producer]:
    return [await stack.enter_async_context(open_producer(app, f"s{each}")) for each in range(number)]


async def test_what_comes_together_is_committed_together(in_shared_poll: App) -> None:
    """Many connections that send at once share a few commits, and each gets its own ack."""
    async with AsyncExitStack() as stack:
        producers = await open_many(in_shared_poll, stack)
        assert CONNECTIONS == len(poll_of(in_shared_poll).watched)
        before = in_shared_poll.services.recorder.feed.commits
        await asyncio.gather(*(one.send(final_transcript(1, "hello")) for one in producers))
        for number, one in enumerate(producers):
            await one.expect_ack(1, session_id=f"s{number}")
        assert in_shared_poll.services.recorder.feed.commits - before < CONNECTIONS
    api = RestClient(in_shared_poll)
    for number in range(CONNECTIONS):
        assert ["hello"] == [one["content"] for one in await api.contents(f"s{number}")]


async def test_without_looks_the_loop_reads(serve: Serve) -> None:
    """The setting turns them off, and events come in all the same."""
    app = await serve(ingest_looks=False)
    assert app.ingest.shared_poll is None
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1, "hello"))


async def test_where_there_is_no_epoll_the_loop_reads(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.delattr(select, "epoll")
    app = await serve(ingest_looks=True)
    assert app.ingest.shared_poll is None
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1, "hello"))


async def test_connections_that_leave_are_forgotten(in_shared_poll: App) -> None:
    """However they leave, no descriptor stays behind under which a later connection could be read."""
    shared_poll = poll_of(in_shared_poll)
    for number in range(CONNECTIONS):
        async with upgraded_socket(in_shared_poll.ingest_address) as peer:
            await peer.send_event({"type": "session.open", "session_id": f"s{number}"})
            await peer.expect("session.ready")
            assert 1 == len(shared_poll.watched)
            if number % 3 == 0:
                peer.writer.write_eof()  # half a close: the service closes too
                await peer.closed()
            elif number % 3 == 1:
                peer.writer.write(websocket_frame(TEXT, b'{"type":"asr","turn_id":1,"text":"')[:-3])

        async def watched() -> int:
            return len(shared_poll.watched)

        await eventually(0, watched)
    async with open_producer(in_shared_poll, "again") as producer:
        await producer.store(final_transcript(1, "hello"))


async def test_half_a_frame_waits_for_its_rest(in_shared_poll: App) -> None:
    """Also where others are served in between, and its end comes with the next frame."""
    async with upgraded_socket(in_shared_poll.ingest_address) as peer, open_producer(in_shared_poll, "other") as other:
        await peer.send_event({"type": "session.open", "session_id": "s"})
        await peer.expect("session.ready")
        sent = b"".join(
            websocket_frame(TEXT, b'{"type":"asr","seq":%d,"turn_id":1,"text":"hello","final":true}' % seq)
            for seq in (1, 2)
        )
        for place, byte in enumerate(range(0, len(sent), 7), 1):
            await peer.send(sent[byte : byte + 7])
            await other.store(final_transcript(place))
        acked = 0
        while acked < 2:
            acked = (await peer.expect("ack"))["seq"]


async def test_a_flood_on_one_socket_holds_up_no_other(in_shared_poll: App) -> None:
    """A round takes a bounded piece of each, and what it has not reached comes first in the next."""
    ping = websocket_frame(PING, b"")

    async def flood(peer: RawSocket) -> None:
        while True:
            await peer.send(ping * 2_000)
            await asyncio.sleep(0)

    async with (
        upgraded_socket(in_shared_poll.ingest_address) as peer,
        connected_producer(in_shared_poll) as producer,
    ):
        await peer.send_event({"type": "session.open", "session_id": "flood"})
        await peer.expect("session.ready")
        await producer.open()
        flooding = asyncio.create_task(flood(peer))
        for seq in range(1, 20):
            await producer.store(final_transcript(seq))
        flooding.cancel()


async def test_a_message_larger_than_a_piece_is_whole(in_shared_poll: App) -> None:
    """It comes in as many rounds as it needs."""
    async with open_producer(in_shared_poll) as producer:
        text = "word " * (PIECE // 2)
        await producer.store(final_transcript(1, text))
    assert [text.strip()] == [one["content"].strip() for one in await RestClient(in_shared_poll).contents("s")]


async def test_an_error_in_one_connection_ends_that_one_alone(
    in_shared_poll: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the others are read on."""
    take = Connection.take_message

    def fail_sometimes(connection: Connection, message: bytes) -> None:
        if b"fail" in message:
            raise RuntimeError("a fault of ours")
        take(connection, message)

    async with AsyncExitStack() as stack:
        producers = await open_many(in_shared_poll, stack, 4)
        monkeypatch.setattr(Connection, "take_message", fail_sometimes)
        await asyncio.gather(
            *(one.send(final_transcript(1, "fail" if one is producers[1] else "hello")) for one in producers)
        )
        for place in (0, 2, 3):
            await producers[place].expect_ack(1)
        assert (None, []) == await producers[1].closed()
    assert "a fault of ours" in caplog.text


async def test_connections_are_read_again_once_there_is_room(serve: Serve) -> None:
    """A connection over its rate is out of the poll, is read on when its time comes, and loses nothing."""
    app = await serve(ingest_looks=True, event_rate=10.0)
    key = await make_key(app, "ingest")
    async with connected_producer(app, bearer_header(key)) as producer:
        await producer.open()
        await producer.send_together(*map(final_transcript, range(1, 26)))
        await producer.send(*map(final_transcript, range(26, 30)))
        frames = [await producer.next()]
        while frames[-1].get("seq") != 29:
            frames.append(await producer.next())
        assert "rate_limited" in {one.get("code") for one in frames}


class Leaving:
    """A connection that notes when the event loop shall read it again."""

    bytes_needed = 0

    def __init__(self, left: list[Leaving]) -> None:
        self.left = left

    def take_polled(self, data: bytes) -> None:
        raise AssertionError("nothing was sent")

    def fail_polled(self, error: Exception) -> None:
        raise error

    def leave_poll(self) -> None:
        self.left.append(self)


async def test_of_many_that_end_together_a_few_are_given_back_at_a_time() -> None:
    """None of them is polled any more, and the event loop is free before the next are closed."""
    shared_poll, left = SharedPoll(), list[Leaving]()
    pairs = [socket.socketpair() for _ in range(2 * ENDS_TOGETHER + 1)]
    ending = [Leaving(left) for _ in pairs]
    for (one, other), connection in zip(pairs, ending, strict=True):
        shared_poll.add(one.fileno(), connection)
        other.close()
    shared_poll.poll_once()
    assert (0, 0) == (len(left), len(shared_poll.watched))
    shared_poll.give_back()
    assert ending[:ENDS_TOGETHER] == left

    async def all_left() -> list[Leaving]:
        return left

    await eventually(ending, all_left)
    shared_poll.close()
    for one, _ in pairs:
        one.close()


def test_an_encrypted_transport_is_left_to_the_loop() -> None:
    """The bytes of a TLS connection's socket are not those of its stream."""

    class Encrypted(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return {"socket": one, "sslcontext": object()}.get(name, default)

    one, other = socket.socketpair()
    with one, other:
        assert plain_socket(Encrypted()) is None
