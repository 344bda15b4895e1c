"""Calls of OpenAI's realtime shape that are audio alone: the vendor, or all callers, as a process of its own.

    python -m bench.harness.audio_calls vendor --rate 40
    python -m bench.harness.audio_calls callers --url ws://… --calls 20 --rate 40 --seconds 10

Both sides send at `--rate` frames a second of 24 kHz PCM. Each frame of the vendor carries the time at which it was
sent, on the clock that all processes of a machine share. The vendor prints its port, and ends with its standard input;
the callers print the delays that they saw, as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
import time
from contextlib import suppress

import msgspec
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

BYTES_A_SECOND = 48_000
"""Of PCM: 24 kHz, 16 bits."""
MARK = b'"event_id":"event_'
STAMP_DIGITS = 20
WARM_UP_S = 1.0


def audio(rate: float) -> str:
    """What one frame carries, as base64."""
    return base64.b64encode(random.Random(1).randbytes(int(BYTES_A_SECOND / rate))).decode()


async def send_paced(connection: ClientConnection | ServerConnection, rate: float, head: str, tail: str) -> None:
    """Send a frame at each beat, however late the last one was."""
    loop = asyncio.get_running_loop()
    due = loop.time() + random.random() / rate
    with suppress(ConnectionClosed):
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += 1 / rate
            await connection.send(f"{head}{time.monotonic_ns():0{STAMP_DIGITS}}{tail}")


async def run_vendor(rate: float) -> None:
    head = '{"type":"response.output_audio.delta","event_id":"event_'
    tail = (
        '","response_id":"resp_1","item_id":"item_1","output_index":0,"content_index":0,"delta":"' + audio(rate) + '"}'
    )

    async def handle(connection: ServerConnection) -> None:
        sending = asyncio.create_task(send_paced(connection, rate, head, tail))
        with suppress(ConnectionClosed):
            while True:
                await connection.recv(decode=False)
        sending.cancel()

    async with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def run_call(url: str, rate: float, until: float, delays_ns: list[int]) -> None:
    """One call; the delays of what comes after the warm-up are added."""
    head, tail = '{"type":"input_audio_buffer.append","event_id":"event_', '","audio":"' + audio(rate) + '"}'
    async with connect(url, compression=None, max_size=None) as connection:
        begin = time.monotonic() + WARM_UP_S
        sending = asyncio.create_task(send_paced(connection, rate, head, tail))
        while (now := time.monotonic()) < until:
            frame = await connection.recv(decode=False)
            at = frame.index(MARK) + len(MARK)
            if now >= begin:
                delays_ns.append(time.monotonic_ns() - int(frame[at : at + STAMP_DIGITS]))
        sending.cancel()


async def run_callers(url: str, calls: int, rate: float, seconds: float) -> None:
    delays_ns: list[int] = []
    until = time.monotonic() + WARM_UP_S + seconds
    await asyncio.gather(*(run_call(url, rate, until, delays_ns) for _ in range(calls)))
    print(msgspec.json.encode({"delays_us": sorted(delay // 1_000 for delay in delays_ns)}).decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("vendor", "callers"))
    parser.add_argument("--url", default="")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--rate", type=float, default=40.0, help="frames a second, of each call and side")
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    if chosen.side == "vendor":
        uvloop.run(run_vendor(chosen.rate))
    else:
        uvloop.run(run_callers(chosen.url, chosen.calls, chosen.rate, chosen.seconds))


if __name__ == "__main__":
    main()
