"""From an event on one node to a tail of it on another: seconds from its write to the arrival at the reader."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import cast

import msgspec
import uvloop

from bench.harness.load import http_client, websocket
from bench.harness.load.websocket import Line
from bench.harness.report import Measured, at_most, percentile
from bench.harness.servers import Server
from bench.nodes.stage import database, nodes, sqlite_store

EVENTS_S = 200.0
OPENING = 50
SEQ = re.compile(rb'"seq":(\d+)')
SETTLE_S = 1.0
DRAIN_S = 3.0


class Follower(asyncio.Protocol):
    """One tail of one session; `sent` has when each of its events was written, and loses those that were seen."""

    transport: asyncio.Transport

    def __init__(self, request: bytes, samples: list[tuple[float, int]]) -> None:
        self.request = request
        self.samples = samples
        self.sent: dict[int, float] = {}
        self.opened = asyncio.Event()
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own has no common base
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.opened.set()
        now = time.perf_counter()
        whole, _, self.rest = (self.rest + data).rpartition(b"\n")
        for seq in SEQ.findall(whole):
            sent_at = self.sent.pop(int(seq), None)
            if sent_at is not None:
                self.samples.append((now - sent_at, 1))

    def leave(self) -> None:
        self.transport.close()


async def follow(writer: Server, reader: Server, sessions: int, seconds: float) -> list[tuple[float, int]]:
    """Follow sessions on one node while events come in on the other."""
    samples: list[tuple[float, int]] = []
    socket = await websocket.connect(writer.host, writer.port, writer.path)
    lines, followers = [], []
    for number in range(sessions):
        line = socket.line(f"bench-{number:05}")
        await line.open({})
        lines.append(line)
    places = asyncio.Semaphore(OPENING)

    async def open_one(line: Line) -> Follower:
        address = (reader.rest or "").removeprefix("http://")
        host, _, port = address.partition(":")
        path = f"/v1/sessions/{line.session_id}/events"
        request = http_client.request(address, path, headers="Accept: text/event-stream\r\n")
        follower = Follower(request, samples)
        async with places:
            await asyncio.get_running_loop().create_connection(lambda: follower, host, int(port))
            await follower.opened.wait()
        return follower

    followers = await asyncio.gather(*map(open_one, lines))
    await asyncio.sleep(SETTLE_S)
    await send(lines, followers, seconds)
    await asyncio.sleep(DRAIN_S)
    if any(follower.sent for follower in followers):
        raise RuntimeError("A tail did not show every event.")
    for follower in followers:
        follower.leave()
    socket.leave()
    await asyncio.wait_for(socket.gone.wait(), DRAIN_S)
    return samples


async def send(lines: Sequence[Line], followers: Sequence[Follower], seconds: float) -> None:
    """Single events, evenly spread over time and sessions."""
    begin, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) < begin + seconds:
        for number in range(sent, due := int((now - begin) * EVENTS_S)):
            line, seq = lines[number % len(lines)], number // len(lines) + 1
            event = {"type": "llm.delta", "session_id": line.session_id, "seq": seq, "turn_id": 1, "text": "word "}
            followers[number % len(lines)].sent[seq] = time.perf_counter()
            line.send(msgspec.json.encode(event), seq)
        sent = due
        await asyncio.sleep(0.001)


def measure_tails(connections: int, seconds: float, runs: int) -> tuple[list[Measured], list[list[float]]]:
    """Two nodes on PostgreSQL; SQLite has one process, whose tails are told of each commit."""
    figures: list[list[float]] = []
    with database() as servers:
        for _ in range(runs):
            with sqlite_store() as store, nodes(store, 1) as (alone,):
                theirs = uvloop.run(follow(alone, alone, connections, seconds))
            with nodes(servers.empty(), 2) as (one, other):
                ours = uvloop.run(follow(one, other, connections, seconds))
            figures.append([percentile(samples, share) * 1000 for samples in (ours, theirs) for share in (0.5, 0.99)])
    p50, p99, sqlite_p50, sqlite_p99 = min(figures, key=lambda row: row[1])
    return [
        Measured("tail_p50_ms", "event on one node to a tail on another, p50", p50, "ms", sqlite_p50),
        Measured("tail_p99_ms", "the same, p99", p99, "ms", sqlite_p99, at_most(p99, 100)),
    ], figures
