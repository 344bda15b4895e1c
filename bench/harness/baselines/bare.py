"""The bare loop: the least that a durable ingest must do, as the baseline of `bench.ingest`.

websockets' own iteration, one typed decode per event, a group commit with executemany into SQLite (WAL,
synchronous=FULL, with a table and an index like voicemem's journal), one cumulative ack per connection and commit.
No fold, no sessions, no order, no limits, no error messages.

    python -m bench.harness.baselines.bare PATH     prints where it listens; at SIGTERM, how many events are stored
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from itertools import count

import apsw
import msgspec
import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from voicemem.protocol.events import IncomingEvent, SessionOpen
from voicemem.protocol.types import MAX_FRAME_BYTES

EVENT = msgspec.json.Decoder(IncomingEvent)
PIECES = msgspec.json.Decoder(list[msgspec.Raw])
READY = '{"type":"session.ready","next_seq":1}'
SCHEMA = """
pragma journal_mode = wal;
pragma synchronous = full;
create table journal (stream integer not null, position integer not null, payload blob not null) strict;
create unique index journal_by_position on journal (stream, position);
"""
Row = tuple[int, int, bytes]


class Bare:
    """Everything received waits in one list; a commit takes all of it."""

    def __init__(self, path: str) -> None:
        self.database = apsw.Connection(path)
        self.database.execute(SCHEMA).fetchall()
        self.streams = count(1)
        self.waiting: list[Row] = []
        self.unanswered: dict[ServerConnection, int] = {}
        self.wake = asyncio.Event()

    async def handle(self, websocket: ServerConnection) -> None:
        stream = next(self.streams)
        async for frame in websocket:
            text = frame.encode() if isinstance(frame, str) else frame
            pieces = [bytes(piece) for piece in PIECES.decode(text)] if text.startswith(b"[") else [text]
            for piece in pieces:
                event = EVENT.decode(piece)
                if isinstance(event, SessionOpen) or event.seq is None:
                    await websocket.send(READY)
                    continue
                self.waiting.append((stream, event.seq, piece))
                self.unanswered[websocket] = event.seq
            self.wake.set()

    async def commit_forever(self) -> None:
        """Commit in a thread, one commit at a time; what arrives meanwhile goes into the next one."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            rows, self.waiting = self.waiting, []
            acks, self.unanswered = self.unanswered, {}
            await asyncio.to_thread(self.insert, rows)
            for websocket, seq in acks.items():
                with suppress(ConnectionClosed):
                    await websocket.send(f'{{"type":"ack","seq":{seq}}}')

    def insert(self, rows: list[Row]) -> None:
        self.database.execute("begin immediate")
        self.database.executemany("insert into journal values (?, ?, ?)", rows)
        self.database.execute("commit")

    def stored(self) -> int:
        """Number of events in the journal."""
        return int(self.database.execute("select count(*) from journal").get)


async def main(path: str) -> None:
    bare, stopped = Bare(path), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with serve(bare.handle, "127.0.0.1", 0, compression=None, max_size=MAX_FRAME_BYTES) as server:
        committing = asyncio.create_task(bare.commit_forever())
        port = next(iter(server.sockets)).getsockname()[1]
        print(f"events ws://127.0.0.1:{port}/", flush=True)
        await stopped.wait()
        committing.cancel()
    print(f"stored {bare.stored()}", flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
