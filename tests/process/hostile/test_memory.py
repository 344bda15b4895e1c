"""Under attack the memory of a real process stays bounded, and it stays alive and says nothing of what came."""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.callers.producer import connected_producer
from tests.support.callers.raw_http import handshake_head, raw_answers, status_codes
from tests.support.callers.raw_websocket import CLOSE, PING, TEXT, upgraded_socket, websocket_frame
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.processes.measured_process import MIB, MeasuredProcess, measured_process

BYE = websocket_frame(CLOSE, b"\x03\xe8")


class Attack(NamedTuple):
    """Frames that some connections send at once, each into a session of its own, and what may be held meanwhile."""

    name: str
    frames: Callable[[], Iterable[bytes]]
    most_mib: int
    connections: int = 3


def together(*events: bytes) -> bytes:
    """One frame of these events."""
    return websocket_frame(TEXT, b"[" + b",".join(events) + b"]")


def numbered(rest: bytes, count: int, first: int = 1) -> bytes:
    """One frame of events that differ in their seq only."""
    return together(*(b'{"seq":%d%s}' % (seq, rest) for seq in range(first, first + count)))


def spoken(**more: object) -> bytes:
    """A frame of a transcript with something of size in it."""
    event = final_transcript(1, text="x", **more)
    return websocket_frame(TEXT, json.dumps(event, separators=(",", ":")).encode())


ATTACKS = [
    Attack("refused events", lambda: [numbered(b"", 20_000)], 64),
    Attack("small events", lambda: [numbered(b',"type":"resume"', 20_000)], 48),
    Attack("events behind a gap", lambda: [together(*[b'{"type":"resume","seq":9}'] * 38_000)], 48),
    Attack("events of a session that is not open", lambda: [together(*[b'{"session_id":"x","seq":9}'] * 38_000)], 48),
    Attack("opens", lambda: [together(*[b'{"type":"session.open","session_id":"o"}'] * 2_000)], 32, 1),
    Attack("depth", lambda: [websocket_frame(TEXT, b"[" * 1_000_000)], 16),
    Attack("depth that is allowed", lambda: [together(*[b'{"a":' + b"[" * 30 + b"]" * 30 + b"}"] * 15_000)], 48),
    Attack("brackets in a text", lambda: [websocket_frame(TEXT, b'{"a":"' + b"[" * 1_000_000 + b'"}')], 16),
    Attack("quotes without an end", lambda: [websocket_frame(TEXT, b'{"a":"' + b'\\"' * 500_000)], 16),
    Attack("tiny frames", lambda: [websocket_frame(TEXT, b"[]") * 20_000], 48),
    Attack("tiny events", lambda: [websocket_frame(TEXT, b"{}") * 10_000], 48),
    Attack("keys of metadata", lambda: [spoken(metadata={f"{number:06}": [] for number in range(70_000)})], 64),
    Attack("arrays in metadata", lambda: [spoken(metadata={"a": [[] for _ in range(300_000)]})], 96),
    Attack("words", lambda: [spoken(words=[{"text": "", "start_ms": 0, "end_ms": 0}] * 25_000)], 48),
    Attack("a key of 1 MiB", lambda: [spoken(**{"k" * 1_000_000: 1})], 32),
    Attack("an id of 1 MiB", lambda: [spoken(item="i" * 1_000_000)], 16),
    Attack("a number of 1 MiB", lambda: [websocket_frame(TEXT, b'{"type":"asr","a":' + b"9" * 1_000_000 + b"}")], 16),
    Attack(
        "many long numbers", lambda: [websocket_frame(TEXT, b'{"a":[' + b",".join([b"9" * 16] * 60_000) + b"]}")], 32
    ),
    Attack(
        "a message in tiny fragments",
        lambda: [websocket_frame(TEXT, fin=False), websocket_frame(0, b" ", fin=False) * 150_000],
        48,
    ),
    Attack("pings whose pongs are read", lambda: [websocket_frame(PING, bytes(125)) * 2_000] * 4, 16),
]


async def attack(service: MeasuredProcess, frames: list[bytes], session_id: str) -> None:
    """Send frames into a session and read whatever comes, to the end."""
    async with upgraded_socket(service.ingest_address) as raw:
        await raw.send_event({"type": "session.open", "session_id": session_id})
        await raw.expect("session.ready")
        sending = asyncio.create_task(raw.send(*frames, BYE))
        await raw.closed()
        sending.cancel()
        await asyncio.wait({sending})


async def grown(service: MeasuredProcess, one: Attack) -> float:
    """How much memory an attack takes at its worst, in MiB."""
    before = service.memory()
    service.forget_peak()
    frames = list(one.frames())
    await asyncio.gather(
        *(attack(service, frames, f"{one.name[:8].strip()}.{n}".replace(" ", "-")) for n in range(one.connections))
    )
    return (service.peak() - before) / MIB


async def test_hostile_frames_take_little_memory(tmp_path: Path) -> None:
    """Each attack has its bound; after all of them the process has not grown much, and serves a call as before."""
    async with measured_process(f"sqlite:{tmp_path}/calls.db") as service, silent(service) as silents:
        await call(service, "warm-up")
        before, found = service.memory(), {}
        for one in ATTACKS:
            found[one.name] = await grown(service, one)
        assert {one.name: found[one.name] for one in ATTACKS if found[one.name] > one.most_mib} == {}
        assert (service.memory() - before) / MIB < 256  # the sessions' memories, and what the allocator keeps
        await call(service, "after")
        await all_closed(silents)


async def call(service: MeasuredProcess, session_id: str) -> None:
    """A call is recorded and read."""
    async with connected_producer(service) as producer:
        await producer.open(session_id)
        await producer.store(final_transcript(1), final_transcript(2))
    assert len(await RestClient(service.url).contents(session_id)) == 2


@asynccontextmanager
async def silent(service: MeasuredProcess) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections to the ingest port that never finish their handshake: 77 to 79 of the list, on that port."""
    half = handshake_head(service.ingest_address)[:-2]
    peers = [await asyncio.open_connection(*service.ingest_address) for _ in range(60)]
    for number, (_, writer) in enumerate(peers):
        writer.write([b"", b"GET", half][number % 3])

    async def drip() -> None:
        while True:
            for number, (_, writer) in enumerate(peers):
                if number % 3 == 2 and not writer.is_closing():
                    writer.write(b"X")
            await asyncio.sleep(0.5)

    dripping = asyncio.create_task(drip())
    try:
        yield [reader for reader, _ in peers]
    finally:
        dripping.cancel()
        for _, writer in peers:
            writer.transport.abort()


async def all_closed(readers: list[asyncio.StreamReader]) -> None:
    """Wait until the service has hung up on all of them; it does so 10 s after they came."""
    async with asyncio.timeout(30):
        for reader in readers:
            with suppress(ConnectionError):
                await reader.read()


async def test_connections_that_open_nothing_are_cheap() -> None:
    """A connection on which nothing happens takes a few KiB, whether it was upgraded or not."""
    async with measured_process() as service:
        await call(service, "warm-up")
        before = service.memory()
        peers = [await asyncio.open_connection(*service.ingest_address) for _ in range(500)]
        for _, writer in peers:
            writer.write(handshake_head(service.ingest_address))
        for reader, _ in peers:
            await reader.readuntil(b"\r\n\r\n")
        each = (service.memory() - before) / len(peers)
        assert each < 64 * 1024
        await call(service, "beside-them")
        for _, writer in peers:
            writer.transport.abort()


async def test_many_sessions_on_one_connection_are_bounded_by_what_they_hold() -> None:
    """Each session that is opened takes its few KiB, and nothing more for being on one connection."""
    async with measured_process() as service, connected_producer(service) as producer:
        await producer.open("warm-up")
        before, count = service.memory(), 1_000
        for first in range(0, count, 100):
            opens = [{"type": "session.open", "session_id": f"s{number}"} for number in range(first, first + 100)]
            await producer.send_together(*opens)
            for _ in opens:
                await producer.expect("session.ready")
        each = (service.memory() - before) / count
        assert each < 64 * 1024


async def bodies(service: MeasuredProcess, body: bytes) -> int:
    """What three callers get at most for posting this at once, in bytes."""
    api = RestClient(service.url)
    await api.create()
    answers = await asyncio.gather(*(api.post("/v1/sessions/s/events", body) for _ in range(3)))
    return max(len(answer.body) for answer in answers)


async def test_a_mebibyte_of_empty_events_is_cheap_to_refuse(tmp_path: Path) -> None:
    """A frame or body of nothing but `{}` takes some tens of MiB for a moment, and gets no long answer."""
    body = b"[" + b",".join([b"{}"] * 349_000) + b"]"
    async with measured_process(f"sqlite:{tmp_path}/calls.db") as service:
        await call(service, "warm-up")
        before = service.memory()
        service.forget_peak()
        await attack(service, [websocket_frame(TEXT, body)], "w")
        assert (service.peak() - before) / MIB < 32
        assert await bodies(service, body) < 2 * MIB
        assert (service.peak() - before) / MIB < 192  # three at once


def endless_bomb() -> bytes:
    """A few MiB that a gzip stream of 4 GiB begins with."""
    squeeze = zlib.compressobj(wbits=31)
    head = squeeze.compress(b"") + squeeze.flush(zlib.Z_FULL_FLUSH)
    return head + (squeeze.compress(bytes(16 * MIB)) + squeeze.flush(zlib.Z_FULL_FLUSH)) * 256


async def test_a_bomb_that_nobody_unpacks_costs_nothing() -> None:
    """A compressed body is not unpacked where no body is read, nor further than a body may go where one is."""
    bomb = endless_bomb()
    async with measured_process() as service:
        await RestClient(service.url).create()
        before = service.memory(), service.busy_s()
        for path in ("/nowhere", "/v1/sessions/s/events"):
            request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
            request += f"Content-Length: {len(bomb)}\r\n\r\n"
            answer = await raw_answers(service.rest_address, request.encode() + bomb)
            assert status_codes(answer) in ([404], [413], [])  # or hung up on while it was still sending
        assert service.memory() - before[0] < 32 * MIB
        assert service.busy_s() - before[1] < 1.5


def narrow(service: MeasuredProcess) -> socket.socket:
    """A websocket in a socket with little room for what comes, and a short patience for what goes."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(2)
    peer.connect(tuple(service.ingest_address))
    peer.sendall(handshake_head(service.ingest_address))
    assert b" 101 " in peer.recv(500)
    return peer


def send_all(peer: socket.socket, piece: bytes, most: int) -> int:
    """Send again and again, until the service takes no more or has had so many bytes; how many it had."""
    sent = 0
    with suppress(OSError):
        while sent < most:
            peer.sendall(piece)
            sent += len(piece)
    return sent


async def test_pings_whose_pongs_are_not_read_take_no_memory() -> None:
    """A peer that pings and does not read is not read any more once its pongs pile up."""
    async with measured_process() as service:
        await call(service, "warm-up")
        before = service.memory()
        with narrow(service) as peer:
            await asyncio.to_thread(send_all, peer, websocket_frame(PING, bytes(125)) * 1_000, 24 * MIB)
            assert (service.memory() - before) / MIB < 12


async def test_acks_that_are_not_read_take_no_memory() -> None:
    """A producer that sends and reads nothing is not read any more once its answers pile up."""
    async with measured_process() as service:
        await call(service, "warm-up")
        before = service.memory()
        with narrow(service) as peer:
            peer.sendall(websocket_frame(TEXT, b'{"type":"session.open","session_id":"s"}'))
            again = together(*[b'{"type":"resume","seq":1}', b'{"type":"nope","seq":2}'] * 200)
            assert await asyncio.to_thread(send_all, peer, again * 10, 100 * MIB) < 100 * MIB
            assert (service.memory() - before) / MIB < 32
        await call(service, "after")
